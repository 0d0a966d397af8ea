"""How long a rank may be silent is learned from the job; floor and ceiling are the user's."""

from dataclasses import replace

import pytest

from taskd.core.hangs import (
    CEILING_S,
    FLOOR_S,
    LONG_FLOORS,
    SILENT_STEPS,
    HangLimitError,
    HangWatch,
    Sight,
    parse_limits,
)
from taskd.core.testimony import Place


def in_step(step: int, at: float, *, done_at: float = 0.0, stopped_at: float | None = None) -> Sight:
    """A rank that has begun a step at a time."""
    return Sight(step - 1, done_at, step, Place.IN_STEP, at, stopped_at)


def paced(watch: HangWatch, ranks: int, steps: int, pace: float) -> float:
    """Let ranks step at a pace; returns when they began the step that they are in."""
    for step in range(steps + 1):
        at = step * pace
        watch.look(at, {rank: in_step(step, at, done_at=at) for rank in range(ranks)})
    return steps * pace


def test_a_stopped_rank_is_named_within_a_few_steps() -> None:
    """Three steps' time after it was stopped, not before, and nobody else."""
    watch = HangWatch()
    now = paced(watch, 4, 20, 0.2)

    sights = {
        rank: in_step(20, now, done_at=now, stopped_at=now + 0.1 if rank == 1 else None) for rank in range(4)
    }
    assert {} == watch.look(now + 0.2, sights).stopped
    look = watch.look(now + 0.6, sights)
    assert {} == look.stopped
    assert look.due_at is not None
    assert look.due_at == pytest.approx(now + 0.7)
    assert [1] == list(watch.look(look.due_at, sights).stopped)
    assert watch.look(look.due_at, sights).due_at is None


def test_a_rank_that_goes_on_is_forgiven() -> None:
    """Stopped and continued in time: the count begins anew."""
    watch = HangWatch()
    now = paced(watch, 2, 20, 0.2)

    def look(at: float, *, stopped_at: float | None) -> list[int]:
        sights = {0: in_step(20, now, stopped_at=stopped_at), 1: in_step(20, now)}
        return list(watch.look(at, sights).stopped)

    look(now + 0.1, stopped_at=now + 0.1)
    look(now + 0.5, stopped_at=None)
    assert [] == look(now + 0.9, stopped_at=now + 0.8)


def test_ranks_are_asked_after_the_floor_where_steps_are_short() -> None:
    """Ten steps of a tenth of a second are less than the floor; nobody is asked before it."""
    watch = HangWatch()
    now = paced(watch, 3, 20, 0.1)
    sights = {rank: in_step(20, now, done_at=now) for rank in range(3)}

    assert {} == watch.look(now + FLOOR_S - 1, sights).silences
    silences = watch.look(now + FLOOR_S + 1, sights).silences

    assert [0, 1, 2] == list(silences)
    assert (FLOOR_S, LONG_FLOORS * FLOOR_S) == (silences[1].patience_s, silences[1].long_s)


def test_the_limit_follows_the_longest_step_of_late() -> None:
    """A job whose steps take a minute is given ten of them."""
    watch = HangWatch()
    now = paced(watch, 2, 5, 60.0)
    sights = {rank: in_step(5, now, done_at=now) for rank in range(2)}

    assert {} == watch.look(now + 9 * 60, sights).silences
    assert SILENT_STEPS * 60 == pytest.approx(watch.look(now + 601, sights).silences[0].patience_s)


def test_the_first_step_has_until_the_ceiling() -> None:
    """Before anybody has seen a step, there is nothing to learn from."""
    watch = HangWatch()
    sights = {0: Sight(-1, 0.0, 0, Place.IN_STEP, 0.0), 1: Sight(-1, 0.0, 0, Place.IN_STEP, 0.0)}

    assert {} == watch.look(CEILING_S - 1, sights).silences
    assert CEILING_S == watch.look(CEILING_S + 1, sights).silences[0].patience_s


