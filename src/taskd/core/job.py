"""The recovery machine: what happened goes in, orders come out.

``step`` is the only way the state changes. It reads no clock and sends nothing, so the manager, a simulation
and a property test run the very same decisions.

The course of a restart, in which a further fault at any point changes nothing but the report::

    RUNNING --fault--> STOPPING --all stopped--> STARTING (generation + 1) --all started--> RUNNING
                           |  a node is lost: GATHERING until it or another one is there
                           '- budget spent, or the same failure again and again: FINISHING --> ENDED

A manager that was born into a running job is in GATHERING like any other. What the agents announce tells it
how far its predecessor came, and it goes on from there: see ``_resume``.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import assert_never

from taskd.core.advice import drop_overtaken, take_advice, take_plane, take_silence, take_warning
from taskd.core.answering import (
    answer,
    answer_stall,
    end_while_saving,
    fall_through,
    go_on_after_saving,
    stop_saving,
)
from taskd.core.blame import blame_earlier
from taskd.core.endings import check_finishing, check_success, finish
from taskd.core.exits import ExitCode
from taskd.core.failures import Failure, describe_exit
from taskd.core.incidents import SWITCH
from taskd.core.jobread import (
    FINISH_ORDER,
    finish_order,
    is_down,
    is_member,
    member_views,
    newer_view,
    newest_plan,
    node_label,
    note_progress,
    refuse_stale,
    stop_leftovers,
    stop_order,
    stopped_view,
    with_node,
)
from taskd.core.jobstate import (
    Advised,
    Culprit,
    Effect,
    Ending,
    EndJob,
    Event,
    Fault,
    Job,
    Node,
    NodeAnnounced,
    NodeLost,
    PlaneChanged,
    Refuse,
    Reported,
    ResetRead,
    SendOrder,
    StopRequested,
    SwitchRequested,
    Ticked,
    Warned,
)
from taskd.core.messages import (
    Announce,
    Beat,
    Coming,
    Finish,
    NodePhase,
    OrderDone,
    Prepared,
    Progress,
    Saved,
    Standing,
    Through,
    Trouble,
    WorkerExited,
    WorkersStarted,
    WorkersStopped,
    WorkerState,
    WorkerView,
)
from taskd.core.parting import (
    count_as_finished,
    note_coming,
    recall_farewell,
    take_through,
    were_let_go,
)
from taskd.core.recovery import LIMIT_S as RECOVERY_LIMIT_S
from taskd.core.recovery import (
    begin_recovery,
    has_survivors,
    propose,
    take_in,
    take_progress,
    take_standing,
    take_trouble,
    welcome_back,
)
from taskd.core.resetorders import obey_hold, take_reset
from taskd.core.restarting import (
    after_progress,
    begin,
    countable_nodes,
    gather_again,
    lost_with_manager,
    order_start,
    restart_all,
    when_started,
    when_stopped,
    why_too_late,
    why_wait,
)
from taskd.core.saving import (
    SAVE_LIMIT_S,
    begin_saving,
    can_save,
    can_save_again,
    take_saved,
    take_standing_to_save,
)
from taskd.core.stalled import hear_testimonies
from taskd.core.status import JobPhase
from taskd.core.switching import begin_switch, concerns, overdue, review, take_prepared
from taskd.core.switching import take_standing as take_standing_to_switch

FINISH_MARGIN_S = 10.0
UNDER_WAY = (JobPhase.STARTING, JobPhase.RUNNING, JobPhase.RECOVERING)

Outcome = tuple[Job, tuple[Effect, ...]]


def step(job: Job, event: Event) -> Outcome:
    """Return the job after an event, and what must be done about it."""
    job, effects = _step(job, event)
    job = drop_overtaken(job)
    # A fault ends a switch that is being prepared; standbys go before anything else is ordered.
    job, first = review(job, event.now)
    return job, (*first, *effects)


def _step(job: Job, event: Event) -> Outcome:
    match event:
        case NodeAnnounced():
            return _announced(job, event)
        case NodeLost():
            return _lost(job, event)
        case Reported():
            return _reported(job, event)
        case StopRequested():
            if job.ending is not None or job.saving is not None:
                return job, ()
            ending = Ending(event.code, event.why)
            if event.save and can_save(job):
                return begin_saving(job, event.now, event.stamp, ending)
            return finish(job, event.now, ending)
        case SwitchRequested():
            return begin_switch(job, event)
        case PlaneChanged():
            return take_plane(job, event)
        case ResetRead():
            job, effects = take_reset(job, event)
            if job.phase is JobPhase.GATHERING and job.nodes:
                job, more = _gather(job, event.now, event.stamp)
                effects = (*effects, *more)
            return job, effects
        case Warned():
            return take_warning(job, event)
        case Advised():
            return take_advice(job, event)
        case Ticked():
            return _ticked(job, event.now, event.stamp)
        case _:
            assert_never(event)


def take_over(
    job: Job,
    incidents: int,
    ending: Ending | None,
    *,
    generation: int = 0,
    restarts: int = 0,
    faults: Mapping[str, int] | None = None,
) -> Job:
    """Return the job of a newborn manager, given what its predecessor wrote down.

    An ending that was decided stays decided: agents that were told are gone and cannot tell about it. The
    counts are a lower bound; agents that are there know better.
    """
    budget = replace(job.budget, used=dict(faults or {}))
    job = replace(job, floor=generation, restarts=restarts, budget=budget)
    if ending is None:
        return replace(job, incidents=incidents)
    return replace(job, incidents=incidents, ending=ending, phase=JobPhase.FINISHING, reason=ending.reason)


# --- nodes come and go -----------------------------------------------------------------------------------


def _announced(job: Job, event: NodeAnnounced) -> Outcome:
    announce = event.announce
    key = announce.node
    known = job.nodes.get(key)
    if announce.wants_rank >= job.options.max_nodes:
        why = f"node rank {announce.wants_rank} does not exist in a job of {job.options.max_nodes} nodes"
        finish = Finish(FINISH_ORDER, ExitCode.USAGE, why)
        return job, (Refuse(key, why), SendOrder(key, finish))
    node = Node(
        key=key,
        incarnation=event.incarnation,
        announce=announce,
        order_of_joining=known.order_of_joining if known else len(job.nodes),
        phase=announce.phase,
        generation=announce.generation,
        free_port=announce.free_port,
        finished=announce.phase is NodePhase.FINISHED,
        workers={view.rank: view for view in announce.workers},
    )
    job = with_node(job, node)
    if job.ending is not None:
        finish = finish_order(job, job.ending)
        job, effects = check_finishing(job, event.now)
        return job, (SendOrder(key, finish), *effects)
    if job.phase is JobPhase.GATHERING:
        # A newborn manager may go on with what runs; one that has given a generation up may not.
        leftovers = stop_leftovers(job, node) if job.generation else ()
        job, effects = _gather(job, event.now, event.stamp)
        return job, (*leftovers, *effects)
    if job.phase is JobPhase.STOPPING and is_member(job, key):
        # It may have been out of reach when the others were told to stop.
        down = is_down(node, job.generation)
        stop: tuple[Effect, ...] = () if down else (SendOrder(key, stop_order(job, job.reason)),)
        job, effects = when_stopped(job, event.now)
        return job, (*stop, *effects)
    if not is_member(job, key):
        # A standby may come, or a pod be created again, while the place of another one is empty.
        given = take_in(job, event.now) if job.phase is JobPhase.RECOVERING else None
        return given if given is not None else (job, stop_leftovers(job, node))
    missed = job.recovering.order if job.recovering else None
    late = job.phase is JobPhase.RECOVERING and missed is not None and node.generation < job.generation
    if late and missed is not None and has_survivors(node, missed):
        return welcome_back(job, event.now, key)
    if node.generation == job.generation and node.phase in (NodePhase.STARTING, NodePhase.RUNNING):
        # The same processes in another conversation; an answer may have been lost with the old one.
        job, effects = when_started(job, event.now)
        job, more = _adopt_failures(job, event.now, event.stamp, key)
        return job, (*effects, *more)
    if (known is not None and known.incarnation != event.incarnation) or late:
        job = replace(job, node_lost_at=event.now)
        what = f"the agent of node {node_label(job, key)} was replaced; its processes are gone"
        fault = Fault("agent", Culprit(key, what, ExitCode.FAILED))
        return answer(job, event.now, event.stamp, fault)
    return _adopt_failures(job, event.now, event.stamp, key)


def _lost(job: Job, event: NodeLost) -> Outcome:
    node = job.nodes.get(event.node)
    if node is None or node.lost or node.finished or node.incarnation != event.incarnation:
        return job, ()
    job = with_node(job, replace(node, lost=event.why))
    match job.phase:
        case JobPhase.FINISHING:
            return check_finishing(job, event.now)
        case JobPhase.STOPPING:
            return when_stopped(job, event.now)
        case JobPhase.SAVING if is_member(job, event.node):
            return stop_saving(job, event.now, event.stamp, f"a node was lost: {event.why}")
        case JobPhase.STARTING | JobPhase.RUNNING | JobPhase.RECOVERING if is_member(job, event.node):
            if were_let_go(job):
                return check_success(count_as_finished(job, job.nodes[event.node]), event.now)
            job = replace(job, node_lost_at=event.now)
            what = f"node {node_label(job, event.node)} was lost: {event.why}"
            fault = Fault("node", Culprit(event.node, what, ExitCode.FAILED), cut=event.cut)
            return answer(job, event.now, event.stamp, fault)
        case _:
            return job, ()


def _gather(job: Job, now: float, stamp: float) -> Outcome:
    """Wait for nodes; a newborn manager may find that its predecessor's job runs, or that it is gone."""
    nodes = countable_nodes(job)
    if not job.generation and not why_wait(job, nodes, now):
        if any(node.generation for node in nodes):
            return _resume(job, now, stamp)
        if job.floor:
            return _begin_after_loss(job, now, stamp, nodes[0].key)
    return gather_again(job, now)


