"""A node that is out of reach is told from one that is busy or stopped, and quickly."""

from hypothesis import given
from hypothesis import strategies as st

from taskd.core.reach import CUT, GONE, Door, Knock, Patience, is_due, judge

PATIENCE = Patience()
PROVEN = Door(100.0, proven=True)


def play(
    door: Door,
    until: float,
    answers: str = "-",
    *,
    patience: Patience = PATIENCE,
    connected: bool = True,
) -> tuple[float, str]:
    """Look every tenth of a second; knocks are answered as told, in turn. Returns when and why it is over."""
    now, knocks, count = door.heard_at, list[tuple[float, Knock]](), 0
    kinds = {"o": Knock.OPEN, "r": Knock.REFUSED, "-": Knock.SILENT}
    while now < until:
        now = round(now + 0.1, 3)
        for begun, knock in [each for each in knocks if _known_at(*each, patience) <= now]:
            door = door.answer(knock, begun)
            knocks.remove((begun, knock))
        why = judge(door, now, patience, connected=connected)
        if why:
            return now - 100.0, why
        if is_due(door, now, patience, connected=connected):
            knocks.append((now, kinds[answers[count % len(answers)]]))
            door, count = door.knock(now), count + 1
    return now - 100.0, ""


def _known_at(begun: float, knock: Knock, patience: Patience) -> float:
    return begun + (patience.answer_s if knock is Knock.SILENT else 0.001)


def test_a_cut_link_is_noticed_in_the_time_that_is_allowed() -> None:
    after_s, why = play(PROVEN, 110.0)
    assert why.startswith(CUT)
    assert 1.4 <= after_s <= 1.7


def test_a_limit_that_is_longer_is_kept() -> None:
    after_s, why = play(PROVEN, 120.0, patience=Patience(limit_s=6.0))
    assert why.startswith(CUT)
    assert 6.0 <= after_s <= 6.2


def test_a_busy_or_stopped_program_is_not_given_up() -> None:
    """Its kernel answers, however long it says nothing itself; the lease of a node decides then."""
    assert (100.0, "") == play(PROVEN, 200.0, "o")


def test_one_answer_among_many_lost_ones_is_enough() -> None:
    """A network that loses packets is slow, not cut."""
    assert "" == play(PROVEN, 160.0, "--o")[1]


def test_a_refusal_is_the_end_of_the_launcher() -> None:
    """Not while its stream stands: then somebody else has its place, or it was asked at a wrong moment."""
    after_s, why = play(PROVEN, 110.0, "r", connected=False)
    assert (GONE, True) == (why, after_s < 0.5)
    assert "" == play(PROVEN, 110.0, "r", connected=True)[1]


def test_a_door_that_was_never_open_proves_nothing() -> None:
    """A policy may forbid it; then only the lease counts."""
    assert "" == play(Door(100.0), 130.0)[1]
    assert "" == play(Door(100.0), 130.0, "r", connected=False)[1]


def test_zero_means_never() -> None:
    assert "" == play(PROVEN, 130.0, patience=Patience(limit_s=0.0))[1]


def test_what_was_seen_before_a_stall_is_worth_nothing() -> None:
    """Whoever was stopped knocks anew before blaming others."""
    door = PROVEN.answer(Knock.SILENT, 100.8).answer(Knock.SILENT, 101.0)
    assert judge(door, 110.0, PATIENCE, connected=True)
    assert not judge(door.forget(110.0), 110.0, PATIENCE, connected=True)


def test_a_knock_from_before_a_sign_of_life_does_not_count() -> None:
    door = PROVEN.hear(105.0).answer(Knock.SILENT, 104.9).answer(Knock.REFUSED, 104.9)
    assert (0, False) == (door.unanswered, door.refused)


@given(
    st.lists(
        st.tuples(st.floats(0.05, 0.7), st.sampled_from(["hear", "open", "silent"])), min_size=1, max_size=60
    )
)
def test_nobody_is_given_up_who_was_heard_or_answered_lately(story: list[tuple[float, str]]) -> None:
    """Whatever comes in whatever order: a verdict needs the whole limit without a word or an answer."""
    door, now, heard, answered = PROVEN, 100.0, 100.0, 0.0
    for pause_s, what in story:
        begun, now = now, now + pause_s
        if what == "hear":
            door, heard = door.hear(now), now
        elif what == "open":
            door, answered = door.answer(Knock.OPEN, begun), begun
        else:
            door = door.answer(Knock.SILENT, begun)
        if judge(door, now, PATIENCE, connected=True):
            assert now - heard >= PATIENCE.limit_s
            assert answered < door.since
