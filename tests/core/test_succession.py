"""Who manages a job of several machines: never two at once, and always one if more than half can speak."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskd.core.succession import (
    REBORN_S,
    STEADY,
    Answer,
    Candidate,
    Follow,
    Mandate,
    Roster,
    Sight,
    TakeOver,
    Term,
    Wait,
    decide_succession,
    newborn_mandate,
    pace_of,
)

NODES = "abcde"
FIRST = Term(1, "a")
REFUSED, SILENT = Answer(Sight.REFUSED), Answer(Sight.SILENT)
SAME = Answer(Sight.ANSWERED, FIRST, "a:1")
LATER = Answer(Sight.ANSWERED, Term(2, "b"), "b:1")


def candidate(node: str) -> Candidate:
    return Candidate(node, f"{node}:1", f"{node}:2")


def roster(nodes: str, version: int = 1) -> Roster:
    return Roster(FIRST, version, tuple(map(candidate, nodes)), "run")


def mandate(nodes: str, *, elected: bool = True) -> Mandate:
    return Mandate("a", roster(nodes), roster(nodes), elected)


def decide(me: str, away_s: float, nodes: str = "abc", **answers: Answer) -> Wait | Follow | TakeOver:
    return decide_succession(me, roster(nodes), FIRST, away_s, answers)


# --- who takes over --------------------------------------------------------------------------------------


def test_the_next_in_the_roster_takes_over_when_the_manager_s_launcher_is_dead() -> None:
    """A refused connection is soon enough: the kernel ends the manager with its launcher."""
    deed = decide("b", STEADY.refused_s, a=REFUSED, c=SAME)

    assert isinstance(deed, TakeOver)
    assert (Term(2, "b"), ("a",)) == (deed.term, deed.lost)


def test_who_comes_later_in_the_roster_waits() -> None:
    """One of the living is first, the same for all who see the same."""
    assert isinstance(decide("c", 60.0, a=REFUSED, b=SAME), Wait)
    assert isinstance(decide("c", 60.0, nodes="abcde", a=REFUSED, b=SILENT, d=SAME, e=SAME), TakeOver)


def test_a_launcher_that_answers_keeps_its_manager() -> None:
    """A manager that is only being started again is not replaced, however long it takes."""
    assert isinstance(decide("b", 600.0, a=SAME, c=SAME), Wait)


def test_a_silent_machine_is_given_more_time_than_a_dead_one() -> None:
    """It may be a hiccup of the network."""
    assert isinstance(decide("b", STEADY.silent_s - 0.1, a=SILENT, c=SAME), Wait)
    assert isinstance(decide("b", STEADY.silent_s, a=SILENT, c=SAME), TakeOver)


@pytest.mark.parametrize("nodes", ["ab", "abc", "abcd"])
def test_half_of_the_machines_are_not_enough(nodes: str) -> None:
    """The other half might think the same; nobody takes over, and a person is told why."""
    answers = {node: REFUSED for node in nodes if node != "b"}
    if nodes == "abcd":
        answers["c"] = SAME
    waiting = decide("b", 600.0, nodes=nodes, **answers)

    assert isinstance(waiting, Wait)
    assert waiting.hopeless


def test_a_later_manager_is_followed_once_the_old_one_cannot_count_on_us() -> None:
    """By hearsay, too; but not while the old manager may still take this node for present."""
    there = Follow(Term(2, "b"), "b:1")

    assert there == decide("c", 0.0, a=REFUSED, b=LATER)
    assert isinstance(decide("c", STEADY.lease_s - 0.1, a=SILENT, b=LATER), Wait)
    assert there == decide("c", STEADY.lease_s, a=SILENT, b=LATER)


def test_another_launcher_at_the_old_place_is_not_the_old_manager() -> None:
    """It was started again and knows nothing; the next one takes over."""
    assert isinstance(decide("b", STEADY.refused_s, a=Answer(Sight.ANSWERED), c=SAME), TakeOver)


def test_a_node_outside_the_roster_never_takes_over() -> None:
    """Nobody would count it."""
    assert isinstance(decide("z", 600.0, a=REFUSED, b=SAME, c=SAME), Wait)


# --- who may decide --------------------------------------------------------------------------------------


def test_a_manager_that_takes_over_needs_more_than_half() -> None:
    """And keeps its right with half: nobody else can have more."""
    newborn = mandate("abcd", elected=False)

    assert not newborn.hear("ab").may_decide("ab")
    elected = newborn.hear("abc")
    assert elected.may_decide("abc")
    assert elected.may_decide("ab")
    assert not elected.may_decide("a")


def test_a_manager_alone_with_its_own_node_goes_on() -> None:
    """Jobs of one or two machines work as if there were no succession."""
    assert mandate("a").may_decide("")
    assert mandate("ab").may_decide("")


def test_the_first_roster_is_made_at_once_and_later_ones_by_one_node_each() -> None:
    """Nobody but the manager's own node can have been told of one before."""
    everybody = {node: candidate(node) for node in NODES}
    first = mandate("a").amend(everybody)
    kept = {"a": (FIRST, 2), "b": (FIRST, 2), "c": (FIRST, 2)}
    fewer = {node: each for node, each in everybody.items() if node in "abc"}

    assert frozenset(NODES) == first.roster.nodes
    assert first == first.amend(fewer), "the last change is not settled"
    later = first.settle(kept).amend(fewer)
    assert frozenset("abce") == later.roster.nodes
    assert later == later.settle(kept), "nobody has the new one yet"


