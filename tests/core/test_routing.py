"""Where a message goes is read from its address alone."""

from hypothesis import given
from hypothesis import strategies as st

from taskd.core.messages import MANAGER, agent_address, proxy_address, worker_address
from taskd.core.routing import ALL_RANKS, Hop, decide_route

NAMES = st.text(st.characters(codec="ascii", exclude_characters="/"), min_size=1, max_size=12)


def addresses(node: str, rank: int) -> list[str]:
    return [proxy_address(node), agent_address(node), worker_address(node, rank)]


@given(node=NAMES, other=NAMES, rank=st.integers(-1, 10_000), from_above=st.booleans())
def test_a_valid_address_has_a_way(node: str, other: str, rank: int, from_above: bool) -> None:
    """From below everybody can be reached; from above everybody in this container."""
    for destination in addresses(node, rank):
        assert Hop.NOWHERE != decide_route(node, destination, from_above=from_above).hop
    for destination in [MANAGER, *addresses(other, rank)]:
        assert Hop.NOWHERE != decide_route(node, destination, from_above=False).hop


@given(node=NAMES, destination=st.one_of(st.text(max_size=30), NAMES.map(agent_address), st.just(MANAGER)))
def test_what_comes_from_above_never_goes_up_again(node: str, destination: str) -> None:
    """A wrong address cannot loop, whatever it is."""
    assert Hop.UP != decide_route(node, destination, from_above=True).hop


@given(node=st.text(max_size=12), destination=st.text(max_size=30), from_above=st.booleans())
def test_every_address_has_an_answer(node: str, destination: str, from_above: bool) -> None:
    """Also nonsense: no error, and where there is no way, the reason."""
    route = decide_route(node, destination, from_above=from_above)

    assert bool(route.why) == (route.hop is Hop.NOWHERE)


@given(node=NAMES, other=NAMES, rank=st.integers(-1, 10_000))
def test_only_the_container_of_the_address_keeps_it(node: str, other: str, rank: int) -> None:
    """A message for another node goes up from below, and nowhere from above."""
    if node == other:
        return
    for destination in addresses(other, rank):
        assert Hop.UP == decide_route(node, destination, from_above=False).hop
        assert Hop.NOWHERE == decide_route(node, destination, from_above=True).hop


def test_each_address_has_its_hop() -> None:
    """The table, in one place."""
    expected = {
        "proxy/7": (Hop.SELF, ALL_RANKS),
        "agent/7": (Hop.AGENT, ALL_RANKS),
        "worker/7/3": (Hop.WORKERS, 3),
        "worker/7/-1": (Hop.WORKERS, ALL_RANKS),
    }
    for destination, (hop, rank) in expected.items():
        route = decide_route("7", destination, from_above=True)
        assert (hop, rank) == (route.hop, route.rank)


def test_a_rank_that_is_no_number_is_named() -> None:
    """The reason can be put into a log as it is."""
    assert "rank 'x' is not a number" == decide_route("7", "worker/7/x", from_above=True).why
