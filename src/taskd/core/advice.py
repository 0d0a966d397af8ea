"""What the control plane says about a job, and how the job follows it.

``consulting`` puts the question; here is what comes back: a decision, a fault that the job has not felt, or
silence. A decision says which strategy is wanted and which nodes and ranks are not to be used as they are;
how the survivors go on is decided here as ever, from what they hold.
"""

from dataclasses import replace

from taskd.core.answering import answer_now, fall_through
from taskd.core.consulting import DEVICE, EXIT, FaultType, ask, chief, on_broken_devices
from taskd.core.endings import finish
from taskd.core.exits import ExitCode
from taskd.core.jobread import with_node
from taskd.core.jobstate import (
    Advised,
    Consulting,
    Culprit,
    Effect,
    Ending,
    Fault,
    Job,
    PlaneChanged,
    Refuse,
    SendOrder,
    Warned,
)
from taskd.core.launch import DUMP, RECOVER, RECOVER_IN_PLACE, RETRY
from taskd.core.messages import Finish
from taskd.core.restarting import restart_all
from taskd.core.status import JobPhase
from taskd.core.troubles import TroubleKind

GIVE_UP = "killMaster"
# A strategy allows the finer ones, where they turn out to be enough.
WITHIN = {
    RETRY: (RETRY,),
    RECOVER_IN_PLACE: (RETRY, RECOVER_IN_PLACE),
    RECOVER: (RETRY, RECOVER_IN_PLACE, RECOVER),
}

Outcome = tuple[Job, tuple[Effect, ...]]


def take_plane(job: Job, event: PlaneChanged) -> Outcome:
    """A plane is there from now on, or no longer; an open question to one that left is not waited for."""
    job = replace(job, plane_limit_s=event.limit_s)
    if event.limit_s > 0:
        job = replace(job, attended=True, refused="")
    elif event.refused is not None:
        job = replace(job, attended=False, refused=event.refused)
    if event.limit_s <= 0 and job.consulting is not None:
        return _go_on_alone(job, event.now, event.stamp, "the control plane is out of reach")
    return job, ()


def take_warning(job: Job, event: Warned) -> Outcome:
    """The plane knows of a fault that the job has not felt."""
    if job.phase is not JobPhase.RUNNING or job.plan is None:
        return job, (Refuse("", f"a warning while the job is {job.phase.value}"),)
    known = {rank: kind for rank, kind in event.ranks if 0 <= rank < job.plan.world_size}
    if not known:
        return job, (Refuse("", "a warning that names no rank of this job"),)
    if job.consulting is not None and known.items() <= job.consulting.ranks.items():
        return job, ()
    broken = tuple(sorted(rank for rank, kind in known.items() if kind == FaultType.NORMAL))
    kind = DEVICE if broken else TroubleKind.NETWORK.value
    culprit = Culprit("", event.what, ExitCode.FAILED)
    return ask(
        job, event.now, Fault(kind, culprit, ranks=broken or tuple(sorted(known)), noticed_at=event.now)
    )


def take_advice(job: Job, event: Advised) -> Outcome:
    """Do what the plane decided."""
    asked = job.consulting
    if asked is None:
        return job, (Refuse("", f"{event.strategy} was advised, and nothing was asked"),)
    fault = _worded(chief(asked.faults), f"the control plane decided: {event.strategy}")
    job = replace(job, consulting=None)
    if event.strategy == GIVE_UP:
        why = f"{fault.culprit.what}; the control plane gave the job up"
        return finish(job, event.now, Ending(ExitCode.FAILED, why))
    if event.strategy == DUMP:
        return fall_through(job, event.now, event.stamp, fault)
    if event.strategy == EXIT:
        return restart_all(job, event.now, event.stamp, fault)
    within = WITHIN.get(event.strategy)
    if within is None:
        return answer_now(job, event.now, event.stamp, _worded(fault, f"{event.strategy} is not known here"))
    job, leave = _leave_nodes(replace(job, relief=event.relief), event, fault)
    condemned = _condemned(asked, event)
    job, effects = answer_now(job, event.now, event.stamp, fault, within=within, condemned=condemned)
    return job, (*leave, *effects)


def take_silence(job: Job, now: float, stamp: float) -> Outcome | None:
    """Go on without the plane when its time is over; None if there is nothing to go on from."""
    asked = job.consulting
    if asked is None or now - asked.since < job.plane_limit_s:
        return None
    return _go_on_alone(job, now, stamp, f"the control plane did not decide within {job.plane_limit_s:g} s")


def drop_overtaken(job: Job) -> Job:
    """Forget a question that something else has answered."""
    return job if job.consulting is None or job.phase is JobPhase.RUNNING else replace(job, consulting=None)


def _go_on_alone(job: Job, now: float, stamp: float, why: str) -> Outcome:
    asked = job.consulting
    if asked is None:
        return job, ()
    fault = _worded(chief(asked.faults), why)
    job = replace(job, consulting=None)
    # A process on a device that is said to be broken is not believed, whoever decides.
    return answer_now(job, now, stamp, fault, condemned=on_broken_devices(asked))


def _condemned(asked: Consulting, event: Advised) -> frozenset[int]:
    """Return the ranks that need a new process although the old one may live."""
    if event.strategy == RETRY:
        return frozenset()
    named = event.ranks if event.strategy == RECOVER_IN_PLACE else ()
    return on_broken_devices(asked) | frozenset(named)


def _leave_nodes(job: Job, event: Advised, fault: Fault) -> Outcome:
    """Count nodes that the plane wants emptied as lost.

    A ClusterD waits for their agents to end. Our own plane has the pods deleted: one that failed by itself
    before would count as a failure of the job.
    """
    if event.strategy != RECOVER or job.plan is None:
        return job, ()
    effects: list[Effect] = []
    for place in job.plan.places:
        node = job.nodes.get(place.node)
        if place.node_rank not in event.nodes or node is None or not node.usable:
            continue
        why = f"the control plane moves its ranks: {fault.culprit.what}"
        if event.end_agents:
            effects.append(SendOrder(node.key, Finish(f"{job.generation}/leave", ExitCode.FAILED, why)))
        job = with_node(job, replace(node, lost=why))
    return job, tuple(effects)


def _worded(fault: Fault, more: str) -> Fault:
    return replace(fault, culprit=replace(fault.culprit, what=f"{fault.culprit.what}; {more}"))
