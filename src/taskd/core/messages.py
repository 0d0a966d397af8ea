"""The vocabulary between manager, proxies, agents and workers.

Frozen values without behaviour. ``wire`` turns them into bytes; the machines in ``core`` take them in and
give them out, so a simulation and a real job speak the same words.

Two rules hold for every message that changes something. It names its generation, and a receiver refuses
one that is older than what it already obeys. And an order has an identity that follows from what it means
(``7/start``), not from who sent it, so a manager that takes over may give it again without harm.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from taskd.core.exits import Exit
from taskd.core.launch import FaultKind, JobOptions, Plan
from taskd.core.succession import Candidate, Term
from taskd.core.testimony import Statement

MANAGER = "manager"


def proxy_address(node: str) -> str:
    """Return the address of a node's proxy."""
    return f"proxy/{node}"


def agent_address(node: str) -> str:
    """Return the address of a node's agent."""
    return f"agent/{node}"


def worker_address(node: str, rank: int) -> str:
    """Return the address of a worker; rank -1 stands for all workers of the node."""
    return f"worker/{node}/{rank}"


class WorkerState(StrEnum):
    """Where one training process stands."""

    STARTING = "starting"
    RUNNING = "running"
    JOINED = "joined"
    STOPPED = "stopped"
    SUCCEEDED = "succeeded"
    FAILED = "failed"

    @property
    def alive(self) -> bool:
        """Tell whether there is a process behind it."""
        return self in (WorkerState.STARTING, WorkerState.RUNNING, WorkerState.JOINED)


class NodePhase(StrEnum):
    """Where one agent stands."""

    IDLE = "idle"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class WorkerView:
    """What an agent knows of one of its workers.

    ``let_go`` says that it has heard the farewell to all ranks, whatever became of it since.
    """

    rank: int
    local_rank: int
    pid: int
    state: WorkerState
    step: int = -1
    exit: Exit | None = None
    log: str = ""
    ready: bool = False
    let_go: bool = False


# --- from below ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Announce:
    """An agent introduces itself to a manager that does not know it: its whole state in one message."""

    node: str
    wants_rank: int
    addr: str
    host: str
    pid: int
    boot_id: str
    local_world: int
    free_port: int
    phase: NodePhase = NodePhase.IDLE
    generation: int = 0
    plan: Plan | None = None
    workers: tuple[WorkerView, ...] = ()
    options: JobOptions | None = None
    spare: bool = False


@dataclass(frozen=True, slots=True)
class WorkersStarted:
    """All processes of a node exist. ``sources`` tells for each whether it was a spare, a fork or an exec."""

    generation: int
    workers: tuple[WorkerView, ...]
    sources: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WorkerExited:
    """A training process ended by itself or was killed by somebody else.

    ``noticed_at`` is the monotonic clock of the node (comparable where the boot id is the same), and
    ``failed_stamp`` the wall time in the error file, which orders a first error before those it caused.
    """

    generation: int
    rank: int
    local_rank: int
    pid: int
    exit: Exit
    step: int
    lived_s: float
    noticed_at: float
    failed_stamp: float = 0.0
    error: str = ""
    place: str = ""
    log: str = ""
    stack: str = ""


@dataclass(frozen=True, slots=True)
class WorkersStopped:
    """No process of this generation is left on the node."""

    generation: int
    free_port: int


