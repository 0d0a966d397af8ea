"""A job that stands still although every process lives: from testimonies to a fault with a name."""

from collections.abc import Mapping
from dataclasses import replace

from taskd.core.exits import Exit
from taskd.core.failures import Failure
from taskd.core.jobread import member_views, node_label, with_node
from taskd.core.jobstate import Culprit, Fault, Job
from taskd.core.messages import WorkerExited, WorkerState
from taskd.core.status import JobPhase
from taskd.core.testimony import Hang, Statement, find_hang

SIGKILL = 9


def hear_testimonies(job: Job, node: str, testimonies: tuple[Statement, ...]) -> Job:
    """Keep the newest testimonies of a node's ranks; a beat without any takes them back."""
    place = job.plan.place_of(node) if job.plan else None
    if place is None or (not testimonies and not job.testimonies):
        return job
    kept = {rank: each for rank, each in job.testimonies.items() if rank not in place.ranks}
    return replace(job, testimonies={**kept, **{each.rank: each for each in testimonies}})


def find_stall(job: Job, now: float) -> tuple[Job, Fault | None]:
    """Say what holds the job up, if all ranks have been heard and one of them, or nobody, is to blame.

    The ranks to blame are shown as failed from here on: their processes are ended where they are replaced.
    While a control plane is asked about a fault, all stand because of that, and nobody is to blame for it.
    """
    regrouped = job.recovering is not None and job.recovering.regroup is not None
    if job.plan is None or not (job.phase is JobPhase.RUNNING or regrouped):
        return job, None
    if job.consulting is not None:
        return job, None
    alive = {view.rank for view in member_views(job) if view.state.alive}
    if not alive or not alive <= set(job.testimonies):
        return job, None
    heard = {rank: job.testimonies[rank] for rank in alive}
    hang = find_hang(heard)
    if hang is None:
        return job, None
    job = replace(job, testimonies={})
    if hang.blamed:
        return _condemn(job, now, hang, heard)
    first = heard[min(alive)]
    report = WorkerExited(
        job.generation, -1, 0, 0, Exit(), first.step, 0.0, now - first.silent_s, stack=first.stack
    )
    failure = Failure(first.rank, Exit(code=1), first.step, first.line, hang.why)
    # Where they do not wait in a collective, only being called tells who comes out of it.
    kind = "network" if all(each.waiting for each in heard.values()) else "hang"
    return job, Fault(kind, Culprit("", hang.why, 1, error=hang.why), failure, report)


def _condemn(job: Job, now: float, hang: Hang, heard: Mapping[int, Statement]) -> tuple[Job, Fault | None]:
    whats = []
    fault: Fault | None = None
    for rank in hang.blamed:
        node = next((node for node in job.nodes.values() if rank in node.workers), None)
        if node is None:
            continue
        view, word = node.workers[rank], heard[rank]
        failed = replace(view, state=WorkerState.FAILED, exit=Exit(signal=SIGKILL))
        job = with_node(job, replace(node, workers={**node.workers, rank: failed}))
        whats.append(
            f"rank {rank} (node {node_label(job, node.key)}, pid {view.pid}) hangs: it {word.describe()}"
        )
        if fault is not None:
            continue
        report = WorkerExited(
            generation=job.generation,
            rank=rank,
            local_rank=view.local_rank,
            pid=view.pid,
            exit=Exit(signal=SIGKILL),
            step=view.step,
            lived_s=0.0,
            noticed_at=now - word.silent_s,
            error=word.describe(),
            place=word.line,
            log=view.log,
            stack=word.stack,
        )
        # Ended by us, but for what its own program does: three times the same is no chance.
        failure = Failure(rank, Exit(code=1), word.step, word.line, report.error)
        culprit = Culprit(node.key, "", report.exit.shell_code, view.log, report.error)
        fault = Fault("hang", culprit, failure, report)
    if fault is None:
        return job, None
    what = "; ".join([*whats, hang.why])
    return job, replace(fault, culprit=replace(fault.culprit, what=what))
