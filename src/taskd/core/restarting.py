"""The course of a restart: all ranks are stopped, and started again from their last checkpoint.

A second fault while they are being stopped changes only the report; one while they are being started opens
the next incident. Which nodes take part is seen when everything is quiet (``gather_again``).
"""

from dataclasses import replace

from taskd.core.blame import streak_after
from taskd.core.endings import check_success, decide_give_up, finish
from taskd.core.jobread import (
    choose_nodes,
    is_down,
    is_member,
    is_quiet,
    member_views,
    newest_plan,
    next_generation,
    open_incident,
    stop_leftovers,
    stop_order,
    with_node,
)
from taskd.core.jobstate import Effect, Fault, Job, Node, RecordIncident, SendOrder
from taskd.core.launch import Plan, compute_places
from taskd.core.messages import NodePhase, Start, WorkerState
from taskd.core.status import JobPhase, PhaseName

LATE_S = 5.0

Outcome = tuple[Job, tuple[Effect, ...]]


def restart_all(job: Job, now: float, stamp: float, fault: Fault) -> Outcome:
    """Stop what runs; what follows is decided when nothing is left."""
    incident, closed = open_incident(job, now, stamp, fault)
    culprit = fault.culprit
    job = replace(
        job,
        phase=JobPhase.STOPPING,
        reason=culprit.what,
        since=now,
        incident=incident,
        incidents=incident.number,
        culprit=culprit,
        streak=streak_after(job, fault.failure) if fault.failure else job.streak,
        recovering=None,
        testimonies={},
    )
    effects: list[Effect] = [*closed]
    stop = stop_order(job, culprit.what)
    for key, node in job.nodes.items():
        if node.usable and is_member(job, key):
            effects.append(SendOrder(key, stop))
        elif node.usable:
            effects.extend(stop_leftovers(job, node))
    job, more = when_stopped(job, now)
    return job, (*effects, RecordIncident(incident), *more)


def when_stopped(job: Job, now: float) -> Outcome:
    """Once nothing runs any more, give up or begin again."""
    if job.phase is not JobPhase.STOPPING:
        return job, ()
    for place in job.plan.places if job.plan else ():
        node = job.nodes.get(place.node)
        if node is not None and node.usable and not is_down(node, job.generation):
            return job, ()
    incident, culprit = job.incident, job.culprit
    if incident is None or culprit is None:
        return begin(job, now)
    incident = incident.mark(PhaseName.RELEASE, now)
    ending = decide_give_up(job, culprit)
    if ending is not None:
        reason = "; ".join(filter(None, (ending.reason, job.options.skipped)))
        incident = replace(incident, strategy="exit", reason=reason, outcome="job ended")
        job, effects = finish(replace(job, incident=None), now, ending)
        return job, (RecordIncident(incident), *effects)
    budget = job.budget.spend(culprit.node) if culprit.node else job.budget
    used = budget.used.get(culprit.node, 0)
    because = f", since {culprit.why_restart}" if culprit.why_restart else ""
    reason = (
        f"{culprit.what}; all ranks restart{because} (fault {used} of at most {budget.limit} on this node)"
    )
    incident = replace(incident, reason=reason)
    job = replace(
        job, incident=incident, budget=budget, restarts=job.restarts + 1, phase=JobPhase.GATHERING, since=now
    )
    job, effects = gather_again(job, now)
    return job, (RecordIncident(incident), *effects)


def countable_nodes(job: Job) -> list[Node]:
    """Return the nodes with which the job could begin."""
    usable = [node for node in job.nodes.values() if node.usable]
    if job.generation or any(node.generation for node in usable):
        return usable
    # A spare node takes the place of a lost one; it does not make the job larger or earlier.
    return [node for node in usable if not node.announce.spare]


def why_wait(job: Job, nodes: list[Node], now: float) -> str:
    """Say for how many nodes the job waits, or what else it waits for; empty if it may begin with these."""
    if job.held and (job.generation or not any(node.generation for node in nodes)):
        return job.held
    there = len(nodes) + len(lost_with_manager(job))
    enough = there >= job.options.max_nodes and not _is_somebody_late(job, now)
    last_call = len(nodes) >= job.options.min_nodes and now - job.since >= job.options.last_call_s
    if enough or last_call:
        return ""
    return f"waiting for {job.options.max_nodes - len(nodes)} of {job.options.max_nodes} nodes"


