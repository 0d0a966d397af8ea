"""`cluster-info-…`: what the scheduler learns of chips, switches and nodes.

Each node has one entry. Device and switch entries are spread over several ConfigMaps, none above 800 KiB. A
node stays in the one it is in for as long as there is room, so a change of one node changes one ConfigMap;
the reference deals them out anew each time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from taskd.core.faults import deviceinfo, nodeinfo
from taskd.core.faults.codes import PARAMETER_PLANE
from taskd.core.faults.collecting import SWITCH
from taskd.core.faults.deviceinfo import FaultType, chip_number, chip_order
from taskd.core.faults.levels import Effect, Level, SwitchLevel, effect_of, severity, worst
from taskd.core.faults.state import Fault, NodeRecord
from taskd.core.gojson import compact

DEVICE_CM: Final = "cluster-info-device-"
SWITCH_CM: Final = "cluster-info-switch-"
NODE_CM: Final = "cluster-info-node-cm"
SWITCH_PREFIX: Final = "mindx-dl-switchinfo-"
LIMIT_BYTES: Final = 800 * 1024

_NETWORK: Final = FaultType.NETWORK
_LISTED: Final = frozenset({FaultType.CARD, FaultType.PUBLIC, FaultType.NETWORK, FaultType.NODE})


# -------------------------------------------------------------------------------------------------- chips


def device_entry(record: NodeRecord, used: frozenset[int] | None) -> dict[str, Any] | None:
    """The entry of a node's chips; None where its device plugin has said nothing.

    `used` are the chips that jobs have; None means that it is not known and may be any of them.
    """
    chips = record.chips
    if chips is None:
        return None
    faults = [fault for fault in record.faults if fault.kind in _LISTED and fault.chip >= 0]
    shown = [fault for fault in faults if not fault.hidden]
    hidden = {fault.chip for fault in faults if fault.hidden}
    lists = dict(chips.lists)
    for number, pool in enumerate(chips.pools):
        names = {chip_number(name): name for name in pool.everyone()}
        if number == 0:
            # A chip that the device plugin's lists leave out altogether is still called by its fault.
            names |= {
                fault.chip: fault.name
                for fault in faults
                if fault.kind is not FaultType.PUBLIC and fault.name
            }
        mine = [fault for fault in shown if fault.chip in names]
        sick = _unhealthy([fault for fault in mine if fault.kind != _NETWORK], used)
        cut = _unhealthy([fault for fault in mine if fault.kind == _NETWORK], used)
        taken = {fault.chip for fault in mine if fault.effect in {Effect.FAULT, Effect.PRE_SEPARATE}}
        spared = (hidden | _spared(mine, used)) - sick - cut
        lists[pool.resource] = _join(names, {chip_number(n) for n in pool.available} - taken - sick - cut)
        lists[pool.resource + deviceinfo.UNHEALTHY] = _join(
            names, {chip_number(n) for n in pool.unhealthy} - spared | sick
        )
        lists[pool.resource + deviceinfo.NETWORK] = _join(
            names, {chip_number(n) for n in pool.network} - spared | cut
        )
        lists[pool.resource + deviceinfo.FAULT] = compact(_merged(mine, names))
    return {
        "DeviceList": {key: lists[key] for key in sorted(lists)},
        "UpdateTime": chips.update_time,
        "CmName": deviceinfo.PREFIX + record.name,
        "SuperPodID": chips.super_pod,
        "RackID": chips.rack,
        "ServerIndex": chips.server_index,
    }


def _unhealthy(faults: list[Fault], used: frozenset[int] | None) -> set[int]:
    """Chips that pods may not stay on; one to be set apart beforehand only while nobody has it."""
    found = {fault.chip for fault in faults if fault.effect is Effect.FAULT}
    for fault in faults:
        idle = used is not None and fault.chip not in used
        if fault.effect is Effect.PRE_SEPARATE and idle and fault.code not in PARAMETER_PLANE:
            found.add(fault.chip)
    return found


def _spared(faults: list[Fault], used: frozenset[int] | None) -> set[int]:
    """Chips that are to be set apart and are in use: the pod that has them stays."""
    return {
        fault.chip
        for fault in faults
        if fault.effect is Effect.PRE_SEPARATE and (used is None or fault.chip in used)
    }


def _join(names: Mapping[int, str], chips: Iterable[int]) -> str:
    return ",".join(sorted((names[chip] for chip in set(chips)), key=chip_order))


def _merged(faults: list[Fault], names: Mapping[int, str]) -> list[dict[str, Any]]:
    """One entry for each chip and kind of fault: all its codes, and the worst of their levels."""
    groups: dict[tuple[int, str], list[Fault]] = {}
    for fault in faults:
        groups.setdefault((fault.chip, str(fault.kind)), []).append(fault)
    merged = []
    for (chip, kind), group in sorted(groups.items()):
        levels: dict[str, tuple[Level, float]] = {}
        for fault in group:
            if fault.code and isinstance(fault.level, Level) and fault.level is not Level.MANUALLY_SEPARATE:
                known = levels.get(fault.code)
                if known is None or severity(fault.level) > severity(known[0]):
                    levels[fault.code] = fault.level, fault.began
        level = worst([fault.level for fault in group if isinstance(fault.level, Level)]).value
        merged.append(
            {
                "fault_type": kind,
                "npu_name": names[chip],
                "large_model_fault_level": level,
                "fault_level": level,
                "fault_handling": level,
                "fault_code": ",".join(sorted(levels)),
                "fault_time_and_level_map": {
                    code: {"fault_time": round(levels[code][1] * 1000), "fault_level": levels[code][0].value}
                    for code in sorted(levels)
                },
            }
        )
    return merged


# ----------------------------------------------------------------------------------------- switches, nodes


def switch_entry(record: NodeRecord, *, in_use: bool) -> dict[str, Any] | None:
    """The entry of a node's bus switch; None where nothing is reported."""
    if record.switch is None:
        return None
    hidden = {fault.name for fault in record.faults if fault.kind == SWITCH and fault.hidden}
    entries = [entry for entry in record.switch.entries if entry.key not in hidden]
    level = max((entry.level for entry in entries), key=severity, default=None)
    times = {
        entry.key: {"fault_time": round((entry.time or 0) * 1000), "fault_level": entry.level.value}
        for entry in entries
    }
    return {
        "FaultCode": [entry.raw for entry in entries],
        "FaultLevel": level.value if level else "",
        "UpdateTime": record.switch.update_time,
        "NodeStatus": _switch_status(level, in_use=in_use),
        "FaultTimeAndLevelMap": {key: times[key] for key in sorted(times)},
        "CmName": SWITCH_PREFIX + record.name,
    }


