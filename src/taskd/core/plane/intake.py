"""Faults that come in, from the trainer or from devices, in whatever phase.

A fault that comes before an order is given joins the list. One that comes while an order is carried out
begins a new round. One that comes while processes are being started again is answered by that; if a device
is behind it, its pod is replaced too.
"""

from __future__ import annotations

from typing import assert_never

from taskd.core.faults.view import FaultKind
from taskd.core.plane import course, names, rescheduling, switching
from taskd.core.plane.choice import wants_retry
from taskd.core.plane.faultlists import acting, as_normal, describe, merge, retryable, slowing
from taskd.core.plane.names import Strategy
from taskd.core.plane.resetconfig import ResetKind
from taskd.core.plane.state import SWITCHING, DevicesSeen, JobState, Phase, PodsSeen, Wish
from taskd.core.plane.turn import Turn, named, not_replaced, replaced

_PODS_GO = frozenset({Phase.RESCHEDULING, Phase.RESTARTING, Phase.PARTING, Phase.MIGRATING, Phase.ENDED})
"""In these phases pods go because they were asked to."""


def take_cut(turn: Turn, cut: tuple[int, ...]) -> None:
    """Note which pods nobody reaches, if anything is under way; ranks of theirs were taken in before."""
    known = {pod: turn.state.pods[pod].node for pod in cut if pod in turn.state.pods}
    if not known or turn.state.episode is None:
        return
    fresh = tuple(sorted(known.keys() - set(turn.episode.cut)))
    nodes = {node for node in known.values() if node}
    turn.edit(
        cut=tuple(sorted({*turn.episode.cut, *known})),
        avoid=tuple(sorted({*turn.episode.avoid, *nodes})),
    )
    if fresh:
        _hasten(turn, fresh)


def _hasten(turn: Turn, cut: tuple[int, ...]) -> None:
    """Have pods replaced by force that were to go on where they are, or were given time to end."""
    phase, episode = turn.state.phase, turn.episode
    pods = ", ".join(map(str, cut))
    why = f"pod {pods} is out of reach"
    if phase is Phase.HEALING:
        course.heal(turn, late=False)
    elif phase is Phase.ASKING and set(cut) & set(episode.in_place):
        course.ask_again(turn, why)
    elif phase in {Phase.ASKING, Phase.RECOVERING}:
        leaving = tuple(pod for pod in cut if pod in episode.leaving)
        turn.ask(Wish.REPLACE, not_replaced(turn.state, episode, leaving), why)
    elif phase in {Phase.DUMPING, Phase.RESCHEDULING}:
        turn.edit(leaving=tuple(sorted({*episode.leaving, *cut})))
        turn.ask(Wish.REPLACE, not_replaced(turn.state, episode, cut), why)
    elif phase is Phase.RESTARTING:
        turn.ask(Wish.RESTART_JOB, (), why)


def take_faults(turn: Turn, faults: dict[int, FaultKind], what: str, devices: tuple[int, ...] = ()) -> None:
    """Take in faults, in whatever phase."""
    state = turn.state
    match state.phase:
        case Phase.INIT:
            turn.settle()
            course.begin(turn, faults, devices, what)
        case Phase.NOTICING:
            course.begin(turn, faults, devices, what)
        case Phase.STANDBY | Phase.PAUSING | Phase.PARTING | Phase.MIGRATING:
            _leave_switch(turn)
            course.begin(turn, faults, devices, what)
        case Phase.STOPPING | Phase.HEALING:
            _join(turn, faults, devices)
            if state.phase is Phase.HEALING:
                course.heal(turn, late=False)
        case Phase.ASKING | Phase.CONVERGING:
            known = named(state, turn.episode)
            before = wants_retry(state.policy, turn.episode)
            after = before and retryable(merge(turn.episode.faults, faults))
            if before != after or any(rank not in known for rank in faults):
                turn.edit(devices=tuple(sorted({*turn.episode.devices, *devices})))
                course.ask_again(turn, f"another fault: {what}", faults)
        case Phase.RETRYING | Phase.RECOVERING:
            fresh = {rank: kind for rank, kind in faults.items() if _is_news(turn, rank, kind)}
            if fresh:
                turn.edit(devices=tuple(sorted({*turn.episode.devices, *devices})))
                course.stop_again(turn, fresh, f"another fault: {what}")
        case Phase.DUMPING | Phase.RESCHEDULING:
            _join(turn, faults, devices)
            pods = state.shape.pods_of(devices)
            fresh_pods = tuple(pod for pod in pods if pod not in turn.episode.leaving)
            turn.edit(leaving=tuple(sorted({*turn.episode.leaving, *pods})))
            turn.ask(Wish.REPLACE, fresh_pods, what)
        case Phase.RESTARTING | Phase.ENDED:
            pass
        case _:
            assert_never(state.phase)


def lost_pods(state: JobState, event: PodsSeen) -> dict[int, str]:
    """The pods, with their UIDs, that ran and have gone or failed although nobody here asked for it.

    Where all pods go at once the job is being started again, or ended, by somebody else.
    """
    policy = state.policy
    unattended = policy.unattended and policy.pod_rescheduling
    if event.ending or state.phase in _PODS_GO or (policy.refusal and not unattended):
        return {}
    gone: dict[int, str] = {}
    for rank, pod in state.pods.items():
        now = event.pods.get(rank)
        # Whether a pod that has failed is tried again, without a manager, is the operator's to decide.
        failed = now is not None and now.failed and not unattended
        if pod.running and (now is None or now.uid != pod.uid or failed):
            gone[rank] = pod.uid
    if len(gone) == len(state.pods):
        return {}
    episode = state.episode
    expected = set(episode.leaving) if episode is not None else set()
    return {
        rank: uid
        for rank, uid in gone.items()
        if state.left.get(rank) != uid
        and (rank not in expected or (episode is not None and replaced(state, episode, rank)))
    }


