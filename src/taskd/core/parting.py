"""The end of a run: nobody goes before all are through, so that whoever fails at the end has somebody to ask.

A rank whose script has ended says so and stays. A fault meanwhile is answered from memory as in any step: the
replacement gets the state of the last step from those who stay, and ends its script by itself. When all are
through they are told farewell. What is killed after that had nothing left to do; it counts as finished.

A rank that was called and is in the script's own code, between two steps or after them, is on its way: it is
waited for, since it may be writing a checkpoint.
"""

from dataclasses import replace

from taskd.core.jobread import is_member, member_views, refuse_stale, with_node
from taskd.core.jobstate import Effect, Job, Node, Parting, SendWorkers
from taskd.core.messages import Coming, Farewell, Through, WorkerState
from taskd.core.status import JobPhase

Outcome = tuple[Job, tuple[Effect, ...]]


def take_through(job: Job, node: str, through: Through) -> Outcome:
    """Note that a rank's script has ended; when all have, let them go."""
    if through.generation != job.generation or not is_member(job, node):
        return job, (refuse_stale(node, through.generation, job),)
    before = _parting(job)
    ranks = before.ranks | {through.rank}
    job = replace(job, parting=replace(before, ranks=ranks))
    if job.plan is None or job.phase is not JobPhase.RUNNING:
        return job, ()
    ended = {view.rank for view in member_views(job) if view.state is WorkerState.SUCCEEDED}
    if len(ranks | ended) < job.plan.world_size:
        return job, ()
    # Also to a rank that says it again: it may have missed it.
    to = [node] if before.said else [place.node for place in job.plan.places]
    job = replace(job, parting=Parting(job.generation, ranks, said=True))
    return job, tuple(SendWorkers(key, Farewell(job.generation)) for key in to)


def note_coming(job: Job, now: float, coming: Coming) -> Job:
    """Be patient: somebody is in the script's own code and will come."""
    if coming.generation != job.generation or job.phase is not JobPhase.RECOVERING:
        return job
    return replace(job, since=now)


def were_let_go(job: Job) -> bool:
    """Tell whether all ranks were through, so that no end of a process can be a loss."""
    return _parting(job).said


def recall_farewell(job: Job) -> Job:
    """Learn from those who heard it that a manager before this one has let all ranks go."""
    if not any(view.let_go for view in member_views(job)):
        return job
    return replace(job, parting=replace(_parting(job), said=True))


def count_as_finished(job: Job, node: Node) -> Job:
    """Take a node that is lost after the farewell for one whose processes have ended."""
    workers = {
        rank: replace(view, state=WorkerState.SUCCEEDED) if view.state.alive else view
        for rank, view in node.workers.items()
    }
    return with_node(job, replace(node, workers=workers))


def _parting(job: Job) -> Parting:
    known = job.parting
    return known if known is not None and known.generation == job.generation else Parting(job.generation)
