"""Find a rank that does not get on, from the job's own pace.

A process that was stopped from outside (SIGSTOP, a cgroup freezer) is certain to be in the way: a few steps'
time is enough. One that merely shows no progress may be saving a checkpoint, so it is given a long multiple
of the longest step seen, and it is named only if it is behind all its neighbours: the others wait for it in
a collective and are not to blame.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

KEPT_STEPS = 32
STOPPED_STEPS, STOPPED_FLOOR_S = 3.0, 0.3
SILENT_STEPS, SILENT_FLOOR_S, SILENT_CEILING_S = 20.0, 60.0, 1800.0


@dataclass(frozen=True, slots=True)
class Sight:
    """What one look at a rank shows. ``mark`` grows with whatever it does: steps, and votes within them."""

    step: int
    mark: int
    stopped: bool


@dataclass(slots=True)
class _Trail:
    step: int = -1
    mark: int = -1
    since: float = 0.0
    stepped_at: float = 0.0
    stopped_since: float | None = None
    paces: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT_STEPS))


@dataclass(slots=True)
class HangWatch:
    """Remembers the pace of the ranks of one node."""

    floor_s: float = SILENT_FLOOR_S
    ceiling_s: float = SILENT_CEILING_S
    _trails: dict[int, _Trail] = field(default_factory=dict)

    def forget(self, rank: int) -> None:
        """Begin anew with a rank that was replaced."""
        self._trails.pop(rank, None)

    def look(self, now: float, sights: Mapping[int, Sight]) -> dict[int, str]:
        """Take in one look at all ranks; returns those that hang, each with the reason in words."""
        for rank, sight in sights.items():
            self._note(now, rank, sight)
        verdicts: dict[int, str] = {}
        for rank, sight in sights.items():
            trail = self._trails[rank]
            pace = median(trail.paces) if trail.paces else 1.0
            if sight.stopped and trail.stopped_since is not None:
                waited, limit = now - trail.stopped_since, max(STOPPED_FLOOR_S, STOPPED_STEPS * pace)
                if waited >= limit:
                    verdicts[rank] = f"was stopped for {waited:.1f} s (a step takes {pace:.2f} s)"
                continue
            limit = min(self.ceiling_s, max(self.floor_s, SILENT_STEPS * max(trail.paces, default=1.0)))
            others = [other.mark for each, other in self._trails.items() if each != rank and each in sights]
            behind = bool(others) and all(mark > trail.mark for mark in others)
            if trail.paces and behind and now - trail.since >= limit:
                verdicts[rank] = f"did nothing for {now - trail.since:.0f} s while all others wait for it"
        return verdicts

    def _note(self, now: float, rank: int, sight: Sight) -> None:
        trail = self._trails.setdefault(rank, _Trail(since=now, stepped_at=now))
        if sight.step > trail.step >= 0:
            trail.paces.append((now - trail.stepped_at) / (sight.step - trail.step))
        if sight.step != trail.step:
            trail.step, trail.stepped_at = sight.step, now
        if sight.mark != trail.mark:
            trail.mark, trail.since = sight.mark, now
        if not sight.stopped:
            trail.stopped_since = None
        elif trail.stopped_since is None:
            trail.stopped_since = now
