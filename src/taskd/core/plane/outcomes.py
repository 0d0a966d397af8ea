"""How an order went, and what follows from it.

Success ends the episode at once: what the reference waits and does once more after it (a second exit, a
minute for processes to start) is not needed where the order itself says all.
"""

from __future__ import annotations

from typing import Final

from taskd.core.plane import names
from taskd.core.plane.choice import wants_retry
from taskd.core.plane.course import ask_again, decide, leave
from taskd.core.plane.faultlists import as_normal
from taskd.core.plane.names import EXIT_PARAMS, Change, Code, RecoverStatus
from taskd.core.plane.resetconfig import ResetKind
from taskd.core.plane.resorts import RECOVERING, all_leave
from taskd.core.plane.state import (
    Ask,
    JobState,
    Phase,
    RecordIncident,
    SetAnnotation,
    StatusReported,
    Wish,
)
from taskd.core.plane.turn import Turn, named, not_replaced, union
from taskd.core.podplace import is_host_of

_ANSWERED: Final = frozenset(
    {
        Phase.NOTICING,
        Phase.STOPPING,
        Phase.HEALING,
        Phase.ASKING,
        Phase.CONVERGING,
        Phase.RETRYING,
        Phase.RECOVERING,
    }
)


def retried(turn: Turn, code: int) -> str | None:
    """Take the outcome of a repeated step; returns how the episode ended, if it did."""
    if code == Code.OK:
        _note(turn, RecoverStatus.RETRY_OK)
        return "recovered"
    _note(turn, RecoverStatus.RETRY_FAILED)
    turn.edit(tried=union(turn.episode.tried, {Change.RETRY}))
    if code == Code.RETRY_RECOVERABLE:
        ask_again(turn, f"the repeated step failed with {code}; the faults count as normal ones")
        return None
    lost = {Change.RECOVER, Change.DUMP} if code == Code.CLIENT_ERROR else {Change.RECOVER}
    offered = tuple(each for each in turn.episode.offered if each not in lost)
    turn.edit(offered=offered, faults=as_normal(turn.episode.faults))
    all_leave(turn)
    turn.reset(ResetKind.FAULTY, tuple(named(turn.state, turn.episode)))
    decide(turn)
    return None


def recovered(turn: Turn, code: int) -> str | None:
    """Take the outcome of a recovery; returns how the episode ended, if it did."""
    if code == Code.OK:
        _note(turn, RecoverStatus.RECOVER_OK)
        # Where a standby took over, the old pod may still be there: that it goes now is what was asked for.
        moved = not_replaced(turn.state, turn.episode, turn.episode.leaving)
        there = {pod: turn.episode.origin[pod] for pod in moved if pod in turn.episode.origin}
        turn.change(left={**turn.state.left, **there})
        return "recovered"
    _note(turn, RecoverStatus.RECOVER_FAILED)
    turn.edit(tried=union(turn.episode.tried, {Change.RECOVER}))
    decide(turn)
    return None


def answered_alone(turn: Turn, report: StatusReported) -> bool:
    """Tell people what a job did while no plane was there; tells whether that ends what is under way.

    A plane that was started again in the middle of an episode would otherwise have ranks replaced that were
    replaced already. A device that is still broken, and a pod that is to be replaced, stay its business, but
    a repeated step answers a fault that asked for no more, however long the device plugin goes on reporting
    it. A pod whose ranks went to a standby stays too: the operator does not know of it, and that it goes is
    no loss.
    """
    state, episode = turn.state, turn.state.episode
    ended = "recovered" if report.code == Code.OK else "failed"
    uuid = turn.name()
    turn.do(RecordIncident(uuid, turn.now, report.alone, report.strategy, ended, ""))
    gone = _left_behind(state, report)
    if gone:
        turn.change(left={**state.left, **gone})
        pods = tuple(gone)
        why = f"pod {', '.join(map(str, pods))} has no ranks any more: {report.alone}"
        # Its agent was given up, so nobody may be there to end it in order.
        standbys = {pod: report.placed[pod] for pod in pods}
        turn.do(Ask(uuid, Wish.REPLACE, pods, why, origin=gone, cut=pods, standbys=standbys))
    if report.code != Code.OK or episode is None or state.phase not in _ANSWERED:
        return False
    if report.strategy == Change.RETRY and wants_retry(state.policy, episode):
        return True
    shape = state.shape
    broken = any(rank in state.devices for rank in episode.faults if shape.pod_of(rank) not in gone)
    turn.edit(alone=broken and state.phase is Phase.HEALING)
    return not broken and not set(not_replaced(state, episode, episode.leaving)) - gone.keys()


def _left_behind(state: JobState, report: StatusReported) -> dict[int, str]:
    """The pods, with their UIDs, whose places others have by now, and that have no other place themselves."""
    if state.policy.refusal:
        return {}
    at_work = report.placed.values()
    return {
        rank: state.pods[rank].uid
        for rank in sorted(report.placed)
        if rank in state.pods and not any(is_host_of(host, state.pods[rank].name) for host in at_work)
    }


def dumped(turn: Turn, code: int, why: str = "") -> None:
    """Take the outcome of a dump: either way all leave now."""
    _note(turn, RecoverStatus.DUMP_OK if code == Code.OK else RecoverStatus.DUMP_FAILED)
    turn.edit(tried=union(turn.episode.tried, {Change.DUMP}))
    what = "the state was saved" if code == Code.OK else f"the dump failed: {why or f'code {code}'}"
    leave(turn, extra=EXIT_PARAMS)
    turn.tell(RECOVERING, f"{what}; all processes start again")


def rescheduled(turn: Turn) -> bool:
    """Have all processes started again once the faulty pods are there; tells whether they are."""
    state, episode = turn.state, turn.episode
    if not state.running or not_replaced(state, episode, episode.leaving):
        return False
    turn.reset(ResetKind.RESTART_ALL)
    if episode.exited and Change.DUMP not in episode.tried:
        _note(turn, RecoverStatus.EXITED)
    return True


def _note(turn: Turn, status: RecoverStatus) -> None:
    turn.do(SetAnnotation(turn.episode.uuid, names.RECOVER_STATUS, status.value))
