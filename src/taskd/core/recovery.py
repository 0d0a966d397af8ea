"""Recovery from memory: the survivors stay, the dead are replaced, and nothing committed is computed again.

A fault raises the generation over living processes. Each of them comes out of its collectives and says where
it *stands*; when all have spoken, the dead ranks' replacements included, one pure function decides how they
go on: to which step, who applies the gradient that it holds, and who receives its state from whom. A further
fault at any moment raises the generation again, and everybody stands anew.

Where this is not possible (a rank that keeps no state, a lost node, nobody left who has the state, too many
rounds) the caller falls back to restarting all ranks.
"""

from collections.abc import Mapping
from dataclasses import replace

from taskd.core.exits import Exit
from taskd.core.failures import Failure
from taskd.core.incidents import Incident
from taskd.core.jobread import is_member, member_views, with_node
from taskd.core.jobstate import (
    Culprit,
    Effect,
    Job,
    RecordIncident,
    Recovering,
    Refuse,
    SendOrder,
    SendWorkers,
)
from taskd.core.launch import RECOVER_IN_PLACE, RETRY
from taskd.core.messages import (
    Denied,
    NodePhase,
    Progress,
    Recover,
    Regroup,
    Standing,
    Trouble,
    WorkerExited,
    WorkerState,
)
from taskd.core.status import JobPhase, PhaseName

MAX_ROUNDS = 8
LIMIT_S = 60.0

Outcome = tuple[Job, tuple[Effect, ...]]


def why_not_in_memory(job: Job, strategy: str = RECOVER_IN_PLACE) -> str:
    """Say why the job cannot be recovered from memory now; empty if it can."""
    if strategy not in job.options.strategies:
        return f"{strategy} is not among the strategies"
    if job.plan is None or job.phase not in (JobPhase.RUNNING, JobPhase.RECOVERING):
        return "the job was not running"
    if job.recovering is not None and job.recovering.rounds >= MAX_ROUNDS:
        return f"{MAX_ROUNDS} attempts in a row were interrupted"
    for place in job.plan.places:
        node = job.nodes.get(place.node)
        if node is None or not node.usable or node.generation != job.generation:
            return f"node {place.node_rank} is not there"
    views = member_views(job)
    if len(views) < job.plan.world_size:
        return "not every rank is known"
    if any(view.state in (WorkerState.SUCCEEDED, WorkerState.STOPPED) for view in views):
        return "some ranks have ended already"
    survivors = [view for view in views if view.state.alive]
    if not any(view.ready for view in survivors):
        return "no surviving rank keeps its state (taskd.train: register and steps)"
    if job.recovering is None and not all(view.ready for view in survivors):
        return "not every surviving rank keeps its state"
    return ""


def recover_in_memory(
    job: Job, now: float, stamp: float, culprit: Culprit, failure: Failure, report: WorkerExited
) -> Outcome:
    """Raise the generation over the survivors. ``why_not_in_memory`` must have had nothing to say."""
    plan = job.plan
    if plan is None:
        return job, ()
    views = member_views(job)
    dead = tuple(sorted(view.rank for view in views if not view.state.alive))
    leader = min(view.rank for view in views if view.state.alive and view.ready)
    before = job.recovering
    voted = dict(before.voted) if before else {}
    if report.rank in dead:
        voted.setdefault(report.rank, report.voted)
    number = job.incidents + 1
    deed = (
        f"{_names(dead)} replaced in place, all others keep" if dead else "the step is tried again, all keep"
    )
    reason = f"{culprit.what}; {deed} their processes"
    incident = Incident(
        number=number,
        started_at=min(now, report.noticed_at) if report.noticed_at else now,
        stamp=stamp,
        kind="process" if dead else "step",
        what=culprit.what,
        rank=report.rank,
        node=culprit.node,
        step=report.step,
        generation=job.generation,
        strategy=RECOVER_IN_PLACE if dead else RETRY,
        reason=reason,
        failed_stamp=report.failed_stamp,
    )
    incident = incident.mark(PhaseName.DETECT, now).mark(PhaseName.DECIDE, now)
    effects: list[Effect] = []
    if job.incident is not None:
        effects.append(RecordIncident(replace(job.incident, outcome=f"interrupted by fault {number}")))
    plan = replace(plan, generation=job.generation + 1)
    job = replace(
        job,
        phase=JobPhase.RECOVERING,
        reason=reason,
        since=now,
        generation=plan.generation,
        plan=plan,
        incident=incident,
        incidents=number,
        culprit=culprit,
        streak=job.streak.extend(failure),
        recovering=Recovering(voted, before.rounds + 1 if before else 1),
    )
    order = Recover(f"{plan.generation}/recover", plan, dead, leader, culprit.what)
    for place in plan.places:
        node = job.nodes[place.node]
        replaced = [rank for rank in dead if rank in place.ranks]
        workers = {
            rank: replace(view, state=WorkerState.STARTING, exit=None, ready=False)
            if rank in replaced
            else view
            for rank, view in node.workers.items()
        }
        phase = NodePhase.STARTING if replaced else node.phase
        job = with_node(job, replace(node, phase=phase, generation=plan.generation, workers=workers))
        effects.append(SendOrder(place.node, order))
    return job, (*effects, RecordIncident(incident))


