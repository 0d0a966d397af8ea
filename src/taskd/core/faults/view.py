"""What the fault centre says of one job: which of its nodes, devices and ranks have a fault now.

These values are compared to know whether somebody has to be told, and they are what subscribers get. So
everything in them is sorted, and two histories that end in the same faults end in equal views.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Health(StrEnum):
    """How a device, a node or a job is; the words are those of the wire."""

    HEALTHY = "Healthy"
    SUB_HEALTHY = "SubHealthy"
    UNHEALTHY = "UnHealthy"


class FaultKind(StrEnum):
    """Which answer a rank's fault allows; the digits are those of the wire."""

    UCE = "0"
    """A memory error that a repeated step may repair."""
    NORMAL = "1"
    """The process, its device or its node cannot go on."""
    NETWORK = "2"
    """A collective that failed below; a repeated step may succeed."""


@dataclass(frozen=True, slots=True)
class SwitchFault:
    """One port of a node's bus switch."""

    code: str
    chip_id: str
    port_id: str
    time: str
    level: str


@dataclass(frozen=True, slots=True)
class DeviceFault:
    """All faults of one device, or of one part of a node; `device_id` is "-1" for the node as a whole.

    `levels[i]` is the level of `codes[i]` as it was reported. A fault without a code (a node that is not
    ready, a chip that an operator keeps apart) has an entry here and nothing in these two.
    """

    device_id: str
    device_type: str
    codes: tuple[str, ...]
    levels: tuple[str, ...]
    health: Health
    kinds: tuple[str, ...]
    reasons: tuple[str, ...]
    switches: tuple[SwitchFault, ...]


@dataclass(frozen=True, slots=True)
class NodeFaults:
    """A node of the job that has faults."""

    node: str
    ip: str
    serial: str
    health: Health
    devices: tuple[DeviceFault, ...]


@dataclass(frozen=True, slots=True)
class RankFault:
    """A fault that concerns one rank and asks for an answer."""

    rank: int
    kind: FaultKind
    level: str
    code: str


@dataclass(frozen=True, slots=True)
class JobFaults:
    """All faults of one job: nodes by address, devices by number, ranks by number."""

    job_id: str
    health: Health
    nodes: tuple[NodeFaults, ...]
    ranks: tuple[RankFault, ...]
