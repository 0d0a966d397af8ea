"""`taskd controller` as a process beside a cluster, with or without a control plane; it may be killed."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from taskd.testing.cluster import planeservice
from taskd.testing.cluster.real_nodes import RealNodes
from taskd.testing.kube.client import ApiError

CHECKOUT: Final = Path(__file__).resolve().parents[4]
REFERENCE_NAMESPACES: Final = ("mindx-dl", "cluster-system")
_START_S: Final = 60.0
_STOP_S: Final = 60.0
_LEADS: Final = '"synced"'


class ControllerProcess:
    """One controller for one namespace; with ``plane`` it is a control plane for its jobs, too.

    The plane's port is chosen once: managers in pods have its address from their environment, and find a
    controller that was killed and started again under the same one.

    With ``secure`` it is served as it is without any flag: the controller makes certificates (the authority
    is a Secret of the namespace), and jobs find the plane by its documented name. One at a time can have it.

    ``kubeconfig`` names another way to the same API server.
    """

    def __init__(
        self,
        cluster: RealNodes,
        namespace: str,
        log: Path,
        *flags: str,
        plane: bool = False,
        secure: bool = False,
        kubeconfig: Path | None = None,
    ) -> None:
        self.log = log
        self.plane = ""
        self._cluster = cluster
        self._published = plane and secure
        self._command = [
            sys.executable, "-m", "taskd.cli.main", "controller",
            "--kubeconfig", str(kubeconfig or cluster.kubeconfig), "--namespace", namespace,
            "--listen", "127.0.0.1:0", "--no-leader-elect", *flags,
        ]  # fmt: skip
        if plane:
            _make_namespaces(cluster)
            self.plane = _free_address(cluster)
            self._command += ["--plane", "--plane-listen", self.plane]
            self._command += ["--lease-namespace", namespace] if secure else ["--plane-insecure"]
        if self._published:
            # Before the controller starts: its certificate is for the address of the Service, too.
            host, _, port = self.plane.rpartition(":")
            planeservice.publish(cluster, host, int(port))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Start it, and wait until it has seen the cluster."""
        before = self._count()
        with self.log.open("ab") as stream:
            env = {**os.environ, "PYTHONPATH": str(CHECKOUT / "src")}
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stderr=stream, env=env)
        deadline = time.monotonic() + _START_S
        while self._count() == before:
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._process.kill()
                raise RuntimeError(f"the controller did not start:\n{self.log.read_text()[-4000:]}")
            time.sleep(0.02)
        return self

    def _count(self) -> int:
        return self.log.read_text().count(_LEADS) if self.log.exists() else 0

    def kill(self) -> None:
        """End it with kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> int:
        """End it in order, and take its name away; returns its exit code."""
        if self._published:
            planeservice.withdraw(self._cluster)
        if self._process is None:
            return 0
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(_STOP_S)
        finally:
            self.kill()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _free_address(cluster: RealNodes) -> str:
    """Return an address of this machine that pods reach, with a port that nobody has."""
    found = re.search(r"https://([0-9.]+):", cluster.kubeconfig.read_text())
    host = found[1] if found else ""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return f"{host}:{probe.getsockname()[1]}"


def _make_namespaces(cluster: RealNodes) -> None:
    """Make the reference's namespaces, in which the plane writes what others read."""
    for name in REFERENCE_NAMESPACES:
        if cluster.api.find(f"/api/v1/namespaces/{name}") is None:
            try:
                cluster.create_namespace(name)
            except ApiError as error:
                # Somebody else was quicker.
                if error.code != 409:  # noqa: PLR2004 - Conflict
                    raise
