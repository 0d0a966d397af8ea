"""What a fault is answered with: the finest strategy that fits, and what comes after it when that fails.

From memory if the survivors can do it; else what they have is written to disk, where that is wanted; and then
all ranks restart, or the job ends.
"""

from collections.abc import Sequence
from dataclasses import replace

from taskd.core.blame import streak_after
from taskd.core.consulting import ask, asks
from taskd.core.endings import check_success, finish
from taskd.core.jobread import member_views
from taskd.core.jobstate import Effect, Ending, Fault, Job
from taskd.core.messages import WorkerState
from taskd.core.recovery import begin_recovery, propose
from taskd.core.restarting import restart_all
from taskd.core.saving import begin_saving, can_save, close_saving
from taskd.core.stalled import find_stall

Outcome = tuple[Job, tuple[Effect, ...]]


def answer(job: Job, now: float, stamp: float, fault: Fault) -> Outcome:
    """Answer a fault; where there is a control plane, after it has spoken."""
    return ask(job, now, fault) if asks(job) else answer_now(job, now, stamp, fault)


def answer_now(
    job: Job,
    now: float,
    stamp: float,
    fault: Fault,
    *,
    within: Sequence[str] | None = None,
    condemned: frozenset[int] = frozenset(),
) -> Outcome:
    """Recover from memory where that can work, and go on to the next strategy otherwise, with the reason.

    ``within`` are the strategies that somebody else has chosen; ``condemned`` are ranks that need a new
    process although the old one may live.
    """
    proposal = propose(job, within, condemned)
    if isinstance(proposal, str):
        why_not = proposal
    elif fault.failure and not job.options.keep_trying and streak_after(job, fault.failure).hopeless:
        why_not = "the same failure came back"
    else:
        return begin_recovery(job, now, stamp, proposal, fault)
    if any(view.ready for view in member_views(job)):
        fault = replace(fault, culprit=replace(fault.culprit, why_restart=why_not))
    return fall_through(job, now, stamp, fault)


def fall_through(job: Job, now: float, stamp: float, fault: Fault) -> Outcome:
    """Save what the living have before it is given up, where that is wanted and possible.

    What was allowed and comes before that, but is not built, is named in the reason.
    """
    if skipped := job.options.skipped:
        why = "; ".join(filter(None, (fault.culprit.why_restart, skipped)))
        fault = replace(fault, culprit=replace(fault.culprit, why_restart=why))
    if can_save(job):
        return begin_saving(job, now, stamp, fault)
    return restart_all(job, now, stamp, fault)


def stop_saving(job: Job, now: float, stamp: float, why: str) -> Outcome:
    """Go on without the dump."""
    job, effects = close_saving(job, now, f"the dump failed: {why}")
    job, more = go_on_after_saving(job, now, stamp)
    return job, (*effects, *more)


def end_while_saving(job: Job, now: float, stamp: float, rank: int) -> Outcome:
    """A rank's script came to its end while the others were told to write: nobody has its state any more."""
    saving = job.saving
    if all(view.state is WorkerState.SUCCEEDED for view in member_views(job)):
        job, effects = close_saving(job, now, "nothing was left to write: every script had ended")
        job, more = check_success(replace(job, saving=None), now)
        return job, (*effects, *more)
    if saving is None or rank not in saving.ranks or rank in saving.saved:
        return job, ()
    return stop_saving(job, now, stamp, f"the script of rank {rank} had ended")


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
