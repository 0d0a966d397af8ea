"""What the roles of one container agree on when no launcher of ours put them together.

``taskd run`` tells every role where the others are. A manager.py, an msrun and a training script know
nothing of each other but the job's environment and a port number. So the names are a function of these: the
job is ``MINDX_TASK_ID``, and the port at which the reference system's proxy listens names our unix socket.
"""

import hashlib
import logging
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

DEFAULT_JOB = "default"
DEFAULT_LISTEN_PORT = "9602"
DEFAULT_LOG_DIRECTORY = "taskd_log"
LOG_DIRECTORY_MODE = 0o750
SOCKET_LIMIT = 100  # the kernel's limit is 107 bytes

log = logging.getLogger("taskd")


def job_name(env: Mapping[str, str]) -> str:
    """Return the job's name; a container without one has a single job."""
    return env.get("MINDX_TASK_ID", "").strip() or DEFAULT_JOB


def socket_path(listen_port: str) -> str:
    """Return the proxy's socket for a ListenPort, the same in every process of a user in this container."""
    place = Path(tempfile.gettempdir()) / f"taskd-{os.getuid()}-{listen_port}"
    if len(str(place)) > SOCKET_LIMIT - len("/proxy.sock"):
        digest = hashlib.sha256(str(place).encode()).hexdigest()[:16]
        place = Path("/tmp") / f"taskd-{digest}"  # noqa: S108 - private by its mode, checked below
    return str(place / "proxy.sock")


def page_path(socket: str, rank: int) -> str:
    """Return the page of a rank whose environment does not name one: it lies beside the socket."""
    return str(Path(socket).with_name(f"rank-{rank}.page"))


def make_socket_dir(socket: str) -> str:
    """Make the directory of a socket, for this user alone; returns what is wrong with it, if anything is."""
    place = Path(socket).parent
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        stat = place.lstat()
    except OSError as error:
        return f"{place} cannot be made ({error.strerror}); set TMPDIR to a directory that can be written"
    if stat.st_uid != os.getuid() or place.is_symlink():
        return f"{place} belongs to somebody else; choose another ListenPort, or set TMPDIR"
    return ""


def role_log(name: str, env: Mapping[str, str]) -> str:
    """Return where a role writes its log; nowhere if the directory cannot be written.

    A log is not worth a training run, so the answer to a bad directory is one line and no file.
    """
    directory = Path(env.get("TASKD_LOG_PATH", "").strip() or DEFAULT_LOG_DIRECTORY)
    path = directory / name
    try:
        directory.mkdir(mode=LOG_DIRECTORY_MODE, parents=True, exist_ok=True)
        path.open("a").close()
    except OSError as error:
        log.warning("no log file: %s cannot be written (%s); going on without", path, error.strerror)
        return os.devnull
    return str(path.absolute())
