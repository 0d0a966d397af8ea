"""What a job allows: its labels and annotations, read once into values, with every mistake in words.

The reference drops what it does not know and does not trim blanks, so `retry, recover` loses a strategy in
silence. Here a mistake stays visible, and what was understood is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeVar

from taskd.core.plane.names import PAUSE, RECOVER_SWITCH, Strategy

RESCHEDULE_RANGE_S: Final = (30, 270)
FRAMEWORKS: Final = ("pytorch", "mindspore")
_RECOVER_STRATEGY: Final = "recover-strategy"
_FAULT_SCHEDULING: Final = "fault-scheduling"
_POD_RESCHEDULING: Final = "pod-rescheduling"
_SUB_HEALTHY: Final = "subHealthyStrategy"
_WAIT_RESCHEDULE: Final = "wait-reschedule-timeout"
_PLATFORM: Final = "ProcessRecoverStrategy"
_FRAMEWORK: Final = "framework"

E = TypeVar("E", bound=StrEnum)


class Scheduling(StrEnum):
    """Whether pods may be replaced, and how gently."""

    OFF = "off"
    GRACE = "grace"
    FORCE = "force"


class SubHealth(StrEnum):
    """What a job does about a device that is slow but works."""

    IGNORE = "ignore"
    GRACE_EXIT = "graceExit"
    FORCE_EXIT = "forceExit"
    HOT_SWITCH = "hotSwitch"


@dataclass(frozen=True, slots=True)
class Policy:
    """What may be done to a job. `refusal` says why nothing may be; empty if something may."""

    strategies: tuple[Strategy, ...] = (Strategy.EXIT,)
    scheduling: Scheduling = Scheduling.OFF
    sub_health: SubHealth = SubHealth.IGNORE
    pod_rescheduling: bool = False
    reschedule_s: float = 270.0
    framework: str = ""
    refusal: str = ""
    problems: tuple[str, ...] = ()

    def allows(self, *wanted: Strategy) -> bool:
        """Tell whether one of these may be used."""
        return any(strategy in self.strategies for strategy in wanted)

    @property
    def force(self) -> bool:
        """Tell whether pods are deleted without waiting for them."""
        return self.scheduling is Scheduling.FORCE

    @property
    def dumps_first(self) -> bool:
        """Tell whether the first thing to try is to save and leave."""
        return self.strategies[0] is Strategy.DUMP


def read_policy(labels: Mapping[str, str], annotations: Mapping[str, str]) -> Policy:
    """Read a job's metadata."""
    problems: list[str] = []
    asked = _strategies(annotations.get(_RECOVER_STRATEGY, ""), problems)
    scheduling = _choice(Scheduling, _FAULT_SCHEDULING, labels, Scheduling.OFF, problems)
    sub_health = _choice(SubHealth, _SUB_HEALTHY, labels, SubHealth.IGNORE, problems)
    framework = (labels.get(_FRAMEWORK) or annotations.get(_FRAMEWORK) or "").strip().lower()
    switches = sub_health is SubHealth.HOT_SWITCH
    if switches and Strategy.RECOVER not in asked:
        # A hot switch turns process recovery on: another fault on the way has to be answered too.
        asked = (*asked, Strategy.RECOVER)
    if switches and not labels.get(_FAULT_SCHEDULING, "").strip():
        # That label alone is all that the guide asks for, and a switch that may replace no pod is none.
        scheduling = Scheduling.GRACE
    order = list(Strategy)
    return Policy(
        strategies=tuple(sorted({*asked, Strategy.EXIT}, key=order.index)),
        scheduling=scheduling,
        sub_health=sub_health,
        pod_rescheduling=labels.get(_POD_RESCHEDULING, "").strip() == "on",
        reschedule_s=_wait(annotations.get(_WAIT_RESCHEDULE, ""), problems),
        framework=framework,
        refusal=_refusal(labels, annotations, asked, scheduling),
        problems=tuple(problems),
    )


def _strategies(text: str, problems: list[str]) -> tuple[Strategy, ...]:
    found: list[Strategy] = []
    for word in (part.strip() for part in text.split(",")):
        if not word:
            continue
        if word not in set(Strategy):
            known = ", ".join(Strategy)
            problems.append(f"{_RECOVER_STRATEGY}: {word!r} is no strategy; the strategies are {known}")
        elif word == Strategy.ELASTIC:
            problems.append(f"{_RECOVER_STRATEGY}: {word} is not supported yet and is left out")
        else:
            found.append(Strategy(word))
    return tuple(dict.fromkeys(found))


def _choice(kind: type[E], key: str, labels: Mapping[str, str], default: E, problems: list[str]) -> E:
    text = labels.get(key, "").strip()
    if not text:
        return default
    if text in set(kind):
        return kind(text)
    problems.append(f"{key}: {text!r} is none of {', '.join(kind)}; taken as {default}")
    return default


def _wait(text: str, problems: list[str]) -> float:
    low, high = RESCHEDULE_RANGE_S
    if not text.strip():
        return float(high)
    if text.strip().isascii() and text.strip().isdigit() and low <= int(text) <= high:
        return float(int(text))
    problems.append(f"{_WAIT_RESCHEDULE}: {text!r} is not from {low} to {high}; taken as {high}")
    return float(high)


def _refusal(
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    asked: tuple[Strategy, ...],
    scheduling: Scheduling,
) -> str:
    if not asked:
        return f"the job has neither {_RECOVER_STRATEGY} nor {_SUB_HEALTHY}=hotSwitch"
    if scheduling is Scheduling.OFF:
        return f"{_FAULT_SCHEDULING} is absent or off, so no pod may be touched and no process recovered"
    if _PLATFORM in annotations:
        return f"{_PLATFORM} hands the decision to a platform, which is not supported"
    if labels.get(RECOVER_SWITCH, "").strip() == PAUSE:
        return f"{RECOVER_SWITCH} is {PAUSE}"
    return ""
