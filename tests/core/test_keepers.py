"""Who is asked for the notes of a rank that comes up on another node."""

from dataclasses import replace

import pytest

from taskd.core.keepers import find_keeper
from taskd.core.launch import Plan, compute_places

PLAN = Plan(3, 0, "h", 1, compute_places([("a", 2), ("b", 2), ("c", 2)]))


@pytest.mark.parametrize(("rank", "keepers"), [(0, ["a", "b"]), (3, ["b", "c"]), (5, ["c", "a"])])
def test_a_rank_that_is_moved_asks_its_old_node_and_then_the_next(rank: int, keepers: list[str]) -> None:
    """In a hot switch the plan is the old one, and the standby is on a node that it does not name."""
    assert [*keepers, None] == [find_keeper(PLAN, rank, "spare", source) for source in range(3)]


def test_a_lost_nodes_rank_asks_the_next_node() -> None:
    """Its own place is where it asks from."""
    lost = replace(PLAN.places[1], node="spare")
    plan = replace(PLAN, places=(PLAN.places[0], lost, PLAN.places[2]))

    assert ["c", None] == [find_keeper(plan, 2, "spare", source) for source in range(2)]


def test_there_may_be_nobody_to_ask() -> None:
    """A job of one node, a rank that is not in the plan."""
    assert find_keeper(replace(PLAN, places=PLAN.places[:1]), 0, "a", 0) is None
    assert find_keeper(PLAN, 6, "a", 0) is None
