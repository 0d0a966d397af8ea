"""Fault levels: their words, their order and what each does to a job.

Chips, nodes, bus switches and outside senders name levels in four vocabularies. A decision asks only what a
level *does*, which is one of four effects; the words are kept for whoever is told.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Final

from taskd.core.faults.view import Health


class Level(StrEnum):
    """Levels of chips and of public faults, mildest first."""

    NORMAL_NETWORK = "NormalNetwork"
    NORMAL = "NormalNPU"
    NOT_HANDLE = "NotHandleFault"
    SUB_HEALTH = "SubHealthFault"
    RESTART_REQUEST = "RestartRequest"
    RESTART_BUSINESS = "RestartBusiness"
    FREE_RESTART = "FreeRestartNPU"
    RESTART_NPU = "RestartNPU"
    PRE_SEPARATE = "PreSeparateNPU"
    SEPARATE = "SeparateNPU"
    MANUALLY_SEPARATE = "ManuallySeparateNPU"


class NodeLevel(StrEnum):
    """Levels of a node's hardware, mildest first."""

    NOT_HANDLE = "NotHandleFault"
    SUB_HEALTH = "SubHealthFault"
    """Not a word of the reference's node daemon; ours for conditions of the node such as memory pressure."""
    PRE_SEPARATE = "PreSeparateFault"
    SEPARATE = "SeparateFault"


class SwitchLevel(StrEnum):
    """Levels of a bus switch as they are reported, mildest first."""

    NOT_HANDLE = "NotHandle"
    SUB_HEALTH = "SubHealthFault"
    RESTART_REQUEST = "RestartRequest"
    PRE_SEPARATE = "PreSeparate"
    SEPARATE = "Separate"


AnyLevel = Level | NodeLevel | SwitchLevel


class Effect(IntEnum):
    """What a fault does to the job that runs there."""

    NOTHING = 0
    PRE_SEPARATE = 1
    """The job goes on; nothing new is placed there."""
    SUB_HEALTH = 2
    """The job's strategy for sub-health decides."""
    FAULT = 3
    """The job cannot go on as it is."""


_CHIP: Final = {
    Level.NORMAL_NETWORK: Effect.NOTHING,
    Level.NORMAL: Effect.NOTHING,
    Level.NOT_HANDLE: Effect.NOTHING,
    Level.SUB_HEALTH: Effect.SUB_HEALTH,
    Level.PRE_SEPARATE: Effect.PRE_SEPARATE,
}
_NODE: Final = {
    NodeLevel.NOT_HANDLE: Effect.NOTHING,
    NodeLevel.SUB_HEALTH: Effect.SUB_HEALTH,
    NodeLevel.PRE_SEPARATE: Effect.PRE_SEPARATE,
}
_SWITCH: Final = {
    SwitchLevel.NOT_HANDLE: Effect.NOTHING,
    SwitchLevel.SUB_HEALTH: Effect.SUB_HEALTH,
    SwitchLevel.PRE_SEPARATE: Effect.PRE_SEPARATE,
}
_HEALTH: Final = {
    Effect.NOTHING: Health.HEALTHY,
    Effect.PRE_SEPARATE: Health.SUB_HEALTHY,
    Effect.SUB_HEALTH: Health.SUB_HEALTHY,
    Effect.FAULT: Health.UNHEALTHY,
}
RESTARTABLE: Final = frozenset({Level.RESTART_REQUEST, Level.RESTART_BUSINESS})
"""Faults of the work, not of the chip: restarting processes in place may be enough."""


def effect_of(level: AnyLevel) -> Effect:
    """What the level does to a job."""
    match level:
        case Level():
            return _CHIP.get(level, Effect.FAULT)
        case NodeLevel():
            return _NODE.get(level, Effect.FAULT)
        case SwitchLevel():
            return _SWITCH.get(level, Effect.FAULT)


def severity(level: AnyLevel) -> int:
    """The place of the level in its own vocabulary; a greater number is worse."""
    return list(type(level)).index(level)


def worst(levels: list[Level]) -> Level:
    """The most severe of some levels of chips."""
    return max(levels, key=severity, default=Level.NORMAL)


def health_of(effect: Effect) -> Health:
    """How the device itself is called, as subscribers read it."""
    return _HEALTH[effect]


def read_level(text: str) -> tuple[Level, bool]:
    """A chip's level, and whether the word is known; one that is not counts as a broken chip, not as none."""
    try:
        return Level(text), True
    except ValueError:
        return Level.SEPARATE, False


def read_node_level(text: str) -> tuple[NodeLevel, bool]:
    """The level of a node's hardware, as `read_level`."""
    try:
        return NodeLevel(text), True
    except ValueError:
        return NodeLevel.SEPARATE, False


_CONFIGURED: Final = {
    "NotHandleFault": SwitchLevel.NOT_HANDLE,
    "RestartRequestFault": SwitchLevel.RESTART_REQUEST,
    "PreSeparateFault": SwitchLevel.PRE_SEPARATE,
    "SeparateFault": SwitchLevel.SEPARATE,
    "ResetFault": SwitchLevel.SEPARATE,
}


def read_switch_level(text: str) -> tuple[SwitchLevel, bool]:
    """The level of a switch, in the words of reports or of configurations, as `read_level`."""
    if text in _CONFIGURED:
        return _CONFIGURED[text], True
    try:
        return SwitchLevel(text), True
    except ValueError:
        return SwitchLevel.SEPARATE, False