def take_losses(turn: Turn, lost: dict[int, str]) -> None:
    """Answer lost pods as faults of all their ranks; nobody has to report them."""
    shape = turn.state.shape
    ranks = tuple(rank for pod in lost for rank in shape.ranks_of(pod))
    pods = ", ".join(map(str, sorted(lost)))
    if turn.state.policy.unattended:
        rescheduling.lose(turn, ranks, f"pod {pods} was lost")
    else:
        take_faults(turn, as_normal(ranks), f"pod {pods} was lost", ranks)
    if turn.state.episode is not None:
        turn.edit(origin={**turn.episode.origin, **lost})


def _join(turn: Turn, faults: dict[int, FaultKind], devices: tuple[int, ...]) -> None:
    episode = turn.episode
    merged = merge(episode.faults, faults)
    if merged != episode.faults or not set(devices) <= set(episode.devices):
        turn.edit(faults=merged, devices=tuple(sorted({*episode.devices, *devices})))
        course.label_pods(turn)


def _is_news(turn: Turn, rank: int, kind: FaultKind) -> bool:
    """Tell whether a fault is another one than that which is being answered."""
    state, episode = turn.state, turn.episode
    if rank not in named(state, episode):
        return True
    if state.phase is Phase.RETRYING:
        return kind is not episode.faults.get(rank)
    pod = state.shape.pod_of(rank)
    return pod in episode.in_place or replaced(state, episode, pod)


def see_devices(turn: Turn, event: DevicesSeen) -> None:
    """Take in how the devices are now."""
    turn.change(health=event.health, devices=acting(event.ranks), slow=slowing(event.ranks))
    state = turn.state
    turn.change(
        answered={
            rank: mark
            for rank, mark in state.answered.items()
            if rank in state.devices or mark == rescheduling.FAILED
        }
    )
    answer_devices(turn)
    if turn.state.phase is Phase.HEALING:
        _see_healed(turn)
    elif turn.state.phase is Phase.CONVERGING and not _network_down(turn.state):
        course.order_retry(turn)


def answer_devices(turn: Turn) -> None:
    """Answer the devices that nobody has answered yet; where there are none, look at slow ones."""
    state = turn.state
    if state.phase in {Phase.RESTARTING, Phase.ENDED}:
        return
    if state.policy.refusal:
        if state.policy.unattended:
            rescheduling.answer(turn)
        return
    marks = {rank: rescheduling.mark(state, rank) for rank in state.devices}
    fresh = {rank: state.devices[rank] for rank in state.devices if state.answered.get(rank) != marks[rank]}
    if not fresh:
        if state.phase is Phase.INIT:
            switching.consider(turn)
        return
    turn.change(answered={**state.answered, **{rank: marks[rank] for rank in fresh}})
    may_retry = state.policy.allows(Strategy.RETRY)
    faults = {rank: fault.kind if may_retry else FaultKind.NORMAL for rank, fault in fresh.items()}
    what = f"device fault: {describe(faults)}"
    ranks = tuple(sorted(faults))
    if state.phase in SWITCHING:
        _leave_switch(turn)
    if turn.state.phase in {Phase.INIT, Phase.NOTICING} and not (may_retry and retryable(faults)):
        turn.settle()
        course.notice(turn, ranks, what)
    else:
        take_faults(turn, faults, what, ranks)


def _see_healed(turn: Turn) -> None:
    """Go on where devices are back; where the job goes on already, that was all."""
    if turn.episode.alone and not any(rank in turn.state.devices for rank in turn.episode.faults):
        finish(turn, "recovered by the job itself")
    else:
        course.heal(turn, late=False)


def _network_down(state: JobState) -> bool:
    faults = state.episode.faults if state.episode else {}
    return any(rank in state.devices for rank, kind in faults.items() if kind is FaultKind.NETWORK)


def _leave_switch(turn: Turn) -> None:
    """Let a fault take its usual course: the switch is off."""
    why = switching.overtaken(turn.state)
    stays = turn.state.phase in {Phase.STANDBY, Phase.PAUSING} or turn.state.keeps_old
    if stays and not turn.episode.migrated:  # else its ranks are in the standby
        switching.give_up_standby(turn, why)
    switching.close(turn, f"cancelled: {why}")
    turn.settle()


def finish(turn: Turn, outcome: str) -> None:
    """End what is under way and look for what came meanwhile."""
    if not turn.episode.cleared and turn.state.phase not in SWITCHING:
        turn.reset(ResetKind.CLEAR)
    for pod in turn.episode.labelled:
        turn.label(names.FAULT_TYPE, None, pod)
    turn.tell(outcome)
    if turn.state.phase in SWITCHING:
        turn.change(slow_answered="", switch_failures=0, switch_at=0.0)
    turn.change(phase=Phase.INIT, deadline=0.0, episode=None)
    turn.settle()
    answer_devices(turn)
