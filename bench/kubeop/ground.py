"""Where everything happens: one control plane, a namespace for each turn, and the API server's own record.

Times come from the audit log: when a request came in and when its answer was complete, as the API server saw
it. So nobody is watched by a program that itself needs the cores that are measured.
"""

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from taskd.testing.kube import AuditLog, ControlPlane, Program, Request, User, binaries, install_crds
from taskd.testing.kube.binaries import Unavailable, module_source

ROOT = Path(__file__).resolve().parents[2]
Json = dict[str, Any]


@dataclass(slots=True)
class Turn:
    """What the API server recorded of one turn in its namespace."""

    namespace: str
    place: int
    requests: list[Request] = field(default_factory=list)

    def read(self, audit: AuditLog) -> None:
        """Take in what was recorded since the last time."""
        fresh, self.place = audit.follow(self.place)
        self.requests += [request for request in fresh if request.namespace == self.namespace]

    def writes(self, *users: str) -> list[Request]:
        """Return the writes of these users, refused ones included."""
        return [request for request in self.requests if request.write and request.user in users]

    def created(self, resource: str) -> list[Request]:
        """Return what was created, by whomever."""
        return [
            request
            for request in self.requests
            if request.resource == resource
            and not request.subresource
            and request.verb in {"create", "patch"}
            and request.code == 201
        ]

    def seconds(self, first: str, last: str = "pods") -> float:
        """Return the time from the first request for one resource to the last answer for another."""
        begun = min(moment(request.received_at) for request in self.created(first))
        return self.seconds_since(begun, last)

    def seconds_since(self, begun: float, last: str = "pods") -> float:
        """Return the time from a moment to the last answer for a resource."""
        return max(moment(request.answered_at) for request in self.created(last)) - begun


CRDS = {
    "training-operator": "manifests/base/crds/kubeflow.org_pytorchjobs.yaml",
    "jobset": "config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml",
}


@dataclass(slots=True)
class Rivals:
    """The other operators that could be built, and why the rest could not."""

    programs: dict[str, Path] = field(default_factory=dict)
    crds: dict[str, Path] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    @classmethod
    def find(cls) -> "Rivals":
        """Find or build them; that takes minutes the first time."""
        rivals = cls()
        for program, crd in CRDS.items():
            try:
                rivals.programs |= binaries.require(program)
                rivals.crds[program] = module_source(program) / crd
            except Unavailable as error:
                rivals.missing[program] = str(error)
        return rivals


class Ground:
    """The control plane and who acts on it."""

    def __init__(self, kube: ControlPlane, home: Path) -> None:
        self.kube = kube
        self.home = home
        self.users: dict[str, User] = {}
        self.programs: dict[str, Path] = {}
        self.missing: dict[str, str] = {}
        self._turns = 0
        kube.apply_yaml((ROOT / "deploy" / "crd" / "ascendjobs.yaml").read_text())
        install_crds(kube)
        for name in ("taskd", "bare", "volcano", "submitter"):
            self.add_user(name)

    def add_user(self, name: str) -> User:
        """Return a user that may do everything and is known by name in the audit log."""
        if name not in self.users:
            self.users[name] = self.kube.add_user(f"bench-{name}", cluster_role="cluster-admin")
        return self.users[name]

    def install(self, rivals: "Rivals") -> None:
        """Take other operators in: their CRDs into the cluster, a user for each."""
        self.missing |= rivals.missing
        for program, path in rivals.programs.items():
            self.kube.apply_yaml(rivals.crds[program].read_text())
            self.add_user(program)
            self.programs[program] = path

    @contextmanager
    def turn(self, what: str) -> Iterator[Turn]:
        """A namespace of its own. Afterwards everything in it is gone before the next turn begins."""
        self._turns += 1
        namespace = self.kube.create_namespace(f"{what}-{self._turns}")
        self._quiet()
        turn = Turn(namespace, self.kube.audit.mark())
        try:
            yield turn
        finally:
            self._clear(namespace)

    def core_seconds(self, *more: Program) -> float:
        """Return the core time that the control plane has used so far, with those who acted on it."""
        spent = resource.getrusage(resource.RUSAGE_CHILDREN)  # the actors that have ended
        return (
            sum(core_seconds(each) for each in (*self.kube.programs, *more)) + spent.ru_utime + spent.ru_stime
        )

    def settle(self, turn: Turn) -> Turn:
        """Take in everything that was answered by now."""
        self.kube.audit.mark()
        turn.read(self.kube.audit)
        return turn

    def wait_created(self, turn: Turn, resource: str, count: int, limit_s: float) -> None:
        """Wait until so many objects were created, going by the audit log."""
        end = time.monotonic() + limit_s
        while len(turn.created(resource)) < count:
            if time.monotonic() > end:
                raise TimeoutError(f"{len(turn.created(resource))} of {count} {resource} after {limit_s:g} s")
            time.sleep(0.2)
            turn.read(self.kube.audit)

    def actor(self, *arguments: str) -> subprocess.Popen[str]:
        """Start one of those who act (see `actor`); it has said that it is ready."""
        process = subprocess.Popen(
            [sys.executable, "-m", "kubeop.actor", *arguments],
            cwd=ROOT / "bench",
            env=environment(),
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", f"{arguments} did not start"
        return process

    def create(self, user: str, namespace: str, lines: Sequence[Sequence[tuple[str, Json]]]) -> None:
        """Create objects as that user, with 8 connections; returns when all are there."""
        path = self.home / "objects.jsonl"
        path.write_text("\n".join(json.dumps(line) for line in lines))
        process = self.actor("create", str(self.users[user].kubeconfig), namespace, str(path))
        assert process.wait(600) == 0

    @contextmanager
    def admitting(self, namespace: str) -> Iterator[None]:
        """Have PodGroups let in as soon as they are there."""
        process = self.actor("admit", str(self.users["volcano"].kubeconfig), namespace)
        try:
            yield
        finally:
            process.kill()
            process.wait()

    def _clear(self, namespace: str) -> None:
        """Delete jobs first, so that nobody makes pods again; then the rest, and wait for it."""
        api = self.kube.api
        self.kube.delete_namespace(namespace)
        until(lambda: api.find(f"/api/v1/namespaces/{namespace}") is None, 180, every_s=0.3)

    def _quiet(self) -> None:
        """Let the garbage collector and the like finish before anything is measured."""
        time.sleep(1.0)


def environment() -> dict[str, str]:
    """Return the environment of processes of ours: this checkout's package, whatever is installed."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "bench")])}


def moment(stamp: str) -> float:
    """Return the seconds that a time stamp of the audit log means."""
    return datetime.fromisoformat(stamp).timestamp()


def until(what: Callable[[], bool], limit_s: float, *, every_s: float = 0.05) -> None:
    """Wait for something to become true."""
    end = time.monotonic() + limit_s
    while not what():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {limit_s:g} s")
        time.sleep(every_s)


def peak_mb(program: Program) -> float:
    """Return the most memory that a program has held so far."""
    return _kilobytes(program, "VmHWM") / 1024


def now_mb(program: Program) -> float:
    """Return the memory that a program holds."""
    return _kilobytes(program, "VmRSS") / 1024


def _kilobytes(program: Program, name: str) -> int:
    for line in Path(f"/proc/{program.pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise LookupError(name)


def core_seconds(program: Program) -> float:
    """Return the core time that a program has used."""
    fields = Path(f"/proc/{program.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
