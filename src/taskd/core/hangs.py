"""How long a rank may be silent, from the job's own pace.

A process that was stopped from outside (SIGSTOP, a cgroup freezer) is certain to be in the way: a few
steps' time is enough. One that merely shows no progress may be doing something long, so it is given a
multiple of the longest step of late, never less than a floor nor more than a ceiling, both of which the
user can set. Between two steps a checkpoint may be written, and the first one comes without a warning, so
there it is twenty floors or twenty times the longest such pause so far. Before a node has seen any step
(libraries are loaded, kernels compiled) only the ceiling counts.

Here is only *how long*; *who* is to blame is in ``core.testimony``, for which the ranks are asked once one
of them was silent for longer than a step may take.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

from taskd.core.testimony import Place

KEPT_STEPS = 32
STOPPED_STEPS, STOPPED_FLOOR_S = 3.0, 0.3
FLOOR_S, CEILING_S = 30.0, 1800.0
SILENT_STEPS = 10.0
FIRST_FLOORS = 3.0
LONG_FLOORS, LONG_STEPS = 20.0, 20.0


class HangLimitError(ValueError):
    """A limit that cannot be meant."""

    def __init__(self, which: str, rule: str) -> None:
        """Keep which of the two it is; the caller knows under which name the user gave it."""
        super().__init__(rule)
        self.which = which


def parse_limits(floor: str | None, ceiling: str | None) -> tuple[float, float]:
    """Parse what the user set, None for what was not set; raises HangLimitError."""
    floor_s = FLOOR_S if floor is None else _seconds("floor", floor)
    # A high floor alone lifts the ceiling with it, and a low ceiling alone the other way round.
    ceiling_s = max(CEILING_S, floor_s) if ceiling is None else _seconds("ceiling", ceiling)
    if floor is None:
        floor_s = min(floor_s, ceiling_s)
    if ceiling_s < floor_s:
        raise HangLimitError("ceiling", f"it must not be below the floor ({floor_s:g} s)")
    return floor_s, ceiling_s


def _seconds(which: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value < float("inf"):
        raise HangLimitError(which, "it must be a number of seconds above 0")
    return value


@dataclass(frozen=True, slots=True)
class Sight:
    """What one look at a rank shows. Times are of the same clock as ``now``.

    ``step`` is the last one that counts, done at ``done_at``; ``begun`` is the one that it is in or was in
    last, ``place`` where in it, and ``moved_at`` since when. ``stopped_at`` is when a signal stopped the
    process, None while it may run. ``took_s`` is how long the last step took alone, 0 if that is not known.
    """

    step: int
    done_at: float
    begun: int
    place: Place
    moved_at: float
    stopped_at: float | None = None
    took_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Silence:
    """How long a rank has been silent, how long it may be where it is, and how long anywhere."""

    silent_s: float
    patience_s: float
    long_s: float


@dataclass(frozen=True, slots=True)
class Look:
    """What was found.

    Ranks that were stopped for too long, each with the reason; when the next rank that is stopped will have
    been so for too long; and, once a rank was silent for longer than a step may take, the silence of every
    rank.
    """

    stopped: Mapping[int, str] = field(default_factory=dict)
    silences: Mapping[int, Silence] = field(default_factory=dict)
    due_at: float | None = None


@dataclass(slots=True)
class _Trail:
    step: int = -1
    done_at: float = 0.0
    begun: int = -1
    paces: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT_STEPS))


@dataclass(slots=True)
class HangWatch:
    """Remembers the pace of the ranks of one node."""

    floor_s: float = FLOOR_S
    ceiling_s: float = CEILING_S
    _trails: dict[int, _Trail] = field(default_factory=dict)
    _longest_step: float = 0.0
    _longest_pause: float = 0.0

    def forget(self, rank: int) -> None:
        """Begin anew with a rank that was replaced; what steps and pauses take is the job's, and is kept."""
        self._trails.pop(rank, None)

    def look(self, now: float, sights: Mapping[int, Sight]) -> Look:
        """Take in one look at all ranks."""
        stopped: dict[int, str] = {}
        silences: dict[int, Silence] = {}
        due = False
        ends: list[float] = []
        for rank, sight in sights.items():
            self._note(rank, sight)
        for rank, sight in sights.items():
            trail = self._trails[rank]
            if sight.stopped_at is not None:
                pace = median(trail.paces) if trail.paces else 1.0
                ends.append(sight.stopped_at + max(STOPPED_FLOOR_S, STOPPED_STEPS * pace))
                if now >= ends[-1]:
                    waited = now - sight.stopped_at
                    stopped[rank] = f"was stopped for {waited:.1f} s by a signal (a step takes {pace:.2f} s)"
            in_step, long = self._limits(trail)
            silent = max(0.0, now - sight.moved_at)
            silences[rank] = Silence(silent, long if sight.place is Place.BETWEEN else in_step, long)
            due = due or silent >= in_step
        due_at = min((end for end in ends if end > now), default=None)
        return Look(stopped, silences if due else {}, due_at)

    def _limits(self, trail: _Trail) -> tuple[float, float]:
        """Return how long a rank may be silent inside a step, and how long at most."""
        if trail.paces:
            in_step = max(self.floor_s, SILENT_STEPS * max(trail.paces))
        elif self._longest_step:
            # A replacement in its first step: others show what steps take, but it has everything to load.
            in_step = max(FIRST_FLOORS * self.floor_s, SILENT_STEPS * self._longest_step)
        else:
            return self.ceiling_s, self.ceiling_s
        long = max(
            LONG_FLOORS * self.floor_s, LONG_STEPS * max(self._longest_pause, self._longest_step), in_step
        )
        return min(self.ceiling_s, in_step), min(self.ceiling_s, long)

    def _note(self, rank: int, sight: Sight) -> None:
        trail = self._trails.get(rank)
        if trail is None:
            trail = self._trails[rank] = _Trail()
        if sight.step > trail.step:
            self._note_steps(trail, sight)
        if sight.place is Place.IN_STEP and sight.begun != trail.begun:
            if trail.step >= 0 and sight.begun == trail.step + 1:
                self._longest_pause = max(self._longest_pause, sight.moved_at - trail.done_at)
            trail.begun = sight.begun

    def _note_steps(self, trail: _Trail, sight: Sight) -> None:
        """Learn what a step takes: as the rank says, else on average since the last look."""
        if sight.took_s > 0.0:
            trail.paces.append(sight.took_s)
        elif trail.step >= 0:
            trail.paces.append((sight.done_at - trail.done_at) / (sight.step - trail.step))
        if trail.paces:
            self._longest_step = max(0.9 * self._longest_step, trail.paces[-1])
        trail.step, trail.done_at = sight.step, sight.done_at
