"""Which changes of a job's status are worth an Event, and which must be stored at once."""

from __future__ import annotations

from typing import Final

from taskd.core.acjob import backoff, names
from taskd.core.acjob.actions import Note
from taskd.core.acjob.status import Status

_QUIET: Final = (
    names.JOB_CREATED,
    names.POD_GROUP_NOT_INITIALIZED,
    names.POD_GROUP_PENDING,
)
"""States on the way to running: the condition shows them, an Event each would cost a write per job."""


def notes(before: Status, after: Status) -> tuple[Note, ...]:
    """The Events of a transition; none where the state is what it was."""
    return (*_transition(before, after), *_wait(before, after))


def _wait(before: Status, after: Status) -> tuple[Note, ...]:
    """A restart that waits says so, and for how long; the condition keeps the sentence of its cause."""
    wait_s = backoff.delay_s(after.row)
    if not wait_s or after.restarts == before.restarts or after.completion_time:
        return ()
    said = f"This is restart {after.row} in a row: its pods are started after {wait_s:g} s."
    return (Note(names.BACK_OFF, said, warning=True),)


def _transition(before: Status, after: Status) -> tuple[Note, ...]:
    new, old = after.last, before.last
    if new is None or (old is not None and old.says(new)) or new.reason in _QUIET:
        return ()
    bad = new.type in {names.FAILED, names.RESTARTING} or new.reason.endswith("Failed")
    message = new.message
    if bad and after.last_fault and after.last_fault != before.last_fault:
        message = f"{message} First cause: {after.last_fault.get('summary', '')}"
    return (Note(new.reason, message, warning=bad),)


def urgent(before: Status, after: Status) -> bool:
    """Whether the change must be stored now, rather than together with what follows shortly."""
    if _counters(before) != _counters(after):
        return True
    new, old = after.last, before.last
    if new is None or (old is not None and old.says(new)):
        return False
    # A restart that has begun is counted, see above. Until then a pod is on its way out, often for some
    # milliseconds only: its going and the restart that follows are one write.
    return new.type != names.RESTARTING and new.reason not in _QUIET


def _counters(status: Status) -> tuple[object, ...]:
    return (
        status.restarts,
        status.voluntary,
        status.retries,
        status.stable,
        status.whole_job,
        status.completion_time,
        dict(status.handled),
    )
