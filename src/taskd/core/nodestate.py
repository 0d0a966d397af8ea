"""What an agent knows of its node, what can happen there, and what the agent can do.

Values only; the transitions are in ``node``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from taskd.core.launch import NodePlace, Plan
from taskd.core.messages import Finish, Inject, NodePhase, Order, Report, WorkerExited, WorkerView


@dataclass(frozen=True, slots=True)
class NodeState:
    """What the agent is doing."""

    key: str
    phase: NodePhase = NodePhase.IDLE
    generation: int = 0
    plan: Plan | None = None
    workers: Mapping[int, WorkerView] = field(default_factory=dict)
    spawning: bool = False
    waiting_plan: Plan | None = None
    missing: tuple[int, ...] = ()
    leader: int = -1
    kill_at: float | None = None
    finish: Finish | None = None
    executed: tuple[str, ...] = ()
    standby_plan: Plan | None = None
    standbys: Mapping[int, WorkerView] = field(default_factory=dict)
    leavers: frozenset[int] = frozenset()  # processes that are no ranks any more, by their ids
    leave_by: float | None = None

    @property
    def busy(self) -> bool:
        """Tell whether a process runs or is being made."""
        alive = any(view.state.alive for view in self.workers.values())
        return self.spawning or alive or bool(self.leavers)


# --- events ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OrderReceived:
    """The manager wants something."""

    now: float
    order: Order


@dataclass(frozen=True, slots=True)
class ProcessesStarted:
    """The processes of a plan exist."""

    now: float
    generation: int
    workers: tuple[WorkerView, ...]
    sources: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class SpawnFailed:
    """The processes of a plan could not be made."""

    now: float
    generation: int
    error: str


@dataclass(frozen=True, slots=True)
class ProcessExited:
    """A process is gone."""

    now: float
    report: WorkerExited


@dataclass(frozen=True, slots=True)
class StandbysStarted:
    """The standbys of a switch exist, or could not be made."""

    now: float
    generation: int
    workers: tuple[WorkerView, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class StandbyExited:
    """A standby is gone before it became a rank."""

    now: float
    generation: int
    rank: int
    why: str


@dataclass(frozen=True, slots=True)
class LeaverExited:
    """A process that is no rank any more is gone."""

    now: float
    pid: int


@dataclass(frozen=True, slots=True)
class ConversationBegan:
    """A manager is told everything anew. It knows nothing of a switch that another one had begun."""

    now: float


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time passed."""

    now: float


NodeEvent = (
    OrderReceived
    | ProcessesStarted
    | SpawnFailed
    | ProcessExited
    | StandbysStarted
    | StandbyExited
    | LeaverExited
    | ConversationBegan
    | Ticked  # one name a line
)

# --- effects ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Execute:
    """An order is carried out now, for the first and only time: write it down before acting."""

    order: str
    generation: int


@dataclass(frozen=True, slots=True)
class SpawnProcesses:
    """Make processes of the node's place in a plan: all of them, or the named ranks beside living ones."""

    plan: Plan
    place: NodePlace
    ranks: tuple[int, ...] = ()
    standby: bool = False


@dataclass(frozen=True, slots=True)
class InterruptProcesses:
    """Tell living processes that a generation was raised over them."""

    ranks: tuple[int, ...]
    generation: int
    leader: int
    gentle: bool = False
    leaving: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Promote:
    """The standbys of these ranks are the ranks from now on."""

    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EndProcesses:
    """Kill processes that are no ranks."""

    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SignalProcesses:
    """Send a signal to the process groups of these ranks."""

    ranks: tuple[int, ...]
    signal: int


@dataclass(frozen=True, slots=True)
class Tell:
    """Report to the manager."""

    report: Report


@dataclass(frozen=True, slots=True)
class TellStopped:
    """Report that nothing of the generation is left, with a port that is free now."""

    generation: int


@dataclass(frozen=True, slots=True)
class DoFault:
    """Carry out an injected fault."""

    order: Inject


@dataclass(frozen=True, slots=True)
class Leave:
    """The job is over for this node."""

    code: int
    reason: str
    report: str


@dataclass(frozen=True, slots=True)
class RefuseOrder:
    """An order is not carried out; say why in the log."""

    order: str
    why: str


NodeEffect = (
    Execute
    | SpawnProcesses
    | InterruptProcesses
    | Promote
    | EndProcesses
    | SignalProcesses
    | Tell
    | TellStopped
    | DoFault
    | Leave
    | RefuseOrder  # one name a line
)
