"""Names and addresses of a cluster, all derived from its number.

Several clusters may be on one machine (somebody looks at one while tests run on another), and each must
find what an earlier one of its number has left. So nothing is random: links, control groups, networks and
the place of the state file follow from the number.
"""

from dataclasses import dataclass
from functools import cached_property
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Final

NODE_COUNT: Final = 3

NUMBERS: Final = range(8)
FOR_PEOPLE: Final = 0  # `make cluster`
FOR_TESTS: Final = range(1, 7)  # any that is free; the last number is left to tests that name it

# 10.200.0.0/16 and up: clear of the Services (10.96.0.0/12) and of what container engines use by default.
_FIRST_NETWORK: Final = 200
_FIRST_NODE: Final = 10


@dataclass(frozen=True)
class NodePlace:
    """Where one node is."""

    name: str
    address: IPv4Address
    pods: IPv4Network
    link: str
    """Its link's end in the bridge."""
    cgroup: str


@dataclass(frozen=True)
class Layout:
    """Where everything of one cluster is."""

    number: int

    def __post_init__(self) -> None:
        """Refuse a number that has no network."""
        if self.number not in NUMBERS:
            raise ValueError(f"a cluster's number is {NUMBERS[0]} to {NUMBERS[-1]}, not {self.number}")

    @cached_property
    def network(self) -> IPv4Network:
        """Everything in it: the nodes' own subnet, then one subnet of pods for each."""
        return IPv4Network(f"10.{_FIRST_NETWORK + self.number}.0.0/16")

    @cached_property
    def address(self) -> IPv4Address:
        """The address of this machine in it: API server and DNS."""
        return self.network[1]

    @property
    def bridge(self) -> str:
        """The link that joins the nodes."""
        return f"taskd{self.number}"

    @property
    def cgroup(self) -> str:
        """The control group of everything, below which each node has its own."""
        return f"taskd-{self.number}"

    @property
    def place(self) -> Path:
        """Where the lock and the state file are while it exists."""
        return Path(f"/run/taskd-cluster-{self.number}")

    @property
    def directory_prefix(self) -> str:
        """How the names of its working directories begin."""
        return f"taskd-nodes-{self.number}-"

    @cached_property
    def nodes(self) -> tuple[NodePlace, ...]:
        """Its nodes."""
        subnets = list(self.network.subnets(new_prefix=24))
        return tuple(
            NodePlace(
                name=f"node-{index}",
                address=self.network[_FIRST_NODE + index],
                pods=subnets[index],
                link=f"{self.bridge}n{index}",
                cgroup=f"{self.cgroup}/node-{index}",
            )
            for index in range(1, NODE_COUNT + 1)
        )

    def node(self, name: str) -> NodePlace:
        """Return the node of this name."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise ValueError(f"no node {name!r}; there are {', '.join(node.name for node in self.nodes)}")