@dataclass(frozen=True, slots=True)
class OrderDone:
    """The answer to an order that is not about starting or stopping."""

    order: str
    ok: bool
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """A worker joined or reached its first step of this generation: told at once, not with the next beat.

    ``ready`` means that it holds its state and can take part in a recovery from memory. ``notes`` are what
    people should know of how it got there; one rank says them for all.
    """

    generation: int
    rank: int
    joined: bool
    step: int
    ready: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Trouble:
    """A step of a living worker failed: an error in it, or a collective that broke without a death.

    It asks for another try. The rank says what it saw (``kind`` is one of ``core.troubles``); who is to blame
    is not its to decide.
    """

    generation: int
    rank: int
    step: int
    error: str
    place: str
    kind: str = "step"


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a worker stands when a generation is raised over it: out of its collectives, waiting.

    ``step`` counts the steps it has committed; ``complete`` says that it holds the whole reduced gradient of
    the next one. ``shards`` names each rank's part of the state, as far as this one knows; ranks with one
    and the same part are replicas. ``snapshots`` are the (rank, step) of which this one has a copy in shared
    memory, ``beside`` those that other ranks of the node left there: a dump has no replacement that would
    find them. Repeated until the answer is there. Only the leader has a ``store``.

    ``pid`` and ``birth``, the generation it was born in, tell two processes of one rank apart. One that is
    ``leaving`` in a hot switch brings what its successor needs: its ``own`` small state as of now. One whose
    script is ``through`` has left its loop for good. One without a state says how many steps its script was
    ``told`` of, by the process before it: it may be one more than anybody else has committed.
    """

    generation: int
    rank: int
    has_state: bool
    step: int
    complete: bool = False
    store: str = ""
    shards: tuple[str, ...] = ()
    snapshots: tuple[tuple[int, int], ...] = ()
    pid: int = 0
    birth: int = 0
    leaving: bool = False
    own: bytes = b""
    through: bool = False
    told: int = 0
    beside: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Saved:
    """A worker has written its part of a dump, or could not."""

    generation: int
    rank: int
    ok: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Coming:
    """A worker that was called is in its script's own code, outside of a step, and comes when it is done."""

    generation: int
    rank: int


@dataclass(frozen=True, slots=True)
class Through:
    """A worker's script has ended; its process stays until all others' have."""

    generation: int
    rank: int
    step: int


@dataclass(frozen=True, slots=True)
class PlaceAsked:
    """A worker was away in the midst of a step, and asks whether its rank is still its own before it goes on.

    ``number`` tells an answer to this question from one to an earlier one.
    """

    generation: int
    rank: int
    number: int


@dataclass(frozen=True, slots=True)
class PlaceHeld:
    """A manager that may decide says that the rank which asked is where the plan has it."""

    generation: int
    rank: int
    number: int


