"""Recovery from memory: the survivors stay, the dead are replaced, and nothing committed is computed again.

A fault raises the generation over living processes. Each of them comes out of its collectives and says where
it *stands*; when all have spoken, the dead ranks' replacements included, ``regroup`` decides how they go on.
A further fault at any moment raises the generation again, and everybody stands anew.

A lost node's ranks come up on a spare node. Where there is none, the survivors wait for the node itself: its
agent may only have been replaced.

Where this is not possible (a rank that keeps no state, nobody left who has the state, too many rounds) the
caller falls back to the next strategy.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from taskd.core.blame import streak_after
from taskd.core.exits import Exit
from taskd.core.failures import Failure
from taskd.core.incidents import SWITCH, SWITCHED
from taskd.core.jobread import find_spare, is_member, next_generation, open_incident, with_node
from taskd.core.jobstate import (
    Culprit,
    Effect,
    Fault,
    Job,
    Node,
    RecordIncident,
    Recovering,
    Refuse,
    Relief,
    SendOrder,
    SendWorkers,
)
from taskd.core.launch import RECOVER, RECOVER_IN_PLACE, RETRY, NodePlace, Plan
from taskd.core.messages import (
    Denied,
    NodePhase,
    Progress,
    Recover,
    Standing,
    Trouble,
    WorkerExited,
    WorkerState,
    WorkerView,
)
from taskd.core.regroup import decide_regroup
from taskd.core.status import JobPhase, PhaseName
from taskd.core.troubles import TroubleKind

MAX_ROUNDS = 8
LIMIT_S = 60.0

Outcome = tuple[Job, tuple[Effect, ...]]


@dataclass(frozen=True, slots=True)
class Proposal:
    """A recovery that can be tried: who is where, who is replaced, who leads, and what it is called."""

    plan: Plan
    dead: tuple[int, ...]
    leader: int
    strategy: str
    moved: tuple[NodePlace, ...] = ()
    awaited: tuple[int, ...] = ()


def propose(
    job: Job, within: Sequence[str] | None = None, condemned: frozenset[int] = frozenset()
) -> Proposal | str:
    """Say how the job can be recovered from memory now, or why not.

    ``within`` narrows the job's own strategies; a condemned rank counts as dead, whether it lives or not.
    """
    if job.plan is None or job.phase not in (JobPhase.RUNNING, JobPhase.RECOVERING):
        return "the job was not running"
    if job.refused:
        return f"the control plane does not allow it: {job.refused}"
    before = job.recovering
    if before is not None and before.rounds >= MAX_ROUNDS and not before.stepped:
        return f"{MAX_ROUNDS} attempts in a row were interrupted"
    views = {view.rank: view for place in job.plan.places for view in _views(job, place)}
    if any(view.state is WorkerState.SUCCEEDED for view in views.values()):
        return "some ranks have ended already"
    survivors = [view for view in views.values() if view.state.alive and view.rank not in condemned]
    keepers = [view for view in survivors if view.ready]
    if not keepers:
        return "no surviving rank keeps its state (taskd.train: register and steps)"
    if job.recovering is None and len(keepers) < len(survivors):
        return "not every surviving rank keeps its state"
    plan, moved, awaited = _settle(job, job.plan)
    alive = {view.rank for view in survivors}
    dead = tuple(rank for rank in range(plan.world_size) if rank not in alive)
    strategy = RECOVER if moved else RECOVER_IN_PLACE if dead else RETRY
    allowed = [each for each in job.options.strategies if within is None or each in within]
    if within is not None and RECOVER in allowed:
        allowed.append(
            RECOVER_IN_PLACE
        )  # the other node that was decided on may have taken the place already
    if strategy == RECOVER_IN_PLACE not in allowed and (awaited or _anybody_empty(job, plan)):
        strategy = RECOVER  # not its processes but the node was lost: it comes back, or has come back, empty
    if strategy not in allowed:
        return _not_allowed(strategy)
    return Proposal(plan, dead, min(view.rank for view in keepers), strategy, moved, awaited)


def _not_allowed(strategy: str) -> str:
    return f"{strategy} is not among the strategies"


def _anybody_empty(job: Job, plan: Plan) -> bool:
    """Tell whether a node of the plan is there without any process: another pod, or another agent of it."""
    nodes = [job.nodes.get(place.node) for place in plan.places]
    return any(node is not None and node.usable and not node.workers for node in nodes)


def _views(job: Job, place: NodePlace) -> list[WorkerView]:
    """Return what is known of a place's ranks, of whatever generation their agent has heard."""
    node = job.nodes.get(place.node)
    if node is None or not node.usable:
        return []
    return [view for rank, view in node.workers.items() if rank in place.ranks]