def test_steps_that_nobody_saw_are_learned_from_too() -> None:
    """A rank says how long its last step took, so the first look is enough."""
    watch = HangWatch(floor_s=1.0)
    sights = {0: replace(in_step(5, 2.0, done_at=2.0), took_s=0.1)}

    watch.look(2.4, sights)
    assert 1.0 == watch.look(3.1, sights).silences[0].patience_s


def test_a_replacement_in_its_first_step_is_measured_by_the_job_s_steps() -> None:
    """Three floors instead of the ceiling: a rank that hangs again is found in reasonable time."""
    watch = HangWatch(floor_s=10.0)
    now = paced(watch, 2, 20, 0.1)
    watch.forget(1)

    sights = {0: in_step(20, now, done_at=now), 1: Sight(-1, now, 20, Place.IN_STEP, now)}
    assert 30.0 == watch.look(now + 11, sights).silences[1].patience_s


def test_between_two_steps_there_is_time_for_a_checkpoint() -> None:
    """The first one comes unannounced; a long one that was seen counts twenty times."""
    watch = HangWatch(floor_s=10.0)
    now = paced(watch, 2, 20, 0.1)

    def saving(step: int, since: float) -> dict[int, Sight]:
        """Rank 0 saves before a step while rank 1 is in it."""
        return {
            0: Sight(step - 1, since, step - 1, Place.BETWEEN, since, took_s=0.1),
            1: replace(in_step(step, since, done_at=since), took_s=0.1),
        }

    assert 200.0 == watch.look(now + 11, saving(21, now)).silences[0].patience_s
    later = now + 40.0
    watch.look(later, {0: in_step(21, later, done_at=now), 1: in_step(21, now, done_at=now)})
    assert 800.0 == pytest.approx(watch.look(later + 50, saving(22, later)).silences[0].patience_s)


def test_nothing_is_above_the_ceiling() -> None:
    """Whatever was learned."""
    watch = HangWatch(floor_s=10.0, ceiling_s=100.0)
    now = paced(watch, 1, 5, 60.0)

    silence = watch.look(now + 101, {0: in_step(5, now, done_at=now)}).silences[0]
    assert (100.0, 100.0) == (silence.patience_s, silence.long_s)


@pytest.mark.parametrize(
    ("floor", "ceiling", "expected"),
    [
        (None, None, (FLOOR_S, CEILING_S)),
        ("2.5", None, (2.5, CEILING_S)),
        ("5000", None, (5000.0, 5000.0)),
        (None, "10", (10.0, 10.0)),
        ("1", "1", (1.0, 1.0)),
    ],
)
def test_limits_that_the_user_sets(
    floor: str | None, ceiling: str | None, expected: tuple[float, float]
) -> None:
    """One of them alone moves the other where it must."""
    assert expected == parse_limits(floor, ceiling)


@pytest.mark.parametrize(
    ("floor", "ceiling", "which"),
    [
        ("0", None, "floor"),
        ("-1", None, "floor"),
        ("nan", None, "floor"),
        ("soon", None, "floor"),
        (None, "inf", "ceiling"),
        ("", None, "floor"),
        ("20", "10", "ceiling"),
    ],
)
def test_limits_that_cannot_be_meant(floor: str | None, ceiling: str | None, which: str) -> None:
    """The error names which of the two."""
    with pytest.raises(HangLimitError) as caught:
        parse_limits(floor, ceiling)

    assert which == caught.value.which


def test_a_step_is_measured_without_what_interrupted_it() -> None:
    """A fault in a step, or a checkpoint before it, makes the next step no longer."""
    watch = HangWatch(floor_s=2.0)
    now = paced(watch, 1, 20, 0.1)
    watch.look(now + 60, {0: Sight(20, now + 60, 20, Place.BETWEEN, now + 60, took_s=0.1)})

    later = replace(in_step(21, now + 60, done_at=now + 60), took_s=0.1)
    assert 2.0 == watch.look(now + 63, {0: later}).silences[0].patience_s
