"""What the fault centre knows: the last good word of each source, and the few things time has to be kept for.

Everything that is told is derived from these values again at each change. So a fault that clears leaves
nothing behind, a chip comes back by itself, and no order of arrival matters except where a rule is about
order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from taskd.core.faults.codes import PublicTable
from taskd.core.faults.deviceinfo import Chips, Switch
from taskd.core.faults.levels import AnyLevel, Effect, Level, effect_of
from taskd.core.faults.nodeinfo import Hardware
from taskd.core.faults.nodesight import NodeSight
from taskd.core.faults.places import JobSight
from taskd.core.faults.policy import Relations, Separation, Strategy
from taskd.core.faults.public import PublicFault
from taskd.core.faults.view import FaultKind, JobFaults, SwitchFault

PublicKey: TypeAlias = tuple[str, str]
"""Sender and fault id."""
SeparatedKey: TypeAlias = tuple[str, int, str]
"""Node, chip and code."""
FaultKey: TypeAlias = tuple[str, str, str, str]
"""Kind, device type, device or port, and code: what makes two sightings the same fault."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault on one device, and who is told of it."""

    kind: str
    """The reference's fault type, or `Switch`, `Hardware`, `Kubernetes`."""
    device_type: str
    device_id: str
    chip: int
    code: str
    level: AnyLevel
    stamp: float | None
    """The time that the report gives; another stamp is another fault, also where nobody saw the first end."""
    began: float = 0.0
    reason: str = ""
    name: str = ""
    switch: SwitchFault | None = None
    answer: FaultKind = FaultKind.NORMAL
    hidden: str = ""
    """Why the scheduler is not told yet; empty where it is."""
    silenced: frozenset[str] = frozenset()
    """The jobs that want nothing done about it yet."""
    listed: bool = True
    """Whether the report also has the chip among the unhealthy ones."""

    @property
    def key(self) -> FaultKey:
        """What makes it the same fault as one seen before."""
        return self.kind, self.device_type, self.name or self.device_id, self.code

    @property
    def effect(self) -> Effect:
        """What its level does to a job."""
        return effect_of(self.level)


@dataclass(frozen=True, slots=True)
class HeldPublic:
    """A public fault on one node."""

    fault: PublicFault
    chips: tuple[int, ...]
    added: float
    until: float | None = None
    """When it goes, where that is known."""


@dataclass(frozen=True, slots=True)
class Separated:
    """A chip kept apart because a fault came back too often."""

    name: str
    level: Level
    since: float


@dataclass(frozen=True, slots=True)
class LostLink:
    """A link that was down; `gone` says when it came up again."""

    fault: Fault
    gone: float | None = None


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """Everything known of one node."""

    name: str
    chips: Chips | None = None
    switch: Switch | None = None
    separated: tuple[int, ...] = ()
    hardware: Hardware | None = None
    sight: NodeSight | None = None
    public: Mapping[PublicKey, HeldPublic] = field(default_factory=dict)
    manual: Mapping[tuple[int, str], Separated] = field(default_factory=dict)
    links: Mapping[FaultKey, LostLink] = field(default_factory=dict)
    seen: Mapping[FaultKey, tuple[float | None, float]] = field(default_factory=dict)
    """The stamp of each fault that is reported now, and when it began."""
    faults: tuple[Fault, ...] = ()
    """What follows from all that, sorted; without what comes along with a worse fault."""

    @property
    def empty(self) -> bool:
        """Whether nothing is known that matters."""
        inputs = (self.chips, self.switch, self.hardware, self.sight)
        return not any((self.separated, self.public, self.manual, self.links)) and inputs == (None,) * 4


@dataclass(frozen=True, slots=True)
class Trace:
    """A fault that belongs together with others, when it was seen on a job's node."""

    node: str
    code: str
    at: float
    is_switch: bool
    pods: frozenset[str]
    """The job's pods there at that time: those that come later have nothing to do with it."""


@dataclass(frozen=True, slots=True)
class JobRecord:
    """Everything known of one job."""

    sight: JobSight
    view: JobFaults
    retry_at: float | None = None
    """When the training side last said that it repeats a step."""
    retried_at: float | None = None
    gave_up_at: float | None = None
    """When recovery in place was last given up."""
    traces: tuple[Trace, ...] = ()
    marks: Mapping[str, Strategy] = field(default_factory=dict)
    """What faults that belong together mean, by the UID of the pod."""


@dataclass(frozen=True, slots=True)
class Occurrence:
    """A fault on a chip that a job used, for counting."""

    job_id: str
    node: str
    chip: int
    name: str
    code: str
    level: Level
    at: float
    settled: bool = False
    software: bool = False
    """The same fault came on another chip of the job at the same time: the program's doing."""


@dataclass(frozen=True, slots=True)
class State:
    """The fault centre."""

    nodes: Mapping[str, NodeRecord] = field(default_factory=dict)
    jobs: Mapping[str, JobRecord] = field(default_factory=dict)
    users: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """The jobs on each node."""
    separation: Separation = field(default_factory=Separation)
    relations: Relations = field(default_factory=Relations)
    table: PublicTable = field(default_factory=PublicTable)
    history: Mapping[str, tuple[Occurrence, ...]] = field(default_factory=dict)
    """By code."""
    early: Mapping[tuple[str, PublicKey], float] = field(default_factory=dict)
    """Recoveries that came before their fault, by node, and until when they are kept."""
    written: frozenset[SeparatedKey] = frozenset()
    """The separations that are known to stand in their ConfigMap, where a person may delete them."""
    stressed: frozenset[str] = frozenset()
    """Nodes on which a stress test runs."""
    public_count: int = 0
    node_wakes: Mapping[str, float] = field(default_factory=dict)
    """When time alone may change the faults of a node; only nodes of which that is so."""
    job_wakes: Mapping[str, float] = field(default_factory=dict)
    wake: float | None = None
    """When the counting has to be looked at again."""


def separations(state: State) -> dict[SeparatedKey, Separated]:
    """All chips that are kept apart."""
    return {
        (node, chip, code): kept
        for node, record in state.nodes.items()
        for (chip, code), kept in record.manual.items()
    }
