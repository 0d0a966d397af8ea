"""Read what the ranks wrote, and compute from it what a fault cost; the same way for every contestant.

A step counts for the *full world* when every rank has committed it with a group of full size. The downtime of
a fault is the time from the fault to the first such step whose every line is younger than the fault, less one
step of this run: what the job would have needed anyway. So the dead rank must have been replaced, and a step
that had been half committed when the fault came does not count.
"""

import itertools
import math
import statistics
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

WORLD = 4


@dataclass(frozen=True, slots=True)
class Commit:
    """A step that a rank has committed."""

    at: float
    step: int
    rank: int
    world: int
    pid: int


@dataclass(frozen=True, slots=True)
class Beginning:
    """A step that a rank has begun to compute."""

    at: float
    step: int
    rank: int


@dataclass(slots=True)
class Records:
    """All lines of a run so far, in the order of their times."""

    commits: list[Commit] = field(default_factory=list)
    beginnings: list[Beginning] = field(default_factory=list)
    marks: dict[int, list[tuple[float, str]]] = field(default_factory=dict)

    def of_rank(self, rank: int) -> list[Commit]:
        """Return what a rank has committed, whichever process it was."""
        return [commit for commit in self.commits if commit.rank == rank]

    def pid_of(self, rank: int) -> int:
        """Return the process that last committed a step as this rank."""
        return self.of_rank(rank)[-1].pid

    def full_steps(self, after: float) -> dict[int, float]:
        """Return when the last rank committed each step that the full world committed after a moment."""
        by_step: defaultdict[int, dict[int, float]] = defaultdict(dict)
        for commit in self.commits:
            if commit.at > after and commit.world == WORLD:
                by_step[commit.step].setdefault(commit.rank, commit.at)
        return {step: max(ranks.values()) for step, ranks in by_step.items() if len(ranks) == WORLD}

    def next_full(self, after: float) -> float | None:
        """Return when the full world has committed a step again; None if it has not."""
        return min(self.full_steps(after).values(), default=None)

    def step_s(self, before: float, count: int = 15) -> float:
        """Return the median time of the last steps before a moment."""
        ends = sorted(at for at in self.full_steps(0.0).values() if at <= before)[-count - 1 :]
        return statistics.median(b - a for a, b in itertools.pairwise(ends))

    def recomputed(self, fault: float) -> int:
        """Count the steps that some rank had committed and that are computed once more after a fault.

        By their beginnings: what is computed again need not be committed again. One beginning tells, as
        those who go back do every step from there on again, and this is asked before they are through.
        """
        committed: dict[int, float] = {}
        for commit in self.commits:
            committed.setdefault(commit.step, commit.at)
        for begun in self.beginnings:
            if begun.at > fault and committed.get(begun.step, math.inf) < begun.at:
                return 1 + max(step for step, at in committed.items() if at < begun.at) - begun.step
        return 0

    def last(self, name: str, after: float, until: float) -> float | None:
        """Return when the last process came to a place within a stretch of time."""
        times = [
            at for marks in self.marks.values() for at, what in marks if what == name and after < at <= until
        ]
        return max(times, default=None)


def read(place: Path) -> Records:
    """Read all files of a run; a line that is cut short is left out."""
    records = Records()
    for path in place.iterdir():
        if not path.name.isdigit():
            continue
        pid = int(path.name)
        for line in path.read_text(encoding="ascii", errors="replace").splitlines():
            match line.split():
                case ["step", at, step, rank, world]:
                    records.commits.append(Commit(float(at), int(step), int(rank), int(world), pid))
                case ["begin", at, step, rank]:
                    records.beginnings.append(Beginning(float(at), int(step), int(rank)))
                case ["mark", at, name]:
                    records.marks.setdefault(pid, []).append((float(at), name))
                case _:
                    pass
    records.commits.sort(key=lambda commit: commit.at)
    records.beginnings.sort(key=lambda begun: begun.at)
    return records
