"""Faults that others report: by `SendPublicFault` or in a labelled ConfigMap, with the same rules for both.

Storage checks, network probes and, here, NVIDIA's XID errors come in through this door. A message is refused
as a whole where its head is wrong; a single fault that is wrong is left out with its reason, and the message
is refused where none is left.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any, Final, TypeVar

from taskd.core.faults.codes import CODE_LENGTH, PublicTable
from taskd.core.faults.levels import Level
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

E = TypeVar("E", bound=StrEnum)

KEY: Final = "PublicFault"
LABEL: Final = "mc-consumer-publicfault"
VERSION: Final = "1.0"
MAX_BYTES: Final = 1_000_000
MAX_FAULTS: Final = 100
MAX_INFLUENCE: Final = 1000
MAX_DEVICES: Final = 32
MAX_LOCATION: Final = 10
MAX_LOCATION_KEY: Final = 16
MAX_LOCATION_VALUE: Final = 128
MAX_DESCRIPTION: Final = 512
MAX_NODE_NAME: Final = 253
EARLIEST_MS: Final = 1_735_689_600_000
"""The beginning of 2025: an older stamp was not made by a clock that is set."""
LATEST_MS: Final = 9_999_999_999_999

_ID: Final = re.compile(r"[A-Za-z0-9._-]{8,128}")
_NODE: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_CONTROL: Final = re.compile(r"[\t\n\v\f\r]")


class Code(IntEnum):
    """What a sender is answered."""

    OK = 0
    PARAMETER = 409
    RATE = 410


class Assertion(StrEnum):
    """What a sender says of a fault."""

    OCCUR = "occur"
    RECOVER = "recover"
    ONCE = "once"


class PublicKind(StrEnum):
    """What the fault concerns."""

    NPU = "NPU"
    NODE = "Node"
    NETWORK = "Network"
    STORAGE = "Storage"


@dataclass(frozen=True, slots=True)
class PublicFault:
    """One fault of a message that is good."""

    resource: str
    fault_id: str
    kind: PublicKind
    code: str
    level: Level
    time: float
    assertion: Assertion
    influence: tuple[tuple[str, tuple[int, ...]], ...]
    """Nodes and the chips on them, sorted."""
    description: str = ""


@dataclass(frozen=True, slots=True)
class PublicReport:
    """A message that is used, and what of it is not."""

    faults: tuple[PublicFault, ...]
    left_out: tuple[str, ...] = ()
    stamp: float = 0.0
    """When it was sent."""


@dataclass(frozen=True, slots=True)
class PublicRefused:
    """A message that is not used: the code and the reason for the sender."""

    code: Code
    reason: str


def read_public_config_map(
    data: Mapping[str, str], table: PublicTable, serials: Mapping[str, str]
) -> PublicReport | PublicRefused:
    """The message in a labelled ConfigMap."""
    text = data.get(KEY)
    if text is None:
        return PublicRefused(Code.PARAMETER, f"the ConfigMap has no key {KEY}")
    if len(text.encode(errors="replace")) > MAX_BYTES:
        return PublicRefused(Code.PARAMETER, f"the message is longer than {MAX_BYTES} bytes")
    value = _decode(text)
    if isinstance(value, Refused):
        return PublicRefused(Code.PARAMETER, value.reason)
    return read_public(value, table, serials)


@reader
def _decode(text: str) -> Any:  # noqa: ANN401 - any JSON value
    return decode(text, KEY)


def read_public(
    value: object, table: PublicTable, serials: Mapping[str, str]
) -> PublicReport | PublicRefused:
    """A message with the fields of the request; `serials` has the node of each known serial number."""
    resource = value.get("resource") if isinstance(value, dict) else None
    if isinstance(resource, str) and resource not in table.resources:
        return PublicRefused(Code.RATE, f"limiter work by resource failed: {shown(resource)} is unknown")
    found = _message(value, table, serials)
    if isinstance(found, Refused):
        return PublicRefused(Code.PARAMETER, found.reason)
    return found


@reader
def _message(value: object, table: PublicTable, serials: Mapping[str, str]) -> PublicReport:
    message = as_object(value, "the message")
    _matches(_ID, message.get("id"), "id")
    sent_ms = _stamp(message.get("timestamp"), "timestamp")
    if message.get("version") != VERSION:
        raise Malformed(f"version is {shown(message.get('version'))}, not {VERSION!r}")
    resource = as_text(message.get("resource"), "resource")
    listed = as_list(message.get("faults"), "faults")
    if not 1 <= len(listed) <= MAX_FAULTS:
        raise Malformed(f"there are {len(listed)} faults, not 1 to {MAX_FAULTS}")
    good, bad = [], []
    for index, item in enumerate(listed):
        fault = _fault(item, resource, table, serials)
        if isinstance(fault, Refused):
            bad.append(f"faults[{index}]: {fault.reason}")
        else:
            good.append(fault)
    if not good:
        raise Malformed(f"no fault is valid; {bad[0]}")
    return PublicReport(tuple(good), tuple(bad), sent_ms / 1000)


@reader
def _fault(item: object, resource: str, table: PublicTable, serials: Mapping[str, str]) -> PublicFault:
    fault = as_object(item, "it")
    fault_id = _matches(_ID, fault.get("faultId"), "faultId")
    kind = _one_of(PublicKind, fault.get("faultType"), "faultType")
    code = as_text(fault.get("faultCode"), "faultCode")
    if len(code) != CODE_LENGTH or code not in table.levels:
        raise Malformed(f"faultCode {shown(code)} is not a configured code of {CODE_LENGTH} characters")
    time_ms = _stamp(fault.get("faultTime"), "faultTime")
    assertion = _one_of(Assertion, fault.get("assertion"), "assertion")
    _location(fault.get("faultLocation"))
    description = as_text(fault.get("description") or "", "description")
    if len(description) > MAX_DESCRIPTION or _CONTROL.search(description):
        raise Malformed(f"description is longer than {MAX_DESCRIPTION} or has line breaks or tabs")
    return PublicFault(
        resource,
        fault_id,
        kind,
        code,
        table.levels[code],
        time_ms / 1000,
        assertion,
        _influence(fault.get("influence"), serials),
        description,
    )


def _influence(value: object, serials: Mapping[str, str]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    listed = as_list(value, "influence")
    if not 1 <= len(listed) <= MAX_INFLUENCE:
        raise Malformed(f"influence has {len(listed)} entries, not 1 to {MAX_INFLUENCE}")
    found: dict[str, set[int]] = {}
    for item in listed:
        entry = as_object(item, "an entry of influence")
        node = as_text(entry.get("nodeName") or "", "nodeName")
        if node:
            if len(node) > MAX_NODE_NAME or not _NODE.fullmatch(node):
                raise Malformed(f"nodeName {shown(node)} is not the name of a node")
        else:
            serial = as_text(entry.get("nodeSN") or "", "nodeSN")
            if serial not in serials:
                raise Malformed(f"nodeSN {shown(serial)} is not known and nodeName is empty")
            node = serials[serial]
        ids = [
            as_int(number, "a device id", INT32) for number in as_list(entry.get("deviceIds"), "deviceIds")
        ]
        if not 1 <= len(ids) <= MAX_DEVICES or len(set(ids)) < len(ids):
            raise Malformed(f"deviceIds of {node} are not 1 to {MAX_DEVICES} different numbers")
        if not all(0 <= number < MAX_DEVICES for number in ids):
            raise Malformed(f"deviceIds of {node} are not between 0 and {MAX_DEVICES - 1}")
        found.setdefault(node, set()).update(ids)
    return tuple((node, tuple(sorted(found[node]))) for node in sorted(found))


def _location(value: object) -> None:
    if value is None:
        return
    location = as_object(value, "faultLocation")
    if len(location) > MAX_LOCATION:
        raise Malformed(f"faultLocation has {len(location)} entries, more than {MAX_LOCATION}")
    for key, place in location.items():
        if len(key) > MAX_LOCATION_KEY or len(as_text(place, "faultLocation")) > MAX_LOCATION_VALUE:
            raise Malformed(f"faultLocation {shown(key)} is too long")


def _matches(pattern: re.Pattern[str], value: object, what: str) -> str:
    text = as_text(value, what)
    if not pattern.fullmatch(text):
        raise Malformed(f"{what} is {shown(text)}, which is not 8 to 128 letters, digits, dots, - or _")
    return text


def _stamp(value: object, what: str) -> int:
    number = as_int(value, what)
    if not EARLIEST_MS <= number <= LATEST_MS:
        raise Malformed(f"{what} is {number}, not a time in milliseconds since 2025")
    return number


def _one_of(kind: type[E], value: object, what: str) -> E:
    try:
        return kind(as_text(value, what))
    except ValueError as error:
        words = ", ".join(member.value for member in kind)
        raise Malformed(f"{what} is {shown(value)}, not one of {words}") from error
