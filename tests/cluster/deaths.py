"""A control plane that is killed at a chosen write of its state: before it is kept, or after.

The plane keeps the state of a job in the cluster before it gives an order. So between two of these writes it
is in one phase, and there are two moments that differ for whoever comes next:

* ``AFTER`` the write of a phase: the phase is kept, and nothing that it asks for was done;
* ``BEFORE`` the write of the next one: all was done, the answer came, and nobody remembers it.

A strike that never falls is a failure of the test, not a pass: `fell` says which phases there were.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from taskd.testing.cluster import ControllerProcess, RealNodes
from tests.kube.operator.proxy import AFTER, BEFORE, Proxy

STATE = "/configmaps/taskd-plane-"
INIT = "init"
FALL_S = 90.0

__all__ = ["AFTER", "BEFORE", "INIT", "MortalPlane"]


class MortalPlane(Proxy):
    """A controller with a plane behind a way to the API server that kills it once it is armed."""

    def __init__(self, cluster: RealNodes, namespace: str, home: Path) -> None:
        super().__init__(cluster, home)
        self.course: list[str] = []
        """The phases of the fault that is under way, in the order in which they were kept or tried to be."""
        self._armed: tuple[str, str] | None = None
        self._fell = threading.Event()
        self._watched = threading.Lock()
        self.controller = ControllerProcess(
            cluster, namespace, home / "controller.log", plane=True, kubeconfig=self.kubeconfig
        )
        self.kill = self._strike_down

    def __enter__(self) -> Self:
        super().__enter__()
        self.controller.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        code = self.controller.stop()
        super().__exit__(kind, error, trace)
        assert error or 0 == code, self.controller.log.read_text()

    def watch(self) -> None:
        """Write down the phases of the next fault, and do no harm."""
        with self._watched:
            self.course, self._armed = [], None

    def arm(self, phase: str, way: str) -> None:
        """Strike at the write of a phase of the next fault, once."""
        with self._watched:
            self.course, self._armed = [], (phase, way)
            self._fell.clear()

    def fell(self) -> None:
        """Wait until the plane was killed, and start another one."""
        if not self._fell.wait(FALL_S):
            raise AssertionError(f"it was never at {self._armed}; its phases were {self.course}")
        self.controller.start()

    def judge(self, method: str, path: str, body: bytes | None) -> str | int | None:
        """Strike by the phase that is written."""
        if method != "GET" and STATE in path and body:
            with self._watched:
                phase = str(json.loads(json.loads(body)["data"]["state"])["phase"])
                if self.course[-1:] != [phase] and (self.course or phase != INIT):
                    self.course.append(phase)
                    if self._armed is not None and self._armed[0] == phase:
                        way, self._armed = self._armed[1], None
                        return way
        return super().judge(method, path, body)

    def _strike_down(self) -> None:
        self.controller.kill()
        self._fell.set()
