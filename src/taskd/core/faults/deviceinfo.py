"""`mindx-dl-deviceinfo-<node>`: what the device plugin of a node says of its chips and its bus switch.

The ConfigMap has three parts of which each may be good or bad on its own, so each is read on its own: a
broken switch part does not hide a chip's fault. The chips' part carries a check code over the payload as
the device plugin encoded it; without a right one it is refused as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from taskd.core.faults.codes import split_codes
from taskd.core.faults.levels import Level, SwitchLevel, read_level, read_switch_level
from taskd.core.faults.reading import (
    INT32,
    Malformed,
    Refused,
    as_int,
    as_list,
    as_object,
    as_text,
    decode,
    names,
    reader,
    verify,
)

PREFIX: Final = "mindx-dl-deviceinfo-"
CHIPS_KEY: Final = "DeviceInfoCfg"
SWITCH_KEY: Final = "SwitchInfoCfg"
SEPARATED_KEY: Final = "ManuallySeparateNPU"

FAULT: Final = "-Fault"
UNHEALTHY: Final = "-Unhealthy"
NETWORK: Final = "-NetworkUnhealthy"
RECOVERING: Final = "-Recovering"
_SUFFIXES: Final = (NETWORK, UNHEALTHY, RECOVERING, FAULT)
_MILLISECOND: Final = 1e-3
_RECOVERED: Final = 0


class FaultType(StrEnum):
    """What kind of trouble a chip has."""

    CARD = "CardUnhealthy"
    NETWORK = "CardNetworkUnhealthy"
    NODE = "NodeUnhealthy"
    PUBLIC = "PublicFault"


@dataclass(frozen=True, slots=True)
class ChipFault:
    """One code on one chip."""

    chip: int
    name: str
    kind: FaultType
    code: str
    level: Level
    time: float | None
    """When it began, by the clock of its node, in seconds; None where the report does not say."""


@dataclass(frozen=True, slots=True)
class Pool:
    """The chips of one resource, by name."""

    resource: str
    available: tuple[str, ...] = ()
    unhealthy: tuple[str, ...] = ()
    network: tuple[str, ...] = ()
    recovering: tuple[str, ...] = ()

    def everyone(self) -> tuple[str, ...]:
        """Every chip that is named, in the order of numbers."""
        found = {*self.available, *self.unhealthy, *self.network, *self.recovering}
        return tuple(sorted(found, key=chip_order))


@dataclass(frozen=True, slots=True)
class Chips:
    """The part about chips."""

    pools: tuple[Pool, ...] = ()
    faults: tuple[ChipFault, ...] = ()
    lists: Mapping[str, str] = field(default_factory=dict)
    """`DeviceList` as it came: what is published is this with our changes."""
    update_time: int = 0
    super_pod: int = -2
    rack: int = 0
    server_index: int = -2
    notes: tuple[str, ...] = ()
    """What was strange and did not matter enough to refuse it."""


@dataclass(frozen=True, slots=True)
class SwitchEntry:
    """One fault of the bus switch; `raw` is the text it came as."""

    raw: str
    code: str
    chip: str
    port: str
    level: SwitchLevel
    time: float | None
    raised: str

    @property
    def key(self) -> str:
        """The name that the map of times and levels has for it."""
        return f"{self.code}_{self.chip}_{self.port}"


@dataclass(frozen=True, slots=True)
class Switch:
    """The part about the bus switch."""

    entries: tuple[SwitchEntry, ...] = ()
    update_time: int = 0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """The ConfigMap: each part with what it says, or why it is refused, or None where it is not there."""

    chips: Chips | Refused | None = None
    switch: Switch | Refused | None = None
    separated: tuple[int, ...] | Refused | None = None


def read_device_info(data: Mapping[str, str]) -> DeviceInfo:
    """The content of the ConfigMap, part by part."""
    chips, switch, separated = data.get(CHIPS_KEY), data.get(SWITCH_KEY), data.get(SEPARATED_KEY)
    return DeviceInfo(
        None if chips is None else read_chips(chips),
        None if not switch else read_switch(switch),
        None if separated is None else read_separated(separated),
    )


def chip_number(name: str) -> int:
    """The number of a chip: 3 for `Ascend910-3`, and for a part of it such as `Ascend910-8c-101-3`."""
    _, dash, number = name.rpartition("-")
    if not dash or not (number.isascii() and number.isdecimal()) or len(number) > 4:  # noqa: PLR2004
        raise Malformed(f"{name[:80]!r} is not the name of a chip (a type, a dash and a number)")
    return int(number)


def chip_order(name: str) -> tuple[int, str]:
    """A key that sorts names of chips by number."""
    try:
        return chip_number(name), name
    except Malformed:
        return -1, name


@reader
def read_separated(text: str) -> tuple[int, ...]:
    """The chips that an operator or the device plugin's own counting keeps apart."""
    return tuple(sorted({chip_number(name) for name in names(text)}))


