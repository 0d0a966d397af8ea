"""The agent's machine: orders and deaths go in, signals and reports come out.

It owns the processes of one node in the sense that only its effects start or end them. Its promises: an
order is carried out once however often it comes; an order of an older generation is refused; a start waits
until all processes of older generations are gone; and ``WorkersStopped`` is told when nothing is left.

Beside the ranks there may be *standbys* of a hot switch: processes that build themselves up and wait. Until
the switch is decided they are nobody, and whatever else happens ends them. When it is decided they are the
ranks, and the old processes are on their way out.
"""

from dataclasses import replace
from typing import assert_never

from taskd.core.exits import Exit
from taskd.core.launch import NodePlace, Plan
from taskd.core.messages import (
    Dismiss,
    Finish,
    Inject,
    NodePhase,
    Order,
    OrderDone,
    Part,
    Prepare,
    Prepared,
    Recover,
    Release,
    Start,
    Stop,
    WorkerExited,
    WorkersStarted,
    WorkerState,
    WorkerView,
)
from taskd.core.nodestate import (
    ConversationBegan,
    DoFault,
    EndProcesses,
    Execute,
    InterruptProcesses,
    Leave,
    LeaverExited,
    NodeEffect,
    NodeEvent,
    NodeState,
    OrderReceived,
    ProcessesStarted,
    ProcessExited,
    Promote,
    RefuseOrder,
    SignalProcesses,
    SpawnFailed,
    SpawnProcesses,
    StandbyExited,
    StandbysStarted,
    Tell,
    TellStopped,
    Ticked,
)

SIGKILL, SIGTERM = 9, 15
REMEMBERED_ORDERS = 256
PART_GRACE_S = 10.0


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
        case StandbysStarted():
            return _standbys_started(node, event)
        case StandbyExited():
            return _standby_exited(node, event)
        case LeaverExited():
            node = replace(node, leavers=node.leavers - {event.pid})
            return _all_gone(node) if node.phase is NodePhase.STOPPING and not node.busy else (node, ())
        case ConversationBegan():
            return _drop_standbys(node)
        case Ticked(now=now):
            effects: tuple[NodeEffect, ...] = ()
            if node.leave_by is not None and now >= node.leave_by:
                node, effects = replace(node, leave_by=None), (EndProcesses(tuple(sorted(node.leavers))),)
            if node.kill_at is None or now < node.kill_at:
                return node, effects
            return replace(node, kill_at=None), (*effects, SignalProcesses(_alive(node), SIGKILL))
        case _:
            assert_never(event)


def _ordered(node: NodeState, now: float, order: Order) -> Outcome:
    if order.order in node.executed:
        return node, (RefuseOrder(order.order, "carried out before"), *_answer_again(node, order))
    if node.finish is not None and not isinstance(order, Inject):
        return node, (RefuseOrder(order.order, "the node is leaving"),)
    match order:
        case Prepare() | Release() | Part() | Dismiss():
            return _switch(node, now, order)
        case Inject():
            node = _remember(node, order.order)
            return node, (Execute(order.order, node.generation), DoFault(order))
        case _:
            # Whatever it is: a switch that was being prepared is off.
            node, first = _drop_standbys(node)
            node, effects = _obey(node, now, order)
            return node, (*first, *effects)


def _obey(node: NodeState, now: float, order: Start | Recover | Stop | Finish) -> Outcome:
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
        case _:
            assert_never(order)


# --- a hot switch ----------------------------------------------------------------------------------------


def _switch(node: NodeState, now: float, order: Prepare | Release | Part | Dismiss) -> Outcome:
    generation = order.generation if isinstance(order, Dismiss) else order.plan.generation
    place = None if isinstance(order, Dismiss) else order.plan.place_of(node.key)
    known = generation < node.generation or (generation == node.generation and isinstance(order, Release))
    if known or (isinstance(order, Prepare) and generation == node.generation):
        return node, (_stale(order.order, node),)
    if place is None and isinstance(order, Prepare | Release):
        return node, (RefuseOrder(order.order, "the plan gives this node no ranks"),)
    node = _remember(node, order.order)
    executed = Execute(order.order, generation)
    match order:
        case Prepare(plan=plan, ranks=ranks) if place is not None:
            node, effects = _drop_standbys(node)
            node = replace(node, standby_plan=plan)
            return node, (executed, *effects, SpawnProcesses(plan, place, ranks, standby=True))
        case Release(plan=plan, leader=leader) if place is not None:
            leaving = tuple(rank for rank in order.leaving if rank in place.ranks)
            node = replace(node, generation=generation, plan=plan, leader=leader)
            raised = InterruptProcesses(_alive(node), generation, leader, gentle=True, leaving=leaving)
            return node, (executed, raised)
        case Part():
            node, effects = _part(node, now, order, place)
            return node, (executed, *effects)
        case _:
            ours = node.standby_plan is not None and node.standby_plan.generation == generation
            node, effects = _drop_standbys(node) if ours else (node, ())
            return node, (executed, *effects)