@dataclass(frozen=True, slots=True)
class NotesWanted:
    """A replacement finds no notes of what its predecessor was told before the loop, and asks other nodes.

    ``source`` counts those who were asked and had none. It asks for one part after the other, and again if
    no answer comes, so whoever is between it and the notes may die.
    """

    rank: int
    source: int = 0
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Notes:
    """A part of a rank's notes, from the agent of a node that keeps them.

    ``total`` is 0 where it does not, and -1 if there is nobody else to ask.
    """

    rank: int
    source: int
    offset: int
    total: int
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class Prepared:
    """The standbys of a hot switch exist; with an ``error``, one of them does not, and all others ended."""

    generation: int
    workers: tuple[WorkerView, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class Beat:
    """A sign of life of an agent, with the steps of its ranks. Not repeated if lost.

    Once one of its ranks was silent for longer than a step may take, it says where each of them is.
    """

    generation: int
    steps: Mapping[int, int]
    joined: tuple[int, ...] = ()
    paused: tuple[int, ...] = ()
    ready: tuple[int, ...] = ()
    testimonies: tuple[Statement, ...] = ()


@dataclass(frozen=True, slots=True)
class ProxyHello:
    """A proxy opens its stream to the manager. ``standby`` is where its node could host one itself.

    The term and the version are those of the roster that it keeps.
    """

    node: str
    pid: int
    incarnation: str
    token: str = ""
    standby: Candidate | None = None
    term: Term = field(default_factory=Term)
    version: int = 0


@dataclass(frozen=True, slots=True)
class RosterKept:
    """A proxy has a roster on disk. Said again and again: it is also the node's sign of life."""

    node: str
    term: Term
    version: int


@dataclass(frozen=True, slots=True)
class AgentGone:
    """A proxy saw its agent's connection close: the process is dead."""

    node: str
    agent_incarnation: str


@dataclass(frozen=True, slots=True)
class FaultDue:
    """A worker came to a step at which the schedule wants a fault that the worker cannot do itself."""

    fault_id: str
    rank: int
    step: int


# --- from above ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Start:
    """Start the processes of a plan."""

    order: str
    plan: Plan


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop the processes of a generation; nothing of it may be left when the answer comes."""

    order: str
    generation: int
    grace_s: float
    why: str


@dataclass(frozen=True, slots=True)
class Recover:
    """Raise the generation over living processes: replace the named ranks, interrupt all others."""

    order: str
    plan: Plan
    replace: tuple[int, ...]
    leader: int
    why: str


@dataclass(frozen=True, slots=True)
class Prepare:
    """Make standbys of these ranks, beside whatever runs: processes that build themselves up and wait."""

    order: str
    plan: Plan
    ranks: tuple[int, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Release:
    """Raise the generation over workers that finish their step first; nobody is interrupted or ended.

    The plan's places are the old ones: who is ``leaving`` still has its place, should something go wrong.
    """

    order: str
    plan: Plan
    leader: int
    leaving: tuple[int, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Part:
    """The switch is decided: standbys of these ranks are the ranks now, and their old processes end."""

    order: str
    plan: Plan
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Dismiss:
    """The switch is off: end the standbys that were made for this generation."""

    order: str
    generation: int
    why: str


@dataclass(frozen=True, slots=True)
class Interrupt:
    """An agent tells its workers that a generation was raised over them.

    A ``gentle`` one lets them finish their step; those who are ``leaving`` hand over there.
    """

    generation: int
    leader: int
    gentle: bool = False
    leaving: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Denied:
    """There is no other try for a rank that asked for one: its error is its own."""

    generation: int
    rank: int
    why: str


@dataclass(frozen=True, slots=True)
class Farewell:
    """All workers of a generation are through; their processes may end."""

    generation: int


@dataclass(frozen=True, slots=True)
class Regroup:
    """How the workers of a generation come together: where they meet and who needs a state.

    ``target`` is the number of committed steps that all have afterwards; who stands one below it and does not
    receive applies the gradient that it holds. ``top`` is what the furthest had committed: where there is no
    copy of that, all go one step back, and the step that is computed again counts only once. ``shards`` tells
    a newcomer which part its predecessor had. ``parted`` ranks
    have another process from here on, and ``partings`` is what the old ones left to them; only their own node
    is told that. ``over`` says that there is no step after the target: others have left the loop there.
    """

    generation: int
    store: str
    target: int
    top: int
    receivers: tuple[int, ...]
    shards: tuple[str, ...] = ()
    parted: tuple[int, ...] = ()
    partings: Mapping[int, bytes] = field(default_factory=dict)
    over: bool = False


@dataclass(frozen=True, slots=True)
class Save:
    """There is no way on: write the state of a step to disk, each part once.

    ``writers`` write a part each. A part that nobody has any more is written from a snapshot: ``copies`` are
    (who writes, whose snapshot). ``absent`` ranks are gone; whoever keeps their own small state writes it.
    """

    generation: int
    target: int
    writers: tuple[int, ...]
    absent: tuple[int, ...] = ()
    copies: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Finish:
    """The job is over: stop what still runs and leave."""

    order: str
    code: int
    reason: str
    report: str = ""
    grace_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Inject:
    """Do a fault to a rank, to the whole node, or to a role on it."""

    order: str
    kind: FaultKind
    rank: int = -1
    role: str = ""
    whole_node: bool = False
    step: int = -1
    code: int = 1


@dataclass(frozen=True, slots=True)
class WorkerOrder:
    """Something to be done inside training processes; ``ranks`` empty means all of the node."""

    order: str
    action: str
    ranks: tuple[int, ...] = ()
    args: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WorkerOrderDone:
    """A proxy's answer for all its workers at once."""

    order: str
    node: str
    results: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Upstream:
    """Tells an agent which manager it now speaks to; empty while there is none.

    It comes from the proxy, and with ``anew`` from a manager that had given the node up: the agent then says
    everything again, in a conversation of its own, so that nothing of the old one can be mistaken for it.
    To a proxy it may say that its whole node was ``replaced``, and by what; it then has to go.
    """

    incarnation: str
    anew: bool = False
    term: Term = field(default_factory=Term)
    replaced: str = ""


@dataclass(frozen=True, slots=True)
class LocalHello:
    """An agent or a worker introduces itself to its proxy."""

    address: str
    incarnation: str
    pid: int


@dataclass(frozen=True, slots=True)
class Ack:
    """Carries an acknowledgement when there is nothing else to send."""


Order = Start | Stop | Recover | Prepare | Release | Part | Dismiss | Finish | Inject
Report = Announce | WorkersStarted | WorkerExited | WorkersStopped | Prepared | OrderDone