def _settle(job: Job, plan: Plan) -> tuple[Plan, tuple[NodePlace, ...], tuple[int, ...]]:
    """Give the places of lost nodes to spare ones; those for which there is none wait for their node."""
    places: list[NodePlace] = []
    moved: list[NodePlace] = []
    awaited: list[int] = []
    taken = {place.node for place in plan.places}
    for place in plan.places:
        node = job.nodes.get(place.node)
        if node is not None and node.usable:
            places.append(place)
            continue
        spare = find_spare(job, place, taken) if RECOVER in job.options.strategies else None
        if spare is None:
            places.append(place)
            awaited.append(place.node_rank)
            continue
        taken.add(spare.key)
        places.append(replace(place, node=spare.key))
        moved.append(places[-1])
    plan = replace(plan, generation=next_generation(job), places=tuple(places))
    return plan, tuple(moved), tuple(awaited)


def begin_recovery(job: Job, now: float, stamp: float, proposal: Proposal, fault: Fault) -> Outcome:
    """Raise the generation over the survivors."""
    plan, dead, before, culprit = proposal.plan, proposal.dead, job.recovering, fault.culprit
    # Attempts count while nothing gets on; a step of anybody is a new beginning.
    rounds = before.rounds + 1 if before and not before.stepped else 1
    reason = f"{culprit.what}; {_deed(proposal)} their processes"
    incident, closed = open_incident(job, now, stamp, fault)
    incident = replace(incident, strategy=proposal.strategy, reason=reason)
    order = Recover(f"{plan.generation}/recover", plan, dead, proposal.leader, culprit.what)
    job = replace(
        job,
        incident=incident,
        incidents=incident.number,
        culprit=culprit,
        streak=streak_after(job, fault.failure) if fault.failure else job.streak,
        testimonies={},
    )
    job, orders = _begin_round(job, now, order, rounds, reason)
    return job, (*closed, *orders, RecordIncident(incident))


def _begin_round(job: Job, now: float, order: Recover, rounds: int, reason: str) -> Outcome:
    plan, effects = order.plan, list[Effect]()
    job = replace(
        job,
        phase=JobPhase.RECOVERING,
        reason=reason,
        since=now,
        generation=plan.generation,
        plan=plan,
        recovering=Recovering(rounds, order),
    )
    for place in plan.places:
        job, more = _order(job, place.node, order)
        effects.extend(more)
    return job, tuple(effects)


def take_in(job: Job, now: float) -> Outcome | None:
    """Give places that are waited for to nodes that have come since; None if there is nothing to give.

    It is the same fault, and no attempt was interrupted: all stand and wait.
    """
    recovering, culprit = job.recovering, job.culprit
    if recovering is None or recovering.order is None or recovering.regroup is not None or culprit is None:
        return None
    proposal = propose(job)
    if isinstance(proposal, str) or not proposal.moved:
        return None
    order = Recover(
        f"{proposal.plan.generation}/recover", proposal.plan, proposal.dead, proposal.leader, culprit.what
    )
    reason = f"{culprit.what}; {_deed(proposal)} their processes"
    job, orders = _begin_round(job, now, order, recovering.rounds, reason)
    if job.incident is None:
        return job, orders
    incident = replace(job.incident, strategy=proposal.strategy, reason=reason)
    return replace(job, incident=incident), (*orders, RecordIncident(incident))


