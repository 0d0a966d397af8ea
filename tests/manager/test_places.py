"""A rank that may have been away is told that it is still where it was only by a manager who can know."""

import pytest

from taskd.core.launch import JobOptions, Plan, compute_places
from taskd.core.messages import MANAGER, PlaceAsked, PlaceHeld, worker_address
from taskd.core.succession import STEADY, Candidate, Roster, Term
from taskd.manager.config import ManagerConfig, Succession
from taskd.manager.office import STALE_S, Office
from taskd.manager.questions import confirm
from taskd.wire.envelope import pack, unpack

NODES = ("a", "b", "c")
PLAN = Plan(4, 0, "127.0.0.1", 1, compute_places([("a", 2), ("b", 2)]))


def make_office(now: float) -> Office:
    """The office of a manager at node a that leads three."""
    roster = Roster(Term(1, "a"), 1, tuple(Candidate(node, node, node) for node in NODES))
    return Office(ManagerConfig("j", JobOptions(), succession=Succession("a", Term(1, "a"), roster)), now)


def hear_all(office: Office, now: float) -> None:
    """A sign of life of each of the others."""
    for node in ("b", "c"):
        office.hear(node, now)


@pytest.mark.parametrize(
    ("generation", "rank", "node", "held"),
    [(4, 3, "b", True), (4, 1, "b", False), (3, 3, "b", False), (5, 3, "b", False), (4, 9, "b", False)],
)
def test_a_place_is_held_by_whom_the_plan_has_there(
    generation: int, rank: int, node: str, held: bool
) -> None:
    """Another node's rank, another generation and a rank that there is not get no answer."""
    asked = PlaceAsked(generation, rank, 7)
    answer = confirm(PLAN, pack("j", worker_address(node, rank), MANAGER, asked), asked)

    assert held == (answer is not None)
    if answer is not None:
        to, envelope = answer
        assert (node, PlaceHeld(generation, rank, 7)) == (to, unpack(envelope))
        assert worker_address(node, rank) == envelope.dst


def test_what_was_in_the_sockets_while_a_manager_slept_is_no_sign_of_life() -> None:
    """The others may have gone over to another manager after they sent it."""
    office = make_office(100.0)
    hear_all(office, 100.0)
    assert office.may_decide(100.1, NODES)

    office.forget_all(200.0)
    hear_all(office, 200.0 + STALE_S / 2)
    assert not office.may_decide(200.1 + STALE_S, NODES)

    hear_all(office, 200.2 + STALE_S)
    assert office.may_decide(200.3 + STALE_S, NODES)
    assert not office.may_decide(200.3 + STALE_S + 2 * STEADY.fresh_s, NODES)
