"""Who began it: the blame of an incident goes to whoever failed first, however late its end is told."""

from dataclasses import replace

from taskd.core.failures import Failure, Streak
from taskd.core.jobstate import Culprit, Effect, Job, RecordIncident
from taskd.core.messages import WorkerExited
from taskd.core.troubles import TroubleKind, classify

Outcome = tuple[Job, tuple[Effect, ...]]


def blame_earlier(job: Job, report: WorkerExited, culprit: Culprit, failure: Failure) -> Outcome:
    """Correct the blame if a process that ended later had failed earlier.

    An interpreter with torch needs most of a second to end after an exception, and its peers may fail on the
    broken connection before it is gone. The error files tell the order of the exceptions.
    """
    incident = job.incident
    if incident is None or not report.failed_stamp or not incident.failed_stamp:
        return job, ()
    if report.failed_stamp >= incident.failed_stamp:
        return job, ()
    incident = replace(
        incident,
        what=culprit.what,
        rank=report.rank,
        node=culprit.node,
        step=report.step,
        failed_stamp=report.failed_stamp,
    )
    job = replace(job, incident=incident, culprit=culprit, streak=job.streak.correct(failure))
    return job, (RecordIncident(incident),)


def streak_after(job: Job, failure: Failure) -> Streak:
    """Return the streak after one more failure; peers that fail over one broken group have failed once.

    A script that calls collectives between two steps ends in them when a rank dies, on all ranks one after
    the other, with one error at one line. That is an echo of the fault, not a failure that came back.
    """
    last, recovering = job.streak.failure, job.recovering
    under_way = recovering is not None and not recovering.stepped
    if last is not None and under_way and last.rank != failure.rank and last.signature == failure.signature:
        kind, _, text = failure.error.partition(":")
        if classify(kind, text) is TroubleKind.NETWORK:
            return job.streak
    return job.streak.extend(failure)
