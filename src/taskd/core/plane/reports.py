"""Reports of the trainer: which one is awaited, which is refused and why, and what follows from it.

The reports of the wire do not say which order they answer. So one is taken only in the phase that awaits it,
after the order was handed out, and only if it is about the strategy that was ordered; a manager that sends
the uuid along is held to it. What does not fit is answered with 401 and the reason, and changes nothing.
What a job did by itself, while there was no plane, is taken at any time.
"""

from __future__ import annotations

from typing import assert_never

from taskd.core.plane import course, intake, outcomes, resorts, switching
from taskd.core.plane.faultlists import BadFaults, describe, merge, parse_faults
from taskd.core.plane.names import Change, Code
from taskd.core.plane.state import (
    Answer,
    FaultsReported,
    JobState,
    Phase,
    Report,
    StatusReported,
    StopReported,
    StrategiesReported,
)
from taskd.core.plane.turn import Turn, named

TITLES = {
    FaultsReported: "ReportProcessFault",
    StopReported: "ReportStopComplete",
    StrategiesReported: "ReportRecoverStrategy",
    StatusReported: "ReportRecoverStatus",
}


def take_report(turn: Turn, report: Report) -> None:
    """Take in a report, or say why not; it is answered either way."""
    title = TITLES[type(report)]
    state = turn.state
    reason = _why_not(state, report)
    if reason is not None:
        code, why = reason
        turn.do(Answer(state.uuid, code, f"jobId={state.job_id}, {title} is refused: {why}"))
        return
    uuid = state.uuid
    if isinstance(report, StatusReported) and report.alone:
        if outcomes.answered_alone(turn, report):
            intake.finish(turn, "recovered by the job itself")
        turn.do(Answer(uuid, Code.OK, f"jobId={state.job_id}, receive {title}"))
        return
    match report:
        case FaultsReported():
            faults = parse_faults(report.faults, state.shape)
            intake.take_faults(turn, faults, describe(faults))
            intake.take_cut(turn, report.cut)
            turn.do(Answer(turn.state.uuid, Code.OK, "receive ReportProcessFault"))
            return
        case StopReported():
            more = parse_faults(report.faults, state.shape)
            turn.edit(faults=merge(turn.episode.faults, more))
            turn.settle()
            if report.code == Code.NOT_READY:
                resorts.kill(turn, "the training processes cannot stop yet (404): the job is started again")
            else:
                course.announce(turn)
        case StrategiesReported():
            turn.settle()
            if state.phase is Phase.PAUSING:
                switching.paused(turn, report.offered)
            else:
                _take_strategies(turn, report)
        case StatusReported():
            turn.settle()
            _take_status(turn, report.code)
        case _:
            assert_never(report)
    turn.do(Answer(uuid, Code.OK, f"jobId={state.job_id}, uuid={uuid}, receive {title}"))


def _why_not(state: JobState, report: Report) -> tuple[Code, str] | None:
    """Say why a report cannot be taken; None if it can."""
    if state.phase is Phase.ENDED:
        return Code.NO_SUCH_JOB, "the job has ended"
    if isinstance(report, FaultsReported | StopReported | StrategiesReported):
        try:
            parse_faults(report.faults, state.shape)
        except BadFaults as error:
            return Code.BAD_PARAMETER, str(error)
    if isinstance(report, FaultsReported):
        if not report.faults:
            return Code.BAD_PARAMETER, "it names no rank"
        if state.policy.refusal:
            return Code.RECOVERY_OFF, state.policy.refusal
        return None
    if isinstance(report, StatusReported) and report.alone:
        return None
    wanted = _awaited(state.phase)
    if type(report) is not wanted:
        if wanted is None:
            return Code.ORDER_MIX, "no report is awaited now"
        return Code.ORDER_MIX, f"{TITLES[wanted]} is awaited now"
    if report.uuid and report.uuid != state.uuid:
        return Code.ORDER_MIX, f"it answers {report.uuid}; under way is {state.uuid}"
    if not state.handed:
        return Code.ORDER_MIX, "the order that it would answer was not handed out yet"
    if isinstance(report, StatusReported):
        ordered = state.episode.ordered if state.episode else Change.NONE
        if report.strategy and report.strategy != ordered:
            return Code.ORDER_MIX, f"it is about {report.strategy[:32]!r}; {ordered.value} was ordered"
    return None


def _awaited(phase: Phase) -> type[Report] | None:
    match phase:
        case Phase.STOPPING:
            return StopReported
        case Phase.ASKING | Phase.PAUSING:
            return StrategiesReported
        case Phase.RETRYING | Phase.RECOVERING | Phase.DUMPING | Phase.MIGRATING:
            return StatusReported
        case (
            Phase.INIT
            | Phase.NOTICING
            | Phase.HEALING
            | Phase.CONVERGING
            | Phase.RESCHEDULING
            | Phase.RESTARTING
            | Phase.STANDBY
            | Phase.PARTING
            | Phase.ENDED
        ):
            return None
        case _:
            assert_never(phase)


def _take_strategies(turn: Turn, report: StrategiesReported) -> None:
    offered = tuple(dict.fromkeys(Change(each) for each in report.offered if each in set(Change) and each))
    turn.edit(offered=offered)
    more = parse_faults(report.faults, turn.state.shape)
    known = named(turn.state, turn.episode)
    fresh = {rank: kind for rank, kind in more.items() if rank not in known}
    if fresh:
        course.ask_again(turn, f"the trainer names more ranks: {describe(fresh)}", fresh)
    else:
        course.decide(turn)


def _take_status(turn: Turn, code: int) -> None:
    ended: str | None
    match turn.state.phase:
        case Phase.RETRYING:
            ended = outcomes.retried(turn, code)
        case Phase.RECOVERING:
            ended = outcomes.recovered(turn, code)
        case Phase.DUMPING:
            ended = None
            outcomes.dumped(turn, code)
        case _:
            ended = switching.migrated(turn, code)
    if ended:
        intake.finish(turn, ended)
