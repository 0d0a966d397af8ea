"""A fault that may pass, or a failure that will come back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskd.core.exits import Exit
from taskd.core.failures import (
    OUTSIDE_REPEAT_LIMIT,
    QUICK_DEATH_S,
    REPEAT_LIMIT,
    Budget,
    Failure,
    Streak,
    describe_exit,
)

FAILURES = st.builds(
    Failure,
    rank=st.integers(0, 2),
    exit=st.sampled_from([Exit(code=1), Exit(code=2), Exit(signal=9), Exit(signal=11), Exit()]),
    step=st.sampled_from([-1, 0, 5]),
    place=st.sampled_from(["", "train.py:1"]),
    lived_s=st.sampled_from([0.5, 100.0]),
)


def repeat(failure: Failure, times: int) -> Streak:
    streak = Streak()
    for _ in range(times):
        streak = streak.extend(failure)
    return streak


@pytest.mark.parametrize(
    ("failure", "limit"),
    [
        (Failure(0, Exit(code=1), step=5), REPEAT_LIMIT),
        (Failure(0, Exit(code=1), place="train.py:3", lived_s=100.0), REPEAT_LIMIT),
        (Failure(0, Exit(code=1), lived_s=QUICK_DEATH_S / 2), REPEAT_LIMIT),
        (Failure(0, Exit(signal=11), step=5), REPEAT_LIMIT),
        (Failure(0, Exit(signal=9), step=5), OUTSIDE_REPEAT_LIMIT),
    ],
    ids=["step", "line", "start", "crash", "killed at a step"],
)
def test_the_same_failure_is_hopeless_after_its_limit(failure: Failure, limit: int) -> None:
    """Not one round earlier."""
    assert not repeat(failure, limit - 1).hopeless
    assert repeat(failure, limit).hopeless


@pytest.mark.parametrize(
    "failure",
    [
        Failure(0, Exit(signal=9), lived_s=0.5),
        Failure(0, Exit(code=1), lived_s=QUICK_DEATH_S * 2),
        Failure(0, Exit(), lived_s=QUICK_DEATH_S * 2),
    ],
    ids=["killed", "late, nobody knows where", "nothing known"],
)
def test_a_failure_without_a_place_is_never_hopeless(failure: Failure) -> None:
    """Nobody can say that it was the same one."""
    assert not repeat(failure, 100).hopeless


@given(st.lists(FAILURES, max_size=12))
def test_a_streak_counts_the_last_failures_that_are_alike(failures: list[Failure]) -> None:
    """The count is the length of the run of equal signatures at the end."""
    streak = Streak()
    for failure in failures:
        streak = streak.extend(failure)

    expected = 0
    for failure in reversed(failures):
        if expected and (failure.signature is None or failure.signature != failures[-1].signature):
            break
        expected += 1
        if failure.signature is None:
            break
    assert expected == streak.count


@given(st.lists(FAILURES, max_size=6), FAILURES, FAILURES)
def test_a_correction_is_as_if_it_had_been_known_at_once(
    before: list[Failure], noticed: Failure, real: Failure
) -> None:
    """The one that was blamed first leaves no trace in the count."""
    streak = Streak()
    for failure in before:
        streak = streak.extend(failure)

    corrected = streak.extend(noticed).correct(real)

    assert streak.extend(real) == corrected


@given(st.integers(0, 3), st.lists(st.sampled_from("ab"), max_size=10))
def test_a_budget_is_spent_per_node(limit: int, faults: list[str]) -> None:
    """A node may have as many faults as the limit says, whatever the others do."""
    budget = Budget(limit)
    for node in faults:
        budget = budget.spend(node)

    for node in "ab":
        assert (faults.count(node) >= limit) == budget.spent(node)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (Exit(signal=9), "was ended by SIGKILL"),
        (Exit(signal=64), "was ended by signal 64"),
        (Exit(code=3), "exited with code 3"),
        (Exit(), "ended; its exit code could not be read"),
    ],
)
def test_an_exit_is_told_in_words(how: Exit, words: str) -> None:
    """A person need not know the numbers of signals."""
    assert words == describe_exit(how)
