"""What the fault centre can be told, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from taskd.core.faults.codes import PublicTable
from taskd.core.faults.deviceinfo import DeviceInfo
from taskd.core.faults.nodeinfo import Hardware
from taskd.core.faults.nodesight import NodeSight
from taskd.core.faults.places import JobSight
from taskd.core.faults.policy import Relations, Separation, Strategy
from taskd.core.faults.public import PublicReport
from taskd.core.faults.reading import Refused
from taskd.core.faults.state import HeldPublic, PublicKey, Separated, SeparatedKey
from taskd.core.faults.view import JobFaults


@dataclass(frozen=True, slots=True)
class DeviceInfoSeen:
    """A node's device ConfigMap; None where it is gone."""

    node: str
    info: DeviceInfo | None


@dataclass(frozen=True, slots=True)
class NodeInfoSeen:
    """A node's hardware ConfigMap; None where it is gone, which is how the node daemon says "healthy"."""

    node: str
    info: Hardware | Refused | None


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """The node itself; None where it is gone."""

    node: str
    sight: NodeSight | None


@dataclass(frozen=True, slots=True)
class JobSeen:
    """A job, its pods and what it wants."""

    job: JobSight


@dataclass(frozen=True, slots=True)
class JobGone:
    """A job that is over."""

    job_id: str


@dataclass(frozen=True, slots=True)
class PublicReported:
    """A message of an outside sender that was found good."""

    report: PublicReport


@dataclass(frozen=True, slots=True)
class PublicRestored:
    """Public faults that were known when the last process ended, by node."""

    faults: Mapping[str, Mapping[PublicKey, HeldPublic]]


@dataclass(frozen=True, slots=True)
class PolicySeen:
    """What people have set; None leaves a part as it is."""

    separation: Separation | None = None
    relations: Relations | None = None
    table: PublicTable | None = None


@dataclass(frozen=True, slots=True)
class SeparationsSeen:
    """The ConfigMap of chips kept apart, as it stands; a person may have deleted entries.

    `unreadable` names nodes whose entry somebody broke: what is known of them stays.
    """

    entries: Mapping[SeparatedKey, Separated]
    unreadable: frozenset[str] = frozenset()
    restore: bool = False
    """Whether this is the first look, which believes all it finds."""


@dataclass(frozen=True, slots=True)
class SeparationsWritten:
    """The ConfigMap has exactly these entries now, by a write of ours."""

    entries: frozenset[SeparatedKey]


@dataclass(frozen=True, slots=True)
class RetryReported:
    """The training side repeats a step."""

    job_id: str


@dataclass(frozen=True, slots=True)
class RetryEnded:
    """The step that was repeated is done."""

    job_id: str


@dataclass(frozen=True, slots=True)
class GivenUp:
    """The job cannot be recovered in place."""

    job_id: str


@dataclass(frozen=True, slots=True)
class StressTest:
    """A stress test runs on exactly these nodes."""

    nodes: frozenset[str]


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Nothing happened but time."""


Event: TypeAlias = (
    DeviceInfoSeen
    | NodeInfoSeen
    | NodeSeen
    | JobSeen
    | JobGone
    | PublicReported
    | PublicRestored
    | PolicySeen
    | SeparationsSeen
    | SeparationsWritten
    | RetryReported
    | RetryEnded
    | GivenUp
    | StressTest
    | TimePassed
)


@dataclass(frozen=True, slots=True)
class Note:
    """Something that a person should be able to read in the log."""

    about: str
    text: str
    refused: bool = False


@dataclass(frozen=True, slots=True)
class PodMark:
    """What the label of a pod shall say of faults that belong together."""

    job_id: str
    pod: str
    uid: str
    strategy: Strategy


@dataclass(frozen=True, slots=True)
class Changes:
    """What follows from an event."""

    jobs: tuple[JobFaults, ...] = ()
    """The view of each job for which it changed, or that has a new fault which looks like one before it."""
    gone: tuple[str, ...] = ()
    """Jobs of which nothing will be told any more."""
    nodes: tuple[str, ...] = ()
    """Nodes of which something else is to be published."""
    marks: tuple[PodMark, ...] = ()
    separations: bool = False
    """The chips kept apart are others now."""
    public: bool = False
    """The public faults are others now, and have to be kept."""
    notes: tuple[Note, ...] = ()


def together(first: Changes, second: Changes) -> Changes:
    """Two sets of changes, one after the other; of a job's views the last one counts."""
    views = {view.job_id: view for view in (*first.jobs, *second.jobs)}
    return Changes(
        tuple(views[job_id] for job_id in sorted(views)),
        tuple(sorted({*first.gone, *second.gone})),
        tuple(sorted({*first.nodes, *second.nodes})),
        first.marks + second.marks,
        first.separations or second.separations,
        first.public or second.public,
        first.notes + second.notes,
    )
