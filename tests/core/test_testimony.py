"""Who holds a job up, and who only waits."""

from collections.abc import Mapping
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from taskd.core.testimony import Place, Statement, find_hang

PATIENCE_S, LONG_S = 30.0, 600.0


def word(rank: int, collectives: int = 0, **more: object) -> Statement:
    """A rank that waits in a collective of step 8 for longer than it may."""
    base = Statement(
        rank, 8, Place.IN_STEP, 31.0, PATIENCE_S, LONG_S, waiting=True, groups={"0": collectives}
    )
    return replace(base, **more)  # type: ignore[arg-type]


def heard(*words: Statement) -> Mapping[int, Statement]:
    """Put testimonies together."""
    return {each.rank: each for each in words}


def blamed(*words: Statement) -> tuple[int, ...] | None:
    """Return who is blamed; None if there is no hang."""
    hang = find_hang(heard(*words))
    return None if hang is None else hang.blamed


def test_the_one_that_computes_is_to_blame() -> None:
    """The others wait in a collective that it has not begun."""
    assert (2,) == blamed(word(0, 5), word(1, 5), word(2, 4, waiting=False), word(3, 5))


def test_who_waits_is_not_to_blame_whatever_it_has_counted() -> None:
    """Ranks 0 and 1 have exchanged a state, which a backend counts like a collective."""
    assert (0,) == blamed(word(0, 9, waiting=False), word(1, 9), word(2, 5), word(3, 5))
    assert () == blamed(word(0, 9), word(1, 9), word(2, 5), word(3, 5))


def test_the_one_that_began_fewer_collectives_is_to_blame_where_no_stack_tells() -> None:
    """Collectives of a device: all wait for the device, but one has begun fewer of them."""
    assert (2,) == blamed(*(word(rank, 4 if rank == 2 else 5, waiting=False) for rank in range(4)))


def test_the_one_that_has_not_voted_is_to_blame() -> None:
    """The place in the step goes before the count of collectives."""
    voted = {"place": Place.VOTED}
    assert (1,) == blamed(word(0, 5, **voted), word(1, 5), word(2, 5, **voted))


def test_nobody_is_blamed_before_the_patience_is_over() -> None:
    """The silence of the blamed one counts, not that of those who wait."""
    assert None is blamed(word(0, 5, silent_s=99.0), word(1, 4, silent_s=29.0))


def test_a_rank_that_saves_between_two_steps_has_its_own_patience() -> None:
    """All others wait for rank 0, which writes a checkpoint; after the long limit it is a hang."""
    saving = word(0, 4, place=Place.BETWEEN, patience_s=LONG_S, waiting=False)
    assert None is blamed(saving, word(1, 5), word(2, 5))
    assert (0,) == blamed(replace(saving, silent_s=601.0), word(1, 5), word(2, 5))


def test_a_rank_that_does_not_answer_is_to_blame() -> None:
    """Its interpreter is locked, or it is stuck in the kernel; the others could speak."""
    hang = find_hang(heard(word(0, 5), word(1, 0, answered=False, groups={})))
    assert hang is not None
    assert (1,) == hang.blamed


def test_one_that_waits_itself_is_not_to_blame() -> None:
    """Rank 1 is behind in the second group because it waits for rank 0 in the first."""
    assert (0,) == blamed(
        word(0, groups={"tp": 3}, waiting=False),
        word(1, groups={"tp": 4, "dp": 7}, waiting=False),
        word(2, groups={"dp": 8}, waiting=False),
    )


def test_where_nothing_is_counted_the_one_that_computes_is_to_blame() -> None:
    """A message between two ranks is no collective; who is in one waits."""
    assert (1,) == blamed(word(0, groups={}), word(1, groups={}, waiting=False))


def test_all_in_the_same_collective_are_nobody_s_fault() -> None:
    """It is tried again after the patience of a step."""
    hang = find_hang(heard(word(0, 5), word(1, 5)))
    assert hang is not None
    assert () == hang.blamed
    assert "all 2 ranks wait in a collective of step 8" in hang.why


def test_a_long_computation_of_all_ranks_has_the_long_patience() -> None:
    """An evaluation inside a step is no hang: nobody waits for anybody."""
    busy = [word(rank, 5, waiting=False) for rank in range(3)]
    assert None is blamed(*busy)
    assert () == blamed(*(replace(each, silent_s=601.0) for each in busy))


def test_nothing_is_wrong_between_two_steps_of_all() -> None:
    """The end of a script, or a checkpoint that all write: no step waits for anybody."""
    assert None is blamed(*(word(rank, place=Place.BETWEEN, silent_s=1e6) for rank in range(3)))


WORDS = st.builds(
    word,
    rank=st.just(0),
    collectives=st.integers(0, 3),
    step=st.integers(0, 2),
    place=st.sampled_from(list(Place)),
    silent_s=st.floats(0, 700),
    answered=st.booleans(),
    waiting=st.booleans(),
)


@given(st.lists(WORDS, min_size=2, max_size=5))
def test_somebody_is_always_left(words: list[Statement]) -> None:
    """Not everybody is to blame, and whoever is has been silent for longer than it may."""
    everybody = {rank: replace(each, rank=rank) for rank, each in enumerate(words)}
    hang = find_hang(everybody)
    if hang is not None:
        assert set(hang.blamed) < set(everybody)
        assert all(everybody[rank].silent_s >= everybody[rank].patience_s for rank in hang.blamed)
