"""Votes of ranks that share memory: all are counted, once, and nobody waits for who will not come."""

import multiprocessing
import threading
import time
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

import pytest

from taskd.core.troubles import TroubleKind, classify
from taskd.train.torch.ballots import SharedBallots, VoterGone
from taskd.train.torch.voting import VoteInterrupted, Votes, VoteTimeout

STEPS = 3000
WORLD = 3


def vote_often(path: str, rank: int, results: "Queue[Any]") -> None:
    """Vote as quickly as possible, each rank at its own pace."""
    ballots = SharedBallots(path, rank, WORLD, 1)
    wrong = []
    for step in range(STEPS):
        if (step + rank) % 500 == 0:
            time.sleep(0.003)
        ballots.put(step + 1, (float(rank == step % WORLD), float(rank * step), 1.0))
        total = ballots.count(step + 1, lambda: False)
        if total != (1.0, float(sum(range(WORLD)) * step), float(WORLD)):
            wrong.append((step, total))
    results.put((rank, wrong))


def test_every_vote_of_every_rank_counts_once(tmp_path: Path) -> None:
    """Nobody reads a ballot of another step, however much faster one is than another."""
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    ranks = [
        context.Process(target=vote_often, args=(str(tmp_path / "votes"), rank, results))
        for rank in range(WORLD)
    ]
    for each in ranks:
        each.start()
    found = sorted(results.get(timeout=60) for _ in ranks)
    for each in ranks:
        each.join(10)
        each.close()
    results.close()
    assert [(rank, []) for rank in range(WORLD)] == found


def meet(places: list[Path], generation: int, limit_s: float = 60.0) -> list[Votes]:
    """Ranks that agree on how they vote."""
    votes = [Votes(rank, len(places), str(place)) for rank, place in enumerate(places)]
    offers = [each.offer(generation) for each in votes]
    for each in votes:
        each.agree(offers, limit_s)
    return votes


def test_whoever_waits_is_let_go_when_ranks_are_called_together(tmp_path: Path) -> None:
    votes, _ = meet([tmp_path, tmp_path], 4)
    caught: list[BaseException] = []

    def vote() -> None:
        try:
            votes.add_up(7, (0.0, 0.0, 0.0))
        except VoteInterrupted as error:
            caught.append(error)

    thread = threading.Thread(target=vote)
    thread.start()
    votes.interrupt(4)  # its own generation is no reason
    thread.join(0.2)
    assert thread.is_alive()
    votes.interrupt(5)
    thread.join(10)
    assert 1 == len(caught)


def test_votes_of_a_generation_are_none_of_the_next(tmp_path: Path) -> None:
    """A process that was replaced wakes up and votes: it is heard by nobody."""
    old = meet([tmp_path, tmp_path], 1)
    new = meet([tmp_path, tmp_path], 2)
    old[1].begin((1.0, 1.0, 1.0))
    new[0].begin((0.0, 2.0, 2.0))
    new[1].begin((0.0, 3.0, 3.0))
    assert [(0.0, 5.0, 5.0), (0.0, 5.0, 5.0)] == [each.end(3) for each in new]


def test_a_ballot_that_is_not_whole_does_not_count(tmp_path: Path) -> None:
    votes = meet([tmp_path, tmp_path], 1)
    for each in votes:
        each.begin((0.0, 1.0, 1.0))
    path = tmp_path / "votes-g1"
    data = bytearray(path.read_bytes())
    data[64 * 5 + 20] ^= 1  # within that of rank 1
    path.write_bytes(data)
    votes[0].interrupt(2)
    with pytest.raises(VoteInterrupted):
        votes[0].end(0)


def test_who_never_comes_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    votes = meet([tmp_path, tmp_path], 1, limit_s=0.05)
    with pytest.raises(VoteTimeout, match="timed out"):
        votes[0].add_up(0, (0.0, 0.0, 0.0))


def test_memory_that_is_not_the_same_is_not_used(tmp_path: Path) -> None:
    """Two machines, or one whose memory is full: all use the network."""
    other = tmp_path / "other"
    other.mkdir()
    for places in ([tmp_path, other], [tmp_path, tmp_path / "missing"], [Path("/missing")] * 2):
        offers = [Votes(rank, 2, str(place)).offer(1) for rank, place in enumerate(places)]
        assert 2 == len(set(offers))
    assert [-1, -2] == [Votes(rank, 2, "").offer(1) for rank in range(2)]


def test_the_memory_of_earlier_generations_goes(tmp_path: Path) -> None:
    votes = Votes(0, 1, str(tmp_path))
    for generation in range(1, 5):
        votes.agree([votes.offer(generation)], 1.0)
        assert (0.0, 1.0, 1.0) == votes.add_up(0, (0.0, 1.0, 1.0))
    assert ["votes-g4"] == [path.name for path in tmp_path.iterdir()]


@pytest.mark.parametrize("steps", [(4, 0), (56, 100), (0, 0), (7, 7)])
def test_steps_of_any_numbers_have_votes_of_their_own(tmp_path: Path, steps: tuple[int, int]) -> None:
    """A script may count its steps anew in a second loop: one that is ahead must not overwrite its vote."""
    slow, quick = meet([tmp_path, tmp_path], 1)
    slow.begin((0.0, 1.0, 1.0))
    assert (0.0, 3.0, 3.0) == quick.add_up(steps[0], (0.0, 2.0, 2.0))
    quick.begin((0.0, 5.0, 5.0))  # of its next step, before the other has looked
    assert (0.0, 3.0, 3.0) == slow.end(steps[0])
    quick.interrupt(2)
    with pytest.raises(VoteInterrupted):
        quick.end(steps[1])


def leave(place: str, offers: "Queue[int]") -> None:
    """Come, and end before the vote."""
    offers.put(Votes(1, 2, place).offer(1))


def test_who_has_ended_is_not_waited_for(tmp_path: Path) -> None:
    """Also with a code that says that all is well: where there is no connection, none breaks."""
    context = multiprocessing.get_context("fork")
    offers = context.Queue()
    other = context.Process(target=leave, args=(str(tmp_path), offers))
    votes = Votes(0, 2, str(tmp_path))
    mine = votes.offer(1)
    other.start()
    votes.agree([mine, offers.get(timeout=30)], 60.0)
    other.join(30)
    other.close()
    offers.close()
    with pytest.raises(VoterGone, match="rank 1"):
        votes.add_up(0, (0.0, 0.0, 0.0))


def test_what_interrupts_a_vote_is_taken_for_a_broken_connection() -> None:
    """Not for a step that cannot be done, which would end the rank and its state."""
    for kind in (VoteInterrupted(3), VoteTimeout(3, 60.0), VoterGone(1, 2)):
        assert TroubleKind.NETWORK is classify(type(kind).__name__, str(kind))
