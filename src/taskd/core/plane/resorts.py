"""The last resorts: the whole job is started again, because nothing smaller worked or could be tried.

While that goes on, the job's switch for process recovery says `pause`, which lets others reschedule the job;
it is set back when the job runs again, and also when it does not.
"""

from __future__ import annotations

from typing import Final

from taskd.core.plane import names
from taskd.core.plane.names import EXIT_PARAMS, Action, Change, SignalType
from taskd.core.plane.resetconfig import ResetKind
from taskd.core.plane.state import Phase, Wish
from taskd.core.plane.turn import Turn, named, not_replaced, union

RECOVERING: Final = "recovering"


def fall_back(turn: Turn, why: str) -> None:
    """Hand the job over to be started again as a whole."""
    state = turn.state
    if not turn.episode.exited:
        all_leave(turn)
        nodes = not_replaced(state, turn.episode, turn.episode.leaving)
        turn.edit(exited=True, ordered=Change.EXIT, placed=False)
        turn.send(
            SignalType.CHANGE_STRATEGY,
            Action.CHANGE_STRATEGY,
            faults=named(state, turn.episode),
            change=Change.EXIT,
            nodes=nodes,
            extra=EXIT_PARAMS,
        )
    _restart_job(turn, why)


def kill(turn: Turn, why: str) -> None:
    """Have the manager's own pod end, and with it the job, which is started again."""
    turn.send(SignalType.KILL_MASTER)
    _restart_job(turn, why)


def _restart_job(turn: Turn, why: str) -> None:
    turn.reset(ResetKind.CLEAR)
    turn.label(names.RECOVER_SWITCH, names.PAUSE)
    turn.edit(paused=True)
    replace_all(turn, why)


def replace_all(turn: Turn, why: str) -> None:
    """Have every pod of the job replaced."""
    # A pod that has replaced one out of reach can be reached: from here on it is as old as the others.
    turn.edit(cut=not_replaced(turn.state, turn.episode, turn.episode.cut))
    turn.edit(origin={**turn.episode.origin, **{rank: pod.uid for rank, pod in turn.state.pods.items()}})
    turn.ask(Wish.RESTART_JOB, (), why)
    turn.enter(Phase.RESTARTING, turn.state.limits.restart_s)
    turn.tell(RECOVERING, why)


def unpause(turn: Turn) -> None:
    """Set the job's switch for process recovery back, if it was set to pause."""
    if turn.episode.paused:
        turn.label(names.RECOVER_SWITCH, names.ON)
        turn.edit(paused=False)


def restarted(turn: Turn) -> bool:
    """Tell whether every pod is a new one and runs."""
    state, episode = turn.state, turn.episode
    return state.running and not not_replaced(state, episode, tuple(state.pods))


def all_leave(turn: Turn) -> None:
    """Have every faulty pod leave, also those that were to go on in place."""
    pods = turn.state.shape.pods_of(turn.episode.faults)
    turn.edit(leaving=union(pods, turn.episode.in_place, turn.episode.leaving), in_place=())