def _begin_after_loss(job: Job, now: float, stamp: float, key: str) -> Outcome:
    """Go on where the manager and every agent died together: nobody is left who could tell."""
    what = "the manager and the agents were lost together; their processes are gone"
    job = replace(job, generation=job.floor, plan=None, node_lost_at=now)
    return restart_all(job, now, stamp, Fault("node", Culprit(key, what, ExitCode.FAILED)))


def _resume(job: Job, now: float, stamp: float) -> Outcome:
    """Go on where a manager before this one stopped."""
    usable = {node.key: node for node in job.nodes.values() if node.usable}
    # A node may obey a generation without having its plan: it was only told to stop it, or it waits for older
    # processes to end. So the newest generation and the newest plan are looked for separately.
    generation = max(node.generation for node in usable.values())
    plan = newest_plan(job)
    if plan is None:
        return begin(replace(job, generation=generation), now)
    lost = lost_with_manager(job)
    job = replace(
        job,
        plan=plan,
        generation=generation,
        restarts=plan.restart_count,
        budget=replace(job.budget, used=dict(plan.faults)),
        joins=any(view.state is WorkerState.JOINED or view.step >= 0 for view in member_views(job)),
        steps=any(view.step >= 0 for view in member_views(job)),
        since=now,
        node_lost_at=now,  # the manager's own pod, for all that anybody knows
    )
    job = recall_farewell(job)
    members = [usable.get(place.node) for place in plan.places]
    current = [node for node in members if node is not None and node.generation == plan.generation]
    waiting = [
        node
        for node in members
        if node is not None
        and node.generation == plan.generation - 1
        and node.generation > 0
        and node.phase is NodePhase.STOPPED
    ]
    stopped = any(node.phase in (NodePhase.STOPPING, NodePhase.STOPPED) for node in current)
    whole = len(current) + len(waiting) == len(plan.places) and plan.generation == generation
    if whole and not stopped:
        job = replace(job, phase=JobPhase.STARTING, reason="the manager was replaced; going on")
        job, orders = order_start(job, plan, waiting)
        job, more = when_started(job, now)
        for node in usable.values():
            more = (*more, *(() if is_member(job, node.key) else stop_leftovers(job, node)))
        for node in current:
            job, failed = _adopt_failures(job, now, stamp, node.key)
            more = (*more, *failed)
        return job, (*orders, *more)
    job = replace(job, phase=JobPhase.RUNNING)
    for node in current:
        # The predecessor was stopping because of this; it costs what it would have cost then.
        found, effects = _adopt_failures(job, now, stamp, node.key)
        if found.phase is not JobPhase.RUNNING:
            return found, effects
    proposal = propose(job) if not stopped and plan.generation == generation else ""
    if not isinstance(proposal, str):
        return begin_recovery(job, now, stamp, proposal, _why_resumed(job, lost, "recovery"))
    return restart_all(job, now, stamp, _why_resumed(job, lost, "restart"))


