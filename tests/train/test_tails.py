"""What a step changes of the rank's own after its vote is noticed; what is the same on all ranks is not."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import nn

from taskd.train.torch.ballots import Ballot
from taskd.train.torch.own import OwnState
from taskd.train.torch.tails import LOOKS, Tail


class Rank:
    """One of several that vote together."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.norm, self.count = nn.BatchNorm1d(1), nn.Module()
        self.norm.running_mean = torch.full((1,), float(number))  # differs, but not by what comes after votes
        self.count.register_buffer("seen", torch.zeros(1))
        self.hidden = Hidden()
        self.objects: dict[str, Any] = {"norm": self.norm, "count": self.count, "hidden": self.hidden}
        self.own = OwnState()
        self.tail = Tail(self.own)


class Hidden:
    """Is carried from step to step."""

    def __init__(self) -> None:
        self.value = torch.zeros(2)

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take it."""
        self.value = state["value"]


def add_up(ballots: Iterable[Ballot]) -> Ballot:
    """Do what the vote does."""
    moves, numbers, squares = zip(*ballots, strict=True)
    return sum(moves), sum(numbers), sum(squares)


def play(
    ranks: list[Rank],
    steps: range,
    change: Callable[[Rank, int], object],
    between: Callable[[], object] = lambda: None,
) -> list[bool]:
    """Run steps that change something after their votes, or between two of them, and one more vote."""
    for step in (*steps, steps.stop):
        for rank in ranks:
            rank.tail.begin(rank.own.capture(rank.objects, b"place"))
        sums = add_up(rank.tail.ballot(moves=False) for rank in ranks)
        for rank in ranks:
            assert not rank.tail.count(sums, len(ranks))
            rank.tail.voted(rank.own.capture(rank.objects, b"place"))
            if step < steps.stop:
                change(rank, step)
                rank.tail.end(rank.objects, step)
        between()
    return [rank.tail.matters for rank in ranks]


def carry(rank: Rank, step: int) -> None:
    rank.hidden.value = torch.full((2,), float(rank.number + step))


CHANGES: dict[str, tuple[Callable[[Rank, int], object], list[bool]]] = {
    "nothing": (lambda _rank, _step: None, [False, False, False]),
    "the same": (lambda rank, _: rank.count.get_buffer("seen").add_(1), [False, False, False]),
    "a buffer": (lambda rank, _: rank.norm.get_buffer("running_mean").add_(1), [True, True, True]),
    "on one rank": (
        lambda rank, _: rank.count.get_buffer("seen").add_(int(rank.number == 1)),
        [True, True, True],
    ),
    "a hidden state": (carry, [True, True, True]),
    "random numbers": (lambda _rank, _step: torch.rand(1), [True, True, True]),
}


@pytest.mark.parametrize("what", CHANGES)
def test_only_what_differs_between_ranks_matters(what: str) -> None:
    change, expected = CHANGES[what]
    assert expected == play([Rank(number) for number in range(3)], range(2), change)


def test_random_numbers_that_are_drawn_now_and_then_are_noticed_in_any_step() -> None:
    """Everything else is compared in few steps once a script has run for a while."""
    ranks = [Rank(number) for number in range(2)]
    late = 2 * LOOKS + 3
    assert [False, False] == play(ranks, range(late), lambda *_: None)
    assert [True, True] == play(ranks, range(late, late + 2), lambda *_: torch.rand(1))


def test_random_numbers_that_are_drawn_between_two_steps_do_not_matter() -> None:
    ranks = [Rank(number) for number in range(2)]
    assert [False, False] == play(ranks, range(3 * LOOKS), lambda *_: None, lambda: torch.rand(1))


def test_ranks_that_have_just_met_do_not_differ_by_what_one_does_not_know() -> None:
    ranks = [Rank(number) for number in range(2)]
    play(ranks, range(1), lambda rank, _: rank.count.get_buffer("seen").add_(1))
    ranks[1].tail = Tail(ranks[1].own)
    for rank in ranks:
        rank.tail.forget()
    assert [False, False] == play(ranks, range(1, 3), lambda rank, _: rank.count.get_buffer("seen").add_(1))


def test_it_is_told_that_a_rank_is_to_be_moved() -> None:
    ranks = [Rank(number) for number in range(2)]
    sums = add_up(rank.tail.ballot(moves=rank.number == 0) for rank in ranks)
    assert [True, True] == [rank.tail.count(sums, 2) for rank in ranks]
