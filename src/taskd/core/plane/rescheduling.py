"""Faults of jobs whose processes nobody recovers: pods are replaced, and nothing is asked of a trainer.

A job is one of these if it names no strategy, if its strategies are not in force, or while no manager of it
has registered. What is left is what the reference's scheduler does: with `pod-rescheduling` the faulty pods
are replaced and the others start their processes again (the count in the reset-config tells them to);
without, or if that takes too long, all pods are replaced. Devices that a device plugin is resetting are given
time: `unrecovered` and `recovered` are its words for that, and `failed` says that the pod has to move.
"""

from __future__ import annotations

from collections.abc import Iterable

from taskd.core.faults.texts.reset import RankStatus
from taskd.core.faults.view import Health
from taskd.core.plane import course
from taskd.core.plane.faultlists import as_normal, describe, merge
from taskd.core.plane.policy import SubHealth
from taskd.core.plane.resetconfig import ResetKind
from taskd.core.plane.resorts import RECOVERING, replace_all
from taskd.core.plane.state import JobState, Phase, Wish
from taskd.core.plane.turn import Turn, not_replaced, union

FAILED = "hot reset failed"
_HEALING = frozenset({RankStatus.UNRECOVERED, RankStatus.RECOVERED})


def answer(turn: Turn) -> None:
    """Answer devices that nobody has answered yet, or else slow ones."""
    state = turn.state
    if state.phase not in {Phase.INIT, Phase.RESCHEDULING}:
        return  # looked at again when that is over
    failed = {rank for rank, status in state.resets.items() if status is RankStatus.FAILED}
    fresh = {*_unanswered(state), *(rank for rank in failed if state.answered.get(rank) != FAILED)}
    fresh -= set() if _is_late(state, turn.now) else set(deferred(state))
    if fresh:
        marks = {rank: FAILED if rank in failed else mark(state, rank) for rank in fresh}
        turn.change(answered={**state.answered, **marks})
        why = ", and its device plugin could not mend it" if failed & fresh else ""
        _move(turn, sorted(fresh), f"device fault: {describe(as_normal(fresh))}{why}")
    elif state.phase is Phase.INIT:
        _leave_slow(turn)


def lose(turn: Turn, ranks: tuple[int, ...], what: str) -> None:
    """Follow the replacement of pods that are gone: the operator makes new ones, the others must know."""
    state = turn.state
    if state.phase not in {Phase.INIT, Phase.RESCHEDULING}:
        return
    _open(turn, ranks, what)
    turn.edit(leaving=union(turn.episode.leaving, state.shape.pods_of(ranks)))
    turn.enter(Phase.RESCHEDULING, state.policy.reschedule_s)
    turn.tell(RECOVERING, "the lost pod is replaced, and the others start their processes again")


def late(turn: Turn) -> str:
    """Go on where pods were not replaced in time; returns how the episode ended, if it did."""
    policy = turn.state.policy
    missing = ", ".join(map(str, not_replaced(turn.state, turn.episode, turn.episode.leaving)))
    why = f"pod {missing} was not replaced within {policy.reschedule_s:g} s"
    if policy.pods_only:
        return f"failed: {why}, and the job wants no more than its faulty pods started again"
    replace_all(turn, why)
    return ""


def see_resets(turn: Turn, ranks: dict[int, RankStatus]) -> None:
    """Take in what device plugins say of devices that they reset."""
    healing = _HEALING & set(ranks.values())
    since = turn.state.reset_since if turn.state.reset_since and healing else turn.now
    gone = {rank for rank in turn.state.resets if rank not in ranks}
    kept = {rank: known for rank, known in turn.state.answered.items() if known != FAILED or rank not in gone}
    turn.change(resets=ranks, reset_since=since if healing else 0.0, answered=kept)


def deferred(state: JobState) -> tuple[int, ...]:
    """The ranks whose faults wait for a device plugin that is at work on them."""
    return tuple(rank for rank in _unanswered(state) if state.resets.get(rank) in _HEALING)


def next_look(state: JobState) -> float:
    """When a device plugin has had its time; 0 if nothing waits for one."""
    if not state.policy.unattended or state.phase is not Phase.INIT or not deferred(state):
        return 0.0
    return state.reset_since + state.limits.hot_reset_s


def mark(state: JobState, rank: int) -> str:
    """What makes a device's fault the same as one that was answered: kind, code and pod."""
    fault = state.devices[rank]
    pod = state.pods.get(state.shape.pod_of(rank))
    return f"{fault.kind.value} {fault.code} {pod.uid if pod else ''}"


def _unanswered(state: JobState) -> list[int]:
    return [rank for rank in state.devices if state.answered.get(rank) not in {mark(state, rank), FAILED}]


def _is_late(state: JobState, now: float) -> bool:
    return now >= state.reset_since + state.limits.hot_reset_s


def _open(turn: Turn, ranks: Iterable[int], what: str) -> None:
    if turn.state.phase is Phase.INIT:
        turn.settle()
        course.open_episode(turn, what)
    episode = turn.episode
    turn.edit(faults=merge(episode.faults, as_normal(ranks)), devices=union(episode.devices, ranks))


def _move(turn: Turn, ranks: list[int], what: str, *, why: str = "") -> None:
    """Have the pods of these ranks replaced, or all pods where the job does not want less."""
    policy = turn.state.policy
    _open(turn, ranks, what)
    if not policy.pod_rescheduling and not policy.pods_only:
        replace_all(turn, why or "pod-rescheduling is not on, so all pods are replaced")
        return
    pods = turn.state.shape.pods_of(ranks)
    old = not_replaced(turn.state, turn.episode, pods)
    seen = turn.state.pods
    # A pod that was replaced in this episode and is faulty again counts as old from now on.
    again = {pod: seen[pod].uid for pod in pods if pod not in old and pod in seen}
    turn.edit(leaving=union(turn.episode.leaving, pods), origin={**turn.episode.origin, **again})
    turn.enter(Phase.RESCHEDULING, policy.reschedule_s)
    turn.ask(Wish.REPLACE, pods, what)
    turn.tell(RECOVERING, why or "the faulty pods are replaced, and the others start their processes again")


def _leave_slow(turn: Turn) -> None:
    """Leave slow devices as the job wishes. A hot switch needs a manager, so that waits for one."""
    state = turn.state
    if not state.slow or state.health is not Health.SUB_HEALTHY:
        turn.change(slow_answered="")
        return
    wish = state.policy.sub_health
    told = ",".join(f"{rank}:{fault.code}" for rank, fault in sorted(state.slow.items()))
    if wish not in {SubHealth.GRACE_EXIT, SubHealth.FORCE_EXIT} or told == state.slow_answered:
        return
    turn.change(slow_answered=told)
    ranks = sorted(state.slow)
    what = f"sub-healthy: {describe(as_normal(ranks))}"
    _open(turn, ranks, what)
    if wish is SubHealth.GRACE_EXIT:
        turn.edit(gentle=True)
        turn.reset(ResetKind.LEAVE)
        _move(turn, ranks, what, why="graceExit: processes are told to end, pods have their time")
    else:
        turn.edit(force=True)
        _move(turn, ranks, what, why="forceExit: pods are deleted at once")