def _why_resumed(job: Job, lost: list[str], busy_with: str) -> Fault:
    """Say why a newborn manager does not simply go on."""
    empty = [place.node for place in job.plan.places if _came_empty(job, place.node)] if job.plan else []
    if not lost and empty:
        names = " and ".join(f"node {node_label(job, node)}" for node in empty)
        what = f"{names} was lost, with the manager, and has come back without its processes"
        return Fault("node", Culprit(empty[0], what, ExitCode.FAILED))
    if not lost:
        what = f"the manager was replaced in the middle of a {busy_with}"
        return Fault("manager", Culprit("", what, ExitCode.FAILED))
    names = " and ".join(f"node {node_label(job, node)}" for node in lost)
    where = f"node {node_label(job, job.manager_node)}"
    what = f"{names} was lost, with the manager on its machine; {where} manages the job now"
    return Fault("node", Culprit(lost[0], what, ExitCode.FAILED), noticed_at=job.lost_at)


def _came_empty(job: Job, key: str) -> bool:
    """Tell whether a node of the running plan is another machine, or pod, of its name."""
    node = job.nodes.get(key)
    return node is not None and node.usable and not node.generation and not node.workers


def _adopt_failures(job: Job, now: float, stamp: float, key: str) -> Outcome:
    """Act on processes that an announcement shows as failed."""
    if job.phase not in UNDER_WAY or not is_member(job, key):
        return job, ()
    node = job.nodes[key]
    for view in node.workers.values():
        if view.state is WorkerState.FAILED and view.exit is not None and node.generation == job.generation:
            report = WorkerExited(
                job.generation,
                view.rank,
                view.local_rank,
                view.pid,
                view.exit,
                view.step,
                0.0,
                now,
                log=view.log,
            )
            return _worker_exited(job, Reported(now, stamp, key, node.incarnation, report), report)
    return check_success(job, now)


