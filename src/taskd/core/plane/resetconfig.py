"""What the plane wants `reset-config-<job>` to say; the text itself is made by `core.faults.texts.reset`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from taskd.core.faults.reading import Refused
from taskd.core.faults.texts import reset
from taskd.core.faults.texts.reset import Reset


class ResetKind(StrEnum):
    """What the file says now."""

    FLUSHING = "flushing"
    """Faults are being gathered: start no process."""
    FAULTY = "faulty"
    """These ranks are faulty: leave, or start them again."""
    CLEAR = "clear"
    RESTART_ALL = "restart-all"
    """All agents start their processes again: the count is one higher."""
    LEAVE = "leave"
    """All agents end their processes: pods are about to move."""


@dataclass(frozen=True, slots=True)
class ResetContent:
    """What the file shall say."""

    kind: ResetKind
    ranks: tuple[int, ...] = ()
    in_place: bool = False
    leave: bool | None = None
    """Whether all processes shall end; None leaves that to whoever has said it."""


def render(content: ResetContent, before: Mapping[str, str], stamp: int) -> dict[str, str] | str:
    """Return our keys of the ConfigMap with their new values, or why it may not be written.

    What others have set (the count of restarts, the wish for a graceful exit) stays; a text that cannot be
    read is written anew.
    """
    found = reset.read_reset(before)
    old = Reset() if isinstance(found, Refused) else found
    if old.hot_reset:
        return "a hot reset of devices is under way"
    new = _changed(content, old, stamp)
    return (new if content.leave is None else reset.exit_gracefully(new, stamp, leave=content.leave)).data()


def _changed(content: ResetContent, old: Reset, stamp: int) -> Reset:
    match content.kind:
        case ResetKind.FLUSHING:
            return reset.flush(old, stamp)
        case ResetKind.FAULTY:
            return reset.name_faults(old, content.ranks, stamp, in_place=content.in_place)
        case ResetKind.CLEAR:
            return reset.clear(old, stamp)
        case ResetKind.RESTART_ALL:
            return reset.restart_all(reset.clear(old, stamp), stamp)
        case ResetKind.LEAVE:
            return reset.exit_gracefully(old, stamp, leave=True)
        case _:
            assert_never(content.kind)
