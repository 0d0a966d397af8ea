"""Where a job's processes are: its pods, their chips and ranks, and what the job wants done about faults.

A chip is a number on its node. Ascend's scheduler writes the numbers onto the pod; for other devices a pod
may say them in `taskd.io/devices`, and where nobody says, a fault of any device there is taken as one of
the whole pod: too many ranks are named rather than too few.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from taskd.core.acjob.names import DEVICES_910, DEVICES_NPU
from taskd.core.faults.deviceinfo import chip_number
from taskd.core.faults.policy import Filters
from taskd.core.faults.reading import Malformed, as_list, as_object, as_text, decode, names, reader, shown

REAL: Final = "huawei.com/AscendReal"
DEVICES: Final = "taskd.io/devices"
WHOLE: Final = -1
"""Stands for the node as a whole where the number of a chip is asked for."""


@dataclass(frozen=True, slots=True)
class PodDevice:
    """One device of a pod, as device plugin and scheduler wrote it."""

    chip: int
    ip: str = ""
    super_device: str = ""
    levels: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class PodDevices:
    """The devices of a pod in the order of its ranks."""

    devices: tuple[PodDevice, ...]
    server_id: str = ""
    host_ip: str = ""
    super_pod: int = 0

    @property
    def chips(self) -> tuple[int, ...]:
        """Their numbers."""
        return tuple(device.chip for device in self.devices)


@reader
def read_pod_devices(annotations: Mapping[str, str]) -> PodDevices:
    """What the annotations say; no devices where they say nothing."""
    text = annotations.get(DEVICES_910) or annotations.get(DEVICES_NPU)
    if text:
        content = as_object(decode(text, "the annotation with devices"), "the annotation with devices")
        listed = as_list(content.get("devices"), "devices")
        return PodDevices(
            tuple(_device(item) for item in listed),
            _text(content, "server_id"),
            _text(content, "host_ip"),
            _super_pod(content.get("super_pod_id")),
        )
    if real := annotations.get(REAL):
        return PodDevices(tuple(PodDevice(chip) for chip in sorted({chip_number(n) for n in names(real)})))
    return PodDevices(
        tuple(PodDevice(_number(part, DEVICES)) for part in names(annotations.get(DEVICES, "")))
    )


def _device(item: object) -> PodDevice:
    device = as_object(item, "a device")
    levels = device.get("levelList")
    return PodDevice(
        _number(_text(device, "device_id"), "device_id"),
        _text(device, "device_ip"),
        _text(device, "super_device_id"),
        tuple(as_list(levels, "levelList")),
    )


def _number(text: str, what: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 4):  # noqa: PLR2004
        raise Malformed(f"{what} is {shown(text)}, not the number of a device")
    return int(text)


def _text(content: Mapping[str, Any], name: str) -> str:
    value = content.get(name)
    if value is None:
        return ""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else as_text(value, name)


def _super_pod(value: object) -> int:
    text = str(value)
    return int(text) if text.isascii() and text.removeprefix("-").isdecimal() and len(text) < 10 else 0  # noqa: PLR2004


@dataclass(frozen=True, slots=True)
class PodPlace:
    """A pod of a job that runs."""

    name: str
    uid: str
    node: str
    node_rank: int
    first_rank: int
    processes: int
    chips: tuple[int, ...] = ()
    """In the order of ranks; empty where they are not known."""
    resource: str = ""

    def has(self, chip: int) -> bool:
        """Whether a fault of that chip may concern the pod."""
        return chip == WHOLE or not self.chips or chip in self.chips

    def ranks(self, chip: int) -> tuple[int, ...]:
        """The ranks that a fault of that chip concerns."""
        everyone = tuple(range(self.first_rank, self.first_rank + self.processes))
        if chip == WHOLE or not self.chips:
            return everyone
        if chip not in self.chips:
            return ()
        if len(self.chips) != self.processes:
            return everyone
        return (self.first_rank + self.chips.index(chip),)


@dataclass(frozen=True, slots=True)
class JobSight:
    """A job as far as faults are concerned."""

    job_id: str
    pods: tuple[PodPlace, ...] = ()
    retry: bool = False
    """It may repeat a step after a memory or network error."""
    in_place: bool = False
    """It may restart single processes where they are."""
    ignores_sub_health: bool = True
    filters: Filters = field(default_factory=Filters)
    super_pod: bool = False
    by_node: Mapping[str, tuple[PodPlace, ...]] = field(init=False, compare=False, repr=False)
    """Its pods by node: a job may have thousands, and every rule asks for those of one."""

    def __post_init__(self) -> None:
        found: dict[str, tuple[PodPlace, ...]] = {}
        for pod in self.pods:
            found[pod.node] = (*found.get(pod.node, ()), pod)
        object.__setattr__(self, "by_node", found)

    @property
    def nodes(self) -> frozenset[str]:
        """Where its pods are."""
        return frozenset(self.by_node)

    def on(self, node: str) -> tuple[PodPlace, ...]:
        """Its pods on that node."""
        return self.by_node.get(node, ())

    def differs_on(self, other: JobSight) -> frozenset[str]:
        """The nodes for which it matters that the job was `other` before and is this now."""
        if replace(self, pods=()) != replace(other, pods=()):
            return self.nodes | other.nodes
        return frozenset(pod.node for pod in set(self.pods) ^ set(other.pods))
