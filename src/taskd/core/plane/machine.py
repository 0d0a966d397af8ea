"""The recovery machine of one job: `step` takes what happened and says what is done.

Rules that hold in every phase:

* Each phase but the first and the last has a deadline, and `next_look` says when to come back.
* A report is taken only in the phase whose order it answers, after that order was handed out; if it names a
  uuid, that has to be the one under way. Anything else is answered with 401 and changes nothing.
* A fault is taken in whenever it comes: before an order is given it joins the list, while an order is carried
  out it begins a new round, while processes are being started again it is answered by that.
* Every effect carries the uuid of what it belongs to.
"""

from __future__ import annotations

from typing import assert_never

from taskd.core.plane import course, intake, outcomes, rescheduling, resorts, switching
from taskd.core.plane.names import Change, Code, SignalType
from taskd.core.plane.reports import take_report
from taskd.core.plane.resetconfig import ResetKind
from taskd.core.plane.resuming import kept
from taskd.core.plane.state import (
    SWITCHING,
    DevicesSeen,
    Effect,
    Event,
    FaultsReported,
    Handed,
    JobGone,
    JobState,
    Moment,
    Outcome,
    Phase,
    PodsSeen,
    PolicyRead,
    ResetSeen,
    SaveState,
    SendSignal,
    StatusReported,
    StopReported,
    StrategiesReported,
    Subscribed,
    Ticked,
    Unsubscribed,
)
from taskd.core.plane.turn import Turn, not_replaced, replaced


def step(state: JobState, event: Event, moment: Moment) -> Outcome:
    """Take in one event."""
    turn = Turn(state, moment)
    match event:
        case FaultsReported() | StopReported() | StrategiesReported() | StatusReported():
            take_report(turn, event)
        case DevicesSeen():
            intake.see_devices(turn, event)
        case PodsSeen():
            _see_pods(turn, event)
        case ResetSeen():
            rescheduling.see_resets(turn, dict(event.ranks))
            intake.answer_devices(turn)
        case PolicyRead():
            turn.change(policy=event.policy)
        case Subscribed():
            turn.change(connected=True, keeps_old=event.keeps_old)
            _say_again(turn)
        case Unsubscribed():
            turn.change(connected=False, absent_since=moment.now)
        case Handed():
            _note_handed(turn, event)
        case Ticked():
            pass
        case JobGone():
            _end(turn, event.why)
        case _:
            assert_never(event)
    _see_rescheduled(turn)
    _look_at_clock(turn)
    _see_rescheduled(turn)  # the clock may have led there when all pods were others already
    return turn.state, _saved_first(state, turn)


def next_look(state: JobState) -> float:
    """When the clock has to be looked at again, in seconds since the epoch; 0 if it need not be."""
    times = [state.deadline]
    if state.episode is not None:
        times.append(state.episode.clear_at)
        if state.phase is Phase.STOPPING and not state.connected:
            times.append(_absent_until(state))
    elif state.phase is Phase.INIT:
        times.extend((state.switch_at, rescheduling.next_look(state)))
    return min((time for time in times if time), default=0.0)


def _saved_first(before: JobState, turn: Turn) -> tuple[Effect, ...]:
    """Put the keeping before everything else: an order that nobody remembers cannot be answered."""
    if kept(before) == kept(turn.state):
        return tuple(turn.effects)
    return SaveState(turn.state.uuid or before.uuid), *turn.effects


# -------------------------------------------------------------------------------------------------- pods


def _see_pods(turn: Turn, event: PodsSeen) -> None:
    lost = intake.lost_pods(turn.state, event)
    _forget_old_pods(turn, event)
    if lost:
        intake.take_losses(turn, lost)
    if turn.state.episode is None:
        return
    origin = turn.episode.origin
    unknown = {rank: pod.uid for rank, pod in event.pods.items() if rank not in origin}
    if unknown:
        turn.edit(origin={**origin, **unknown})
    state = turn.state
    if state.phase in SWITCHING:
        ended = switching.see_pods(turn)
        if ended:
            intake.finish(turn, ended)
    elif state.phase is not Phase.RESCHEDULING and resorts.restarted(turn):
        if state.phase is Phase.RESTARTING:
            resorts.unpause(turn)
        intake.finish(turn, "the whole job was started again")
    elif state.phase is Phase.RECOVERING and not turn.episode.cleared and turn.episode.leaving:
        _see_replacements(turn)


def _see_rescheduled(turn: Turn) -> None:
    if turn.state.phase is Phase.RESCHEDULING and outcomes.rescheduled(turn):
        intake.finish(turn, "started again")


