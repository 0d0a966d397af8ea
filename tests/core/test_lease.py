"""The rules of the lease: who may act when, by clocks that nobody can compare."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskd.core.lease import LeaseRecord, LeaseTimes, Sight, Take, Tenure, Wait, decide_candidate, note_sight

TIMES = LeaseTimes(15, 10, 2)


def record(holder: str, version: str = "1", transitions: int = 3) -> LeaseRecord:
    return LeaseRecord(holder, 15, transitions, version)


def test_a_lease_that_nobody_has_is_taken() -> None:
    """None at all, or released by the last holder."""
    assert Take(0, "there is no lease yet") == decide_candidate(0, "me", Sight(None, 0))
    assert Take(4, "the last holder has released it") == decide_candidate(0, "me", Sight(record(""), 0))


def test_a_lease_is_left_alone_until_its_duration_has_passed_unchanged() -> None:
    """Counted from the first sight of it as it is; each renewal starts the count anew."""
    sight = note_sight(None, record("other", "1"), 100)
    assert Wait(115, "other holds it") == decide_candidate(114.9, "me", sight)

    same = note_sight(sight, record("other", "1"), 110)
    assert Take(4, "other has not renewed it for 15.0 s") == decide_candidate(115, "me", same)

    renewed = note_sight(sight, record("other", "2"), 110)
    assert Wait(125, "other holds it") == decide_candidate(115, "me", renewed)


def test_our_own_unanswered_write_counts_for_nothing() -> None:
    """The lease has our name, but when that was written is not known: write again."""
    decision = decide_candidate(0, "me", Sight(record("me"), 0))

    assert isinstance(decision, Take)
    assert 3 == decision.transitions


@pytest.mark.parametrize("times", [(10, 10, 2), (15, 2, 2), (15, 10, 0), (5, 10, 2)])
def test_spans_that_do_not_fit_are_refused(times: tuple[float, float, float]) -> None:
    """Each must be shorter than the one before."""
    with pytest.raises(ValueError, match="must last longer"):
        LeaseTimes(*times)


@given(
    sent=st.floats(0, 100),
    landed=st.floats(0, 20),
    seen=st.floats(0, 20),
    offset=st.floats(-1e6, 1e6),
    drift=st.floats(0.9, 1.1),
)
def test_two_never_act_at_once(sent: float, landed: float, seen: float, offset: float, drift: float) -> None:
    """However long renewal and look took, whatever the other clock shows, up to a tenth faster or slower."""
    tenure = Tenure(sent, TIMES)
    first_seen = sent + landed + seen  # by the holder's clock
    other_clock = (first_seen * drift) + offset
    sight = note_sight(None, record("holder"), other_clock)
    decision = decide_candidate(other_clock, "me", sight)

    assert isinstance(decision, Wait)
    taken_at = (decision.until - offset) / drift  # back on the holder's clock
    assert taken_at >= tenure.act_until - 1e-6