# --- what agents tell ------------------------------------------------------------------------------------


def _reported(job: Job, event: Reported) -> Outcome:
    node = job.nodes.get(event.node)
    if node is None or node.incarnation != event.incarnation:
        return job, (Refuse(event.node, f"report of unknown incarnation {event.incarnation}"),)
    report = event.report
    match report:
        case Announce():
            return _announced(job, NodeAnnounced(event.now, event.stamp, event.incarnation, report))
        case OrderDone(order=order):
            if order != FINISH_ORDER:
                return job, ()
            job = with_node(job, replace(node, finished=True))
            return when_stopped(job, event.now) if job.ending is None else check_finishing(job, event.now)
        case Beat():
            if report.generation != job.generation:
                return job, ()
            job = note_progress(job, event.node, report.steps, report.joined, report.ready)
            job, effects = after_progress(job, event.now)
            regroup = job.recovering.regroup if job.recovering else None
            for rank, at_step in report.steps.items():
                if regroup is not None and at_step >= regroup.target:
                    seen = Progress(job.generation, rank, joined=True, step=at_step, ready=True)
                    job, more = take_progress(job, event.now, seen)
                    effects = (*effects, *more)
            job = hear_testimonies(job, event.node, report.testimonies)
            if report.testimonies:
                job, more = answer_stall(job, event.now, event.stamp)
                effects = (*effects, *more)
            return job, effects
        case Progress():
            if report.generation != job.generation:
                return job, (refuse_stale(event.node, report.generation, job),)
            joined = (report.rank,) if report.joined else ()
            ready = (report.rank,) if report.ready else ()
            job = note_progress(job, event.node, {report.rank: report.step}, joined, ready)
            job, effects = take_progress(job, event.now, report)
            job, more = after_progress(job, event.now)
            return job, (*effects, *more)
        case Standing() if job.phase is JobPhase.SAVING:
            job, effects, dead_end = take_standing_to_save(job, event.now, event.node, report)
            if dead_end:
                job, more = stop_saving(job, event.now, event.stamp, dead_end)
                effects = (*effects, *more)
            return job, effects
        case Standing() if concerns(job, report):
            return take_standing_to_switch(job, event.now, event.node, report)
        case Standing():
            job, effects, dead_end = take_standing(job, event.now, event.node, report)
            if dead_end:
                culprit = job.culprit or Culprit("", dead_end, ExitCode.FAILED)
                fault = Fault("recovery", replace(culprit, why_restart=dead_end))
                job, more = fall_through(job, event.now, event.stamp, fault)
                effects = (*effects, *more)
            return job, effects
        case Saved():
            job, effects, over = take_saved(job, event.now, report)
            if over:
                job, more = go_on_after_saving(job, event.now, event.stamp)
                effects = (*effects, *more)
            return job, effects
        case Coming():
            return note_coming(job, event.now, report), ()
        case Through():
            seen = Progress(report.generation, report.rank, joined=True, step=report.step, ready=True)
            job, effects = _reported(job, replace(event, report=seen))
            job, more = take_through(job, event.node, report)
            return job, (*effects, *more)
        case Trouble():
            job, effects, trouble = take_trouble(job, event.now, event.node, report)
            return answer(job, event.now, event.stamp, trouble) if trouble else (job, effects)
        case WorkersStarted():
            # Compared with the node, not with the job: a newborn manager has no generation while it gathers,
            # and what happens meanwhile must be in its picture.
            if report.generation < node.generation:
                return job, (refuse_stale(event.node, report.generation, job),)
            views = {view.rank: newer_view(node.workers.get(view.rank), view) for view in report.workers}
            job = with_node(
                job, replace(node, phase=NodePhase.RUNNING, generation=report.generation, workers=views)
            )
            return when_started(job, event.now)
        case Prepared():
            return take_prepared(job, event.now, event.node, report)
        case WorkerExited():
            return _worker_exited(job, event, report)
        case WorkersStopped():
            if report.generation < node.generation:
                # The answer to an older order: what was ordered since is on its way or running already.
                return job, (refuse_stale(event.node, report.generation, job),)
            job = with_node(
                job,
                replace(
                    node,
                    phase=NodePhase.STOPPED,
                    generation=report.generation,
                    free_port=report.free_port,
                    workers={rank: stopped_view(view) for rank, view in node.workers.items()},
                ),
            )
            if job.phase is JobPhase.GATHERING:
                return _gather(job, event.now, event.stamp)
            return when_stopped(job, event.now)
        case _:
            assert_never(report)


