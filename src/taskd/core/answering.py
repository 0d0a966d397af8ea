"""What a fault is answered with: the finest strategy that fits, and what comes after it when that fails.

From memory if the survivors can do it; else what they have is written to disk, where that is wanted; and then
all ranks restart, or the job ends.
"""

from dataclasses import replace

from taskd.core.endings import finish
from taskd.core.jobread import member_views
from taskd.core.jobstate import Effect, Ending, Fault, Job
from taskd.core.recovery import begin_recovery, propose
from taskd.core.restarting import restart_all
from taskd.core.saving import begin_saving, can_save, close_saving
from taskd.core.stalled import find_stall

Outcome = tuple[Job, tuple[Effect, ...]]


def answer(job: Job, now: float, stamp: float, fault: Fault) -> Outcome:
    """Recover from memory where that can work, and go on to the next strategy otherwise, with the reason."""
    proposal = propose(job)
    if isinstance(proposal, str):
        why_not = proposal
    elif fault.failure and not job.options.keep_trying and job.streak.extend(fault.failure).hopeless:
        why_not = "the same failure came back"
    else:
        return begin_recovery(job, now, stamp, proposal, fault)
    if any(view.ready for view in member_views(job)):
        fault = replace(fault, culprit=replace(fault.culprit, why_restart=why_not))
    return fall_through(job, now, stamp, fault)


def fall_through(job: Job, now: float, stamp: float, fault: Fault) -> Outcome:
    """Save what the living have before it is given up, where that is wanted and possible."""
    if can_save(job):
        return begin_saving(job, now, stamp, fault)
    return restart_all(job, now, stamp, fault)


def stop_saving(job: Job, now: float, stamp: float, why: str) -> Outcome:
    """Go on without the dump."""
    job, effects = close_saving(job, now, f"the dump failed: {why}")
    job, more = go_on_after_saving(job, now, stamp)
    return job, (*effects, *more)


def go_on_after_saving(job: Job, now: float, stamp: float) -> Outcome:
    """Go where the job would have gone without the dump."""
    saving = job.saving
    job = replace(job, saving=None)
    if saving is None:
        return job, ()
    if isinstance(saving.then, Ending):
        return finish(job, now, saving.then)
    return restart_all(job, now, stamp, saving.then)


def answer_stall(job: Job, now: float, stamp: float) -> Outcome:
    """Act on a job that stands still although nobody died."""
    job, fault = find_stall(job, now)
    return (job, ()) if fault is None else answer(job, now, stamp, fault)
