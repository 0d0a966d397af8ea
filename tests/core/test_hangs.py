"""Who hangs, and who only waits."""

from taskd.core.hangs import SILENT_FLOOR_S, HangWatch, Sight


def paced(watch: HangWatch, ranks: int, steps: int, pace: float) -> float:
    """Let ranks step at a pace; returns the time afterwards."""
    now = 0.0
    for step in range(steps):
        now = step * pace
        watch.look(now, {rank: Sight(step, 2 * step, stopped=False) for rank in range(ranks)})
    return now


def test_a_stopped_rank_is_named_within_a_few_steps() -> None:
    """Three steps' time after it was stopped, not before, and nobody else."""
    watch = HangWatch()
    now = paced(watch, 4, 20, 0.2)

    sights = {rank: Sight(19, 38, stopped=rank == 1) for rank in range(4)}
    assert {} == watch.look(now + 0.1, sights)
    assert {} == watch.look(now + 0.5, sights)
    assert [1] == list(watch.look(now + 0.8, sights))


def test_a_rank_that_goes_on_is_forgiven() -> None:
    """Stopped and continued in time: the count begins anew."""
    watch = HangWatch()
    now = paced(watch, 2, 20, 0.2)

    watch.look(now + 0.1, {0: Sight(19, 38, stopped=True), 1: Sight(19, 38, stopped=False)})
    watch.look(now + 0.5, {0: Sight(19, 38, stopped=False), 1: Sight(19, 38, stopped=False)})
    assert {} == watch.look(now + 0.9, {0: Sight(19, 38, stopped=True), 1: Sight(19, 38, stopped=False)})


def test_the_one_who_is_behind_is_to_blame_after_the_long_limit() -> None:
    """The others have voted and wait for it; a checkpoint of half a minute is not a hang."""
    watch = HangWatch()
    now = paced(watch, 3, 20, 0.1)

    sights = {
        0: Sight(19, 39, stopped=False),
        1: Sight(19, 38, stopped=False),
        2: Sight(19, 39, stopped=False),
    }
    assert {} == watch.look(now + 0.1, sights)
    assert {} == watch.look(now + SILENT_FLOOR_S / 2, sights)
    assert [1] == list(watch.look(now + SILENT_FLOOR_S + 0.2, sights))


def test_nobody_is_blamed_when_all_stand_at_the_same_place() -> None:
    """All wait for somebody who is not on this node, or for a file."""
    watch = HangWatch()
    now = paced(watch, 3, 20, 0.1)

    same = {rank: Sight(19, 38, stopped=False) for rank in range(3)}
    assert {} == watch.look(now + 10 * SILENT_FLOOR_S, same)