def _worker_exited(job: Job, event: Reported, report: WorkerExited) -> Outcome:
    node = job.nodes[event.node]
    known = node.workers.get(report.rank)
    settled = known is not None and known.state in (WorkerState.RUNNING, WorkerState.JOINED)
    if known is not None and settled and report.pid and known.pid and report.pid != known.pid:
        return job, (Refuse(event.node, f"process {report.pid} was rank {report.rank}; {known.pid} is now"),)
    if known is not None and known.pid == report.pid and known.state.alive:
        # A death is of a process, not of a generation: one may have been raised over it in the meantime.
        report = replace(report, generation=node.generation)
    if report.generation != node.generation:
        return job, (refuse_stale(event.node, report.generation, job),)
    ended_well = report.exit.ok or (report.exit.signal is not None and were_let_go(job))
    state = WorkerState.SUCCEEDED if ended_well else WorkerState.FAILED
    view = WorkerView(report.rank, report.local_rank, report.pid, state, report.step, report.exit, report.log)
    job = with_node(job, replace(node, workers={**node.workers, report.rank: view}))
    if report.generation != job.generation or not is_member(job, event.node):
        return job, ()  # kept for a manager that still gathers; of no consequence otherwise
    if ended_well and job.phase is JobPhase.RECOVERING:
        return _ended_early(job, event, report)
    if ended_well and job.phase is JobPhase.SAVING:
        return end_while_saving(job, event.now, event.stamp, report.rank)
    if ended_well:
        return check_success(job, event.now)
    who = f"rank {report.rank} (node {node_label(job, event.node)}, pid {report.pid})"
    what = f"{who} {describe_exit(report.exit)}"
    if report.step >= 0:
        what += f" at step {report.step}"
    if report.error:
        what += f": {report.error}"
    culprit = Culprit(event.node, what, report.exit.shell_code, report.log, report.error)
    failure = Failure(report.rank, report.exit, report.step, report.place, report.error, report.lived_s)
    if job.phase is JobPhase.STOPPING:
        return blame_earlier(job, report, culprit, failure)
    if job.phase is JobPhase.SAVING and job.saving is not None and report.rank in job.saving.ranks:
        if can_save_again(job):
            return begin_saving(job, event.now, event.stamp, job.saving.then)
        return stop_saving(job, event.now, event.stamp, culprit.what)
    if job.phase not in UNDER_WAY:
        return job, ()
    if report.rank == job.hopeless_rank:
        # It was told that there is no other try, and ends with the error that was counted then.
        return restart_all(job, event.now, event.stamp, Fault("process", culprit, report=report))
    return answer(job, event.now, event.stamp, Fault("process", culprit, failure, report))


