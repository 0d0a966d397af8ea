"""`mindx-dl-nodeinfo-<node>`: the faults of a node's hardware, told by the node daemon while it has any."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from taskd.core.faults.levels import Effect, NodeLevel, effect_of, read_node_level
from taskd.core.faults.reading import as_int, as_list, as_object, as_text, decode, reader, verify

PREFIX: Final = "mindx-dl-nodeinfo-"
KEY: Final = "NodeInfo"
HEALTHY: Final = "Healthy"
PRE_SEPARATE: Final = "PreSeparate"
UNHEALTHY: Final = "UnHealthy"


@dataclass(frozen=True, slots=True)
class HardwareFault:
    """One part of a node with its faults."""

    device_type: str
    device_id: int
    codes: tuple[str, ...]
    level: NodeLevel

    def payload(self) -> dict[str, Any]:
        """As it is written, in the order of the fields."""
        return {
            "DeviceType": self.device_type,
            "DeviceId": self.device_id,
            "FaultCode": list(self.codes),
            "FaultLevel": self.level.value,
        }


@dataclass(frozen=True, slots=True)
class Hardware:
    """The faults of a node's hardware."""

    faults: tuple[HardwareFault, ...] = ()
    notes: tuple[str, ...] = ()


def node_status(faults: tuple[HardwareFault, ...], *, in_use: bool) -> str:
    """How the node is called: set apart beforehand it still counts as healthy for those who are there."""
    effect = max((effect_of(fault.level) for fault in faults), default=Effect.NOTHING)
    if effect is Effect.FAULT:
        return UNHEALTHY
    if effect is Effect.PRE_SEPARATE:
        return HEALTHY if in_use else UNHEALTHY
    return HEALTHY


@reader
def read_node_info(data: Mapping[str, str]) -> Hardware:
    """The content of the ConfigMap; its check code must be right."""
    outer = as_object(decode(as_text(data.get(KEY), f"key {KEY}"), KEY), KEY)
    info = as_object(outer.get("NodeInfo"), "NodeInfo.NodeInfo")
    listed = info.get("FaultDevList")
    payload: list[dict[str, Any]] = []
    faults = []
    notes = []
    for item in as_list(listed, "FaultDevList"):
        entry = as_object(item, "an entry of FaultDevList")
        kind = as_text(entry.get("DeviceType", ""), "DeviceType")
        number = as_int(entry.get("DeviceId", 0), "DeviceId")
        raw_codes = entry.get("FaultCode")
        codes = [as_text(code, "a code of FaultCode") for code in as_list(raw_codes, "FaultCode")]
        text = as_text(entry.get("FaultLevel", ""), "FaultLevel")
        payload.append(
            {
                "DeviceType": kind,
                "DeviceId": number,
                "FaultCode": None if raw_codes is None else codes,
                "FaultLevel": text,
            }
        )
        level, known = read_node_level(text)
        if not known:
            notes.append(f"level {text[:80]!r} of {kind} {number} is not known and counts as {level}")
        faults.append(HardwareFault(kind, number, tuple(codes), level))
    status = as_text(info.get("NodeStatus", ""), "NodeStatus")
    whole = {"FaultDevList": None if listed is None else payload, "NodeStatus": status}
    verify(whole, outer.get("CheckCode"), "NodeInfo")
    return Hardware(tuple(faults), tuple(notes))
