"""How a job ends: when to give up, when all is done, and how everybody is told."""

from dataclasses import replace

from taskd.core.exits import ExitCode
from taskd.core.jobread import finish_order, member_views
from taskd.core.jobstate import Culprit, Effect, Ending, EndJob, Job, RecordIncident, SendOrder
from taskd.core.messages import WorkerState
from taskd.core.status import JobPhase

REACH_S = 5.0

Outcome = tuple[Job, tuple[Effect, ...]]


def decide_give_up(job: Job, culprit: Culprit) -> Ending | None:
    """Decide whether the job ends instead of restarting, and say why."""
    log = f"; its log is {culprit.log}" if culprit.log else ""
    if culprit.node and job.budget.spent(culprit.node):
        used = job.budget.used.get(culprit.node, 0)
        reason = f"{culprit.what}; all {used} restarts of this node are used up{log}"
        if job.budget.limit == 0:
            reason = f"{culprit.what}; restarts are off (--max-restarts 0){log}"
        return Ending(culprit.code, reason)
    if job.streak.hopeless and not job.options.keep_trying:
        reason = (
            f"{culprit.what}; the same failure at the same place {job.streak.count} times in a row, so "
            f"restarting will not help (--keep-trying goes on){log}"
        )
        return Ending(culprit.code or ExitCode.REPEATING, reason)
    return None


def check_success(job: Job, now: float) -> Outcome:
    """End the job if every process succeeded."""
    if job.phase is not JobPhase.RUNNING or job.plan is None:
        return job, ()
    views = member_views(job)
    if len(views) < job.plan.world_size or any(view.state is not WorkerState.SUCCEEDED for view in views):
        return job, ()
    effects: tuple[Effect, ...] = ()
    if job.incident is not None:
        effects = (RecordIncident(replace(job.incident, outcome="recovered")),)
        job = replace(job, incident=None)
    job, more = finish(job, now, Ending(ExitCode.OK, f"all {len(views)} ranks finished"))
    return job, (*effects, *more)


def finish(job: Job, now: float, ending: Ending) -> Outcome:
    """Decide the end: tell every agent, and close what is open."""
    closed: tuple[Effect, ...] = ()
    if job.incident is not None:
        closed = (RecordIncident(replace(job.incident, strategy="exit", outcome="job ended")),)
    job = replace(
        job, phase=JobPhase.FINISHING, reason=ending.reason, since=now, ending=ending, incident=None
    )
    orders = tuple(
        SendOrder(key, finish_order(job, ending)) for key, node in job.nodes.items() if node.usable
    )
    job, effects = check_finishing(job, now)
    return job, (*closed, *orders, *effects)


def check_finishing(job: Job, now: float) -> Outcome:
    """Leave once every agent is done or out of reach."""
    if job.phase is not JobPhase.FINISHING or job.ending is None:
        return job, ()
    if any(node.usable for node in job.nodes.values()):
        return job, ()
    expected = [place.node for place in job.plan.places] if job.plan else []
    missing = len(job.nodes) < job.options.min_nodes or any(key not in job.nodes for key in expected)
    given_up = job.ending.code == ExitCode.NODES_MISSING or now - job.since >= REACH_S
    if missing and not given_up:
        return job, ()  # a newborn manager: agents that are there may not have found it yet
    return replace(job, phase=JobPhase.ENDED), (EndJob(job.ending),)
