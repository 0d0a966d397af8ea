"""What a decision asks to be done. Each can be repeated.

A controller that died half-way is simply run again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from taskd.core.acjob.avoiding import Avoided
from taskd.core.acjob.job import Slot
from taskd.core.acjob.status import Status


@dataclass(frozen=True, slots=True)
class SyncPodGroup:
    """Make the PodGroup what the job asks for, without the places that are done and need no pod any more."""

    gone: frozenset[Slot] = frozenset()


@dataclass(frozen=True, slots=True)
class SyncService:
    """Make the leader's Service, with the address that it had before, if it had one."""

    ip: str = ""


@dataclass(frozen=True, slots=True)
class SyncExtras:
    """Make the objects that only help: the headless Service of the namespace, the job's ConfigMaps."""


@dataclass(frozen=True, slots=True)
class CreatePods:
    """Fill these places with pods of this generation."""

    slots: tuple[Slot, ...]
    version: int
    avoid: tuple[Avoided, ...] = ()
    """Nodes that they are kept off."""


@dataclass(frozen=True, slots=True)
class CreateStandbys:
    """Keep pods of these numbers ready beside the job."""

    numbers: tuple[int, ...]
    version: int
    avoid: tuple[Avoided, ...] = ()


@dataclass(frozen=True, slots=True)
class AssignStandby:
    """Give a pod that was kept ready a place, in one write; of the annotations None takes one away."""

    name: str
    uid: str
    slot: Slot
    version: int
    annotations: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class CreateBackup:
    """Start a pod that stands by for another, in the same place with the same rank."""

    source: str
    source_uid: str
    slot: Slot
    version: int
    avoid: tuple[Avoided, ...] = ()


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Delete this very pod; `grace_s` 0 does not wait for its kubelet."""

    name: str
    uid: str
    grace_s: int | None
    why: str


@dataclass(frozen=True, slots=True)
class BuryPod:
    """Take away what is left of a pod that somebody else deleted and that has ended: its name."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class AnnotatePod:
    """Set annotations of a pod; None takes one away."""

    name: str
    uid: str
    annotations: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class DeletePodGroup:
    """Give the job's place with the scheduler back."""


@dataclass(frozen=True, slots=True)
class DeleteService:
    """Give the address of the leader back."""


@dataclass(frozen=True, slots=True)
class DeleteJob:
    """Delete the job and all it owns: its time after the end is over."""


Action = (
    SyncPodGroup
    | SyncService
    | SyncExtras
    | CreatePods
    | CreateStandbys
    | AssignStandby
    | CreateBackup
    | DeletePod
    | BuryPod
    | AnnotatePod
    | DeletePodGroup
    | DeleteService
    | DeleteJob
)


@dataclass(frozen=True, slots=True)
class Decision:
    """What follows from a snapshot."""

    status: Status
    actions: tuple[Action, ...] = ()
    status_first: bool = False
    """Whether the status has to be stored before anything is done.

    It counts what the actions do away with.
    """
    wake_at: float | None = None
    """When time alone will change the answer."""


@dataclass(frozen=True, slots=True)
class Note:
    """Something to tell as an Event."""

    reason: str
    message: str
    warning: bool = False
