"""The cables: one bridge on this machine, a link into each node's own network namespace.

A node's namespace is that of one process which holds it, so the kernel takes its links, routes and firewall
rules away with its last process. On this machine there are the bridge, the nodes' ends of the links in it and
a route to each node's pods; no firewall rule, no forwarding, nothing on other interfaces.
"""

import json
import subprocess
from collections.abc import Iterable
from ipaddress import IPv4Network

from taskd.testing.cluster.layout import Layout, NodePlace
from taskd.testing.kube.binaries import Unavailable


def taken(layout: Layout) -> str | None:
    """Say in one line what else on this machine uses these addresses, or None."""
    for route in json.loads(_ip("-json", "-4", "route", "show")):
        destination = str(route.get("dst", "default"))
        if destination == "default" or route.get("dev") == layout.bridge:
            continue
        if IPv4Network(destination).overlaps(layout.network):
            return f"cluster {layout.number} needs {layout.network}, and {route['dev']} uses {destination}"
    return None


def make_bridge(layout: Layout) -> None:
    """Make the bridge, with this machine's address in it."""
    trouble = taken(layout)
    if trouble is not None:
        raise Unavailable(trouble)
    _batch(
        [
            f"link add {layout.bridge} type bridge",
            f"address add {layout.address}/24 dev {layout.bridge}",
            f"link set {layout.bridge} up",
        ]
    )


def connect(layout: Layout, node: NodePlace, holder: int) -> None:
    """Give the namespace of the process `holder` its link, its address and its routes."""
    _batch(
        [
            f"link add {node.link} type veth peer name eth0 netns {holder}",
            f"link set {node.link} master {layout.bridge} up",
            f"route add {node.pods} via {node.address}",
        ]
    )
    others = [f"route add {other.pods} via {other.address}" for other in layout.nodes if other != node]
    _batch(
        [
            "link set lo up",
            f"address add {node.address}/24 dev eth0",
            "link set eth0 up",
            f"route add default via {layout.address}",
            *others,
        ],
        within=holder,
    )


def cut(node: NodePlace) -> None:
    """Pull a node's cable: whatever it runs goes on, and nobody hears of it."""
    _ip("link", "set", node.link, "down")


def mend(node: NodePlace) -> None:
    """Plug it in again."""
    _ip("link", "set", node.link, "up")


def links(layout: Layout) -> list[str]:
    """Return the links of this cluster that this machine has."""
    names = [str(link["ifname"]) for link in json.loads(_ip("-json", "link", "show"))]
    return [name for name in names if name in {layout.bridge, *(node.link for node in layout.nodes)}]


def remove(layout: Layout) -> None:
    """Remove links and bridge; routes and addresses go with them."""
    for name in links(layout):
        # The other end may have gone with its namespace just now.
        subprocess.run(["ip", "link", "delete", name], capture_output=True, check=False)
    left = links(layout)
    if left:
        raise RuntimeError(f"the links {', '.join(left)} cannot be removed")


def _batch(lines: Iterable[str], *, within: int | None = None) -> None:
    _ip("-batch", "-", within=within, stdin="".join(f"{line}\n" for line in lines))


def _ip(*arguments: str, within: int | None = None, stdin: str = "") -> str:
    enter = ["nsenter", "--target", str(within), "--net"] if within is not None else []
    done = subprocess.run(
        [*enter, "ip", *arguments], input=stdin, capture_output=True, text=True, check=False, timeout=30
    )
    if done.returncode != 0:
        raise RuntimeError(f"ip {' '.join(arguments)} {stdin!r} failed: {done.stderr.strip()}")
    return done.stdout
