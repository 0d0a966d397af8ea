"""Who began it: the blame of an incident goes to whoever failed first, however late its end is told."""

from dataclasses import replace

from taskd.core.failures import Failure
from taskd.core.jobstate import Culprit, Effect, Job, RecordIncident
from taskd.core.messages import WorkerExited

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
