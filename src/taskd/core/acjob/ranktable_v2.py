"""Rank table 2.0: one entry per device, with its addresses on each layer of the network.

Layers 0 and 1 are inside a super pod. Between super pods a job uses one kind of port: layer 3 with RoCE,
layer 2 with UBOE or UBG. The label `scaleout-type` chooses; without it, the first kind that a device has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from taskd.core.acjob import names
from taskd.core.acjob.job import Job, Json, mapping
from taskd.core.acjob.rankinput import NotReady, Server, text_of
from taskd.core.acjob.ranktable_v1 import COMPLETED

ROCE: Final = "ROCE"
UBOE: Final = "UBOE"
UBG: Final = "UBG"
_LAYER_OF: Final[Mapping[str, int]] = {UBOE: 2, UBG: 2, ROCE: 3}
_INNER: Final = (0, 1)
_Levels = Mapping[int, Json]


def flat(job: Job, servers: tuple[Server, ...]) -> dict[str, Any]:
    """Table 2.0."""
    label = job.labels.get(names.SCALEOUT_TYPE, "").strip().upper()
    if label not in {"", ROCE, UBOE}:
        raise NotReady(f"label {names.SCALEOUT_TYPE} is {label!r}; it should be ROCE or UBOE")
    ranks = []
    for server in servers:
        for rank, device in enumerate(server.devices, start=server.first_rank):
            number = text_of(device, "device_id")
            if not number.isdecimal():
                raise NotReady(f"pod {server.pod.name}: device id {number!r} is not a number")
            ranks.append(
                {
                    "rank_id": rank,
                    "local_id": int(number),
                    "device_id": int(number),
                    "level_list": _level_list(_levels(device), label),
                }
            )
    return {"status": COMPLETED, "version": "2.0", "rank_list": ranks, "rank_count": len(ranks)}


def _levels(device: Json) -> _Levels:
    """The device's networks by layer: name of the kind to its addresses."""
    listed = device.get("levelList")
    found: dict[int, Json] = {}
    for entry in listed if isinstance(listed, list) else ():
        level = text_of(mapping(entry), "level")
        if level.isdecimal():
            found[int(level)] = mapping(mapping(entry).get("info"))
    return found


def _level_list(levels: _Levels, label: str) -> list[dict[str, Any]]:
    inner = [_element(layer, levels[layer], None) for layer in _INNER if levels.get(layer)]
    port = _port_type(levels, label)
    if not port:
        return inner
    layer = _LAYER_OF[port]
    return [*inner, _element(layer, levels.get(layer, {}), port)]


def _port_type(levels: _Levels, label: str) -> str:
    if label == ROCE:
        return ROCE
    if label == UBOE:
        return UBOE if UBOE in levels.get(2, {}) or UBG not in levels.get(2, {}) else UBG
    present = (kind for kind, layer in _LAYER_OF.items() if kind in levels.get(layer, {}))
    return min(present, key=(ROCE, UBOE, UBG).index, default="")


def _element(layer: int, info: Json, kind: str | None) -> dict[str, Any]:
    """The addresses on one layer; an empty description where the device has none of that kind."""
    chosen = kind if kind is not None else min(info)
    return {
        "net_layer": layer,
        "net_instance_id": "CLUSTER1",
        "net_type": "CLOS",
        "net_attr": "",
        "rank_addr_list": [],
        **mapping(info.get(chosen)),
    }
