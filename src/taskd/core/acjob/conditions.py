"""The conditions of a job: one entry a type, the newest last.

`kubectl get acjob` shows the type of the last entry as the state, so the order is part of the meaning. Of
Running, Restarting, Succeeded and Failed at most one is True; what no longer holds turns False in its place,
and keeps its sentence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from taskd.core.acjob import names
from taskd.core.acjob.job import Json

EXCLUSIVE: Final = (names.RUNNING, names.RESTARTING, names.SUCCEEDED, names.FAILED)


@dataclass(frozen=True, slots=True)
class Condition:
    """One entry of `status.conditions`."""

    type: str
    reason: str
    message: str
    status: str = "True"
    updated: str = ""
    changed: str = ""

    @property
    def holds(self) -> bool:
        """Whether it says that something is so."""
        return self.status == "True"

    def says(self, other: Condition) -> bool:
        """Whether both tell the same, whenever they were written."""
        return (self.type, self.status, self.reason, self.message) == (
            other.type,
            other.status,
            other.reason,
            other.message,
        )

    def as_json(self) -> dict[str, Any]:
        """As the API server stores it."""
        return {
            "type": self.type,
            "status": self.status,
            "reason": self.reason,
            "message": self.message,
            "lastUpdateTime": self.updated,
            "lastTransitionTime": self.changed,
        }


def read(entries: object) -> tuple[Condition, ...]:
    """The conditions of a stored status; entries that are none are left out."""
    if not isinstance(entries, Sequence):
        return ()
    return tuple(_read(entry) for entry in entries if isinstance(entry, dict) and entry.get("type"))


def _read(entry: Json) -> Condition:
    return Condition(
        type=str(entry["type"]),
        status=str(entry.get("status", "Unknown")),
        reason=str(entry.get("reason", "")),
        message=str(entry.get("message", "")),
        updated=str(entry.get("lastUpdateTime", "")),
        changed=str(entry.get("lastTransitionTime", "")),
    )


def find(conditions: Sequence[Condition], kind: str) -> Condition | None:
    """The entry of that type, if it holds."""
    return next((entry for entry in conditions if entry.type == kind and entry.holds), None)


def finished(conditions: Sequence[Condition]) -> Condition | None:
    """The entry that ended the job. A job that only could not be understood has not ended."""
    for entry in conditions:
        if (
            entry.holds
            and entry.type in {names.SUCCEEDED, names.FAILED}
            and entry.reason != names.JOB_INVALID
        ):
            return entry
    return None


def tell(conditions: Sequence[Condition], news: Condition, now: str) -> tuple[Condition, ...]:
    """The conditions once `news` is true. Nothing changes where the newest entry says it already."""
    current = next((entry for entry in conditions if entry.type == news.type), None)
    if current is not None and conditions[-1] is current and current.says(news):
        return _settle(conditions, news.type, now)
    kept_since = current is not None and current.status == news.status
    entry = replace(news, updated=now, changed=current.changed if current and kept_since else now)
    return (*_settle([other for other in conditions if other.type != news.type], news.type, now), entry)


def mend(conditions: Sequence[Condition], entry: Condition, now: str) -> tuple[Condition, ...]:
    """The conditions with this entry for its type, in its place: it is true, but it is no news."""
    current = next((other for other in conditions if other.type == entry.type), None)
    if current is None:
        return (replace(entry, updated=now, changed=now), *conditions)
    if current.says(entry):
        return tuple(conditions)
    since = current.changed if current.status == entry.status else now
    mended = replace(entry, updated=now, changed=since)
    return tuple(mended if other is current else other for other in conditions)


def _settle(conditions: Sequence[Condition], kind: str, now: str) -> tuple[Condition, ...]:
    """Turn False what cannot be true beside an entry of this type."""
    # A job that waits or is halted is no longer at work, and one that was mended no longer failed.
    gone: tuple[str, ...] = (names.RUNNING, names.FAILED)
    if kind in EXCLUSIVE:
        gone = tuple(other for other in EXCLUSIVE if other != kind)
    return tuple(
        replace(entry, status="False", updated=now, changed=now)
        if entry.type in gone and entry.holds
        else entry
        for entry in conditions
    )
