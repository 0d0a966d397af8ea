"""The proxy of a container whose launcher is not ours: a child of the process that asked for it.

Two facts decide how it is started. Users call ``init_taskd_proxy`` in a thread of its own, and the kernel's
"die with your parent" means the parent *thread*; so the child lives by a lifeline, the end of which it reads
when the whole process is gone. And the agent of an msrun needs a proxy too, while roles know nothing of each
other; so this starts one by its module's name, and there is one per process, whoever asked first.
"""

import atexit
import contextlib
import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from taskd.kit.container import make_socket_dir

START_LIMIT_S = 5.0
END_LIMIT_S = 2.0
LOOK_S = 0.02
REVIVE_EVERY_S = 1.0

log = logging.getLogger("taskd")


class Sidecar:
    """The proxy process of this process, if it has one."""

    def __init__(self) -> None:
        """Have none yet."""
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline: socket.socket | None = None
        self._config: Mapping[str, Any] | None = None
        self._next_revival = 0.0
        os.register_at_fork(after_in_child=self._forget)
        atexit.register(self.end)

    @property
    def wanted(self) -> bool:
        """Tell whether somebody asked for a proxy and has not ended it since."""
        return self._config is not None

    @property
    def pid(self) -> int:
        """Return the child's process id, 0 if it does not run."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else 0

    def start(self, config: Mapping[str, Any], wait_s: float = START_LIMIT_S) -> str:
        """Start the proxy and wait for its socket; returns what went wrong, if anything did.

        With ``wait_s`` 0 it does not wait: an agent keeps knocking anyway.
        """
        with self._lock:
            if self._config is not None:
                return ""
            where = config["socket"]
            problem = make_socket_dir(where)
            if problem:
                return problem
            if answers(where):
                return f"another proxy serves {where}; choose another ListenPort, or end that one"
            self._config = dict(config)
            self._spawn()
            problem = self._wait(where, wait_s) if wait_s else ""
            if problem:
                self._end()
            return problem

    def end(self) -> None:
        """End the proxy, if there is one."""
        with self._lock:
            self._end()

    def revive(self) -> None:
        """Start the proxy again if it died; called by whoever misses it, so not too often."""
        with self._lock:
            now = time.monotonic()
            if self._config is None or self.pid or now < self._next_revival:
                return
            self._next_revival = now + REVIVE_EVERY_S
            log.warning("the proxy has died and is started again")
            self._close_lifeline()
            self._spawn()

    def _spawn(self) -> None:
        mine, theirs = socket.socketpair()
        env = {
            **os.environ,
            "TASKD_ROLE_CONFIG": json.dumps(self._config),
            "TASKD_LIFELINE_FD": str(theirs.fileno()),
        }
        env.pop("TASKD_PARENT_PID", None)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "taskd.proxy"],
                env=env,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        finally:
            theirs.close()
        self._lifeline = mine

    def _wait(self, where: str, wait_s: float) -> str:
        deadline = time.monotonic() + wait_s
        while time.monotonic() < deadline:
            if not self.pid:
                return "the proxy's process ended at once; its log says why"
            if answers(where):
                return ""
            time.sleep(LOOK_S)
        return f"the proxy did not open {where} within {wait_s:g} s; its log says why"

    def _end(self) -> None:
        process, self._process = self._process, None
        where = self._config["socket"] if self._config is not None else ""
        self._config = None
        self._close_lifeline()
        if process is None:
            return
        try:
            process.wait(END_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if not answers(where):
            with contextlib.suppress(OSError):
                Path(where).unlink(missing_ok=True)
                Path(where).parent.rmdir()

    def _close_lifeline(self) -> None:
        if self._lifeline is not None:
            self._lifeline.close()
            self._lifeline = None

    def _forget(self) -> None:
        """In a forked child: the proxy belongs to the parent, and must end with the parent alone."""
        self._lock = threading.Lock()
        self._close_lifeline()
        self._process, self._config = None, None


def answers(path: str) -> bool:
    """Tell whether somebody listens at a unix socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.settimeout(0.5)
            probe.connect(path)
        except OSError:
            return False
        return True


sidecar = Sidecar()
