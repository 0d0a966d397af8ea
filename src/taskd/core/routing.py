"""Where a proxy sends a message, read from its address alone.

Addresses are ``manager``, ``proxy/NODE``, ``agent/NODE`` and ``worker/NODE/RANK``, with rank -1 for all
workers of the node. What comes from above never goes up again, so a wrong address cannot loop.
"""

from dataclasses import dataclass
from enum import StrEnum

from taskd.core.messages import MANAGER, agent_address, proxy_address

ALL_RANKS = -1


class Hop(StrEnum):
    """Where to."""

    UP = "up"
    SELF = "self"
    AGENT = "agent"
    WORKERS = "workers"
    NOWHERE = "nowhere"


@dataclass(frozen=True, slots=True)
class Route:
    """A hop, the rank it is for, and the reason if there is none."""

    hop: Hop
    rank: int = ALL_RANKS
    why: str = ""


def decide_route(node: str, destination: str, *, from_above: bool) -> Route:
    """Decide where the proxy of a node sends a message."""
    if destination == MANAGER:
        if from_above:
            return Route(Hop.NOWHERE, why="came from the manager and is addressed to it")
        return Route(Hop.UP)
    if destination == proxy_address(node):
        return Route(Hop.SELF)
    if destination == agent_address(node):
        return Route(Hop.AGENT)
    match destination.split("/"):
        case ["worker", where, rank] if where == node:
            try:
                return Route(Hop.WORKERS, int(rank))
            except ValueError:
                return Route(Hop.NOWHERE, why=f"rank {rank!r} is not a number")
        case ["worker" | "agent" | "proxy", *_] if not from_above:
            return Route(Hop.UP)
        case _:
            return Route(Hop.NOWHERE, why=f"no {destination} on node {node}")
