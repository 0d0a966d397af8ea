"""Who holds a job up, from what its ranks say of themselves.

In a synchronous job everybody stops when one rank does, and all pages show the same silence. What tells
them apart is *where* each of them is. A rank is behind if it has not come as far in the step as others, or
computes while they wait in a collective, or has begun fewer collectives than the other members of a group:
those wait for it, and it waits for nobody. A rank that does not even answer while others do is the one. If
all are equally far and all are inside a collective, nobody is to blame: the network ate something, and the
step is tried again. (Or one of them is stuck inside it. Then it does not come out when it is called to try
again, and ends itself.)

Being behind is no crime for a while. How long is learned from the job's own steps (``core.hangs``) and
comes with each testimony; between two steps, where checkpoints are written, it is much longer than inside
one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum


class Place(IntEnum):
    """Where in a step a rank is."""

    BETWEEN = 0
    IN_STEP = 1
    VOTED = 2


@dataclass(frozen=True, slots=True)
class Statement:
    """What one silent rank says, and how long it has been silent.

    ``step`` is the step that it is in, or comes to next. ``patience_s`` is how long a rank may be silent
    where this one is, ``long_s`` how long if nobody can be told from the others. ``groups`` counts the
    collectives that it has begun, by the name of the group. ``answered`` is False if the process does not
    speak at all.
    """

    rank: int
    step: int
    place: Place
    silent_s: float
    patience_s: float
    long_s: float
    answered: bool = True
    waiting: bool = False
    call: str = ""
    line: str = ""
    groups: Mapping[str, int] = field(default_factory=dict)
    stack: str = ""
    file: str = ""

    @property
    def position(self) -> tuple[int, int]:
        """Return how far the rank is."""
        return self.step, int(self.place)

    def describe(self) -> str:
        """Say since when it does nothing, and in which call."""
        where = f"in step {self.step}"
        if self.place is Place.BETWEEN:
            where = f"before step {self.step}"
        elif self.place is Place.VOTED:
            where = f"after the gradients of step {self.step}"
        call = f", in {self.call}" if self.call else ""
        mute = "" if self.answered else ", and its process does not answer"
        kept = f"; stack in {self.file}" if self.file else ""
        return f"did nothing for {self.silent_s:.1f} s {where}{call}{mute}{kept}"


@dataclass(frozen=True, slots=True)
class Hang:
    """A job that stands still. Nobody is ``blamed`` if all ranks are in the same collective."""

    blamed: tuple[int, ...]
    why: str


def find_hang(testimonies: Mapping[int, Statement]) -> Hang | None:
    """Say who holds the job up; None if nobody does, or not for long enough yet."""
    everybody = list(testimonies.values())
    if not everybody:
        return None
    lowest = min(each.position for each in everybody)
    last = [each for each in everybody if each.position == lowest]
    if len(last) < len(everybody):
        blamed = _furthest_back(last) or last
    elif last[0].place is Place.BETWEEN:
        return None  # all are in code of their own: nobody waits for anybody in a step
    else:
        blamed = _furthest_back(last)
    if blamed:
        if any(each.silent_s < each.patience_s for each in blamed):
            return None
        others = len(everybody) - len(blamed)
        why = f"{others} other {'rank waits' if others == 1 else 'ranks wait'} for it"
        return Hang(tuple(sorted(each.rank for each in blamed)), why)
    stuck = all(each.waiting for each in last)
    if any(each.silent_s < (each.patience_s if stuck else each.long_s) for each in last):
        return None
    silent_s = min(each.silent_s for each in last)
    inside = f" (rank {last[0].rank}: {last[0].call})" if last[0].call else ""
    where = "wait in a collective" if stuck else "are silent"
    who = f"all {len(last)} ranks" if len(last) > 1 else f"rank {last[0].rank}"
    return Hang((), f"{who} {where} of step {last[0].step} since {silent_s:.1f} s{inside}")


def _furthest_back(equals: Sequence[Statement]) -> list[Statement]:
    """Find those for whom the others wait, among ranks that are at the same place of the same step.

    Who is inside a collective waits, whatever is counted: backends count messages between two ranks too, and
    those differ from rank to rank. Counts decide where stacks do not tell, as with collectives of a device.
    """
    mute = [each for each in equals if not each.answered]
    if mute:
        return mute if len(mute) < len(equals) else []
    busy = [each for each in equals if not each.waiting]
    fewest = _fewest_collectives(busy)
    if fewest:
        return fewest
    return busy if len(busy) < len(equals) else []


def _fewest_collectives(ranks: Sequence[Statement]) -> list[Statement]:
    furthest: dict[str, int] = {}
    least: dict[str, int] = {}
    for each in ranks:
        for group, count in each.groups.items():
            furthest[group] = max(count, furthest.get(group, count))
            least[group] = min(count, least.get(group, count))
    # Behind somebody in one group and ahead of somebody in another: such a rank waits itself.
    return [
        each
        for each in ranks
        if any(count < furthest[group] for group, count in each.groups.items())
        and not any(count > least[group] for group, count in each.groups.items())
    ]
