"""The fault centre: `observe(state, event, now)` gives the next state and what has changed.

The reference looks at everything once a second, copies it and compares. Here an event names the nodes and
jobs that it touches, and only those are derived again; what time alone will change is a moment in the state,
and `next_deadline` is the earliest of them. So a fault is answered when it comes, whatever else is being
waited for, and a centre in which nothing happens does nothing.

Several events may be taken at once (`observe_all`), as after a list: each job is then told once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import assert_never

from taskd.core.faults import intake
from taskd.core.faults.deriving import derive
from taskd.core.faults.draft import Draft
from taskd.core.faults.events import (
    Changes,
    DeviceInfoSeen,
    Event,
    GivenUp,
    JobGone,
    JobSeen,
    NodeInfoSeen,
    NodeSeen,
    PolicySeen,
    PublicReported,
    PublicRestored,
    RetryEnded,
    RetryReported,
    SeparationsSeen,
    SeparationsWritten,
    StressTest,
    TimePassed,
)
from taskd.core.faults.state import State


def observe(state: State, event: Event, now: float) -> tuple[State, Changes]:
    """Take one event at `now`, in seconds since the epoch."""
    return observe_all(state, (event,), now)


def observe_all(state: State, events: Iterable[Event], now: float) -> tuple[State, Changes]:
    """Take events that came together."""
    draft = Draft(state, now)
    for event in events:
        _take(draft, event)
    draft.touch_due()
    derive(draft)
    return draft.finish()


def next_deadline(state: State) -> float | None:
    """When to call `observe` with `TimePassed`, if nothing else happens before."""
    moments = [*state.node_wakes.values(), *state.job_wakes.values(), *state.early.values()]
    if state.wake is not None:
        moments.append(state.wake)
    return min(moments, default=None)


def _take(draft: Draft, event: Event) -> None:
    match event:
        case DeviceInfoSeen(node, info):
            intake.device_info(draft, node, info)
        case NodeInfoSeen(node, info):
            intake.node_info(draft, node, info)
        case NodeSeen(node, sight):
            intake.node(draft, node, sight)
        case JobSeen(job):
            intake.job(draft, job)
        case JobGone(job_id):
            intake.job_gone(draft, job_id)
        case PublicReported(report):
            intake.public(draft, report)
        case PublicRestored(faults):
            intake.public_restored(draft, faults)
        case PolicySeen():
            intake.policy(draft, event)
        case SeparationsSeen():
            intake.separations(draft, event)
        case SeparationsWritten(entries):
            draft.state = replace(draft.state, written=entries)
        case RetryReported(job_id):
            draft.report(job_id, retry_at=draft.now)
        case RetryEnded(job_id):
            draft.report(job_id, retried_at=draft.now)
        case GivenUp(job_id):
            draft.report(job_id, gave_up_at=draft.now)
        case StressTest(nodes):
            draft.touch(nodes ^ draft.state.stressed)
            draft.state = replace(draft.state, stressed=nodes)
        case TimePassed():
            pass
        case _:
            assert_never(event)