def _part(node: NodeState, now: float, order: Part, place: NodePlace | None) -> Outcome:
    """Let the standbys be the ranks; the old processes are on their way out and are ended if they stay."""
    plan = order.plan
    node = replace(node, generation=plan.generation, plan=plan, missing=())
    if place is None:
        node = replace(node, phase=NodePhase.STOPPING, kill_at=now + PART_GRACE_S)
        return (node, ()) if node.busy else _all_gone(node)
    moving = tuple(rank for rank in order.ranks if rank in place.ranks)
    gone = [node.workers[rank] for rank in moving if rank in node.workers]
    leavers = node.leavers | {view.pid for view in gone if view.state.alive}
    lost = tuple(rank for rank in moving if rank not in node.standbys)
    workers = {rank: view for rank, view in node.workers.items() if rank in place.ranks}
    for rank in lost:
        failed = Exit(signal=SIGKILL)
        workers[rank] = WorkerView(rank, rank - place.first_rank, 0, WorkerState.FAILED, exit=failed)
    node = replace(
        node,
        phase=NodePhase.RUNNING,
        workers={**workers, **node.standbys},
        standbys={},
        standby_plan=None,
        leavers=leavers,
        leave_by=now + PART_GRACE_S,
    )
    started = Tell(WorkersStarted(node.generation, tuple(node.workers.values())))
    deaths = tuple(
        Tell(
            WorkerExited(
                node.generation,
                rank,
                rank - place.first_rank,
                0,
                Exit(signal=SIGKILL),
                step=-1,
                lived_s=0.0,
                noticed_at=now,
                error="its standby was gone when the switch was decided",
            )
        )
        for rank in lost
    )
    return node, (Promote(tuple(rank for rank in moving if rank not in lost)), started, *deaths)


def _drop_standbys(node: NodeState) -> Outcome:
    """End the standbys. Those that are still being made are ended when they are there."""
    pids = tuple(view.pid for view in node.standbys.values())
    node = replace(node, standbys={}, standby_plan=None, leavers=node.leavers | set(pids))
    return node, (EndProcesses(pids),) if pids else ()


def _standbys_started(node: NodeState, event: StandbysStarted) -> Outcome:
    pids = tuple(view.pid for view in event.workers)
    if node.standby_plan is None or node.standby_plan.generation != event.generation:
        leavers = node.leavers | set(pids)
        return replace(node, leavers=leavers), (EndProcesses(pids),) if pids else ()
    if event.error:
        return replace(node, standby_plan=None), (Tell(Prepared(event.generation, error=event.error)),)
    node = replace(node, standbys={view.rank: view for view in event.workers})
    return node, (Tell(Prepared(event.generation, event.workers)),)


def _standby_exited(node: NodeState, event: StandbyExited) -> Outcome:
    if node.standby_plan is None or node.standby_plan.generation != event.generation:
        return node, ()
    others = {rank: view for rank, view in node.standbys.items() if rank != event.rank}
    node, effects = _drop_standbys(replace(node, standbys=others))
    error = f"the standby of rank {event.rank} {event.why}"
    return node, (*effects, Tell(Prepared(event.generation, error=error)))


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
        leavers = (EndProcesses(tuple(sorted(node.leavers))),) if node.leavers else ()
        return node, (executed, *leavers, SignalProcesses(_alive(node), SIGKILL))
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
    if not node.spawning and not node.missing:
        # What was told of processes that were made for the generation before may have crossed this order, and
        # been refused: the manager would take them for strangers.
        effects.append(Tell(WorkersStarted(node.generation, tuple(node.workers.values()))))
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
    leavers = (EndProcesses(tuple(sorted(node.leavers))),) if node.leavers else ()
    return node, (*leavers, SignalProcesses(_alive(node), SIGTERM))


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
