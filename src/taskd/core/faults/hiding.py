"""Faults that are held back for a while, and from whom.

Three parties learn of a fault: subscribers, who want to know; the job's recovery, which acts; and the
scheduler, which deletes pods. A fault that the training side may heal by itself is told to the first two at
once, and to the scheduler only when that time is over. One that the user silenced is told to subscribers
only. One that merely accompanies a memory error is told to nobody.

Each rule returns its faults and the moments at which time alone changes its answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from taskd.core.faults import codes
from taskd.core.faults.levels import RESTARTABLE, Effect, Level, worst
from taskd.core.faults.nodesight import UNPLUGGED
from taskd.core.faults.places import PodPlace
from taskd.core.faults.state import Fault, FaultKey, JobRecord, LostLink
from taskd.core.faults.view import FaultKind

ACCOMPANY_S: Final = 5.0
UCE_PATIENCE_S: Final = 10.0
HCCL_PATIENCE_S: Final = 60.0
NEAR_S: Final = 10.0
"""How long before a fault the training side may have reported it."""
RETRY_S: Final = 30.0
IN_PLACE_S: Final = 60.0
LINK_MEMORY_S: Final = 180.0


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the rules need to know around a node's faults."""

    now: float
    jobs: tuple[JobRecord, ...]
    """Those that have a pod on the node."""
    node: str
    stressed: bool = False
    link_evidence: Callable[[JobRecord], bool] = lambda _job: False
    """Whether a link of the job is down, or was a short while ago."""

    def user(self, chip: int) -> JobRecord | None:
        """The job that has the chip."""
        for job in self.jobs:
            if any(pod.has(chip) for pod in job.sight.on(self.node)):
                return job
        return None


Ruled = tuple[list[Fault], list[float]]


def drop_stress(faults: list[Fault], around: Surroundings) -> Ruled:
    """What a stress test provokes is its result, and no fault of the job."""
    if not around.stressed:
        return faults, []
    return [fault for fault in faults if fault.code not in codes.STRESS], []


def drop_accompanying(faults: list[Fault], around: Surroundings) -> Ruled:
    """Leave out errors of a core that come along with a memory error; wait for one where it would matter.

    It matters where the job may repeat a step: that is the answer to the memory error and not to the other.
    """
    memory = {fault.chip: fault.began for fault in faults if fault.code == codes.UCE}
    kept, wakes = [], []
    for fault in faults:
        if fault.code in codes.ACCOMPANY:
            uce = memory.get(fault.chip)
            if uce is not None and abs(uce - fault.began) <= ACCOMPANY_S:
                continue
            job = around.user(fault.chip)
            known_at = fault.began + ACCOMPANY_S
            if uce is None and job is not None and job.sight.retry and around.now < known_at:
                wakes.append(known_at)
                continue
        kept.append(fault)
    return kept, wakes


def hide_retryable(faults: list[Fault], around: Surroundings, links: Mapping[FaultKey, LostLink]) -> Ruled:
    """Give the training side time to repeat the step, while the scheduler hears nothing."""
    kept, wakes = [], []
    for fault in faults:
        job = around.user(fault.chip) if fault.code in codes.RETRYABLE else None
        if job is None or not job.sight.retry:
            kept.append(fault)
            continue
        until = _retry_until(fault, job)
        if around.now < until:
            wakes.append(until)
            kind = FaultKind.UCE if fault.code == codes.UCE else FaultKind.NETWORK
            kept.append(replace(fault, answer=kind, hidden="the training side may repeat the step"))
            continue
        if fault.code == codes.HCCL_RETRY and not _reported(fault, job):
            if around.link_evidence(job):
                kept += [link.fault for link in links.values() if link.gone is not None]
            elif isinstance(fault.level, Level):
                fault = replace(fault, level=worst([fault.level, Level.RESTART_BUSINESS]))  # noqa: PLW2901
        kept.append(fault)
    return kept, wakes


def _reported(fault: Fault, job: JobRecord) -> bool:
    """Whether the training side has spoken of the fault; it may have noticed it a little earlier."""
    return job.retry_at is not None and -NEAR_S <= job.retry_at - fault.began <= _patience(fault)


def _patience(fault: Fault) -> float:
    return UCE_PATIENCE_S if fault.code == codes.UCE else HCCL_PATIENCE_S


def _retry_until(fault: Fault, job: JobRecord) -> float:
    until = fault.began + _patience(fault)
    if _reported(fault, job) and job.retry_at is not None:
        until = job.retry_at + RETRY_S
        if job.retried_at is not None and job.retried_at >= job.retry_at:
            # Done in time: the device plugin gets as long again to take its report back.
            until = max(until, min(job.retried_at, until) + RETRY_S)
    return until


def hide_in_place(faults: list[Fault], around: Surroundings) -> Ruled:
    """Give processes time to be restarted where they are, if that can be enough for their pod."""
    wakes: list[float] = []
    for job in around.jobs:
        if not job.sight.in_place:
            continue
        for pod in job.sight.on(around.node):
            mine = [index for index, fault in enumerate(faults) if concerns(fault, pod)]
            if not all(_bearable(faults[index], job) for index in mine):
                continue
            for index in mine:
                fault = faults[index]
                until = fault.began + IN_PLACE_S
                given_up = job.gave_up_at is not None and job.gave_up_at >= fault.began
                if _restartable(fault) and around.now < until and not given_up:
                    wakes.append(until)
                    why = fault.hidden or "processes may be restarted in place"
                    faults[index] = replace(fault, hidden=why)
    return faults, wakes


def _bearable(fault: Fault, job: JobRecord) -> bool:
    if fault.effect is Effect.SUB_HEALTH:
        return job.sight.ignores_sub_health
    return fault.effect is not Effect.FAULT or _restartable(fault)


def _restartable(fault: Fault) -> bool:
    return isinstance(fault.level, Level) and fault.level in RESTARTABLE


def silence(faults: list[Fault], around: Surroundings) -> Ruled:
    """Leave alone, for as long as a job wants, what that job named; other jobs are not asked to wait."""
    wakes: list[float] = []
    for index, fault in enumerate(faults):
        users = [job for job in around.jobs if _concerned(fault, job, around.node)]
        silent = set()
        for job in users:
            until = fault.began + job.sight.filters.patience_s(fault.code, fault.level.value)
            if around.now < until:
                wakes.append(until)
                silent.add(job.sight.job_id)
        if silent:
            why = "the job asks to leave it alone for a while" if len(silent) == len(users) else ""
            faults[index] = replace(fault, silenced=frozenset(silent), hidden=fault.hidden or why)
    return faults, wakes


def _concerned(fault: Fault, job: JobRecord, node: str) -> bool:
    return any(concerns(fault, pod) for pod in job.sight.on(node))


def concerns(fault: Fault, pod: PodPlace) -> bool:
    """Whether a fault of the node is one of that pod."""
    if fault.code == UNPLUGGED:
        return fault.name == pod.resource
    return pod.has(fault.chip)
