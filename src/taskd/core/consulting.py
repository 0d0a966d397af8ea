"""Asking the control plane about a fault before it is answered.

The plane sees what a job cannot: that the device under a dead rank is broken, that a pod is about to move.
Where there is one, it is told of each fault of a running job and says which strategy it wants. A plane that
is silent must cost no more than its time limit, so a question has a deadline, and after it the job answers
the fault by itself as if there were no plane.

Faults that come while the question is open belong to it: a broken connection is what a death looks like to
the others, and the plane shall hear of the death.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum

from taskd.core.jobstate import Consult, Consulting, Effect, Fault, Job, Relief
from taskd.core.launch import DUMP, RECOVER, RECOVER_IN_PLACE, RETRY
from taskd.core.recovery import propose
from taskd.core.saving import can_save
from taskd.core.status import JobPhase
from taskd.core.troubles import TroubleKind

EXIT = "exit"
DEVICE = "device"
DEATHS = ("process", "node", "agent", DEVICE)

Outcome = tuple[Job, tuple[Effect, ...]]


class FaultType(StrEnum):
    """What a fault is to the plane, in the words of the wire."""

    MEMORY = "0"
    NORMAL = "1"
    NETWORK = "2"


def asks(job: Job) -> bool:
    """Tell whether the plane is to be asked about a fault now.

    A fault in the middle of a recovery is answered at once, within what was decided already: to wait for a
    second decision would leave the survivors in the hands of a plane that may have died with the fault.
    """
    return job.plane_limit_s > 0 and job.phase is JobPhase.RUNNING


def ask(job: Job, now: float, fault: Fault) -> Outcome:
    """Put the question, or make an open one wider."""
    before = job.consulting
    known = before.faults if before else ()
    faults = (*known, fault)
    ranks = affected(job, faults)
    if before is not None and ranks == before.ranks:
        return replace(job, consulting=replace(before, faults=faults)), ()
    asked = Consulting(faults, ranks, before.since if before else now)
    job = replace(
        job,
        consulting=asked,
        relief=Relief(),
        reason=f"{chief(faults).culprit.what}; the control plane is asked",
    )
    return job, (Consult(tuple(sorted(ranks.items())), chief(faults).culprit.what, _cut_off(job, faults)),)


def chief(faults: Sequence[Fault]) -> Fault:
    """Return the fault that explains the others: the first death, else the first of all."""
    return next((each for each in faults if each.kind in DEATHS), faults[0])


def affected(job: Job, faults: Sequence[Fault]) -> Mapping[int, str]:
    """Return which ranks are hurt and how, without those that only felt it."""
    deaths = [each for each in faults if each.kind in DEATHS]
    ranks: dict[int, str] = {}
    for fault in deaths or faults:
        for rank in _ranks(job, fault):
            if ranks.get(rank) != FaultType.NORMAL:
                ranks[rank] = _type(fault)
    return ranks


def offers(job: Job) -> tuple[str, ...]:
    """Return what the training side can do about it now, finest first, in the words of the wire.

    Whether ranks are replaced where they are or elsewhere is the plane's to choose, and it knows what the job
    allows: what counts here is that the others hold the state.
    """
    found: list[str] = []
    options = replace(job.options, strategies=(RETRY, RECOVER_IN_PLACE, RECOVER))
    proposal = propose(replace(job, options=options), None, on_broken_devices(job.consulting))
    if not isinstance(proposal, str):
        found = [RETRY, RECOVER] if proposal.strategy == RETRY else [RECOVER]
    if can_save(job):
        found.append(DUMP)
    return (*(each for each in found if each in job.options.strategies or each == RECOVER), EXIT)


def on_broken_devices(asked: Consulting | None) -> frozenset[int]:
    """Return the ranks that need a new process although the old one may live."""
    faults = asked.faults if asked else ()
    return frozenset(rank for each in faults if each.kind == DEVICE for rank in each.ranks)


def _cut_off(job: Job, faults: Sequence[Fault]) -> tuple[int, ...]:
    places = [job.plan.place_of(each.culprit.node) for each in faults if each.cut] if job.plan else []
    return tuple(sorted({place.node_rank for place in places if place is not None}))


def _ranks(job: Job, fault: Fault) -> Sequence[int]:
    if fault.ranks:
        return fault.ranks
    if fault.report is not None:
        return (fault.report.rank,)
    place = job.plan.place_of(fault.culprit.node) if job.plan else None
    return place.ranks if place else ()


def _type(fault: Fault) -> FaultType:
    if fault.kind == TroubleKind.UCE:
        return FaultType.MEMORY
    return FaultType.NETWORK if fault.kind in (TroubleKind.NETWORK, TroubleKind.STEP) else FaultType.NORMAL
