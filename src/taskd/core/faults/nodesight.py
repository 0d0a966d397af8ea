"""What Kubernetes itself says of a node: conditions, taints, and devices that it no longer offers.

These enter as faults like any other, with the level that describes them best. A node that is not ready has a
fault without a code, as in the reference; everything else is called by the name of its condition or taint.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from taskd.core.faults.levels import NodeLevel

SERIAL: Final = "product-serial-number"
NODE_HEALTH: Final = "NodeHealthyStatus"
OUT_OF_SERVICE: Final = "node.kubernetes.io/out-of-service"
CORDONED: Final = "node.kubernetes.io/unschedulable"
UNPLUGGED: Final = "DevicePluginUnhealthy"
DEVICE_VENDORS: Final = ("huawei.com/", "nvidia.com/")

_CONDITIONS: Final[Mapping[str, NodeLevel]] = {
    "NetworkUnavailable": NodeLevel.SEPARATE,
    "KernelDeadlock": NodeLevel.SEPARATE,
    "ReadonlyFilesystem": NodeLevel.SEPARATE,
    "MemoryPressure": NodeLevel.SUB_HEALTH,
    "DiskPressure": NodeLevel.SUB_HEALTH,
    "PIDPressure": NodeLevel.SUB_HEALTH,
    "FrequentKubeletRestart": NodeLevel.SUB_HEALTH,
    "FrequentContainerdRestart": NodeLevel.SUB_HEALTH,
}
# They follow the Ready condition, which has its own fault.
_FOLLOWING: Final = frozenset({"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"})


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition of a node."""

    type: str
    status: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Taint:
    """One taint of a node."""

    key: str
    effect: str


@dataclass(frozen=True, slots=True)
class Complaint:
    """Something that is wrong with a node as a whole."""

    code: str
    level: NodeLevel
    reason: str


@dataclass(frozen=True, slots=True)
class NodeSight:
    """A node as Kubernetes shows it."""

    ip: str = ""
    serial: str = ""
    complaints: tuple[Complaint, ...] = ()
    missing: Mapping[str, int] = field(default_factory=dict)
    """Devices that the node has and does not offer, by resource."""
    offered: Mapping[str, int] = field(default_factory=dict)


GONE: Final = NodeSight(
    complaints=(Complaint("", NodeLevel.SEPARATE, "the node is not in the cluster any more"),)
)


def see_node(
    *,
    ip: str = "",
    annotations: Mapping[str, str],
    conditions: Iterable[Condition],
    taints: Iterable[Taint] = (),
    unschedulable: bool = False,
    capacity: Mapping[str, str],
    allocatable: Mapping[str, str],
) -> NodeSight:
    """Read a node; a kubelet that has not said anything yet is not ready, but not faulty either."""
    complaints = []
    for condition in conditions:
        if condition.type == "Ready":
            if condition.status != "True":
                why = condition.reason or "its Ready condition is " + condition.status
                complaints.append(Complaint("", NodeLevel.SEPARATE, f"the node is not ready: {why}"))
        elif condition.status == "True" and condition.type in _CONDITIONS:
            level = _CONDITIONS[condition.type]
            complaints.append(Complaint(condition.type, level, condition.reason or condition.type))
    for taint in taints:
        if taint.key == OUT_OF_SERVICE:
            complaints.append(
                Complaint(taint.key, NodeLevel.SEPARATE, "a person took the node out of service")
            )
        elif taint.effect == "NoExecute" and taint.key not in _FOLLOWING:
            complaints.append(Complaint(taint.key, NodeLevel.PRE_SEPARATE, "the node's taint evicts pods"))
    if unschedulable:
        complaints.append(Complaint(CORDONED, NodeLevel.PRE_SEPARATE, "the node is cordoned"))
    if annotations.get(NODE_HEALTH) == "UnHealthy":
        complaints.append(
            Complaint(NODE_HEALTH, NodeLevel.SEPARATE, "a stress test found the node unhealthy")
        )
    has, offers = _devices(capacity), _devices(allocatable)
    return NodeSight(
        ip,
        annotations.get(SERIAL, ""),
        tuple(sorted(set(complaints), key=lambda found: (found.code, found.level, found.reason))),
        {name: count - offers.get(name, 0) for name, count in has.items() if count > offers.get(name, 0)},
        offers,
    )


def _devices(amounts: Mapping[str, str]) -> dict[str, int]:
    return {
        name: int(text)
        for name, text in amounts.items()
        if name.startswith(DEVICE_VENDORS) and text.isascii() and text.isdecimal()
    }