def has_survivors(node: Node, order: Recover) -> bool:
    """Tell whether a node has all processes that an order takes for living; a new pod of it has none."""
    place = order.plan.place_of(node.key)
    needed = [rank for rank in place.ranks if rank not in order.replace] if place is not None else []
    return all(rank in node.workers and node.workers[rank].state.alive for rank in needed)


def welcome_back(job: Job, now: float, key: str) -> Outcome:
    """Let a node that comes in the middle of a recovery have the order that it missed."""
    recovering = job.recovering
    if recovering is None or recovering.order is None:
        return job, ()
    return _order(replace(job, since=now), key, recovering.order)


def _order(job: Job, key: str, order: Recover) -> Outcome:
    node = job.nodes.get(key)
    place = order.plan.place_of(key)
    if node is None or not node.usable or place is None:
        return job, ()
    replaced = [rank for rank in order.replace if rank in place.ranks]
    workers = {rank: view for rank, view in node.workers.items() if rank in place.ranks}
    for rank in replaced:
        known = workers.get(rank) or WorkerView(rank, rank - place.first_rank, 0, WorkerState.STARTING)
        workers[rank] = replace(known, state=WorkerState.STARTING, exit=None, ready=False)
    phase = NodePhase.STARTING if replaced else node.phase
    node = replace(node, phase=phase, generation=order.plan.generation, workers=workers)
    return with_node(job, node), (SendOrder(key, order),)


def take_trouble(
    job: Job, now: float, node: str, trouble: Trouble
) -> tuple[Job, tuple[Effect, ...], Fault | None]:
    """Say what fault a failed step is, unless it fails the same way again and again or cannot be repeated."""
    regrouped = job.recovering is not None and job.recovering.regroup is not None
    if trouble.generation != job.generation or not (job.phase is JobPhase.RUNNING or regrouped):
        why = f"trouble of generation {trouble.generation}; the job is at {job.generation}"
        return job, (Refuse(node, why),), None
    what = f"rank {trouble.rank} failed at step {trouble.step}: {trouble.error}"
    failure = Failure(trouble.rank, Exit(code=1), trouble.step, trouble.place, trouble.error)
    proposal = propose(job)
    if not isinstance(proposal, str) and not job.options.keep_trying:
        streak = job.streak.extend(failure)
        if streak.hopeless:
            proposal = "the same failure came back"
            job = replace(job, streak=streak, hopeless_rank=trouble.rank)
    if proposal == _not_allowed(RETRY) and _may_be_an_echo(job, trouble):
        # No answer: it asks again, and gives up by itself when the cause has not shown in time.
        return job, (Refuse(node, f"{what}; waiting for its cause, for {proposal}"),), None
    if isinstance(proposal, str):
        return job, (SendWorkers(node, Denied(job.generation, trouble.rank, proposal)),), None
    report = WorkerExited(
        job.generation, trouble.rank, 0, 0, Exit(), trouble.step, lived_s=0.0, noticed_at=now
    )
    return job, (), Fault(trouble.kind, Culprit(node, what, 1), failure, report)


def _may_be_an_echo(job: Job, trouble: Trouble) -> bool:
    """Tell whether a broken group is what a lost process or node looks like from another one.

    Its death may be told later than that. Where the job allows to replace it, but not to try a step again,
    its peers would otherwise end over it and take the state along.
    """
    allowed = job.options.strategies
    return (
        trouble.kind == TroubleKind.NETWORK
        and (RECOVER in allowed or RECOVER_IN_PLACE in allowed)
        and job.hopeless_rank != trouble.rank
    )


