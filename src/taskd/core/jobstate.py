"""The manager's picture of a job, what can happen to it, and what the manager can do.

Values only; the transitions are in ``job``. Everything that a decision needs is in here, so a test can make
any situation by writing it down, and a manager that takes over can rebuild it from the agents' announcements.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from taskd.core.failures import Budget, Failure, Streak
from taskd.core.faults.texts.reset import Reset
from taskd.core.incidents import Incident
from taskd.core.launch import DEFAULT_MAX_RESTARTS, JobOptions, Plan
from taskd.core.messages import (
    Announce,
    Beat,
    Coming,
    Denied,
    Farewell,
    NodePhase,
    Order,
    Progress,
    Recover,
    Regroup,
    Report,
    Save,
    Saved,
    Standing,
    Through,
    Trouble,
    WorkerExited,
    WorkerView,
)
from taskd.core.status import JobPhase
from taskd.core.testimony import Statement


@dataclass(frozen=True, slots=True)
class Node:
    """One node as its agent last described it."""

    key: str
    incarnation: str
    announce: Announce
    order_of_joining: int
    phase: NodePhase
    generation: int
    lost: str = ""
    free_port: int = 0
    finished: bool = False
    workers: Mapping[int, WorkerView] = field(default_factory=dict)

    @property
    def usable(self) -> bool:
        """Tell whether the node can be given ranks."""
        return not self.lost and not self.finished


@dataclass(frozen=True, slots=True)
class Ending:
    """How the job ends, decided but perhaps not carried out yet."""

    code: int
    reason: str
    report: str = ""


@dataclass(frozen=True, slots=True)
class Relief:
    """Which spare nodes take which places, by node rank, and which take none, as an operator was told too."""

    nodes: Mapping[int, str] = field(default_factory=dict)
    shunned: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Job:
    """The whole state of the recovery machine."""

    options: JobOptions
    phase: JobPhase = JobPhase.GATHERING
    reason: str = "waiting for nodes"
    since: float = 0.0
    generation: int = 0
    floor: int = 0
    restarts: int = 0
    plan: Plan | None = None
    nodes: Mapping[str, Node] = field(default_factory=dict)
    budget: Budget = field(default_factory=lambda: Budget(DEFAULT_MAX_RESTARTS))
    streak: Streak = field(default_factory=Streak)
    incident: Incident | None = None
    incidents: int = 0
    culprit: "Culprit | None" = None
    joins: bool = False
    steps: bool = False
    ending: Ending | None = None
    recovering: "Recovering | None" = None
    saving: "Saving | None" = None
    hopeless_rank: int = -1
    testimonies: Mapping[int, Statement] = field(default_factory=dict)
    switch: "Switch | None" = None
    plane_limit_s: float = 0.0  # how long a control plane may take to decide; 0: there is none
    consulting: "Consulting | None" = None
    relief: Relief = Relief()
    parting: "Parting | None" = None
    absent: frozenset[str] = frozenset()  # nodes that were lost with an earlier manager's machine
    awaited: frozenset[str] = frozenset()  # nodes that were seen alive then, spare ones among them
    manager_node: str = ""  # where the manager is, if it took over from such a machine
    lost_at: float = 0.0  # when that machine was missed first
    reserved: int = 0  # the highest generation that was promised to the standbys of a switch
    attended: bool = False  # a control plane speaks for the job, also while it is out of reach
    refused: str = ""  # why a control plane does not allow processes to be recovered
    reset: Reset | None = None  # what the mounted reset-config said last
    held: str = ""  # why no process may run now; empty if any may
    node_lost_at: float = 0.0  # when a node was last lost and nobody has counted that as a restart yet


@dataclass(frozen=True, slots=True)
class Recovering:
    """A recovery from memory under way. ``order`` is kept for a node that comes in the middle of it."""

    rounds: int = 1
    order: Recover | None = None
    standings: Mapping[int, Standing] = field(default_factory=dict)
    regroup: Regroup | None = None
    joined: frozenset[int] = frozenset()
    restored: frozenset[int] = frozenset()
    stepped: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Switch:
    """A hot switch under way, up to its decision.

    ``plan`` is how it will be, ``base`` the generation in which it began. ``workers`` are the standbys that
    exist, ``built`` those that stand. Once it is ``released`` the old ranks stand too. ``off`` says why it
    will not happen, where that is known before all old ranks stand.
    """

    plan: Plan
    ranks: tuple[int, ...]
    target: str
    incarnation: str
    base: int
    since: float
    incident: Incident
    workers: Mapping[int, WorkerView] = field(default_factory=dict)
    built: Mapping[int, Standing] = field(default_factory=dict)
    released: bool = False
    standings: Mapping[int, Standing] = field(default_factory=dict)
    off: str = ""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault on its way to the next strategy: everything that the last one needs to know of it."""

    kind: str
    culprit: "Culprit"
    failure: Failure | None = None
    report: WorkerExited | None = None
    noticed_at: float = 0.0
    ranks: tuple[int, ...] = ()  # who is hurt, where somebody else says so
    cut: bool = False  # the node may live on, but nobody reaches it


