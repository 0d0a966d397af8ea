"""Chips whose faults come back: counted, kept apart, and let back.

A fault that several chips of a job show at about the same time is the program's doing, so each sighting waits
half a minute for company before it counts. Only the sightings are kept; whether a chip goes over the limit is
computed from them when one of them settles.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from taskd.core.faults.policy import Separation
from taskd.core.faults.state import Occurrence, Separated

COMPANY_S: Final = 30.0

History = Mapping[str, tuple[Occurrence, ...]]


@dataclass(frozen=True, slots=True)
class Settled:
    """What a look at the history gives."""

    history: dict[str, tuple[Occurrence, ...]]
    separate: tuple[Occurrence, ...]
    """One sighting for each chip and code that is over the limit."""
    wake: float | None


def settle(history: History, policy: Separation, now: float) -> Settled:
    """Count the sightings that have waited long enough."""
    kept: dict[str, tuple[Occurrence, ...]] = {}
    over: list[Occurrence] = []
    wakes = []
    for code, listed in history.items():
        recent = [seen for seen in listed if seen.at > now - policy.window_s or not seen.settled]
        for index, seen in enumerate(recent):
            if seen.settled:
                continue
            if now < seen.at + COMPANY_S:
                wakes.append(seen.at + COMPANY_S)
                continue
            software = any(_company(seen, other) for other in recent)
            recent[index] = replace(seen, settled=True, software=software)
            count = sum(other.settled and not other.software and _same_chip(seen, other) for other in recent)
            if not software and count >= policy.threshold:
                over.append(recent[index])
        if recent:
            kept[code] = tuple(recent)
    return Settled(kept, tuple(over), min(wakes, default=None))


def _same_chip(one: Occurrence, other: Occurrence) -> bool:
    return (one.node, one.chip) == (other.node, other.chip)


def _company(one: Occurrence, other: Occurrence) -> bool:
    near = abs(one.at - other.at) <= COMPANY_S
    return near and one.job_id == other.job_id and not _same_chip(one, other)


def forget(history: History, node: str, chip: int, code: str) -> dict[str, tuple[Occurrence, ...]]:
    """The history after a chip was let back: what was counted against it counts no more."""
    left = tuple(seen for seen in history.get(code, ()) if (seen.node, seen.chip) != (node, chip))
    rest = {other: listed for other, listed in history.items() if other != code}
    return {**rest, code: left} if left else rest


def release_at(kept: Separated, policy: Separation) -> float | None:
    """When the chip is let back without anybody's doing."""
    return None if policy.release_s is None else kept.since + policy.release_s
