"""All faults of one node, from whatever source, in one form.

Composite reports ("A,B" on one chip) were split when they were read. Here each fault gets the moment it
began: what its report says, but never later than now, so a node whose clock is ahead cannot make a fault look
young for ever; the first sighting where the report says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from taskd.core.faults.deviceinfo import FaultType, chip_number
from taskd.core.faults.levels import Level, severity
from taskd.core.faults.nodesight import UNPLUGGED
from taskd.core.faults.places import WHOLE
from taskd.core.faults.public import PublicKind
from taskd.core.faults.state import Fault, FaultKey, NodeRecord
from taskd.core.faults.view import SwitchFault

SWITCH: Final = "Switch"
HARDWARE: Final = "Hardware"
KUBERNETES: Final = "Kubernetes"
NPU: Final = "NPU"
GPU: Final = "GPU"
NODE: Final = "Node"
NVIDIA: Final = "nvidia"
_NORMAL: Final = frozenset({Level.NORMAL, Level.NORMAL_NETWORK})


def collect(
    record: NodeRecord, used: Mapping[str, int], now: float
) -> tuple[list[Fault], dict[FaultKey, tuple[float | None, float]]]:
    """The node's faults with their beginnings, and what to remember of them.

    `used` says how many devices of each resource the pods there have.
    """
    found: dict[FaultKey, Fault] = {}
    seen: dict[FaultKey, tuple[float | None, float]] = {}
    for fault in _all(record, used):
        known = record.seen.get(fault.key)
        if known is not None and known[0] == fault.stamp:
            began = known[1]
        else:
            began = now if fault.stamp is None else min(fault.stamp, now)
        seen[fault.key] = fault.stamp, began
        other = found.get(fault.key)
        if other is None or severity(fault.level) > severity(other.level):
            found[fault.key] = replace(fault, began=began)
    return list(found.values()), seen


def _all(record: NodeRecord, used: Mapping[str, int]) -> Iterator[Fault]:
    yield from _chips(record)
    yield from _separated(record)
    yield from _switch(record)
    yield from _hardware(record)
    yield from _public(record)
    yield from _kubernetes(record, used)


def _chips(record: NodeRecord) -> Iterator[Fault]:
    if record.chips is None:
        return
    listed = {name for pool in record.chips.pools for name in (*pool.unhealthy, *pool.network)}
    explained = set(record.separated) | {chip for chip, _ in record.manual}
    for fault in record.chips.faults:
        explained.add(fault.chip)
        if fault.level not in _NORMAL:
            yield Fault(
                fault.kind.value,
                NPU,
                str(fault.chip),
                fault.chip,
                fault.code,
                fault.level,
                fault.time,
                name=fault.name,
                listed=fault.name in listed,
            )
    for pool in record.chips.pools:
        for name in pool.unhealthy:
            chip = chip_number(name)
            if chip not in explained:
                why = "the device plugin calls it unhealthy and does not say why"
                yield Fault(
                    FaultType.CARD, NPU, str(chip), chip, "", Level.SEPARATE, None, reason=why, name=name
                )


def _separated(record: NodeRecord) -> Iterator[Fault]:
    """Chips kept apart, by the device plugin's counting or by ours; released each on its own."""
    kept: dict[int, str] = dict.fromkeys(record.separated, "the device plugin keeps it apart")
    for chip, code in record.manual:
        kept[chip] = f"{code} came back too often; it is kept apart"
    for chip, why in kept.items():
        yield Fault(FaultType.CARD, NPU, str(chip), chip, "", Level.MANUALLY_SEPARATE, None, reason=why)


def _switch(record: NodeRecord) -> Iterator[Fault]:
    if record.switch is None:
        return
    for entry in record.switch.entries:
        time = entry.raised if entry.time is None else str(round(entry.time * 1000))
        shown = SwitchFault(entry.code, entry.chip, entry.port, time, entry.level.value)
        yield Fault(
            SWITCH, SWITCH, "-1", WHOLE, entry.code, entry.level, entry.time, name=entry.key, switch=shown
        )


def _hardware(record: NodeRecord) -> Iterator[Fault]:
    if record.hardware is None:
        return
    for fault in record.hardware.faults:
        for code in fault.codes or ("",):
            device = str(fault.device_id)
            yield Fault(HARDWARE, fault.device_type or NODE, device, WHOLE, code, fault.level, None)


def _public(record: NodeRecord) -> Iterator[Fault]:
    for (resource, fault_id), held in record.public.items():
        fault = held.fault
        kind = GPU if resource == NVIDIA and fault.kind is PublicKind.NPU else fault.kind.value
        for chip in held.chips:
            yield Fault(
                FaultType.PUBLIC,
                kind,
                str(chip),
                chip,
                fault.code,
                fault.level,
                fault.time,
                reason=fault.description,
                name=f"{resource}/{fault_id}/{chip}",
            )


def _kubernetes(record: NodeRecord, used: Mapping[str, int]) -> Iterator[Fault]:
    if record.sight is None:
        return
    for found in record.sight.complaints:
        yield Fault(KUBERNETES, NODE, "-1", WHOLE, found.code, found.level, None, reason=found.reason)
    told = {pool.resource for pool in record.chips.pools} if record.chips else set()
    for resource, count in record.sight.missing.items():
        if resource in told:
            continue  # the device plugin says itself which chips they are
        kind = GPU if resource.startswith("nvidia.com/") else NPU
        # With fewer on offer than pods hold, one of those in use is broken; otherwise an idle one.
        broken = used.get(resource, 0) > record.sight.offered.get(resource, 0)
        level = Level.SEPARATE if broken else Level.PRE_SEPARATE
        why = f"{count} of {resource} not offered by the device plugin"
        yield Fault(KUBERNETES, kind, "-1", WHOLE, UNPLUGGED, level, None, reason=why, name=resource)