def _ended_early(job: Job, event: Reported, report: WorkerExited) -> Outcome:
    """A rank left by itself in a recovery: after it, or before those who need its state had come."""
    if job.recovering is not None and job.recovering.regroup is not None:
        seen = Progress(job.generation, report.rank, joined=True, step=max(report.step, 0), ready=True)
        job, effects = take_progress(job, event.now, seen)
        job, more = check_success(job, event.now)
        return job, (*effects, *more)
    why = f"rank {report.rank} ended before all had come together"
    culprit = job.culprit or Culprit(event.node, why, ExitCode.FAILED)
    return fall_through(job, event.now, event.stamp, Fault("recovery", replace(culprit, why_restart=why)))


def _ticked(job: Job, now: float, stamp: float) -> Outcome:
    waited = now - job.since
    alone = take_silence(job, now, stamp)
    if alone is not None:
        return alone
    if job.held and job.phase in UNDER_WAY:
        return obey_hold(job, now, stamp)
    match job.phase:
        case JobPhase.GATHERING if waited >= job.options.join_timeout_s:
            return finish(job, now, Ending(ExitCode.NODES_MISSING, why_too_late(job)))
        case JobPhase.GATHERING:
            return _gather(job, now, stamp) if job.nodes else (job, ())
        case JobPhase.RECOVERING if waited >= RECOVERY_LIMIT_S:
            what = f"the recovery from memory did not get on for {RECOVERY_LIMIT_S:g} s"
            return restart_all(job, now, stamp, Fault("recovery", Culprit("", what, ExitCode.FAILED)))
        case JobPhase.SAVING if waited >= SAVE_LIMIT_S:
            return stop_saving(job, now, stamp, f"nothing was heard for {SAVE_LIMIT_S:g} s")
        case JobPhase.RUNNING if (late := overdue(job, now)) is not None:
            return answer(job, now, stamp, Fault(SWITCH, late))
        case JobPhase.FINISHING if waited >= job.options.stop_grace_s + FINISH_MARGIN_S:
            if job.ending is None:
                return job, ()
            return replace(job, phase=JobPhase.ENDED), (EndJob(job.ending),)
        case JobPhase.FINISHING:
            return check_finishing(job, now)
        case _:
            return job, ()
