"""The directories of a node: shared memory and temporary files that live and die with it."""

import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from taskd.kit.machine import remove_tree

SOCKET_LIMIT = 100


@dataclass(frozen=True, slots=True)
class NodeDirs:
    """Where one node keeps what does not outlive it."""

    shm: str
    tmp: str

    @property
    def socket(self) -> str:
        """Return the path of the proxy's socket."""
        return str(Path(self.tmp) / "proxy.sock")

    def make(self) -> None:
        """Make the directories, private to this user."""
        for path in (self.shm, self.tmp):
            Path(path).mkdir(mode=0o700, parents=True, exist_ok=True)


def node_dirs(job: str, node: str, scratch: str) -> NodeDirs:
    """Name the directories of a node. A socket's path is short by law, so long names become a digest.

    Two jobs of one name may run side by side in two homes; ``scratch`` tells them apart.
    """
    name = f"taskd-{job}-{node}-{scratch}"
    memory = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else Path(tempfile.gettempdir())  # noqa: S108
    tmp = Path(tempfile.gettempdir()) / name
    if len(str(tmp)) > SOCKET_LIMIT - len("/proxy.sock"):
        tmp = Path("/tmp") / f"taskd-{hashlib.sha256(str(tmp).encode()).hexdigest()[:16]}"  # noqa: S108
    return NodeDirs(str(memory / f"{name}.shm"), str(tmp))


def remove_scratch(job: str, scratch: str) -> None:
    """Remove what a job left whose launcher had no chance to."""
    if not scratch:
        return
    for place in (Path("/dev/shm"), Path(tempfile.gettempdir())):  # noqa: S108
        for path in place.glob(f"taskd-{job}-*-{scratch}*"):
            remove_tree(str(path))
