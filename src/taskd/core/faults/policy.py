"""What people may set: which faults are silenced, which belong together, and when a chip is set apart.

Each is read from text that somebody edits by hand, so a bad edit keeps the last good one and says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from taskd.core.faults.codes import (
    CODE_LENGTH,
    DEVICE_CQE,
    HCCL_RETRY,
    HOST_CQE,
    LINK_DOWN,
    RESOURCES,
    SWITCH_LINK_DOWN,
    PublicTable,
    split_codes,
)
from taskd.core.faults.levels import Level, severity
from taskd.core.faults.reading import Malformed, as_int, as_list, as_object, as_text, decode, reader, shown

CONFIG_MAP: Final = "clusterd-config-cm"
SEPARATION_KEY: Final = "manually_separate_policy.conf"
PUBLIC_KEY: Final = "publicFaultConfiguration.json"
RELATION_KEY: Final = "relationFaultCustomization.json"
DURATION_KEY: Final = "faultDuration.json"
FILTER_CODE: Final = "huawei.com/schedule.filter.faultCode"
FILTER_LEVEL: Final = "huawei.com/schedule.filter.faultLevel"

HOUR_S: Final = 3600.0
FILTER_S: Final = 60.0
MAX_FILTER_S: Final = 86_400
NEVER: Final = -1
WINDOW_S: Final = 300.0


# ------------------------------------------------------------------------------------------- separation


@dataclass(frozen=True, slots=True)
class Separation:
    """When a chip whose faults come back is kept apart, and when it is let back."""

    enabled: bool = False
    window_s: float = 24 * HOUR_S
    threshold: int = 3
    release_s: float | None = 48 * HOUR_S
    """None: only a person lets it back."""


@reader
def read_separation(value: object) -> Separation:
    """The policy, from the value that the YAML text has. What is missing is false or zero, as in Go."""
    policy = as_object(value, SEPARATION_KEY)
    enabled = policy.get("enabled", False)
    if not isinstance(enabled, bool):
        raise Malformed(f"enabled is {shown(enabled)}, not true or false")
    separate = as_object(policy.get("separate") or {}, "separate")
    release = as_object(policy.get("release") or {}, "release")
    hours = _between(separate.get("fault_window_hours", 0), "separate.fault_window_hours", 1, 720)
    threshold = _between(separate.get("fault_threshold", 0), "separate.fault_threshold", 1, 50)
    free = as_int(release.get("fault_free_hours", 0), "release.fault_free_hours")
    if free != NEVER:
        _between(free, "release.fault_free_hours", 1, 240)
    return Separation(enabled, hours * HOUR_S, threshold, None if free == NEVER else free * HOUR_S)


def _between(value: object, what: str, low: int, high: int) -> int:
    number = as_int(value, what)
    if not low <= number <= high:
        raise Malformed(f"{what} is {number}, not between {low} and {high}")
    return number


# --------------------------------------------------------------------------------------- public codes

_LISTS: Final = {
    "NotHandleFaultCodes": Level.NOT_HANDLE,
    "SubHealthFaultCodes": Level.SUB_HEALTH,
    "PreSeparateNPUCodes": Level.PRE_SEPARATE,
    "SeparateNPUCodes": Level.SEPARATE,
}


@reader
def read_public_table(text: str) -> PublicTable:
    """`publicFaultConfiguration.json`: codes by level, and who may send. The worst list wins for a code."""
    outer = as_object(decode(text, PUBLIC_KEY), PUBLIC_KEY)
    lists = as_object(outer.get("publicFaultCode"), "publicFaultCode")
    levels: dict[str, Level] = {}
    for name, level in sorted(_LISTS.items(), key=lambda item: severity(item[1])):
        for item in as_list(lists.get(name), name):
            code = as_text(item, name)
            if len(code) != CODE_LENGTH:
                raise Malformed(f"{name} has {shown(code)}, which is not {CODE_LENGTH} characters long")
            levels[code] = level
    senders = outer.get("publicFaultResource")
    if senders is None:
        return PublicTable(levels, RESOURCES)
    return PublicTable(
        levels, frozenset(as_text(s, "publicFaultResource") for s in as_list(senders, PUBLIC_KEY))
    )


# ------------------------------------------------------------------------------------------- relations


class Strategy(StrEnum):
    """What faults that belong together mean for the pod on their node."""

    SUB_HEALTH = "SubHealth"
    SEPARATE = "Separate"


@dataclass(frozen=True, slots=True)
class Relation:
    """A trigger that gives faults of the network their meaning."""

    trigger: str
    related: frozenset[str]
    strategy: Strategy


@dataclass(frozen=True, slots=True)
class Relations:
    """All of them, and how long a fault waits for its trigger."""

    rules: tuple[Relation, ...] = (
        Relation("8C1F8609", frozenset({LINK_DOWN}), Strategy.SUB_HEALTH),
        Relation(HCCL_RETRY, frozenset({LINK_DOWN}), Strategy.SEPARATE),
        Relation(HCCL_RETRY, frozenset({SWITCH_LINK_DOWN}), Strategy.SEPARATE),
        Relation(DEVICE_CQE, frozenset({LINK_DOWN}), Strategy.SEPARATE),
        Relation(HOST_CQE, frozenset({LINK_DOWN}), Strategy.SEPARATE),
    )
    windows: Mapping[str, float] = field(
        default_factory=lambda: {LINK_DOWN: WINDOW_S, SWITCH_LINK_DOWN: WINDOW_S}
    )

    def is_related(self, code: str) -> bool:
        """Whether the code waits for a trigger."""
        return code in self.windows and any(code in rule.related for rule in self.rules)

    def is_trigger(self, code: str) -> bool:
        """Whether the code gives others their meaning."""
        return any(rule.trigger == code for rule in self.rules)

    def strategy(self, trigger: str, related: str) -> Strategy | None:
        """What the two together mean; the sterner rule where there are two."""
        found = [rule.strategy for rule in self.rules if rule.trigger == trigger and related in rule.related]
        return max(found, key=list(Strategy).index, default=None)

    @property
    def longest_s(self) -> float:
        """The longest that any fault waits."""
        return max(self.windows.values(), default=0.0)


@reader
def read_relations(text: str) -> tuple[Relation, ...]:
    """`relationFaultCustomization.json`."""
    rules = []
    for item in as_list(decode(text, RELATION_KEY), RELATION_KEY):
        rule = as_object(item, "a relation")
        trigger = as_text(rule.get("TriggerFault"), "TriggerFault")
        related = frozenset(
            as_text(code, "RelationFaults") for code in as_list(rule.get("RelationFaults"), "RelationFaults")
        )
        strategy = as_text(rule.get("FaultStrategy"), "FaultStrategy")
        if strategy not in set(Strategy) or not trigger or not related:
            raise Malformed(
                f"a relation needs a trigger, faults and Separate or SubHealth: {shown(dict(rule))}"
            )
        rules.append(Relation(trigger, related, Strategy(strategy)))
    return tuple(rules)


@reader
def read_windows(text: str) -> dict[str, float]:
    """`faultDuration.json`: how long each fault waits for its trigger."""
    windows = {}
    for item in as_list(decode(text, DURATION_KEY), DURATION_KEY):
        entry = as_object(item, "a duration")
        code = as_text(entry.get("FaultCode"), "FaultCode")
        windows[code] = float(_between(entry.get("TimeOutInterval"), "TimeOutInterval", 0, MAX_FILTER_S))
    return windows


# --------------------------------------------------------------------------------------------- filters


@dataclass(frozen=True, slots=True)
class Filters:
    """Faults that a job wants nobody to act on before they have lasted."""

    codes: Mapping[str, float] = field(default_factory=dict)
    levels: Mapping[str, float] = field(default_factory=dict)

    def patience_s(self, code: str, level: str) -> float:
        """How long the fault is left alone; its code goes before its level."""
        return self.codes.get(code, self.levels.get(level, 0.0))


def read_filters(
    annotations: Mapping[str, Any], *, inference: bool = False
) -> tuple[Filters, tuple[str, ...]]:
    """The job's filters, and a sentence on each entry that is not used."""
    notes: list[str] = []
    codes = _filter(str(annotations.get(FILTER_CODE, "")), FILTER_CODE, notes)
    levels = _filter(str(annotations.get(FILTER_LEVEL, "")), FILTER_LEVEL, notes)
    for name in [name for name in levels if name not in set(Level)]:
        notes.append(f"{FILTER_LEVEL}: {shown(name)} is not a level")
        del levels[name]
    if inference:
        # A server of an inference service gets a minute to finish what it was asked.
        levels.setdefault(Level.RESTART_REQUEST, FILTER_S)
    return Filters(codes, levels), tuple(notes)


def _filter(text: str, what: str, notes: list[str]) -> dict[str, float]:
    found = {}
    for entry in split_codes(text.replace("，", ",").replace("：", ":")):  # noqa: RUF001 - people type these
        name, colon, amount = entry.rpartition(":")
        if not colon or amount.endswith("]"):
            name, amount = entry, str(int(FILTER_S))
        name, amount = name.strip(), amount.strip()
        short = amount.isascii() and amount.isdecimal() and len(amount) <= len(str(MAX_FILTER_S))
        if name and short and int(amount) <= MAX_FILTER_S:
            found[name] = float(amount)
        else:
            notes.append(
                f"{what}: {shown(entry)} is not a name, or a name, a colon and up to {MAX_FILTER_S} s"
            )
    return found
