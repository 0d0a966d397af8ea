"""Lists of faulty ranks: checked when they come in, merged, and widened to whole pods when they go out.

A list that names a rank which does not exist would send agents of healthy nodes away, or nobody at all; so
one bad entry refuses the whole report, and the sender learns which.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from taskd.core.faults.view import FaultKind, RankFault
from taskd.core.plane.names import QUIET_LEVELS, Level

MAX_ENTRIES: Final = 100_000
MAX_DIGITS: Final = 9
MAX_NAMED: Final = 8
KINDS: Final = frozenset(FaultKind)


class BadFaults(ValueError):
    """A list of faults that cannot be acted on; the text says which entry and why."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How the ranks of a job lie in its pods."""

    pods: int
    ranks_per_pod: int

    @property
    def world(self) -> int:
        """The number of ranks."""
        return self.pods * self.ranks_per_pod

    def pod_of(self, rank: int) -> int:
        """The pod that a rank is in."""
        return rank // self.ranks_per_pod

    def ranks_of(self, pod: int) -> range:
        """The ranks of a pod."""
        return range(pod * self.ranks_per_pod, (pod + 1) * self.ranks_per_pod)

    def pods_of(self, ranks: Iterable[int]) -> tuple[int, ...]:
        """The pods that ranks are in, in order."""
        return tuple(sorted({self.pod_of(rank) for rank in ranks}))


def parse_faults(entries: Iterable[tuple[str, str]], shape: Shape) -> dict[int, FaultKind]:
    """Read pairs of rank and type; raises BadFaults with the first entry that is wrong."""
    found: dict[int, FaultKind] = {}
    for number, (rank, kind) in enumerate(entries):
        if number >= MAX_ENTRIES:
            raise BadFaults(f"more than {MAX_ENTRIES} faults in one report")
        if not (rank.isascii() and rank.isdigit()) or len(rank) > MAX_DIGITS:
            raise BadFaults(f"rank {rank[:32]!r} is not a number")
        if int(rank) >= shape.world:
            raise BadFaults(f"rank {rank} is not one of the job's {shape.world}")
        if kind not in KINDS:
            raise BadFaults(f"fault type {kind[:32]!r} of rank {rank} is none of 0, 1, 2")
        before = found.get(int(rank), kind)
        found[int(rank)] = FaultKind(kind) if before == kind else FaultKind.NORMAL
    return dict(sorted(found.items()))


def merge(known: Mapping[int, FaultKind], more: Mapping[int, FaultKind]) -> dict[int, FaultKind]:
    """Join two lists, sorted; of two different kinds for one rank only the normal one is left."""
    found = dict(known)
    for rank, kind in more.items():
        before = found.get(rank, kind)
        found[rank] = kind if before is kind else FaultKind.NORMAL
    return dict(sorted(found.items()))


def describe(faults: Mapping[int, FaultKind]) -> str:
    """Name the ranks and kinds, for people."""
    shown = ", ".join(f"rank {rank} (type {kind.value})" for rank, kind in list(faults.items())[:MAX_NAMED])
    more = len(faults) - MAX_NAMED
    return f"{shown} and {more} more" if more > 0 else shown


def retryable(faults: Mapping[int, FaultKind]) -> bool:
    """Tell whether a repeated step may answer them all: one kind, and not the normal one."""
    kinds = set(faults.values())
    return len(kinds) == 1 and FaultKind.NORMAL not in kinds


def causes(faults: Mapping[int, FaultKind], devices: Iterable[int]) -> dict[int, FaultKind]:
    """The faults that explain the others: a broken connection is what a death looks like to its peers."""
    if FaultKind.NORMAL not in faults.values():
        return dict(faults)
    kept = set(devices)
    return {rank: kind for rank, kind in faults.items() if kind is not FaultKind.NETWORK or rank in kept}


def as_normal(ranks: Iterable[int]) -> dict[int, FaultKind]:
    """The ranks with faults that no repeated step answers."""
    return dict.fromkeys(sorted(ranks), FaultKind.NORMAL)


def acting(view: Iterable[RankFault]) -> dict[int, RankFault]:
    """The faults of devices that end a rank, by rank; the others only slow it or mean nothing."""
    levels = QUIET_LEVELS | {Level.SUB_HEALTH.value}
    return _by_rank(fault for fault in view if fault.level not in levels)


def slowing(view: Iterable[RankFault]) -> dict[int, RankFault]:
    """The faults of devices that only slow a rank, by rank."""
    return _by_rank(fault for fault in view if fault.level == Level.SUB_HEALTH)


def _by_rank(faults: Iterable[RankFault]) -> dict[int, RankFault]:
    """One fault for each rank: a lasting one before a passing one, and a normal one before the others."""
    found: dict[int, RankFault] = {}
    for fault in sorted(faults, key=lambda each: (each.rank, each.kind is FaultKind.NORMAL, each.level)):
        found[fault.rank] = fault
    return found