def take_standing(job: Job, now: float, node: str, standing: Standing) -> tuple[Job, tuple[Effect, ...], str]:
    """Note where a worker stands; when all have said so, decide how they go on.

    The third value says why there is no way on, if there is none.
    """
    if _has_left(job, node, standing):
        return job, _answer_leaver(job, node, standing), ""
    under_way = job.phase in (JobPhase.RUNNING, JobPhase.RECOVERING)
    if standing.generation != job.generation or job.plan is None or not is_member(job, node) or not under_way:
        why = f"standing of generation {standing.generation}; the job is at {job.generation}"
        return job, (Refuse(node, why),), ""
    plan = job.plan
    recovering = job.recovering or Recovering()
    if recovering.regroup is not None:
        return job, (SendWorkers(node, recovering.regroup),), ""
    standings = {**recovering.standings, standing.rank: standing}
    recovering = replace(recovering, standings=standings)
    job = replace(job, recovering=recovering, phase=JobPhase.RECOVERING, since=now)
    incident = job.incident
    dead = recovering.order.replace if recovering.order else ()
    if incident is not None and all(rank in standings or rank in dead for rank in range(plan.world_size)):
        incident = incident.mark(PhaseName.RELEASE, now)
    if len(standings) < plan.world_size:
        return replace(job, incident=incident), (), ""
    regroup = decide_regroup(standings)
    if isinstance(regroup, str):
        return replace(job, incident=incident), (), regroup
    if incident is not None:
        incident = incident.mark(PhaseName.SPAWN, now)
    job = replace(job, incident=incident, recovering=replace(recovering, regroup=regroup))
    return job, tuple(SendWorkers(place.node, regroup) for place in plan.places), ""


def _has_left(job: Job, key: str, standing: Standing) -> bool:
    """Tell whether a process stands for a rank that another one has by now."""
    node = job.nodes.get(key)
    view = node.workers.get(standing.rank) if node else None
    if standing.leaving and not is_member(job, key):
        return True
    settled = view is not None and view.state in (WorkerState.RUNNING, WorkerState.JOINED)
    return settled and view is not None and bool(view.pid and standing.pid) and view.pid != standing.pid


def _answer_leaver(job: Job, node: str, standing: Standing) -> tuple[Effect, ...]:
    """Let a process that was switched off know it, should it have missed the decision."""
    regroup = job.recovering.regroup if job.recovering else None
    if regroup is not None and standing.rank in regroup.parted and standing.leaving:
        return (SendWorkers(node, regroup),)
    return (Refuse(node, f"rank {standing.rank} is another process by now"),)


def take_progress(job: Job, now: float, progress: Progress) -> Outcome:
    """Follow the workers through the end of a recovery; the first step of all closes it."""
    recovering = job.recovering
    if recovering is None or job.plan is None or recovering.regroup is None:
        return job, ()
    rank = frozenset({progress.rank})
    recovering = replace(
        recovering,
        joined=recovering.joined | rank,
        restored=recovering.restored | rank if progress.ready else recovering.restored,
        stepped=recovering.stepped | rank if progress.step >= 0 else recovering.stepped,
    )
    incident = job.incident
    world = job.plan.world_size
    if incident is not None:
        if progress.notes:
            incident = replace(incident, notes=progress.notes)
        if len(recovering.joined) == world:
            incident = incident.mark(PhaseName.JOIN, now)
        if len(recovering.restored) == world:
            incident = incident.mark(PhaseName.RESTORE, now)
    job = replace(job, recovering=recovering, incident=incident, since=now)
    if len(recovering.stepped) < world:
        return job, ()
    done = replace(
        job,
        phase=JobPhase.RUNNING,
        reason=f"all {world} ranks run",
        since=now,
        recovering=None,
        incident=None,
        relief=Relief(),
    )
    if incident is None:
        return done, ()
    outcome = SWITCHED if incident.kind == SWITCH else "recovered"
    incident = replace(incident.mark(PhaseName.FIRST_STEP, now), outcome=outcome)
    return done, (RecordIncident(incident),)


def _deed(proposal: Proposal) -> str:
    dead = proposal.dead
    if not dead:
        return "the step is tried again, all keep"
    names = f"rank {dead[0]} is" if len(dead) == 1 else f"ranks {', '.join(map(str, dead))} are"
    if proposal.moved:
        where = ", ".join(f"{place.node} (as node {place.node_rank})" for place in proposal.moved)
        return f"{names} replaced on node {where}, all others keep"
    if proposal.awaited:
        nodes = ", ".join(map(str, proposal.awaited))
        return f"{names} replaced as soon as node {nodes} is back, all others keep"
    return f"{names} replaced in place, all others keep"
