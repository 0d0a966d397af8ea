"""The nursery of a pod, sent ahead of everything else.

Most of the time until the ranks of a new pod run is the import of their framework. It needs nothing of what
the launcher, its roles and the manager find out meanwhile, so it begins first: the launcher starts the
nursery itself, with the warm process in it, and its first agent takes it over by the socket that it inherits.
From then on it is that agent's as if it had started it, and ends with it; before, it ends with the launcher.
"""

import os
import socket
import subprocess
from typing import TYPE_CHECKING

from taskd.agent.surroundings import NURSERY_VARIABLE, base_env, start_nursery, warm_up
from taskd.core.launch import LaunchSpec

if TYPE_CHECKING:
    import asyncio


class Forerunner:
    """A nursery that waits for its agent."""

    def __init__(self, process: "subprocess.Popen[bytes]", sock: socket.socket) -> None:
        """Hold the agent's end of its socket."""
        self._process = process
        self._sock: socket.socket | None = sock

    @property
    def fds(self) -> tuple[int, ...]:
        """Return what the agent must inherit; nothing once it was handed over."""
        return () if self._sock is None else (self._sock.fileno(),)

    @property
    def env(self) -> dict[str, str]:
        """Return how the agent is told."""
        return {} if self._sock is None else {NURSERY_VARIABLE: f"{self._sock.fileno()},{self._process.pid}"}

    def let_go(self) -> None:
        """Keep nothing of it: it belongs to the agent that inherited it, or ends if nobody did."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def watch(self, loop: "asyncio.AbstractEventLoop") -> None:
        """Have it buried when it ends, whosever it is by then: this process is its parent."""
        try:
            pidfd = os.pidfd_open(self._process.pid)
        except (OSError, AttributeError):
            return

        def ended() -> None:
            loop.remove_reader(pidfd)
            os.close(pidfd)
            self.bury()

        loop.add_reader(pidfd, ended)

    def bury(self) -> None:
        """Wait for its end; for who knows that it is near."""
        self._process.wait()


def send_ahead(spec: LaunchSpec) -> Forerunner | None:
    """Start the nursery of the only node here; None where nothing is to be prepared, or it cannot be now."""
    spare = spec.pod is not None and spec.pod.spare
    warm = warm_up(spec, spare=spare)
    if not warm or spec.local_nodes != 1 or spec.spare_nodes or os.environ.get("LD_PRELOAD"):
        # What is wrong with LD_PRELOAD is mended first, and a process that began with it is of no use then.
        return None
    try:
        return Forerunner(*start_nursery(base_env(spec, os.environ), warm))
    except OSError:
        return None  # The agent tries it itself, and says why if it cannot either.