def why_too_late(job: Job) -> str:
    """Say for what the job has waited as long as it may."""
    limit = f"{job.options.join_timeout_s:g} s"
    if job.held:
        return f"{job.held}; that was not over after {limit}"
    have = sum(node.usable for node in job.nodes.values())
    return (
        f"{have} of {job.options.min_nodes} nodes were there after {limit}; "
        "start the missing ones, or allow fewer with --nnodes MIN:MAX"
    )


def lost_with_manager(job: Job) -> list[str]:
    """Return the members of the running plan that a newborn manager need not wait for.

    They were on the machine whose place it took, so their ranks are replaced as those of any lost node.
    """
    plan = newest_plan(job)
    if job.generation or plan is None:
        return []
    return [place.node for place in plan.places if place.node in job.absent and place.node not in job.nodes]


def gather_again(job: Job, now: float) -> Outcome:
    """Begin when enough nodes are there and nothing of an older generation runs."""
    nodes = countable_nodes(job)
    waiting = why_wait(job, nodes, now)
    if not waiting and job.generation and not all(is_quiet(node) for node in nodes):
        waiting = "waiting for processes of an older generation to end"
    return (replace(job, reason=waiting), ()) if waiting else begin(job, now)


def _is_somebody_late(job: Job, now: float) -> bool:
    """Tell whether a newborn manager should wait for a member of the running plan that has not spoken yet.

    Where there are spare nodes, enough nodes may be there without it, and its ranks would be given away. One
    that took over from another machine waits for the spare nodes too: it needs them at once.
    """
    if job.generation or now - job.since >= LATE_S:
        return False
    newest = newest_plan(job)
    members = {place.node for place in newest.places} - job.absent if newest else set()
    return any(node not in job.nodes for node in members | job.awaited)


def begin(job: Job, now: float) -> Outcome:
    """Make the next plan and have it started."""
    chosen = choose_nodes(job)
    if not chosen:
        return job, ()
    first = chosen[0]
    at = job.options.master_addr or first.announce.addr
    # Also above what a node reached under a manager that this one never heard of.
    generation = max(next_generation(job), *(1 + node.generation for node in chosen))
    plan = Plan(
        generation=generation,
        restart_count=job.restarts,
        # Where rank 0 is: the given address is that of node rank 0, whose machine may be lost.
        master_addr=first.announce.addr if first.announce.wants_rank > 0 else at,
        master_port=job.options.master_port or first.free_port,
        places=compute_places([(node.key, node.announce.local_world) for node in chosen]),
        faults=dict(job.budget.used),
        began=generation,
    )
    job = replace(
        job,
        phase=JobPhase.STARTING,
        reason=f"starting {plan.world_size} processes",
        since=now,
        generation=plan.generation,
        plan=plan,
    )
    return order_start(job, plan, chosen)


def order_start(job: Job, plan: Plan, nodes: list[Node]) -> Outcome:
    """Order nodes to start, and count them as starting from here on: a stop may overtake their answer."""
    for node in nodes:
        job = with_node(job, replace(node, phase=NodePhase.STARTING, generation=plan.generation, workers={}))
    return job, tuple(SendOrder(node.key, Start(f"{plan.generation}/start", plan)) for node in nodes)


def when_started(job: Job, now: float) -> Outcome:
    """Once all run, follow them to where the job was before."""
    if job.phase is not JobPhase.STARTING or job.plan is None:
        return job, ()
    for place in job.plan.places:
        node = job.nodes.get(place.node)
        if node is None or node.phase is not NodePhase.RUNNING or node.generation != job.generation:
            return job, ()
    job = replace(job, phase=JobPhase.RUNNING, reason=f"all {job.plan.world_size} ranks run", since=now)
    if job.incident is None:
        return check_success(job, now)
    job = replace(job, incident=job.incident.mark(PhaseName.SPAWN, now))
    job, effects = after_progress(job, now)
    job, more = check_success(job, now)
    return job, (*effects, *more)


def after_progress(job: Job, now: float) -> Outcome:
    """Close the incident once the job is as far as it was before the fault."""
    incident = job.incident
    if incident is None or job.phase is not JobPhase.RUNNING:
        return job, ()
    views = member_views(job)
    if job.joins and not all(view.state is not WorkerState.RUNNING for view in views):
        return job, ()
    if job.joins:
        incident = incident.mark(PhaseName.JOIN, now)
    if job.steps and not all(view.step >= 0 or not view.state.alive for view in views):
        return replace(job, incident=incident), ()
    if job.steps:
        incident = incident.mark(PhaseName.FIRST_STEP, now)
    incident = replace(incident, outcome="recovered")
    return replace(job, incident=None), (RecordIncident(incident),)
