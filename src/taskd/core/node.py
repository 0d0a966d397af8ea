"""The agent's machine: orders and deaths go in, signals and reports come out.

It owns the processes of one node in the sense that only its effects start or end them. Its promises: an
order is carried out once however often it comes; an order of an older generation is refused; processes of
two generations never run at the same time; and ``WorkersStopped`` is told only when nothing is left.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import assert_never

from taskd.core.exits import Exit
from taskd.core.launch import NodePlace, Plan
from taskd.core.messages import (
    Finish,
    Inject,
    NodePhase,
    Order,
    OrderDone,
    Recover,
    Report,
    Start,
    Stop,
    WorkerExited,
    WorkersStarted,
    WorkerState,
    WorkerView,
)

SIGKILL, SIGTERM = 9, 15
REMEMBERED_ORDERS = 256


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

    @property
    def busy(self) -> bool:
        """Tell whether a process runs or is being made."""
        return self.spawning or any(view.state.alive for view in self.workers.values())


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
class Ticked:
    """Time passed."""

    now: float


NodeEvent = OrderReceived | ProcessesStarted | SpawnFailed | ProcessExited | Ticked

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


@dataclass(frozen=True, slots=True)
class InterruptProcesses:
    """Tell living processes that a generation was raised over them."""

    ranks: tuple[int, ...]
    generation: int
    leader: int


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
    | SignalProcesses
    | Tell
    | TellStopped
    | DoFault
    | Leave
    | RefuseOrder  # one name a line
)
Outcome = tuple[NodeState, tuple[NodeEffect, ...]]


def step(node: NodeState, event: NodeEvent) -> Outcome:
    """Return the node after an event, and what must be done."""
    match event:
        case OrderReceived():
            return _ordered(node, event.now, event.order)
        case ProcessesStarted():
            return _started(node, event)
        case SpawnFailed():
            return _spawn_failed(node, event)
        case ProcessExited():
            return _exited(node, event.report)
        case Ticked(now=now):
            if node.kill_at is None or now < node.kill_at:
                return node, ()
            return replace(node, kill_at=None), (SignalProcesses(_alive(node), SIGKILL),)
        case _:
            assert_never(event)


def _ordered(node: NodeState, now: float, order: Order) -> Outcome:
    if order.order in node.executed:
        return node, (RefuseOrder(order.order, "carried out before"), *_answer_again(node, order))
    if node.finish is not None and not isinstance(order, Inject):
        return node, (RefuseOrder(order.order, "the node is leaving"),)
    match order:
        case Start():
            if order.plan.generation <= node.generation:
                return node, (_stale(order.order, node),)
            return _start(_remember(node, order.order), order)
        case Recover():
            if order.plan.generation <= node.generation:
                return node, (_stale(order.order, node),)
            return _recover(_remember(node, order.order), order)
        case Stop():
            if order.generation < node.generation:
                return node, (_stale(order.order, node),)
            # A plan that waits for older processes to end is stopped before it began.
            stopped = replace(node, generation=order.generation, waiting_plan=None)
            node = _remember(stopped, order.order)
            node, effects = _stop(node, now, order.grace_s)
            return node, (Execute(order.order, order.generation), *effects)
        case Finish():
            node = _remember(replace(node, finish=order, waiting_plan=None), order.order)
            node, effects = _stop(node, now, order.grace_s)
            return node, (Execute(order.order, node.generation), *effects)
        case Inject():
            node = _remember(node, order.order)
            return node, (Execute(order.order, node.generation), DoFault(order))
        case _:
            assert_never(order)


def _answer_again(node: NodeState, order: Order) -> tuple[NodeEffect, ...]:
    """Repeat the report that an earlier manager may have taken with it."""
    match order:
        case Start() if node.phase is NodePhase.RUNNING and order.plan.generation == node.generation:
            return (Tell(WorkersStarted(node.generation, tuple(node.workers.values()))),)
        case Stop() if node.phase is NodePhase.STOPPED and order.generation == node.generation:
            return (TellStopped(node.generation),)
        case Finish() if node.phase is NodePhase.FINISHED:
            return (Tell(OrderDone(order.order, ok=True)),)
        case _:
            return ()


def _start(node: NodeState, order: Start) -> Outcome:
    plan = order.plan
    place = plan.place_of(node.key)
    executed = Execute(order.order, plan.generation)
    if place is None:
        return node, (RefuseOrder(order.order, "the plan gives this node no ranks"),)
    if node.busy:
        # Processes of an older generation: the manager gave them up, so they get no grace.
        node = replace(node, waiting_plan=plan, phase=NodePhase.STOPPING, generation=plan.generation)
        return node, (executed, SignalProcesses(_alive(node), SIGKILL))
    node, effects = _spawn(node, plan, place)
    return node, (executed, *effects)


def _recover(node: NodeState, order: Recover) -> Outcome:
    """Raise the generation over what runs here, and make the missing ranks anew.

    A rank that is to be replaced and still has a process (it hangs) loses it first; its replacement is made
    when the death is known.
    """
    plan = order.plan
    place = plan.place_of(node.key)
    if place is None:
        return node, (RefuseOrder(order.order, "the plan gives this node no ranks"),)
    mine = tuple(rank for rank in order.replace if rank in place.ranks)
    hung = tuple(rank for rank in mine if rank in _alive(node))
    others = tuple(rank for rank in _alive(node) if rank not in mine)
    node = replace(node, generation=plan.generation, plan=plan, missing=mine, leader=order.leader)
    effects: list[NodeEffect] = [Execute(order.order, plan.generation)]
    if others:
        effects.append(InterruptProcesses(others, plan.generation, order.leader))
    if hung:
        effects.append(SignalProcesses(hung, SIGKILL))
    node, more = _fill(node)
    return node, (*effects, *more)


def _fill(node: NodeState) -> Outcome:
    """Make the processes that a recovery wants, once nothing of the old ones is left."""
    place = node.plan.place_of(node.key) if node.plan else None
    if not node.missing or node.spawning or node.plan is None or place is None:
        return node, ()
    if any(rank in node.missing for rank in _alive(node)):
        return node, ()
    ranks, plan = node.missing, node.plan
    node = replace(node, phase=NodePhase.STARTING, spawning=True, missing=())
    return node, (SpawnProcesses(plan, place, ranks),)


def _spawn(node: NodeState, plan: Plan, place: NodePlace) -> Outcome:
    node = replace(
        node,
        phase=NodePhase.STARTING,
        generation=plan.generation,
        plan=plan,
        workers={},
        spawning=True,
        waiting_plan=None,
        missing=(),
        kill_at=None,
    )
    return node, (SpawnProcesses(plan, place),)


def _stop(node: NodeState, now: float, grace_s: float) -> Outcome:
    if not node.busy:
        return _all_gone(node)
    node = replace(node, phase=NodePhase.STOPPING, kill_at=now + grace_s, missing=())
    return node, (SignalProcesses(_alive(node), SIGTERM),)


def _started(node: NodeState, event: ProcessesStarted) -> Outcome:
    if not node.spawning:
        return node, ()
    # A process may have ended before its siblings were made: what is known of its end stays.
    views = {**node.workers}
    for view in event.workers:
        old = views.get(view.rank)
        views[view.rank] = old if old is not None and old.pid == view.pid else view
    node = replace(node, spawning=False, workers=views)
    if node.phase is not NodePhase.STARTING:
        if not node.busy:
            return _all_gone(node)
        return node, (SignalProcesses(_alive(node), SIGKILL),)
    node = replace(node, phase=NodePhase.RUNNING)
    started = WorkersStarted(node.generation, tuple(views.values()), event.sources)
    node, effects = _fill(node)
    if event.generation == node.generation:
        return node, (Tell(started), *effects)
    # A generation was raised while these were being made: they do not know of it yet.
    late = tuple(view.rank for view in event.workers if views[view.rank].state.alive)
    interrupt = InterruptProcesses(late, node.generation, node.leader)
    return node, (Tell(started), interrupt, *effects)


def _spawn_failed(node: NodeState, event: SpawnFailed) -> Outcome:
    if not node.spawning:
        return node, ()
    node = replace(node, spawning=False)
    place = node.plan.place_of(node.key) if node.plan else None
    if node.phase is not NodePhase.STARTING or place is None:
        return (node, ()) if node.busy else _all_gone(node)
    report = WorkerExited(
        generation=event.generation,
        rank=place.first_rank,
        local_rank=0,
        pid=0,
        exit=Exit(code=1),
        step=-1,
        lived_s=0.0,
        noticed_at=event.now,
        error=event.error,
        place="spawn",
    )
    # The view outlives the report: a manager that takes over must see that this generation failed.
    view = WorkerView(report.rank, 0, 0, WorkerState.FAILED, exit=report.exit)
    return replace(node, phase=NodePhase.RUNNING, workers={**node.workers, view.rank: view}), (Tell(report),)


def _exited(node: NodeState, report: WorkerExited) -> Outcome:
    if node.plan is None or report.generation != node.plan.generation:
        return node, ()
    state = WorkerState.SUCCEEDED if report.exit.ok else WorkerState.FAILED
    if node.phase is NodePhase.STOPPING and not report.exit.ok:
        state = WorkerState.STOPPED
    view = WorkerView(report.rank, report.local_rank, report.pid, state, report.step, report.exit, report.log)
    node = replace(node, workers={**node.workers, report.rank: view})
    if report.rank in node.missing:
        return _fill(node)
    effects: tuple[NodeEffect, ...] = ()
    if node.phase in (NodePhase.STARTING, NodePhase.RUNNING) or report.failed_stamp:
        # While stopping, only an error of the program's own is news: it may be the first cause.
        effects = (Tell(report),)
    if node.phase is NodePhase.STOPPING and not node.busy:
        node, more = _all_gone(node)
        return node, (*effects, *more)
    return node, effects


def _all_gone(node: NodeState) -> Outcome:
    """Nothing is left: start what waits, leave, or say so."""
    node = replace(node, phase=NodePhase.STOPPED, kill_at=None)
    if node.finish is not None:
        finish = node.finish
        node = replace(node, phase=NodePhase.FINISHED)
        done = OrderDone(finish.order, ok=True)
        return node, (Tell(done), Leave(finish.code, finish.reason, finish.report))
    plan = node.waiting_plan
    place = plan.place_of(node.key) if plan else None
    if plan is not None and place is not None and plan.generation == node.generation:
        return _spawn(node, plan, place)
    return replace(node, waiting_plan=None), (TellStopped(node.generation),)


def _alive(node: NodeState) -> tuple[int, ...]:
    return tuple(rank for rank, view in node.workers.items() if view.state.alive)


def _remember(node: NodeState, order: str) -> NodeState:
    return replace(node, executed=(*node.executed, order)[-REMEMBERED_ORDERS:])


def _stale(order: str, node: NodeState) -> RefuseOrder:
    return RefuseOrder(order, f"of an older generation than {node.generation}")
