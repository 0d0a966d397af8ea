"""The vote of a step, in which numbers of all ranks are added up.

Between machines it is a collective of the default group. Where all ranks are on one machine and share its
memory (``ballots``) it needs no collective. Which of the two it is, all agree on whenever they meet: each
shows which memory it has, and only if that is the same one for all is it used.
"""

import hashlib
import time
from array import array
from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.distributed as dist

from taskd.kit.machine import boot_id
from taskd.train.torch.ballots import Ballot, SharedBallots

_c10d = cast("Any", dist.distributed_c10d)


class VoteInterrupted(RuntimeError):
    """Ranks are to come together, so this vote comes to no end."""

    def __init__(self, step: int) -> None:
        super().__init__(f"the group of the vote of step {step} is gone: connection closed")


class VoteTimeout(RuntimeError):
    """Others did not vote for very long."""

    def __init__(self, step: int, limit_s: float) -> None:
        super().__init__(f"others did not come to the vote of step {step} within {limit_s:g} s: timed out")


class Votes:
    """One rank's votes."""

    def __init__(self, rank: int, world: int, directory: str) -> None:
        """Shared memory is in ``directory``; empty: there is none."""
        self._rank, self._world = rank, world
        self._directory = directory
        self._limit_s = 0.0
        self._generation = self._raised = self._count = 0
        self._shared: SharedBallots | None = None
        self._offered: SharedBallots | None = None
        self._numbers = array("d", [0.0, 0.0, 0.0])
        self._tensor = torch.frombuffer(self._numbers, dtype=torch.float64)
        self._work: Any = None

    # --- when ranks meet ---------------------------------------------------------------------------------

    def offer(self, generation: int) -> int:
        """Return a number for the memory that this rank could vote in, of which no two are the same."""
        self._forget()
        self._generation, self._count = generation, 0
        path = f"{self._directory}/votes-g{generation}"
        if not self._directory:
            return ~self._rank
        try:
            self._offered = SharedBallots(path, self._rank, self._world, generation)
        except OSError:
            return ~self._rank
        # With the path: machines that were made of one image may have all the rest in common.
        name = f"{boot_id()} {self._offered.identity} {path}"
        return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=7).digest(), "little")

    def agree(self, offers: Sequence[int], limit_s: float) -> None:
        """All have shown theirs. Others are waited for as long as in a collective of the script's."""
        self._limit_s = limit_s
        if len(set(offers)) == 1:
            self._shared = self._offered

    def _forget(self) -> None:
        if self._offered is not None:
            self._offered.remove()
        self._offered = self._shared = None

    # --- in a step ---------------------------------------------------------------------------------------

    def add_up(self, step: int, ballot: Ballot) -> Ballot:
        """Add up the ballots of all ranks. Raises if ranks are called together meanwhile."""
        self.begin(ballot)
        return self.end(step)

    def begin(self, ballot: Ballot) -> None:
        """Give this rank's."""
        if self._shared is not None:
            self._count += 1
            self._shared.put(self._count, ballot)
            return
        if self._work is not None:
            # The last one was interrupted, and a thread of gloo's may still write there.
            self._numbers = array("d", ballot)
            self._tensor = torch.frombuffer(self._numbers, dtype=torch.float64)
        self._numbers[:] = array("d", ballot)
        # Without the checks and the log of ``dist.all_reduce``, which take longer than the rest.
        self._work = _c10d._get_default_group().allreduce([self._tensor])  # noqa: SLF001 - as torch does itself

    def end(self, step: int) -> Ballot:
        """Wait for those of the others."""
        if self._shared is not None:
            end = time.monotonic() + self._limit_s
            total = self._shared.count(self._count, lambda: self._is_interrupted() or time.monotonic() > end)
            if total is None:
                raise VoteInterrupted(step) if self._is_interrupted() else VoteTimeout(step, self._limit_s)
            return total
        self._work.wait()
        self._work = None
        return self._numbers[0], self._numbers[1], self._numbers[2]

    def interrupt(self, generation: int) -> None:
        """Ranks come together in a later generation: whoever waits here is let go; from another thread."""
        self._raised = max(self._raised, generation)
        shared = self._shared
        if shared is not None:
            shared.wake()

    def _is_interrupted(self) -> bool:
        return self._raised > self._generation
