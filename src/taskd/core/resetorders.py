"""What the mounted reset-config asks of a job for which no control plane speaks.

Device plugins and schedulers write it, and kubelets bring it into the pods up to a minute late. So what it
asks is compared with what the job did meanwhile: a count of restarts that went up because a pod was replaced
is answered by the restart that the loss of the pod was for the job itself.

While the job stands because of it, the job is in GATHERING, and that has an end (``join_timeout_s``).
"""

from collections.abc import Mapping
from dataclasses import replace

from taskd.core.answering import fall_through
from taskd.core.exits import ExitCode
from taskd.core.faults.texts.reset import RankStatus, Reset
from taskd.core.jobstate import Culprit, Effect, Fault, Job, ResetRead
from taskd.core.restarting import restart_all
from taskd.core.status import JobPhase

RESET = "reset"
LATE_S = 300.0
"""So long after the loss of a node a higher count of restarts is taken to be about that loss."""
UNDER_WAY = (JobPhase.STARTING, JobPhase.RUNNING, JobPhase.RECOVERING)

Outcome = tuple[Job, tuple[Effect, ...]]


def take_reset(job: Job, event: ResetRead) -> Outcome:
    """The file says something else now."""
    before, now = job.reset, event.reset
    job = replace(job, reset=now)
    if job.attended:  # what concerns the job comes over the wire, and in time
        return replace(job, held=""), ()
    hold = _why_hold(job, now)
    stood = bool(job.held)
    if hold != job.held:
        job = replace(job, held=hold, since=event.now if job.phase is JobPhase.GATHERING else job.since)
    if hold:
        return obey_hold(job, event.now, event.stamp)
    if stood or before is None or job.phase is not JobPhase.RUNNING:
        return job, ()
    again = _why_again(before, now)
    if not again:
        return job, ()
    about_node = job.node_lost_at > 0 and event.now - job.node_lost_at <= LATE_S
    if now.retry_time > before.retry_time and about_node:
        return replace(job, node_lost_at=0.0), ()
    return restart_all(job, event.now, event.stamp, _fault(again))


def obey_hold(job: Job, now: float, stamp: float) -> Outcome:
    """Stop what runs although the file says that nothing may."""
    if not job.held or job.phase not in UNDER_WAY:
        return job, ()
    fault = _fault(job.held)
    leaves = job.reset is not None and job.reset.graceful_exit == 1
    return (fall_through if leaves else restart_all)(job, now, stamp, fault)


def _fault(what: str) -> Fault:
    return Fault(RESET, Culprit("", what, ExitCode.FAILED))


def _why_hold(job: Job, reset: Reset) -> str:
    by_status = _by_status(reset)
    if ranks := by_status.get(RankStatus.FAILED):
        return f"the device of rank {_ranks(ranks)} could not be reset; its pod has to be replaced"
    if ranks := by_status.get(RankStatus.UNRECOVERED):
        return f"the device of rank {_ranks(ranks)} is being reset"
    if reset.graceful_exit == 1:
        return "the cluster asks all processes to end (GracefulExit)"
    if reset.flushing and job.phase not in UNDER_WAY:
        return "the cluster is gathering faults (FaultFlushing)"
    return ""


def _why_again(before: Reset, now: Reset) -> str:
    """Why all processes start again although none was stopped on the way here."""
    healed = _by_status(now).get(RankStatus.RECOVERED, ())
    known = _by_status(before).get(RankStatus.RECOVERED, ())
    if fresh := [rank for rank in healed if rank not in known]:
        return f"the device of rank {_ranks(fresh)} was reset"
    if now.retry_time > before.retry_time:
        return f"the cluster asks for a restart of all processes (RetryTime {now.retry_time})"
    return ""


def _by_status(reset: Reset) -> Mapping[RankStatus, list[int]]:
    found: dict[RankStatus, list[int]] = {}
    for entry in reset.ranks:
        found.setdefault(entry.status, []).append(entry.rank)
    return found


def _ranks(ranks: list[int]) -> str:
    return ", ".join(map(str, sorted(ranks)[:8]))
