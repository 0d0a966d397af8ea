"""Who gets its state from whom: sources that are damaged or differ, and what people are told of them."""

import pytest

from taskd.core.regroup import Kind, Offer, Transfer, describe_sources, plan_transfers


def test_a_damaged_replica_is_outvoted_and_repaired() -> None:
    """Rank 2's tensors differ from those of 0 and 3: nobody receives them, and rank 2 receives too."""
    offers = {rank: Offer(rank, 1, holds=rank != 1, digest=9 if rank == 2 else 7) for rank in range(4)}
    plan = plan_transfers(offers)

    assert [(1, 0, Kind.REPLICA), (2, 0, Kind.REPLICA)] == [
        (move.receiver, move.source, move.kind) for move in plan.moves
    ]
    assert ["the state of rank 2 differed from its replicas' and was replaced"] == list(plan.notes)


def test_sources_are_taken_in_their_order_and_a_rank_without_any_is_named() -> None:
    """A replica, the own node's snapshot, a buddy's copy; the own small state from whoever kept it."""
    offers = {
        0: Offer(0, 1, holds=True, digest=7, own=(0,)),
        1: Offer(1, 1, holds=False, needs_own=True, snapshots=(1,)),
        2: Offer(2, 2, holds=False, needs_own=True, snapshots=(2,), own=(2,)),
        3: Offer(3, 3, holds=False, needs_own=True),
        4: Offer(4, 4, holds=True, digest=1, snapshots=(3,), own=(4, 1)),
        5: Offer(5, 5, holds=False),
    }
    plan = plan_transfers(offers)

    assert {
        (1, 0, Kind.REPLICA),
        (2, 2, Kind.SNAPSHOT),
        (3, 4, Kind.SNAPSHOT),
        (1, 4, Kind.OWN),
    } == {(move.receiver, move.source, move.kind) for move in plan.moves}
    assert (5,) == plan.orphans
    assert ["what rank 3 alone had (its random state) was kept nowhere"] == list(plan.notes)


def test_of_two_copies_that_differ_one_is_taken_and_people_are_told() -> None:
    """It takes three to outvote one. Which of two is right cannot be told, and that is what is said."""
    offers = {rank: Offer(rank, 1, holds=True, digest=7 + rank) for rank in range(2)}
    plan = plan_transfers(offers)

    assert [(1, 0, Kind.REPLICA)] == [(move.receiver, move.source, move.kind) for move in plan.moves]
    assert (
        "the copies of ranks 0-1 differ, and which one is right cannot be told: that of rank 0 was taken",
    ) == plan.notes


def test_as_many_against_as_many_is_a_tie_too() -> None:
    """The copy that is alone is not the one that is taken, though its rank is the lowest."""
    digests = [9, 7, 7, 8, 8]
    offers = {rank: Offer(rank, 1, holds=True, digest=each) for rank, each in enumerate(digests)}
    plan = plan_transfers(offers)

    assert {(0, 1), (3, 1), (4, 1)} == {(move.receiver, move.source) for move in plan.moves}
    assert (
        "the copies of ranks 0-4 differ, and which one is right cannot be told: that of rank 1 was taken",
    ) == plan.notes


@pytest.mark.parametrize(
    ("moves", "told"),
    [
        ([(2, 0, Kind.REPLICA, 2)], "rank 2 gets its state from rank 0"),
        ([(0, 1, Kind.REPLICA, 0), (2, 1, Kind.REPLICA, 2)], "ranks 0, 2 get their state from rank 1"),
        ([(2, 2, Kind.SNAPSHOT, 2)], "rank 2 gets its state from its snapshot"),
        ([(2, 0, Kind.SNAPSHOT, 2)], "rank 2 gets its state from its buddy's copy, kept by rank 0"),
        ([(2, 3, Kind.SNAPSHOT, 1)],
         "rank 2 gets its state from the snapshot of its replica, kept by rank 3"),
        ([(rank, rank, Kind.SNAPSHOT, rank) for rank in range(4096)],
         "ranks 0-4095 get their state from their snapshots"),
        ([(rank, rank - 8, Kind.SNAPSHOT, rank) for rank in range(8, 16)],
         "ranks 8-15 get their state from their buddy's copy, kept by ranks 0-7"),
        ([(rank, 1, Kind.REPLICA, rank) for rank in range(2, 42, 2)],
         "ranks 2, 4, 6, 8, 10, 12, 14, 16, 12 more get their state from rank 1"),
    ],
)  # fmt: skip
def test_sources_are_named_in_few_words(moves: list[tuple[int, int, Kind, int]], told: str) -> None:
    """One sentence for each kind of source, whatever the size of the job."""
    assert (told,) == describe_sources(Transfer(*move) for move in moves)


def test_what_a_rank_alone_has_is_no_source_of_its_state() -> None:
    """Its small own state comes from elsewhere, beside the state."""
    assert () == describe_sources([Transfer(2, 0, Kind.OWN, 2)])
