"""A real control plane: etcd, kube-apiserver, kube-controller-manager, kube-scheduler.

Ready in seconds, without root and without containers, on loopback unless told otherwise. Nodes and their pods
are played by others (see `nodes`), or are real ones (see `taskd.testing.cluster`). Every program is started
with the certificates and tokens of this one run, in a directory that goes with it. The API server and the
others can be killed, paused and started again while tests look on.
"""

import atexit
import base64
import json
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from taskd.testing.kube import binaries
from taskd.testing.kube.audit import POLICY, AuditLog
from taskd.testing.kube.cluster import START_TIMEOUT_S, Cluster
from taskd.testing.kube.processes import (
    Program,
    ProgramFailed,
    free_port,
    remove_directory,
    working_directory,
)

_LOOPBACK: Final = "127.0.0.1"

# Their own names, so that the audit log tells them from the administrator; the administrator's rights, which
# spares the controller-manager forty service accounts at every start.
_COMPONENTS: Final = {
    "kube-controller-manager": "system:kube-controller-manager",
    "kube-scheduler": "system:kube-scheduler",
}


class ControlPlane(Cluster):
    """One control plane; a context manager, or `start` and `stop`.

    audit: keep an audit log (`audit`). scheduler: run kube-scheduler, for pods that name no other.
    node_grace_s: how long a node may be silent before it is NotReady. unreachable_s: how long pods stay on
    such a node before they are evicted (where they say nothing about it; 300 is Kubernetes' default).
    address: where the API server listens, for nodes that do not share our loopback. users: further users by
    name, each with its group, for which `user_kubeconfig` writes the file. scheduler_names: names beside its
    own to which kube-scheduler listens.
    """

    def __init__(
        self,
        *,
        audit: bool = False,
        scheduler: bool = True,
        node_grace_s: int = 40,
        unreachable_s: int = 300,
        address: str = _LOOPBACK,
        users: Mapping[str, str] | None = None,
        scheduler_names: Sequence[str] = (),
    ) -> None:
        names = ["etcd", "kube-apiserver", "kube-controller-manager", "kubectl"]
        if scheduler:
            names.append("kube-scheduler")
        self._paths = binaries.require(*names)
        self._with_audit = audit
        self._node_grace_s = node_grace_s
        self._unreachable_s = unreachable_s
        self._address = address
        self._users = dict(users or {})
        self._scheduler_names = scheduler_names
        self._tokens = {
            "admin": secrets.token_hex(16),
            **{name: secrets.token_hex(16) for name in (*_COMPONENTS, *self._users)},
        }
        self._programs: dict[str, Program] = {}
        self._audit: AuditLog | None = None
        self._home = working_directory()
        atexit.register(self.stop)

    def start(self) -> Self:
        """Start everything and wait until pods can be created."""
        started = time.monotonic()
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        self.start_seconds = time.monotonic() - started
        return self

    def stop(self) -> None:
        """End every program that was started here, and remove the directory."""
        atexit.unregister(self.stop)
        # Their work is thrown away with the directory, so nobody needs to be asked politely.
        for program in reversed(self._programs.values()):
            program.kill()
        remove_directory(self._home)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def apiserver(self) -> Program:
        """The API server: `kill`, `pause`, `resume`, `start`; then `wait_ready`."""
        return self._programs["kube-apiserver"]

    @property
    def etcd(self) -> Program:
        """The store."""
        return self._programs["etcd"]

    @property
    def controller_manager(self) -> Program:
        """The controller-manager (garbage collection, namespaces, service accounts, node lifecycle …)."""
        return self._programs["kube-controller-manager"]

    @property
    def programs(self) -> list[Program]:
        """Everything that was started, in order."""
        return [*self._programs.values()]

    @property
    def audit(self) -> AuditLog:
        """The audit log, where it was asked for."""
        if self._audit is None:
            raise ProgramFailed("this control plane keeps no audit log: ControlPlane(audit=True)")
        return self._audit

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until the API server answers that it is ready."""
        self.api.wait_ready(timeout_s=timeout_s, check=self.apiserver.check)

    def user_kubeconfig(self, user: str) -> Path:
        """Write a kubeconfig file for one of the `users`."""
        return self.write_kubeconfig(user, self._tokens[user])

    def _start(self) -> None:
        home = self._home
        self._write_secrets()
        for attempt in range(5):
            # Between our look for a free port and their bind another process may take it.
            ports = [free_port() for _ in range(3)]
            self._add("etcd", self._etcd_flags(*ports[:2])).start()
            self._add("kube-apiserver", self._apiserver_flags(ports[0], ports[2])).start()
            try:
                self._connect(ports[2])
                break
            except ProgramFailed as error:
                for program in self._programs.values():
                    program.kill()
                if "address already in use" not in str(error) or attempt == 4:  # noqa: PLR2004
                    raise
        if self._with_audit:
            self._audit = AuditLog(home / "audit.log", self.client(user_agent="taskd-audit-mark"))
        for name in _COMPONENTS:
            if name in self._paths:
                self.write_kubeconfig(name, self._tokens[name])
        self._add("kube-controller-manager", self._controller_manager_flags()).start()
        if "kube-scheduler" in self._paths:
            self._add("kube-scheduler", self._scheduler_flags()).start()
        self._wait_controllers()

    def _connect(self, port: int) -> None:
        """Become a client as soon as the API server has written its certificate."""
        certificate = self._home / "certificates" / "apiserver.crt"
        deadline = time.monotonic() + START_TIMEOUT_S
        # It is there for a moment before it is filled.
        end = b"-----END CERTIFICATE-----\n"
        while not certificate.exists() or not certificate.read_bytes().endswith(end):
            for program in self._programs.values():
                program.check()
            if time.monotonic() > deadline:
                raise ProgramFailed(f"kube-apiserver wrote no certificate: {self.apiserver.tail()}")
            time.sleep(0.02)
        super().__init__(
            url=f"https://{self._address}:{port}",
            ca=certificate,
            token=self._tokens["admin"],
            kubectl=self._paths["kubectl"],
            directory=self._home,
        )

        def check() -> None:
            for program in self._programs.values():
                program.check()

        self.api.wait_ready(timeout_s=START_TIMEOUT_S, check=check)

    def _wait_controllers(self) -> None:
        """Wait until the controller-manager has made the service account that pods need."""

        def made() -> bool:
            for program in self._programs.values():
                program.check()
            return self.api.find("/api/v1/namespaces/default/serviceaccounts/default") is not None

        self.wait(made, timeout_s=START_TIMEOUT_S)

    def _add(self, name: str, flags: list[str]) -> Program:
        # A slow machine must not look like a broken one, hence no limits of ours on memory or processors.
        program = Program([self._paths[name], *flags], log=self._home / f"{name}.log")
        self._programs[name] = program
        return program

    def _write_secrets(self) -> None:
        home = self._home
        lines = [f'{self._tokens["admin"]},admin,admin,"system:masters"']
        lines += [
            f'{self._tokens[name]},{user},{name},"system:masters"' for name, user in _COMPONENTS.items()
        ]
        lines += [f'{self._tokens[user]},{user},{user},"{group}"' for user, group in self._users.items()]
        _write_private(home / "tokens.csv", "\n".join(lines) + "\n")
        _write_private(home / "service-account.key", private_key())
        (home / "audit-policy.yaml").write_text(json.dumps(POLICY))

    def _etcd_flags(self, client: int, peer: int) -> list[str]:
        return [
            f"--data-dir={self._home / 'etcd'}",
            f"--listen-client-urls=http://127.0.0.1:{client}",
            f"--advertise-client-urls=http://127.0.0.1:{client}",
            f"--listen-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-cluster=default=http://127.0.0.1:{peer}",
            # Survives a kill of the process, not of the machine, and is several times faster.
            "--unsafe-no-fsync",
            "--log-level=warn",
        ]

    def _apiserver_flags(self, etcd: int, port: int) -> list[str]:
        home = self._home
        flags = [
            f"--etcd-servers=http://127.0.0.1:{etcd}",
            f"--bind-address={self._address}",
            f"--advertise-address={self._address}",
            f"--secure-port={port}",
            f"--cert-dir={home / 'certificates'}",
            f"--token-auth-file={home / 'tokens.csv'}",
            "--authorization-mode=Node,RBAC",
            "--anonymous-auth=false",
            f"--service-account-key-file={home / 'service-account.key'}",
            f"--service-account-signing-key-file={home / 'service-account.key'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-cluster-ip-range=10.96.0.0/12",
            # exec and logs: nobody serves the host names of nodes.
            "--kubelet-preferred-address-types=InternalIP",
            f"--default-not-ready-toleration-seconds={self._unreachable_s}",
            f"--default-unreachable-toleration-seconds={self._unreachable_s}",
            "--profiling=false",
            "--delete-collection-workers=8",
        ]
        if self._address == _LOOPBACK:
            # An endpoint on a loopback address is not valid, and no pod here could use it.
            flags.append("--endpoint-reconciler-type=none")
        if self._with_audit:
            flags += [
                f"--audit-policy-file={home / 'audit-policy.yaml'}",
                f"--audit-log-path={home / 'audit.log'}",
                "--audit-log-mode=blocking",
                # One file: marks are places in it, and at 100 MB the server would begin another.
                "--audit-log-maxsize=100000",
            ]
        return flags

    def _controller_manager_flags(self) -> list[str]:
        return [
            f"--kubeconfig={self._home / 'kube-controller-manager.kubeconfig'}",
            f"--service-account-private-key-file={self._home / 'service-account.key'}",
            f"--root-ca-file={self._home / 'certificates' / 'apiserver.crt'}",
            "--leader-elect=false",
            "--secure-port=0",
            # Its default of 20 requests a second is meant for a shared cluster.
            "--kube-api-qps=1000",
            "--kube-api-burst=2000",
            "--concurrent-namespace-syncs=20",
            "--namespace-sync-period=1m",
            "--node-monitor-period=1s",
            f"--node-monitor-grace-period={self._node_grace_s}s",
        ]

    def _scheduler_flags(self) -> list[str]:
        config = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {
                "kubeconfig": str(self._home / "kube-scheduler.kubeconfig"),
                "qps": 1000,
                "burst": 2000,
            },
            "leaderElection": {"leaderElect": False},
            "profiles": [{"schedulerName": name} for name in ("default-scheduler", *self._scheduler_names)],
        }
        path = self._home / "kube-scheduler.json"
        path.write_text(json.dumps(config))
        return [f"--config={path}", "--secure-port=0"]


def private_key() -> str:
    """Return a new key for signing service-account tokens, as PEM.

    An elliptic-curve key is any 32 random bytes (not zero, below the curve's order, which no random number in
    practice misses); the readers compute the public half. So no tool and no library is needed to make one.
    """
    version = bytes.fromhex("020101")
    secret = bytes.fromhex("0420") + (b"\x00" + secrets.token_bytes(31))
    curve = bytes.fromhex("a00a06082a8648ce3d030107")  # [0] prime256v1
    body = version + secret + curve
    text = base64.b64encode(bytes([0x30, len(body)]) + body).decode()
    lines = [text[at : at + 64] for at in range(0, len(text), 64)]
    return "\n".join(["-----BEGIN EC PRIVATE KEY-----", *lines, "-----END EC PRIVATE KEY-----", ""])


def _write_private(path: Path, text: str) -> None:
    with os.fdopen(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
