"""Which strategy answers the faults: what the job allows, what the trainer offers, what was tried.

The order is retry, in place, recover, dump, exit. The reference goes from a retry that the trainer does not
offer straight to dump; here everything that is allowed and offered is tried before the job is given up.
"""

from __future__ import annotations

from dataclasses import dataclass

from taskd.core.plane.faultlists import retryable
from taskd.core.plane.names import Change, Strategy
from taskd.core.plane.policy import Policy
from taskd.core.plane.state import Episode


@dataclass(frozen=True, slots=True)
class Choice:
    """What is done, and why."""

    change: Change
    reason: str
    in_place: bool = False


def wants_retry(policy: Policy, episode: Episode) -> bool:
    """Tell whether a repeated step is to be tried."""
    return policy.allows(Strategy.RETRY) and Change.RETRY not in episode.tried and retryable(episode.faults)


def choose(policy: Policy, episode: Episode) -> Choice:
    """Choose for an episode whose trainer has said what it can do."""
    offered, tried = episode.offered, episode.tried
    notes: list[str] = []
    if wants_retry(policy, episode):
        if Change.RETRY in offered:
            return Choice(Change.RETRY, "only faults that a repeated step may answer")
        notes.append("the trainer does not offer retry")
    if Change.RECOVER in tried:
        notes.append("recover has failed")
    elif Change.RECOVER not in offered:
        notes.append("the trainer does not offer recover")
    elif policy.allows(Strategy.IN_PLACE) and episode.in_place:
        pods = ", ".join(map(str, episode.in_place))
        return Choice(Change.RECOVER, _join(notes, f"processes of pod {pods} start again in place"), True)
    elif policy.allows(Strategy.RECOVER, Strategy.IN_PLACE):
        pods = ", ".join(map(str, episode.leaving))
        return Choice(
            Change.RECOVER, _join(notes, f"pod {pods} is replaced, the others keep their processes")
        )
    else:
        notes.append("the job does not allow recover")
    if Change.DUMP in tried:
        notes.append("dump was done")
    elif not policy.allows(Strategy.DUMP):
        notes.append("the job does not allow dump")
    elif Change.DUMP not in offered:
        notes.append("the trainer does not offer dump")
    else:
        return Choice(Change.DUMP, _join(notes, "the living save the state"))
    return Choice(Change.EXIT, _join(notes, "all processes start again from their last checkpoint"))


def _join(notes: list[str], last: str) -> str:
    return "; ".join([*notes, last])
