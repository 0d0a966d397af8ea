"""Whether a node is out of reach, in contrast to busy, or stopped.

Signs of life come from programs. A program on a machine that has much to do is late, and one that somebody
has stopped says nothing; neither is a reason to give its node up at once. So whoever misses a node *knocks*:
it asks for a connection at a door which the node's launcher holds open. It is the kernel of the other machine
that answers, however busy the machine and whatever the state of the launcher:

- an answer: the machine is there. The usual patience applies.
- a refusal: the machine is there and the launcher is not, and all of the node ended with it.
- nothing, time and again: the machine, or the way to it, is gone.

A door is believed only if it was once open: something on the way may forbid such connections altogether. What
was seen before this process itself did not run for a while is worth nothing.
"""

from dataclasses import dataclass, replace
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a node may be missed until something is done about it; ``limit_s`` 0: nothing is.

    ``suspect_s`` is little more than the time between two signs of life: a knock costs next to nothing.
    """

    limit_s: float = 1.5
    suspect_s: float = 0.75
    every_s: float = 0.2
    prove_s: float = 2.0
    answer_s: float = 0.5
    least_knocks: int = 2
    stall_s: float = 0.5


class Knock(StrEnum):
    """What became of a knock."""

    OPEN = "open"
    REFUSED = "refused"
    SILENT = "silent"


@dataclass(frozen=True, slots=True)
class Door:
    """What is known of the way to one node; ``unanswered`` counts in a row, from ``since`` on.

    ``open_at`` is when the last knock began that was answered.
    """

    heard_at: float
    proven: bool = False
    open_at: float = 0.0
    knocked_at: float = 0.0
    unanswered: int = 0
    since: float = 0.0
    refused: bool = False

    def hear(self, now: float) -> "Door":
        """Note a sign of life."""
        return replace(self, heard_at=now, unanswered=0, since=0.0, refused=False)

    def knock(self, now: float) -> "Door":
        """Note that somebody knocks now."""
        return replace(self, knocked_at=now)

    def answer(self, knock: Knock, begun: float) -> "Door":
        """Note what became of a knock, unless something was heard or answered since it began."""
        if knock is Knock.OPEN:
            at = max(begun, self.open_at)
            return replace(self, proven=True, open_at=at, unanswered=0, since=0.0, refused=False)
        if begun < max(self.heard_at, self.open_at):
            return self
        if knock is Knock.REFUSED:
            return replace(self, refused=True, unanswered=0, since=0.0)
        return replace(self, unanswered=self.unanswered + 1, since=self.since or begun)

    def forget(self, now: float) -> "Door":
        """Begin to wait anew: this process did not run, and nobody else is to blame."""
        return replace(self, heard_at=now, unanswered=0, since=0.0, refused=False)


def is_due(door: Door, now: float, patience: Patience, *, connected: bool) -> bool:
    """Tell whether to knock now: at once where the stream ended, else when a sign of life is late.

    And once in a while until the door has been open.
    """
    if not connected or is_missed(door, now, patience):
        return now - door.knocked_at >= patience.every_s
    return not door.proven and now - door.knocked_at >= patience.prove_s


def is_missed(door: Door, now: float, patience: Patience) -> bool:
    """Tell whether a node is late, for whatever reason."""
    return now - door.heard_at >= patience.suspect_s


def judge(door: Door, now: float, patience: Patience, *, connected: bool) -> str:
    """Say why a node is to be given up; empty if it is not."""
    if not door.proven or patience.limit_s <= 0:
        return ""
    if door.refused and not connected:
        return GONE
    silent_s = now - door.heard_at
    waited_s = now - door.since if door.since else 0.0
    if (
        silent_s >= patience.limit_s
        and door.unanswered >= patience.least_knocks
        and waited_s >= min(patience.limit_s, patience.answer_s + patience.every_s)
    ):
        return f"{CUT}: nothing was heard for {silent_s:.1f} s, and its machine does not answer"
    return ""


GONE = "its launcher is gone"
CUT = "it is out of reach"
