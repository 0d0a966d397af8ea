"""What a step changes of the rank's own after its vote.

Once a step counts, a rank that dies before its function has ended takes along what it had not yet done: its
successor has the state of another rank, which is as good, and what was the rank's own as it was at the vote.
If the function changes that afterwards (random numbers are drawn, a hidden state is carried on), it would be
lost. Such a script has its vote at the end of a step, with a way back. What changes in the same way on all
ranks, as the count of an averaged model does, comes with the other rank's state, and is no reason for it.

So each rank tells a number for what it has changed with its next vote. That they are all the same follows
from two sums: of the numbers, and of their squares.
"""

from collections.abc import Mapping
from typing import Any

from taskd.train.torch.ballots import Ballot
from taskd.train.torch.own import OwnState

LOOKS = 16  # steps of which everything is compared; later, for that costs something, one in as many
_BITS = 16  # squares of a thousand ranks add up in a float's 53


class Tail:
    """One rank's steps after their votes."""

    def __init__(self, own: OwnState) -> None:
        """Know of no step."""
        self._own = own
        self._at_vote = b""
        self._number, self._first = 0, -1
        self._draws = False  # are random numbers drawn after the vote at all, maybe between two steps?
        self.matters = False  # is anything of the rank's own changed there?

    def voted(self, captured: bytes) -> None:
        """All have voted; this is what the rank alone has."""
        self._at_vote = captured

    def begin(self, captured: bytes) -> None:
        """The next step begins with this. Only if something was drawn since the vote is it asked where."""
        self._draws = self._draws or self._own.drew(self._at_vote, captured)

    def end(self, objects: Mapping[str, Any], step: int) -> None:
        """The step's function has come to its end. All ranks look at the same steps."""
        self._first = step if self._first < 0 else self._first
        if step - self._first >= LOOKS and step % LOOKS:
            self._number = 0
            self.matters = self.matters or (self._draws and self._own.has_drawn(self._at_vote))
            return
        drawn, number = self._own.changes(objects, self._at_vote, self._own.capture(objects))
        self.matters |= drawn
        self._number = number % ((1 << _BITS) - 1) + 1 if number else 0

    def forget(self) -> None:
        """Ranks have met, some of which may not know what was changed in the last step."""
        self._number, self._first = 0, -1

    def ballot(self, *, moves: bool) -> Ballot:
        """Return what is to be added up over all ranks: whether one is to be moved, and what was changed."""
        return float(moves), float(self._number), float(self._number**2)

    def count(self, sums: Ballot, world: int) -> bool:
        """Read the sums; tell whether a rank is to be moved."""
        moves, numbers, squares = sums
        self.matters |= world * squares != numbers**2
        return bool(moves)
