"""Faults of the network that mean something only together with another fault.

A link that goes down may be nothing; with a failed collective within five minutes it is the cause, and the
pod at that link is set apart or called sub-healthy. Which of the two comes first is chance, so both are
remembered for that long.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from taskd.core.faults.codes import CQE
from taskd.core.faults.places import JobSight
from taskd.core.faults.policy import Relations, Strategy
from taskd.core.faults.state import Trace

_STERN: Final = list(Strategy)


@dataclass(frozen=True, slots=True)
class Correlated:
    """What follows from a job's traces."""

    marks: dict[str, Strategy]
    traces: tuple[Trace, ...]
    wake: float | None


def correlate(
    traces: tuple[Trace, ...],
    marks: Mapping[str, Strategy],
    job: JobSight,
    present: Collection[tuple[str, str]],
    relations: Relations,
    now: float,
) -> Correlated:
    """Match traces; `present` has node and code of the faults that are there now.

    A mark stays with its pod and is never made milder.
    """
    alive = frozenset(pod.uid for pod in job.pods)
    found = {uid: mark for uid, mark in marks.items() if uid in alive}
    wakes: list[float] = []
    for fault in traces:
        if not relations.is_related(fault.code):
            continue
        end = fault.at + relations.windows[fault.code]
        strategy = _strategy(fault, traces, job, relations, over=now >= end)
        if now < end:
            wakes.append(end)
        elif strategy is None and fault.is_switch and (fault.node, fault.code) in present:
            strategy = Strategy.SUB_HEALTH
        if strategy is not None:
            for uid in fault.pods & alive:
                found[uid] = max(found.get(uid, strategy), strategy, key=_STERN.index)
    kept = tuple(trace for trace in traces if now < trace.at + relations.longest_s)
    return Correlated(found, kept, min(wakes, default=None))


def _strategy(
    fault: Trace, traces: tuple[Trace, ...], job: JobSight, relations: Relations, *, over: bool
) -> Strategy | None:
    """The sternest that any trigger near the fault gives it."""
    window = relations.windows[fault.code]
    found = [
        strategy
        for other in traces
        if abs(other.at - fault.at) <= window
        # Inside a super pod an error in a queue may have many causes: it counts when no other came.
        and (over or not (job.super_pod and other.code in CQE))
        and (strategy := relations.strategy(other.code, fault.code)) is not None
    ]
    return max(found, key=_STERN.index, default=None)