@reader
def read_chips(text: str) -> Chips:
    """The part about chips; its check code must be right."""
    outer = as_object(decode(text, CHIPS_KEY), CHIPS_KEY)
    info = as_object(outer.get("DeviceInfo"), "DeviceInfo")
    listed = info.get("DeviceList")
    lists = {} if listed is None else as_object(listed, "DeviceList")
    for key, value in lists.items():
        as_text(value, f"DeviceList {key}")
    update_time = as_int(info.get("UpdateTime", 0), "UpdateTime")
    payload = {
        "DeviceList": None if listed is None else {key: lists[key] for key in sorted(lists)},
        "UpdateTime": update_time,
    }
    verify(payload, outer.get("CheckCode"), "DeviceInfo")
    notes: list[str] = []
    faults: list[ChipFault] = []
    pools = []
    for resource in _resources(lists):
        pools.append(_pool(resource, lists))
        faults += _faults(lists.get(resource + FAULT, ""), notes)
    return Chips(
        tuple(pools),
        tuple(faults),
        dict(lists),
        update_time,
        as_int(outer.get("SuperPodID", -2), "SuperPodID", INT32),
        as_int(outer.get("RackID", 0), "RackID", INT32),
        as_int(outer.get("ServerIndex", -2), "ServerIndex", INT32),
        tuple(notes),
    )


def _resources(lists: Mapping[str, str]) -> list[str]:
    """The resources that the keys speak of."""
    found = set()
    for key in lists:
        suffix = next((suffix for suffix in _SUFFIXES if key.endswith(suffix)), "")
        found.add(key.removesuffix(suffix))
    return sorted(found)


def _pool(resource: str, lists: Mapping[str, str]) -> Pool:
    parts = [names(lists.get(resource + suffix, "")) for suffix in ("", UNHEALTHY, NETWORK, RECOVERING)]
    for part in parts:
        for name in part:
            chip_number(name)
    return Pool(resource, *parts)


def _faults(text: str, notes: list[str]) -> list[ChipFault]:
    if not text:
        return []
    found = []
    for item in as_list(decode(text, "the list of faults"), "the list of faults"):
        entry = as_object(item, "a fault")
        name = as_text(entry.get("npu_name"), "npu_name")
        chip = chip_number(name)
        kind = _kind(as_text(entry.get("fault_type", ""), "fault_type"), notes)
        times = entry.get("fault_time_and_level_map")
        times = {} if times is None else as_object(times, "fault_time_and_level_map")
        own = as_text(entry.get("fault_level") or entry.get("fault_handling") or "", "fault_level")
        codes = split_codes(as_text(entry.get("fault_code") or "", "fault_code"))
        if not codes and own not in {"", Level.NORMAL, Level.NORMAL_NETWORK}:
            codes = ("",)
        for code in codes:
            level, time = _level_and_time(times.get(code), own, f"{name} {code}", notes)
            found.append(ChipFault(chip, name, kind, code, level, time))
    return found


def _kind(text: str, notes: list[str]) -> FaultType:
    try:
        return FaultType(text)
    except ValueError:
        notes.append(f"fault_type {text[:80]!r} is not known and counts as {FaultType.CARD}")
        return FaultType.CARD


def _level_and_time(detail: object, own: str, what: str, notes: list[str]) -> tuple[Level, float | None]:
    text, time = own, None
    if detail is not None:
        fields = as_object(detail, f"time and level of {what}")
        text = as_text(fields.get("fault_level") or own, f"fault_level of {what}")
        time = seconds(fields.get("fault_time"), f"fault_time of {what}")
    level, known = read_level(text)
    if not known:
        notes.append(f"level {text[:80]!r} of {what} is not known and counts as {level}")
    return level, time


def seconds(value: Any, what: str) -> float | None:  # noqa: ANN401 - any JSON value
    """A time in milliseconds as seconds; None where there is none."""
    if value is None:
        return None
    number = as_int(value, what)
    return number * _MILLISECOND if number > 0 else None


@reader
def read_switch(text: str) -> Switch:
    """The part about the bus switch. It has no check code."""
    outer = as_object(decode(text, SWITCH_KEY), SWITCH_KEY)
    overall = as_text(outer.get("FaultLevel") or "", "FaultLevel")
    times = outer.get("FaultTimeAndLevelMap")
    times = {} if times is None else as_object(times, "FaultTimeAndLevelMap")
    notes: list[str] = []
    entries = []
    for item in as_list(outer.get("FaultCode"), "FaultCode"):
        raw = as_text(item, "an entry of FaultCode")
        entry = as_object(decode(raw, "an entry of FaultCode"), "an entry of FaultCode")
        if entry.get("Assertion") == _RECOVERED:
            continue
        code = as_text(entry.get("AssembledFaultCode"), "AssembledFaultCode")
        chip, port = (str(as_int(entry.get(key, 0), key)) for key in ("SwitchChipId", "SwitchPortId"))
        raised = entry.get("AlarmRaisedTime", 0)
        what = f"{code}_{chip}_{port}"
        detail = times.get(what)
        level_text, time = overall, seconds(raised, f"AlarmRaisedTime of {what}")
        if detail is not None:
            fields = as_object(detail, f"time and level of {what}")
            level_text = as_text(fields.get("fault_level") or overall, f"fault_level of {what}")
            time = seconds(fields.get("fault_time"), f"fault_time of {what}") or time
        level, known = read_switch_level(level_text)
        if not known:
            notes.append(
                f"level {level_text[:80]!r} of switch fault {what} is not known and counts as {level}"
            )
        entries.append(SwitchEntry(raw, code, chip, port, level, time, str(raised)))
    return Switch(tuple(entries), as_int(outer.get("UpdateTime", 0), "UpdateTime"), tuple(notes))