def test_a_newborn_manager_settles_the_roster_before_it_changes_it() -> None:
    """What its predecessor had begun to change may be known to some."""
    newborn = newborn_mandate("b", Term(2, "b"), roster("abc", 7), elected=False).hear("bc")
    wanted = {node: candidate(node) for node in "bc"}
    kept = dict.fromkeys("bc", (Term(2, "b"), 8))

    assert newborn == newborn.amend(wanted)
    assert frozenset("bc") == newborn.settle(kept).amend(wanted).roster.nodes


@given(st.data())
def test_two_managers_never_may_decide_at_once(data: st.DataObject) -> None:
    """Whatever the roster was changed to and whoever heard of it: each node counts for one manager only.

    The old one changes its roster step by step, with any holders of each step. Then the nodes split: some
    stay with it, some go to a newborn one, which begins with the latest roster that any of its voters has.
    """
    old = Mandate("a", roster("a"), roster("a"), elected=True)
    kept: dict[str, Roster] = {"a": old.roster}
    for _ in range(data.draw(st.integers(1, 6))):
        wanted = {"a", *data.draw(st.sets(st.sampled_from(NODES)))}
        old = old.amend({node: candidate(node) for node in sorted(wanted)})
        for node in data.draw(st.sets(st.sampled_from(sorted(old.roster.nodes)))):
            kept[node] = old.roster
        old = old.settle({node: (each.term, each.version) for node, each in kept.items()})
    voters = data.draw(st.sets(st.sampled_from(sorted({*kept} - {"a"}) or ["b"]), min_size=1))
    stayers = set(NODES) - voters
    held = [kept[node] for node in voters if node in kept]
    if not held:
        return
    base = max(held, key=lambda each: each.version)
    home = min(voters)
    newborn = newborn_mandate(home, Term(2, home), base, elected=False).hear(voters)

    assert not (newborn.elected and newborn.may_decide(voters) and old.may_decide(stayers))


# --- pods that are created again -------------------------------------------------------------------------


def test_the_manager_s_pod_that_is_created_again_is_followed_at_once() -> None:
    """Also by one of two, which may not take over: a pod of that name means that the old one was given up."""
    back = Answer(Sight.ANSWERED, Term(2, "a"), "a:9", reborn=True)

    assert Follow(Term(2, "a"), "a:9") == decide("b", 0.0, nodes="ab", a=back)


def test_a_pod_that_was_created_again_and_manages_nothing_yet_is_waited_for() -> None:
    """But not for ever: after that the others take over, and it joins them."""
    back = Answer(Sight.ANSWERED, Term(), "", reborn=True)

    assert isinstance(decide("b", REBORN_S - 0.1, a=back, c=SAME), Wait)
    deed = decide("b", REBORN_S, a=back, c=SAME)
    assert isinstance(deed, TakeOver)
    assert () == deed.lost


def test_a_later_manager_goes_before_a_pod_that_was_created_again() -> None:
    """Somebody has taken over already, and the new pod will learn of it."""
    back = Answer(Sight.ANSWERED, Term(), "", reborn=True)

    assert Follow(Term(2, "b"), "b:1") == decide("c", 0.0, a=back, b=LATER)


# --- how quickly -----------------------------------------------------------------------------------------


@given(st.floats(0.0, 100.0))
def test_at_every_pace_the_old_manager_has_stopped_before_another_begins(reach_s: float) -> None:
    """It counts nobody any more who has been away for as long as somebody who goes over must have been."""
    pace = pace_of(reach_s)
    assert pace.fresh_s + pace.stall_s <= pace.lease_s + 1e-9
    assert pace.lease_s <= pace.silent_s <= pace.busy_s
    assert 2 * pace.kept_every_s <= pace.fresh_s
    assert 3 * pace.kept_every_s <= pace.silence_s


def test_pods_miss_each_other_soon_and_other_machines_as_before() -> None:
    quick = pace_of(1.5)
    assert STEADY == pace_of(0.0)
    assert quick.silence_s + quick.silent_s < 4.0
    assert STEADY == pace_of(60.0)


def test_a_manager_s_machine_that_takes_connections_is_given_time() -> None:
    """It may have been stopped, or have too much to do; only one whose kernel is silent is cut off."""
    quick, busy = pace_of(1.5), Answer(Sight.BUSY)
    soon = decide_succession("b", roster("abc"), FIRST, 3.0, {"a": busy, "c": SAME}, quick)
    late = decide_succession("b", roster("abc"), FIRST, quick.busy_s, {"a": busy, "c": SAME}, quick)
    cut = decide_succession("b", roster("abc"), FIRST, 3.0, {"a": SILENT, "c": SAME}, quick)
    assert isinstance(soon, Wait)
    assert isinstance(late, TakeOver)
    assert isinstance(cut, TakeOver)
