"""What a manager before this one wrote down: for people, and as a lower bound for what agents tell."""

import contextlib
from dataclasses import dataclass

from taskd.core import job as machine
from taskd.core.incidents import close_left_open
from taskd.core.jobstate import Ending, Job
from taskd.core.status import IncidentStatus
from taskd.kit import jobs
from taskd.manager.config import ManagerConfig


@dataclass(frozen=True, slots=True)
class History:
    """The job with what is known of it, its incidents, and when it began (0 if that is not known)."""

    job: Job
    incidents: dict[int, IncidentStatus]
    started_stamp: float = 0.0


def load_history(config: ManagerConfig, job: Job) -> History:
    """Take over what a predecessor wrote down, unless it belongs to an earlier job of this name.

    A launcher clears that away before it starts a manager. A manager.py has no launcher: there, a status
    that tells of an end is of another job.
    """
    before = jobs.read_status(config.job)
    if not config.port_reserved and before is not None and before.exit_code is not None:
        return History(job, {})
    try:
        known = jobs.read_timeline(config.job)
    except (OSError, LookupError):
        known = []
    incidents = {incident.number: close_left_open(incident) for incident in known}
    for incident in known:
        if incidents[incident.number] != incident:
            with contextlib.suppress(OSError):
                jobs.append_incident(config.job, incidents[incident.number])
    ending = None
    if before is not None and before.exit_code is not None:
        ending = Ending(before.exit_code, before.reason)
    job = machine.take_over(
        job,
        max(incidents, default=0),
        ending,
        generation=before.generation if before else 0,
        restarts=before.restarts if before else 0,
        faults={node.node: node.faults for node in before.nodes if node.faults} if before else {},
    )
    return History(job, incidents, before.started_stamp if before else 0.0)
