"""ConfigMaps in which the fault centre keeps what must outlive it: public faults and chips kept apart.

Both are read by people, who may delete entries of the second.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from taskd.core.faults.codes import PublicTable
from taskd.core.faults.deviceinfo import chip_number
from taskd.core.faults.levels import Level, read_level
from taskd.core.faults.public import Assertion, PublicFault, PublicKind
from taskd.core.faults.reading import (
    INT32,
    Malformed,
    Refused,
    as_int,
    as_list,
    as_object,
    as_text,
    decode,
    reader,
    shown,
)
from taskd.core.faults.state import HeldPublic, PublicKey, Separated, SeparatedKey, State, separations
from taskd.core.gojson import compact

STATISTIC_CM: Final = "statistic-fault-info"
STATISTIC_LABEL: Final = "mc-statistic-fault"
MANUAL_CM: Final = "clusterd-manual-info-cm"
MOST_DETAILED: Final = 4500


# -------------------------------------------------------------------------------------------- public faults


def statistic(state: State) -> dict[str, str]:
    """The data of `statistic-fault-info`: every public fault by node, unless there are too many for it."""
    count = sum(len(record.public) for record in state.nodes.values())
    data = {"FaultNum": compact({"publicFaultNum": count})}
    if count > MOST_DETAILED:
        data["Description"] = f"there are more than {MOST_DETAILED} public faults, so they are not listed"
        data["PublicFaults"] = "{}"
        return data
    nodes = {
        name: [_public(key, state.nodes[name].public[key]) for key in sorted(state.nodes[name].public)]
        for name in sorted(state.nodes)
        if state.nodes[name].public
    }
    data["PublicFaults"] = compact(nodes)
    return data


def _public(key: PublicKey, held: HeldPublic) -> dict[str, Any]:
    resource, fault_id = key
    return {
        "resource": resource,
        "devIds": list(held.chips),
        "faultId": fault_id,
        "type": held.fault.kind.value,
        "faultCode": held.fault.code,
        "level": held.fault.level.value,
        "faultTime": int(held.fault.time),
    }


def read_statistic(
    data: Mapping[str, str], table: PublicTable, now: float
) -> tuple[dict[str, dict[PublicKey, HeldPublic]], tuple[str, ...]]:
    """The public faults that were kept, and a sentence on each entry that is not used."""
    outer = _nodes(data.get("PublicFaults") or "{}")
    if isinstance(outer, Refused):
        return {}, (outer.reason,)
    found: dict[str, dict[PublicKey, HeldPublic]] = {}
    notes = []
    for node, listed in outer.items():
        for item in listed if isinstance(listed, list) else [listed]:
            read = _kept_public(item, node, table, now)
            if isinstance(read, Refused):
                notes.append(f"{node}: {read.reason}")
            else:
                found.setdefault(node, {})[read.fault.resource, read.fault.fault_id] = read
    return found, tuple(notes)


@reader
def _nodes(text: str) -> Mapping[str, Any]:
    return as_object(decode(text, "PublicFaults"), "PublicFaults")


@reader
def _kept_public(item: object, node: str, table: PublicTable, now: float) -> HeldPublic:
    entry = as_object(item, "a public fault")
    code = as_text(entry.get("faultCode"), "faultCode")
    kind = as_text(entry.get("type"), "type")
    chips = tuple(sorted(as_int(chip, "devIds", INT32) for chip in as_list(entry.get("devIds"), "devIds")))
    if not chips or chips[0] < 0:
        raise Malformed(f"devIds is {shown(chips)}, not one number of a chip or more")
    # What the table says now goes before what it said then.
    level = table.levels.get(code) or read_level(as_text(entry.get("level"), "level"))[0]
    fault = PublicFault(
        as_text(entry.get("resource"), "resource"),
        as_text(entry.get("faultId"), "faultId"),
        PublicKind(kind) if kind in set(PublicKind) else PublicKind.NPU,
        code,
        level,
        float(as_int(entry.get("faultTime"), "faultTime")),
        Assertion.OCCUR,
        ((node, chips),),
    )
    return HeldPublic(fault, chips, now)


# ---------------------------------------------------------------------------------------- chips kept apart


def manual_info(state: State) -> dict[str, str]:
    """The data of `clusterd-manual-info-cm`: a key for each node; empty where no chip is kept apart."""
    nodes: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for (node, chip, code), kept in sorted(separations(state).items()):
        entry = {
            "FaultCode": code,
            "FaultLevel": Level.MANUALLY_SEPARATE.value,
            "LastSeparateTime": round(kept.since * 1000),
        }
        nodes.setdefault(node, {}).setdefault(kept.name or f"npu-{chip}", []).append(entry)
    return {
        node: compact({"Total": list(chips), "Detail": {name: chips[name] for name in sorted(chips)}})
        for node, chips in nodes.items()
    }


def read_manual_info(
    data: Mapping[str, str],
) -> tuple[dict[SeparatedKey, Separated], dict[str, str]]:
    """The chips that are kept apart, and the nodes whose entry cannot be read, with the reason.

    A chip counts if both parts have it: a person may let it back by deleting it from either.
    """
    found: dict[SeparatedKey, Separated] = {}
    broken = {}
    for node, text in data.items():
        read = _manual_node(text)
        if isinstance(read, Refused):
            broken[node] = read.reason
            continue
        for (chip, code), kept in read.items():
            found[node, chip, code] = kept
    return found, broken


@reader
def _manual_node(text: str) -> dict[tuple[int, str], Separated]:
    outer = as_object(decode(text, "the entry"), "the entry")
    total = {as_text(name, "Total") for name in as_list(outer.get("Total"), "Total")}
    found = {}
    for name, listed in as_object(outer.get("Detail") or {}, "Detail").items():
        chip = chip_number(name)
        for item in as_list(listed, name):
            entry = as_object(item, name)
            code = as_text(entry.get("FaultCode"), "FaultCode")
            since = as_int(entry.get("LastSeparateTime"), "LastSeparateTime") / 1000
            if name in total:
                found[chip, code] = Separated(name, Level.MANUALLY_SEPARATE, since)
    return found