def _switch_status(level: SwitchLevel | None, *, in_use: bool) -> str:
    match effect_of(level) if level else Effect.NOTHING:
        case Effect.FAULT:
            return "UnHealthy"
        case Effect.SUB_HEALTH:
            return "SubHealthy"
        case Effect.PRE_SEPARATE:
            return "Healthy" if in_use else "UnHealthy"
        case _:
            return "Healthy"


def node_entry(record: NodeRecord, *, in_use: bool, stamp: float) -> dict[str, Any] | None:
    """The entry of a node's hardware, which exists only while something is wrong with it."""
    if record.hardware is None:
        return None
    faults = record.hardware.faults
    return {
        "FaultDevList": [fault.payload() for fault in faults],
        "NodeStatus": nodeinfo.node_status(faults, in_use=in_use),
        "CmName": nodeinfo.PREFIX + record.name,
        "UpdateTime": round(stamp * 1000),
    }


# ----------------------------------------------------------------------------------------------- spreading


def spread(sizes: Mapping[str, int], before: Mapping[str, int], limit: int = LIMIT_BYTES) -> dict[str, int]:
    """Which ConfigMap each entry goes to: the one it is in, while there is room, else the first with room."""
    room: dict[int, int] = {}
    placed: dict[str, int] = {}
    homeless = []
    # The small ones first: where one has grown too large, it goes and not its neighbours.
    for name in sorted(sizes, key=lambda name: (sizes[name], name)):
        home = before.get(name)
        if home is not None and room.get(home, limit) >= sizes[name]:
            room[home] = room.get(home, limit) - sizes[name]
            placed[name] = home
        else:
            homeless.append(name)
    for name in sorted(homeless):
        number = 0
        # An entry that is too large for any has one of its own, and the API server has the last word.
        while room.get(number, limit) < min(sizes[name], limit):
            number += 1
        room[number] = room.get(number, limit) - sizes[name]
        placed[name] = number
    return placed


def gather(entries: Mapping[str, str]) -> str:
    """The value of a ConfigMap from the texts of its entries; empty where there are none."""
    if not entries:
        return ""
    return "{" + ",".join(f"{compact(name)}:{entries[name]}" for name in sorted(entries)) + "}"


def gather_within(
    entries: Mapping[str, str], urgent: Iterable[str], limit: int = LIMIT_BYTES
) -> tuple[str, int]:
    """As `gather`, for the one that cannot be split: entries that matter first, and how many had no room."""
    wanted = set(urgent)
    kept: dict[str, str] = {}
    size = 2
    for name in sorted(entries, key=lambda name: (name not in wanted, name)):
        more = len(entries[name].encode()) + len(name.encode()) + 4
        if size + more <= limit:
            kept[name] = entries[name]
            size += more
    return gather(kept), len(entries) - len(kept)