def _forget_old_pods(turn: Turn, event: PodsSeen) -> None:
    """Take in the pods. A new pod has no faults until somebody says so; those known were the old one's."""
    state = turn.state
    new = {rank for rank, pod in state.pods.items() if event.pods.get(rank, pod).uid != pod.uid}
    left = {
        rank: uid for rank, uid in state.left.items() if rank in event.pods and event.pods[rank].uid == uid
    }
    turn.change(pods=dict(event.pods), left=left)
    if new:
        old = {rank for pod in new for rank in state.shape.ranks_of(pod)}
        turn.change(
            devices={rank: fault for rank, fault in state.devices.items() if rank not in old},
            slow={rank: fault for rank, fault in state.slow.items() if rank not in old},
        )


def _see_replacements(turn: Turn) -> None:
    """Let the agents of new pods start once all of them are there, and give the trainer its full time."""
    if not_replaced(turn.state, turn.episode, turn.episode.leaving):
        return
    if not turn.episode.clear_at:
        turn.reset(ResetKind.CLEAR)
    turn.change(deadline=turn.now + turn.state.limits.report_s)


# -------------------------------------------------------------------------------------------------- time


def _look_at_clock(turn: Turn) -> None:
    state = turn.state
    if state.episode is not None and 0 < state.episode.clear_at <= turn.now:
        turn.edit(clear_at=0.0)
        if not not_replaced(state, state.episode, state.episode.leaving):
            turn.reset(ResetKind.CLEAR)
    state = turn.state
    if state.phase is Phase.INIT:
        due = min((time for time in (state.switch_at, rescheduling.next_look(state)) if time), default=0.0)
        if due and turn.now >= due:
            intake.answer_devices(turn)
        return
    if state.phase is Phase.STOPPING and not state.connected and turn.now >= _absent_until(state):
        course.leave_at_once(turn, f"no manager was connected for {state.limits.absent_s:g} s")
    elif state.deadline and turn.now >= state.deadline:
        _answer_deadline(turn)


def _absent_until(state: JobState) -> float:
    began = state.episode.marks.get(Phase.STOPPING, 0.0) if state.episode else 0.0
    return max(state.absent_since, began) + state.limits.absent_s


def _answer_deadline(turn: Turn) -> None:
    state = turn.state
    limit = state.limits.report_s
    match state.phase:
        case Phase.NOTICING:
            course.begin(turn, {}, (), turn.episode.what)
        case Phase.STOPPING:
            resorts.fall_back(turn, f"the trainer did not stop within {limit:g} s")
        case Phase.HEALING:
            course.heal(turn, late=True)
        case Phase.CONVERGING:
            course.order_retry(turn)
        case Phase.ASKING:
            resorts.fall_back(turn, f"the trainer did not say within {limit:g} s what it can do")
        case Phase.RETRYING:
            resorts.fall_back(turn, f"the trainer did not repeat the step within {limit:g} s")
        case Phase.RECOVERING:
            missing = not_replaced(state, turn.episode, turn.episode.leaving)
            pods = ", ".join(map(str, missing))
            resorts.fall_back(
                turn,
                f"pod {pods} was not replaced within {state.policy.reschedule_s:g} s"
                if missing
                else f"the trainer did not recover within {limit:g} s",
            )
        case Phase.DUMPING:
            outcomes.dumped(turn, Code.DUMP_FAILED, f"no report within {limit:g} s")
        case Phase.RESCHEDULING if state.policy.unattended:
            ended = rescheduling.late(turn)
            if ended:
                intake.finish(turn, ended)
        case Phase.RESCHEDULING:
            resorts.fall_back(
                turn, f"the faulty pods were not replaced within {state.policy.reschedule_s:g} s"
            )
        case Phase.RESTARTING:
            if state.connected and not state.policy.unattended:
                turn.send(SignalType.KILL_MASTER)
            resorts.unpause(turn)
            intake.finish(turn, f"failed: the job was not running again within {state.limits.restart_s:g} s")
        case Phase.STANDBY | Phase.PAUSING | Phase.PARTING | Phase.MIGRATING:
            ended = switching.late(turn)
            if ended:
                intake.finish(turn, ended)
        case Phase.INIT | Phase.ENDED:
            pass
        case _:
            assert_never(state.phase)


# --------------------------------------------------------------------------------------------------- ends


def _say_again(turn: Turn) -> None:
    """Give a manager that came back the order that is outstanding.

    An order to leave is for the processes that were there when it was given: a manager in a new pod is not
    told.
    """
    signal, episode = turn.state.outstanding, turn.state.episode
    if signal is None:
        return
    final = signal.kind is SignalType.KILL_MASTER or signal.change is Change.EXIT
    if final and (episode is None or replaced(turn.state, episode, 0)):
        return
    turn.do(SendSignal(signal.uuid, signal))


def _note_handed(turn: Turn, event: Handed) -> None:
    if turn.state.outstanding != event.signal:
        return
    if turn.state.phase is Phase.INIT:
        turn.settle()
    else:
        turn.change(handed=True)


def _end(turn: Turn, why: str) -> None:
    if turn.state.episode is not None:
        turn.tell(f"ended: {why}")
    turn.change(phase=Phase.ENDED, deadline=0.0, episode=None, outstanding=None, switch_at=0.0)
