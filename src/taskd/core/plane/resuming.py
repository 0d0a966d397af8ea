"""What a plane that was started again needs: what to keep of a state, and what to do once more.

The state is written before its effects are carried out, so a plane may die with a state that says "asked"
and nobody asked. Whatever the phase asks of others is therefore asked again; asking twice is asking once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from taskd.core.faults.view import Health
from taskd.core.plane import names
from taskd.core.plane.faultlists import Shape
from taskd.core.plane.names import Change
from taskd.core.plane.resetconfig import ResetContent, ResetKind
from taskd.core.plane.state import SWITCHING, Effect, JobState, Moment, Phase, Wish, WriteReset
from taskd.core.plane.turn import Turn, named, not_replaced

LONGEST_S: Final = 86_400.0
SHOWN: Final = 64


def kept(state: JobState) -> JobState:
    """What has to be kept of a state; the rest is told anew by the cluster and by streams."""
    return replace(
        state,
        pods={},
        ready=(),
        unfit=(),
        devices={},
        slow={},
        resets={},
        health=Health.HEALTHY,
        connected=False,
        handed=False,
        absent_since=0.0,
        keeps_old=False,
    )


def resumed(state: JobState, now: float) -> JobState:
    """A kept state, to go on with. An order that is outstanding may have been handed out before."""
    return replace(kept(state), handed=state.outstanding is not None, absent_since=now)


def why_absurd(state: JobState, job_id: str, shape: Shape, now: float) -> str:
    """Say why a kept state cannot be that of this job; empty if it can.

    It is text in the cluster, which people can edit and other programs can damage. What it names is used as
    an index all over the machine, so it is looked at once, here.
    """
    if state.job_id != job_id:
        return f"it is the state of job {state.job_id[:SHOWN]!r}"
    if state.shape != shape:
        return f"it is of a job with {state.shape}; this one has {shape}"
    if max(state.deadline, state.switch_at) > now + LONGEST_S:
        return "it waits for a moment that is more than a day away"
    if (state.episode is None) != (state.phase in {Phase.INIT, Phase.ENDED}):
        return f"it is in phase {state.phase} {'without' if state.episode is None else 'with'} an episode"
    return _who_is_not(state, shape)


def _who_is_not(state: JobState, shape: Shape) -> str:
    """Name a rank or pod in it that the job does not have."""
    episode, signal = state.episode, state.outstanding
    ranks = {*state.answered}
    pods = {*state.left}
    if episode is not None:
        ranks |= {*episode.faults, *episode.devices}
        pods |= {*episode.origin, *episode.cut, *episode.relief, *episode.in_place, *episode.leaving}
        pods |= {*episode.labelled, *({episode.pod} - {-1})}
        if state.phase in SWITCHING:
            pods.add(episode.pod)
    if signal is not None:
        ranks |= {*signal.faults}
        pods |= {*signal.nodes, *signal.standbys}
    for what, mentioned, count in (("rank", ranks, shape.world), ("pod", pods, shape.pods)):
        strange = next((each for each in sorted(mentioned) if not 0 <= each < count), None)
        if strange is not None:
            return f"it names {what} {strange}; the job has {count}"
    return ""


def repeat(state: JobState, now: float) -> tuple[Effect, ...]:
    """What the present phase asks of others, once more."""
    if state.episode is None:
        # Of a job whose processes nobody recovers here, what stands there is the device plugin's.
        clear = WriteReset("", ResetContent(ResetKind.CLEAR))
        return (clear,) if state.phase is Phase.INIT and not state.policy.refusal else ()
    turn = Turn(state, Moment(now, ""))
    episode = state.episode
    reason = episode.reason or episode.what
    match state.phase:
        case Phase.STOPPING | Phase.HEALING:
            turn.reset(ResetKind.FLUSHING)
        case Phase.STANDBY:
            turn.ask(Wish.STANDBY, (episode.pod,), reason)
        case Phase.PARTING:
            turn.ask(Wish.REMOVE_OLD, (episode.pod,), reason, force=episode.pressed)
        case Phase.RESTARTING:
            if not state.policy.unattended:
                turn.reset(ResetKind.CLEAR)
            elif episode.gentle:
                turn.reset(ResetKind.LEAVE)
            if episode.paused:
                turn.label(names.RECOVER_SWITCH, names.PAUSE)
            turn.ask(Wish.RESTART_JOB, (), reason)
        case Phase.ASKING | Phase.RECOVERING | Phase.DUMPING | Phase.RESCHEDULING:
            if episode.cleared:
                turn.reset(ResetKind.CLEAR)
            elif state.policy.unattended:
                if episode.gentle:
                    turn.reset(ResetKind.LEAVE)
            elif episode.leaving or episode.in_place:
                in_place = bool(episode.in_place) and episode.ordered in {Change.NONE, Change.RECOVER}
                turn.reset(ResetKind.FAULTY, tuple(named(state, episode)), in_place=in_place)
            turn.ask(Wish.REPLACE, not_replaced(state, episode, episode.leaving), reason)
            turn.ask(Wish.KEEP, episode.in_place, reason)
        case _:
            pass
    return tuple(turn.effects)
