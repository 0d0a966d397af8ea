"""The state of one job's recovery, what can happen to it, and what the plane can do about it.

Values only. Everything that a decision needs is in the state, and all but what the cluster tells anew at any
time (pods, devices) is kept in the cluster, so a plane that was started again goes on in any phase. Times
are seconds since the epoch for the same reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from taskd.core.faults.texts.reset import RankStatus
from taskd.core.faults.view import FaultKind, Health, RankFault
from taskd.core.plane.faultlists import Shape
from taskd.core.plane.names import Action, Change, Code, SignalType
from taskd.core.plane.policy import Policy
from taskd.core.plane.resetconfig import ResetContent


class Phase(StrEnum):
    """What the machine waits for."""

    INIT = "init"
    NOTICING = "noticing"
    """Devices failed and their processes were told to end; the trainer has not said yet what it sees."""
    STOPPING = "stopping"
    HEALING = "healing"
    """All stand still; devices that may come back by themselves are given a moment."""
    ASKING = "asking"
    CONVERGING = "converging"
    """A repeated step was chosen; the network is given a moment to find its new routes."""
    RETRYING = "retrying"
    RECOVERING = "recovering"
    DUMPING = "dumping"
    RESCHEDULING = "rescheduling"
    """The processes were told to leave; the faulty pods are being replaced."""
    RESTARTING = "restarting"
    """The last resort: the whole job is started again."""
    STANDBY = "standby"
    """A hot switch: the new pod is being made while the old one trains."""
    PAUSING = "pausing"
    PARTING = "parting"
    MIGRATING = "migrating"
    ENDED = "ended"


SWITCHING = frozenset({Phase.STANDBY, Phase.PAUSING, Phase.PARTING, Phase.MIGRATING})


@dataclass(frozen=True, slots=True)
class Limits:
    """How long each wait may last."""

    notice_s: float = 10.0
    report_s: float = 900.0
    heal_s: float = 15.0
    converge_s: float = 3.0
    restart_s: float = 135.0
    standby_s: float = 60.0
    old_pod_s: float = 60.0
    absent_s: float = 30.0
    """How long a manager may be away before faulty pods are replaced without asking it."""
    hot_reset_s: float = 300.0
    """How long a device plugin may take to reset a device before its pod is replaced instead."""
    clear_s: float = 5.0
    """How long agents that read files are shown which ranks to start again in place."""
    switch_again_s: float = 60.0
    switch_again_max_s: float = 3600.0
    max_rounds: int = 8


@dataclass(frozen=True, slots=True)
class PodSeen:
    """A pod of the job as the cluster has it now."""

    name: str
    uid: str
    running: bool = True
    standby: str = ""
    """The UID of the pod that stands by for it."""
    standby_running: bool = False
    failed: bool = False
    standby_waits: str = ""
    """Why the standby does not run, as whoever should place or start it says."""
    node: str = ""
    standby_name: str = ""


@dataclass(frozen=True, slots=True)
class Signal:
    """An order to the job's manager."""

    uuid: str
    kind: SignalType
    actions: tuple[Action, ...] = ()
    faults: Mapping[int, FaultKind] = field(default_factory=dict)
    change: Change = Change.NONE
    timeout_s: int = 0
    nodes: tuple[int, ...] = ()
    extra: str = ""
    standbys: Mapping[int, str] = field(default_factory=dict)
    """The pods that take the places of others, by the rank of the pod; the operator is told the same."""
    shunned: tuple[str, ...] = ()
    """Standbys that are not to be used."""