@dataclass(frozen=True, slots=True)
class Consulting:
    """A question to the control plane: the faults it is about, and which ranks are hurt in which way."""

    faults: tuple[Fault, ...]
    ranks: Mapping[int, str]
    since: float


@dataclass(frozen=True, slots=True)
class Saving:
    """A dump under way: who writes, and what comes after it. ``then`` is an end that was asked for."""

    ranks: frozenset[int]
    then: "Ending | Fault"
    rounds: int = 1
    target: int = -1
    saved: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Parting:
    """The end of a run, in one generation: who is through, and whether all were told farewell."""

    generation: int
    ranks: frozenset[int] = frozenset()
    said: bool = False


@dataclass(frozen=True, slots=True)
class Culprit:
    """Whom the current incident is blamed on, with what the final report needs."""

    node: str
    what: str
    code: int
    log: str = ""
    error: str = ""
    why_restart: str = ""


# --- events ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeAnnounced:
    """An agent introduced itself."""

    now: float
    stamp: float
    incarnation: str
    announce: Announce


@dataclass(frozen=True, slots=True)
class NodeLost:
    """An agent is dead, or was silent for too long; ``cut``: its machine does not answer either."""

    now: float
    stamp: float
    node: str
    incarnation: str
    why: str
    cut: bool = False


@dataclass(frozen=True, slots=True)
class Reported:
    """An agent told something."""

    now: float
    stamp: float
    node: str
    incarnation: str
    report: Report | Beat | Progress | Standing | Trouble | Saved | Coming | Through


@dataclass(frozen=True, slots=True)
class StopRequested:
    """A person or the launcher wants the job to end."""

    now: float
    why: str
    code: int
    stamp: float = 0.0
    save: bool = False


@dataclass(frozen=True, slots=True)
class SwitchRequested:
    """A person wants a rank to have a new process, or a node's ranks elsewhere; one of the two is -1."""

    now: float
    stamp: float
    rank: int = -1
    node_rank: int = -1
    spare: str = ""  # the node that takes over, where somebody says which


@dataclass(frozen=True, slots=True)
class PlaneChanged:
    """A control plane can be asked from now on and may take so long; or, with 0, it cannot."""

    now: float
    stamp: float
    limit_s: float
    refused: str | None = None  # why it does not want the job's processes recovered; None: as before


@dataclass(frozen=True, slots=True)
class ResetRead:
    """The reset-config that is mounted into the pod says this from now on."""

    now: float
    stamp: float
    reset: Reset


@dataclass(frozen=True, slots=True)
class Warned:
    """The control plane knows of a fault of these ranks; the pairs are rank and kind of fault."""

    now: float
    stamp: float
    ranks: tuple[tuple[int, str], ...]
    what: str


@dataclass(frozen=True, slots=True)
class Advised:
    """The control plane decided about the fault that it was asked about.

    ``nodes`` are to be left. Their agents end by themselves where nobody else ends them (``end_agents``).
    """

    now: float
    stamp: float
    strategy: str
    ranks: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()
    end_agents: bool = True
    relief: Relief = Relief()


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time passed."""

    now: float
    stamp: float = 0.0


Event = (
    NodeAnnounced
    | NodeLost
    | Reported
    | StopRequested
    | SwitchRequested
    | PlaneChanged
    | ResetRead
    | Warned
    | Advised
    | Ticked
)

# --- effects ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SendOrder:
    """Give an order to the agent of a node."""

    node: str
    order: Order


@dataclass(frozen=True, slots=True)
class SendWorkers:
    """Tell all workers of a node something."""

    node: str
    message: Regroup | Denied | Save | Farewell


@dataclass(frozen=True, slots=True)
class RecordIncident:
    """Write an incident to the timeline; the same number again replaces it."""

    incident: Incident


@dataclass(frozen=True, slots=True)
class EndJob:
    """Every agent is done, or out of reach: the manager may leave."""

    ending: Ending


@dataclass(frozen=True, slots=True)
class Refuse:
    """Something was not accepted; say so in the log."""

    node: str
    why: str


@dataclass(frozen=True, slots=True)
class Consult:
    """Tell the control plane of a fault and wait for its decision; the pairs are rank and kind of fault.

    ``cut`` are the node ranks that nobody reaches: nobody can end anything there either.
    """

    ranks: tuple[tuple[int, str], ...]
    what: str
    cut: tuple[int, ...] = ()


Effect = SendOrder | SendWorkers | RecordIncident | EndJob | Refuse | Consult
