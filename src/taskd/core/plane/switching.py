"""The hot switch: a pod whose devices are slow gets a successor while it goes on training.

Order of things: a standby pod is made, the trainer pauses, the ranks move over, the old pod goes. The
reference deletes the old pod before the ranks move, and a manager written for it counts on that; one that
says it can go back (`keeps_old`) has the old pod until the move is done, so that whatever fails, the job
trains on where it was. Every wait has an end, and a switch that failed is tried again: at once when the
report changes, after a growing pause when it stays the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from taskd.core.faults.view import Health, RankFault
from taskd.core.plane.course import (
    begin,
    label_pods,
    leave_at_once,
    open_episode,
    save_and_leave,
)
from taskd.core.plane.faultlists import as_normal
from taskd.core.plane.names import Action, Change, Code, SignalType, Strategy
from taskd.core.plane.policy import FRAMEWORKS, SubHealth
from taskd.core.plane.resorts import fall_back
from taskd.core.plane.state import JobState, Phase, Wish
from taskd.core.plane.turn import Turn, replaced

MAX_SLOW_PODS: Final = 10


def consider(turn: Turn) -> None:
    """Look at slow devices while nothing else is under way."""
    state = turn.state
    if not state.slow or state.health is not Health.SUB_HEALTHY:
        turn.change(slow_answered="", switch_failures=0, switch_at=0.0)
        return
    mark = _mark(state.slow)
    again = mark == state.slow_answered
    if state.policy.refusal or state.policy.sub_health is SubHealth.IGNORE:
        return
    if again and not (state.switch_at and turn.now >= state.switch_at):
        return
    turn.change(slow_answered=mark, switch_at=0.0, switch_failures=state.switch_failures if again else 0)
    if state.policy.sub_health is SubHealth.HOT_SWITCH:
        _prepare(turn)
    else:
        _leave_slow(turn)


def _mark(slow: Mapping[int, RankFault]) -> str:
    return ",".join(f"{rank}:{fault.code}" for rank, fault in sorted(slow.items()))


def _leave_slow(turn: Turn) -> None:
    """Leave the slow node as the job wishes: saving first, or not."""
    state = turn.state
    ranks = as_normal(state.slow)
    what = f"{_ranks(tuple(ranks))} sub-healthy, and the job asks for {state.policy.sub_health}"
    if state.policy.sub_health is SubHealth.GRACE_EXIT and not state.policy.allows(Strategy.DUMP):
        begin(turn, ranks, ranks, what)
        return
    open_episode(turn, what)
    turn.edit(faults=ranks, devices=tuple(ranks))
    label_pods(turn)
    if state.policy.sub_health is SubHealth.GRACE_EXIT:
        turn.edit(gentle=True)
        save_and_leave(turn)
    else:
        turn.edit(force=True)
        leave_at_once(turn, "forceExit: nothing is saved")


def _prepare(turn: Turn) -> None:
    state = turn.state
    pods = state.shape.pods_of(state.slow)
    pod = pods[0]
    what = f"pod {pod} sub-healthy ({_ranks(tuple(state.slow))}): hot switch"
    open_episode(turn, what)
    turn.edit(pod=pod, ordered=Change.MIGRATION)
    refusal = ""
    if len(pods) > MAX_SLOW_PODS:
        refusal = f"{len(pods)} pods are sub-healthy; with more than {MAX_SLOW_PODS} none is switched"
    elif state.policy.framework not in FRAMEWORKS:
        refusal = f"framework {state.policy.framework!r} cannot switch; {' and '.join(FRAMEWORKS)} can"
    elif pod not in state.pods:
        refusal = f"pod {pod} is not there"
    if refusal:
        close(turn, f"cancelled: {refusal}")
        return
    ranks = as_normal(state.shape.ranks_of(pod))
    turn.send(SignalType.HOT_SWITCH, Action.HOT_SWITCH, faults=ranks)
    turn.ask(Wish.STANDBY, (pod,), what)
    turn.enter(Phase.STANDBY, state.limits.standby_s)
    turn.tell("switching", "a standby pod is made while the old one trains")


def see_pods(turn: Turn) -> str:
    """Go on when the standby runs, or when the old pod is gone; returns how the switch ended, if it did."""
    state, episode = turn.state, turn.episode
    pod = state.pods.get(episode.pod)
    if state.phase is Phase.STANDBY and pod is not None and pod.standby_running:
        standbys = {episode.pod: pod.standby_name} if pod.standby_name else {}
        turn.send(SignalType.HOT_SWITCH, Action.NEW_POD_RUNNING, standbys=standbys)
        turn.enter(Phase.PAUSING, state.limits.report_s)
    elif state.phase is Phase.PARTING and replaced(state, episode, episode.pod):
        if episode.migrated:
            return "switched"
        _migrate(turn)
    return ""


def paused(turn: Turn, offered: tuple[str, ...]) -> None:
    """Take what the trainer says about its pause: an offer of nothing but exit says that it failed."""
    if not set(offered) - {Change.EXIT.value}:
        call_off(turn, "the trainer could not pause")
    elif turn.state.keeps_old:
        _migrate(turn)
    else:
        turn.settle()
        _part(turn)


def migrated(turn: Turn, code: int) -> str:
    """Take the outcome of the move; returns how the switch ended, if it did."""
    if code != Code.OK:
        failed(turn, f"the trainer could not resume (code {code})")
        return ""
    turn.edit(migrated=True)
    if turn.state.keeps_old and not replaced(turn.state, turn.episode, turn.episode.pod):
        turn.settle()
        _part(turn)
        return ""
    return "switched"


def failed(turn: Turn, why: str) -> None:
    """Go back to the old pod where it still is; otherwise start the job again."""
    if turn.state.keeps_old or turn.state.phase in {Phase.STANDBY, Phase.PAUSING}:
        call_off(turn, why)
    else:
        turn.edit(faults=as_normal(turn.state.shape.ranks_of(turn.episode.pod)))
        fall_back(turn, f"the hot switch failed after the old pod was gone: {why}")


def late(turn: Turn) -> str:
    """Answer a deadline; returns how the switch ended, if it did."""
    state, limits = turn.state, turn.state.limits
    match state.phase:
        case Phase.STANDBY:
            seen = state.pods.get(turn.episode.pod)
            why = f": {seen.standby_waits}" if seen is not None and seen.standby_waits else ""
            failed(turn, f"the standby pod was not running within {limits.standby_s:g} s{why}")
        case Phase.PAUSING:
            failed(turn, f"the trainer did not pause within {limits.report_s:g} s")
        case Phase.MIGRATING:
            failed(turn, f"the trainer did not resume within {limits.report_s:g} s")
        case _ if not turn.episode.pressed:
            turn.edit(pressed=True)
            turn.ask(Wish.REMOVE_OLD, (turn.episode.pod,), "the old pod is late in leaving", force=True)
            turn.enter(Phase.PARTING, limits.old_pod_s)
        case _ if turn.episode.migrated:
            return "switched; the old pod is still being deleted"
        case _:
            failed(turn, f"the old pod was not gone within {2 * limits.old_pod_s:g} s")
    return ""


def call_off(turn: Turn, why: str) -> None:
    """Leave the job in its old pod; the standby goes."""
    give_up_standby(turn, why)
    turn.send(SignalType.HOT_SWITCH, Action.STOP_SWITCH)
    close(turn, f"cancelled: {why}")


def give_up_standby(turn: Turn, why: str) -> None:
    """Have the standby removed."""
    turn.ask(Wish.DROP_STANDBY, (turn.episode.pod,), why)


def close(turn: Turn, outcome: str) -> None:
    """End a switch that did not come about. What was sent last stays outstanding until it is handed out."""
    failures = turn.state.switch_failures
    limits = turn.state.limits
    pause_s = min(limits.switch_again_s * 2**failures, limits.switch_again_max_s)
    turn.tell(outcome, outcome)
    turn.change(
        phase=Phase.INIT,
        deadline=0.0,
        episode=None,
        switch_failures=min(failures + 1, 16),
        switch_at=turn.now + pause_s,
    )


def overtaken(state: JobState) -> str:
    """Say what becomes of a switch when another fault comes."""
    return f"a fault came while pod {state.episode.pod if state.episode else -1} was being switched"


def _part(turn: Turn) -> None:
    turn.ask(Wish.REMOVE_OLD, (turn.episode.pod,), turn.episode.what)
    turn.enter(Phase.PARTING, turn.state.limits.old_pod_s)


def _migrate(turn: Turn) -> None:
    ranks = as_normal(turn.state.shape.ranks_of(turn.episode.pod))
    turn.send(SignalType.CHANGE_STRATEGY, Action.CHANGE_STRATEGY, faults=ranks, change=Change.MIGRATION)
    turn.enter(Phase.MIGRATING, turn.state.limits.report_s)


def _ranks(ranks: tuple[int, ...]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]} is"
    return f"ranks {', '.join(map(str, ranks[:8]))}{' and others' if len(ranks) > 8 else ''} are"  # noqa: PLR2004