@dataclass(frozen=True, slots=True)
class Episode:
    """One fault from its first sign to its end. `uuid` names the round that is under way."""

    uuid: str
    started_at: float
    what: str
    faults: Mapping[int, FaultKind] = field(default_factory=dict)
    devices: tuple[int, ...] = ()
    """Ranks whose devices failed; the others' processes did."""
    origin: Mapping[int, str] = field(default_factory=dict)
    """The UIDs of all pods when it began."""
    cut: tuple[int, ...] = ()
    """Pods that nobody reaches: they cannot be asked to end, and must come back on another node."""
    avoid: tuple[str, ...] = ()
    """The nodes on which they were; also once they have gone, until the episode ends."""
    relief: Mapping[int, str] = field(default_factory=dict)
    """The standbys that were given the places of pods that leave."""
    in_place: tuple[int, ...] = ()
    leaving: tuple[int, ...] = ()
    offered: tuple[Change, ...] = ()
    ordered: Change = Change.NONE
    placed: bool = False
    """The order is to recover in place."""
    tried: tuple[Change, ...] = ()
    rounds: int = 1
    exited: bool = False
    cleared: bool = False
    clear_at: float = 0.0
    asked_at: float = 0.0
    force: bool = False
    """Pods are deleted without waiting for them."""
    gentle: bool = False
    """Pods are given their time to end, whatever the job's label says."""
    paused: bool = False
    """The job's switch for process recovery was set to `pause`, and has to be set back."""
    pressed: bool = False
    """The old pod of a switch was late and is deleted by force."""
    labelled: tuple[int, ...] = ()
    pod: int = -1
    """The pod that a hot switch replaces."""
    migrated: bool = False
    """Its ranks have moved; all that is left of the switch is that it goes."""
    alone: bool = False
    """The job goes on by itself while a device that may come back is waited for: it wants no order then."""
    reason: str = ""
    marks: Mapping[Phase, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobState:
    """The whole state of a job's machine."""

    job_id: str
    policy: Policy
    shape: Shape
    limits: Limits = field(default_factory=Limits)
    phase: Phase = Phase.INIT
    deadline: float = 0.0
    episode: Episode | None = None
    outstanding: Signal | None = None
    handed: bool = False
    """The outstanding signal has been handed to a stream at least once."""
    connected: bool = False
    absent_since: float = 0.0
    keeps_old: bool = False
    """The manager can resume in the old pod when a migration fails, so the old pod goes last."""
    left: Mapping[int, str] = field(default_factory=dict)
    """The UIDs of pods whose ranks went elsewhere while they were there: that they go then is no loss."""
    pods: Mapping[int, PodSeen] = field(default_factory=dict)
    ready: tuple[str, ...] = ()
    """The standbys that may take a place, in the order in which they do."""
    unfit: tuple[str, ...] = ()
    """The standbys that may not."""
    health: Health = Health.HEALTHY
    devices: Mapping[int, RankFault] = field(default_factory=dict)
    slow: Mapping[int, RankFault] = field(default_factory=dict)
    answered: Mapping[int, str] = field(default_factory=dict)
    """Device faults that were answered: kind and pod, by rank."""
    slow_answered: str = ""
    """The slow devices that a switch or an exit was tried for last."""
    switch_failures: int = 0
    switch_at: float = 0.0
    """When a switch that failed is tried again, should the device still be slow."""
    resets: Mapping[int, RankStatus] = field(default_factory=dict)
    """The ranks whose devices a device plugin resets, or has reset, as the reset-config says."""
    reset_since: float = 0.0
    """When the reset that is under way was first seen."""

    @property
    def uuid(self) -> str:
        """Name what is under way; empty if nothing is."""
        return self.episode.uuid if self.episode else ""

    @property
    def running(self) -> bool:
        """Tell whether all pods are there and run."""
        return len(self.pods) >= self.shape.pods and all(pod.running for pod in self.pods.values())


# --------------------------------------------------------------------------------------------- what happens


@dataclass(frozen=True, slots=True)
class Moment:
    """When something happens, and a name that nobody has used yet, should one be needed."""

    now: float
    fresh: str


@dataclass(frozen=True, slots=True)
class FaultsReported:
    """ReportProcessFault: the trainer says which ranks failed, and which pods nobody reaches any more."""

    faults: tuple[tuple[str, str], ...]
    uuid: str = ""
    cut: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class StopReported:
    """ReportStopComplete."""

    code: int
    faults: tuple[tuple[str, str], ...] = ()
    uuid: str = ""


@dataclass(frozen=True, slots=True)
class StrategiesReported:
    """ReportRecoverStrategy: what the trainer can do."""

    offered: tuple[str, ...]
    faults: tuple[tuple[str, str], ...] = ()
    uuid: str = ""


@dataclass(frozen=True, slots=True)
class StatusReported:
    """ReportRecoverStatus: how the strategy went.

    `alone` says what the job did by itself while no plane was there to ask; empty where it was told. `placed`
    are the host names of pods that have places of others by now.
    """

    code: int
    strategy: str
    uuid: str = ""
    alone: str = ""
    placed: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DevicesSeen:
    """All faults of the job's devices as they are now."""

    health: Health
    ranks: tuple[RankFault, ...] = ()


@dataclass(frozen=True, slots=True)
class PodsSeen:
    """All pods of the job as they are now, by pod rank.

    `ending` says that pods go because the job has ended or is suspended, so none of them is lost.
    """

    pods: Mapping[int, PodSeen]
    ending: bool = False


@dataclass(frozen=True, slots=True)
class ResetSeen:
    """What device plugins say in the job's reset-config: whose devices they reset, and how that went."""

    ranks: Mapping[int, RankStatus] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PolicyRead:
    """The job's labels and annotations were read again."""

    policy: Policy


@dataclass(frozen=True, slots=True)
class Subscribed:
    """A manager listens."""

    keeps_old: bool = False


@dataclass(frozen=True, slots=True)
class Unsubscribed:
    """No manager listens any more."""


@dataclass(frozen=True, slots=True)
class Handed:
    """A signal goes out on the stream."""

    signal: Signal


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class JobGone:
    """The job was deleted or has finished."""

    why: str


Report = FaultsReported | StopReported | StrategiesReported | StatusReported
Event = (
    Report
    | DevicesSeen
    | PodsSeen
    | ResetSeen
    | PolicyRead
    | Subscribed
    | Unsubscribed
    | Handed
    | Ticked
    | JobGone
)


# ------------------------------------------------------------------------------------------ what is done


class Wish(StrEnum):
    """What the operator shall do to pods."""

    REPLACE = "replace"
    KEEP = "keep"
    STANDBY = "standby"
    DROP_STANDBY = "drop-standby"
    REMOVE_OLD = "remove-old"
    RESTART_JOB = "restart-job"


@dataclass(frozen=True, slots=True)
class SaveState:
    """Keep the state before anything else is done: it is what a new plane goes on from."""

    uuid: str


@dataclass(frozen=True, slots=True)
class SendSignal:
    """Give the manager an order; it stays outstanding until it is answered."""

    uuid: str
    signal: Signal


@dataclass(frozen=True, slots=True)
class WriteReset:
    """Write the job's reset-config; in a hurry where nobody tells the pods otherwise."""

    uuid: str
    content: ResetContent
    hurry: bool = False


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask the operator to do something to pods; asking twice with one uuid is asking once."""

    uuid: str
    wish: Wish
    pods: tuple[int, ...]
    reason: str
    force: bool = False
    """Whether pods get no time to end; those that nobody reaches get none in any case."""
    origin: Mapping[int, str] = field(default_factory=dict)
    """The UIDs that are meant, so that a pod which was replaced already is left alone."""
    cut: tuple[int, ...] = ()
    """Those of the pods that nobody reaches."""
    avoid: tuple[str, ...] = ()
    """The nodes on which nobody was reached, so that nothing is placed there now."""
    standbys: Mapping[int, str] = field(default_factory=dict)
    """The pods that are kept ready and have the places of these; others have none of theirs."""


@dataclass(frozen=True, slots=True)
class SetLabel:
    """Set a label of the job, or of a pod; None removes it."""

    uuid: str
    key: str
    value: str | None
    pod: int = -1


@dataclass(frozen=True, slots=True)
class SetAnnotation:
    """Set an annotation of the job."""

    uuid: str
    key: str
    value: str


@dataclass(frozen=True, slots=True)
class RecordIncident:
    """Tell people: what happened, what was decided, how it went; again whenever that changes."""

    uuid: str
    started_at: float
    what: str
    strategy: str
    outcome: str
    reason: str
    marks: Mapping[Phase, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer the report that is the event."""

    uuid: str
    code: Code
    info: str


Effect = SaveState | SendSignal | WriteReset | Ask | SetLabel | SetAnnotation | RecordIncident | Answer
Outcome = tuple[JobState, tuple[Effect, ...]]