def take_trouble(job: Job, now: float, stamp: float, node: str, trouble: Trouble) -> Outcome:
    """Give a failed step another try, unless it fails the same way again and again."""
    regrouped = job.recovering is not None and job.recovering.regroup is not None
    if trouble.generation != job.generation or not (job.phase is JobPhase.RUNNING or regrouped):
        why = f"trouble of generation {trouble.generation}; the job is at {job.generation}"
        return job, (Refuse(node, why),)
    what = f"rank {trouble.rank} failed at step {trouble.step}: {trouble.error}"
    failure = Failure(trouble.rank, Exit(code=1), trouble.step, trouble.place, trouble.error)
    why_not = why_not_in_memory(job, RETRY)
    if not why_not and not job.options.keep_trying and job.streak.extend(failure).hopeless:
        why_not = "the same failure came back"
        job = replace(job, streak=job.streak.extend(failure), hopeless_rank=trouble.rank)
    if why_not:
        return job, (SendWorkers(node, Denied(job.generation, trouble.rank, why_not)),)
    report = WorkerExited(
        job.generation, trouble.rank, 0, 0, Exit(), trouble.step, lived_s=0.0, noticed_at=now
    )
    return recover_in_memory(job, now, stamp, Culprit(node, what, 1), failure, report)


def take_standing(job: Job, now: float, node: str, standing: Standing) -> Outcome:
    """Note where a worker stands; when all have said so, decide how they go on."""
    under_way = job.phase in (JobPhase.RUNNING, JobPhase.RECOVERING)
    if standing.generation != job.generation or job.plan is None or not is_member(job, node) or not under_way:
        why = f"standing of generation {standing.generation}; the job is at {job.generation}"
        return job, (Refuse(node, why),)
    plan = job.plan
    recovering = job.recovering or Recovering({})
    if recovering.regroup is not None:
        return job, (SendWorkers(node, recovering.regroup),)
    standings = {**recovering.standings, standing.rank: standing}
    recovering = replace(recovering, standings=standings)
    job = replace(job, recovering=recovering, phase=JobPhase.RECOVERING, since=now)
    incident = job.incident
    survivors = {view.rank for view in member_views(job) if view.ready}
    if incident is not None and survivors <= set(standings):
        incident = incident.mark(PhaseName.RELEASE, now)
    if len(standings) < plan.world_size:
        return replace(job, incident=incident), ()
    regroup = decide_regroup(standings, recovering.voted)
    if regroup is None:
        return replace(job, incident=incident), ()
    if incident is not None:
        incident = incident.mark(PhaseName.SPAWN, now)
    job = replace(job, incident=incident, recovering=replace(recovering, regroup=regroup))
    return job, tuple(SendWorkers(place.node, regroup) for place in plan.places)


def decide_regroup(standings: Mapping[int, Standing], voted: Mapping[int, int]) -> Regroup | None:
    """Decide to which step all go, who applies its gradient and who receives its state from whom.

    The target is the highest committed step. If all who have a state stand there with the whole gradient of
    the next step, and the dead had voted for it too (so that their random state after it is kept), nothing
    needs to be computed again and all go one further.
    """
    keepers = [standing for standing in standings.values() if standing.has_state]
    stores = [standing.store for standing in standings.values() if standing.store]
    if not keepers or not stores:
        return None
    top = max(standing.step for standing in keepers)
    newcomers = [rank for rank, standing in standings.items() if not standing.has_state]
    forward = all(standing.step == top and standing.complete for standing in keepers) and all(
        voted.get(rank) == top for rank in newcomers
    )
    behind = [s.rank for s in keepers if s.step < top and not s.complete]
    return Regroup(
        generation=keepers[0].generation,
        store=stores[0],
        target=top + 1 if forward else top,
        forward=forward,
        source=min(standing.rank for standing in keepers if standing.step == top),
        receivers=tuple(sorted([*newcomers, *behind])),
    )


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
    )
    if incident is None:
        return done, ()
    incident = replace(incident.mark(PhaseName.FIRST_STEP, now), outcome="recovered")
    return done, (RecordIncident(incident),)


def _names(ranks: tuple[int, ...]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]} is"
    return f"ranks {', '.join(map(str, ranks))} are"
