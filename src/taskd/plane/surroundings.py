"""What the plane needs of the world around it: small interfaces, each with one reason.

The rules of calling: `find`, `jobs` and `view` answer from memory and never wait. Listeners are called on the
event loop and return at once. Everything that writes may fail or be late; the caller bounds and repeats it,
so doing the same thing twice must be doing it once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from taskd.core.faults.isolating import Scope
from taskd.core.faults.view import JobFaults
from taskd.core.plane.jobs import JobView
from taskd.core.plane.state import Ask, RecordIncident, SetAnnotation, SetLabel
from taskd.wire.telling import PublicFaultRequest

Forget = Callable[[], None]


class JobDirectory(Protocol):
    """The jobs of the cluster as they are now."""

    def find(self, job_id: str) -> JobView | None:
        """Return a job by its UID."""

    def named(self, namespace: str, name: str) -> JobView | None:
        """Return a job by its name."""

    def jobs(self) -> Iterable[JobView]:
        """Return all jobs."""

    def listen(self, listener: Callable[[str], None]) -> Forget:
        """Have a listener told the id of each job that appeared, changed or went."""


class FaultCentre(Protocol):
    """What is known of faults."""

    def view(self, job_id: str) -> JobFaults:
        """Return all faults of a job as they are now; a healthy view where there are none."""

    def isolated(self, nodes: Iterable[str], *, ignores_sub_health: bool) -> Mapping[str, Scope]:
        """Return those of the nodes that are isolated now, and how, for a job that minds slow ones or not."""

    def listen(self, listener: Callable[[JobFaults], None]) -> Forget:
        """Have a listener told each view that changed."""

    def send_public(self, request: PublicFaultRequest) -> tuple[int, str]:
        """Take in faults that somebody outside saw; returns a code and a sentence."""


class ConfigMaps(Protocol):
    """The ConfigMaps that belong to jobs."""

    def resets(self, namespace: str, job: str) -> Mapping[str, str]:
        """Return what a job's reset-config says; nothing where there is none."""

    def listen_for_resets(self, listener: Callable[[str, str, Mapping[str, str]], None]) -> Forget:
        """Have a listener told namespace, job and data of each reset-config that changed."""

    async def read(self, namespace: str, name: str) -> Mapping[str, str] | None:
        """Return the data of a ConfigMap; None if there is none."""

    async def write(self, job: JobView, name: str, data: Mapping[str, str]) -> None:
        """Set these keys of a ConfigMap of the job, owned by it; make it if there is none."""


class Hands(Protocol):
    """What is done to the job's objects in the cluster."""

    async def ask(self, job: JobView, ask: Ask) -> None:
        """Have the operator do something to pods."""

    async def hurry(self, job: JobView) -> None:
        """Have the kubelets of the job's pods bring in at once what its ConfigMaps say."""

    async def set_label(self, job: JobView, label: SetLabel) -> None:
        """Set or remove a label."""

    async def set_annotation(self, job: JobView, annotation: SetAnnotation) -> None:
        """Set an annotation."""

    async def record(self, job: JobView, incident: RecordIncident) -> None:
        """Tell people."""


class Keeper(Protocol):
    """Keeps the states of jobs where they outlive the plane."""

    async def load(self) -> Mapping[str, bytes]:
        """Return all states by job id."""

    async def save(self, job_id: str, state: bytes) -> None:
        """Keep the state of a job."""

    async def forget(self, job_id: str) -> None:
        """Drop the state of a job that is gone."""
