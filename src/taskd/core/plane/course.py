"""The course of a fault: stop, tell everybody, ask what can be done, order it, see how it goes.

Nothing here sleeps. Where something has to be waited for there is a phase with a deadline and an event that
ends it earlier: a device that comes back, a pod that was replaced, a report. Where nothing has to be waited
for, the next order goes out in the same step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from taskd.core.faults.view import FaultKind, RankFault
from taskd.core.plane import names
from taskd.core.plane.choice import Choice, choose, wants_retry
from taskd.core.plane.faultlists import as_normal, causes, merge, retryable
from taskd.core.plane.names import (
    IN_PLACE_PARAMS,
    PASSING_LEVELS,
    Action,
    Change,
    SignalType,
    Strategy,
)
from taskd.core.plane.resetconfig import ResetKind
from taskd.core.plane.resorts import RECOVERING, all_leave, fall_back
from taskd.core.plane.state import Episode, JobState, Phase, Wish
from taskd.core.plane.turn import Turn, named, not_replaced, union


def begin(turn: Turn, faults: Mapping[int, FaultKind], devices: Iterable[int], what: str) -> None:
    """Answer faults that came while nothing, or nothing but a first notice, was under way."""
    open_episode(turn, what)
    turn.edit(faults=merge(turn.episode.faults, faults), devices=union(turn.episode.devices, devices))
    label_pods(turn)
    if turn.state.policy.dumps_first:
        save_and_leave(turn)
        return
    turn.reset(ResetKind.FLUSHING)
    turn.send(SignalType.STOP_TRAIN, Action.STOP_TRAIN, faults=turn.episode.faults)
    turn.enter(Phase.STOPPING, turn.state.limits.report_s)
    turn.tell(RECOVERING)


def open_episode(turn: Turn, what: str) -> None:
    """Begin to write down a fault, or give what a notice began its name on the wire."""
    uuid = turn.name()
    if turn.state.episode is None:
        origin = {rank: pod.uid for rank, pod in turn.state.pods.items()}
        turn.change(episode=Episode(uuid, turn.now, what, origin=origin))
    else:
        turn.edit(uuid=uuid)


def notice(turn: Turn, ranks: Iterable[int], what: str) -> None:
    """Have the processes of failed devices ended, so that the trainer notices at once."""
    open_episode(turn, what)
    faults = as_normal(ranks)
    turn.edit(faults=merge(turn.episode.faults, faults), devices=union(turn.episode.devices, faults))
    pods = not_replaced(turn.state, turn.episode, turn.state.shape.pods_of(faults))
    turn.send(SignalType.PRE_EXIT, Action.PRE_EXIT, faults=faults, nodes=pods)
    turn.enter(Phase.NOTICING, turn.state.limits.notice_s)
    turn.tell(RECOVERING)


def save_and_leave(turn: Turn) -> None:
    """Have a job that allows nothing better save its state and leave."""
    pods = turn.state.shape.pods_of(turn.episode.faults)
    turn.edit(leaving=pods, ordered=Change.DUMP, faults=as_normal(turn.episode.faults))
    ranks = named(turn.state, turn.episode)
    turn.reset(ResetKind.FAULTY, tuple(ranks))
    nodes = not_replaced(turn.state, turn.episode, pods)
    turn.send(SignalType.SAVE_AND_EXIT, Action.SAVE_AND_EXIT, faults=ranks, nodes=nodes)
    turn.enter(Phase.DUMPING, turn.state.limits.report_s)
    turn.tell(RECOVERING, "dump is the first strategy that the job allows")


def label_pods(turn: Turn) -> None:
    """Tell a scheduler that reads labels which pods have a fault, and of which sort."""
    episode = turn.episode
    kind = names.RETRY_FAULT if retryable(episode.faults) else names.SOFTWARE
    pods = turn.state.shape.pods_of(episode.faults)
    for pod in pods:
        turn.label(names.FAULT_TYPE, kind, pod)
    turn.edit(labelled=union(episode.labelled, pods))


# ------------------------------------------------------------------------------------- a fault on the way


def stop_again(turn: Turn, faults: Mapping[int, FaultKind], why: str) -> None:
    """Begin again from the stop, because a fault came while the trainer was carrying out an order."""
    if _next_round(turn, why):
        _take_in(turn, faults)
        turn.edit(tried=union(turn.episode.tried, {Change.RETRY}))
        turn.reset(ResetKind.FLUSHING)
        turn.send(SignalType.STOP_TRAIN, Action.STOP_TRAIN, faults=turn.episode.faults)
        turn.enter(Phase.STOPPING, turn.state.limits.report_s)
        turn.tell(RECOVERING, why)


def ask_again(turn: Turn, why: str, faults: Mapping[int, FaultKind] | None = None) -> None:
    """Tell the ranks and ask again under a new name: a manager answers each name once."""
    if _next_round(turn, why):
        _take_in(turn, faults or {})
        turn.tell(RECOVERING, why)
        announce(turn)


def _next_round(turn: Turn, why: str) -> bool:
    rounds = turn.episode.rounds + 1
    if rounds > turn.state.limits.max_rounds:
        fall_back(turn, f"{why}; it was the {rounds}th round, and no more are tried")
        return False
    turn.edit(
        uuid=turn.name(),
        rounds=rounds,
        in_place=(),
        leaving=(),
        offered=(),
        ordered=Change.NONE,
        placed=False,
        clear_at=0.0,
    )
    return True


def _take_in(turn: Turn, faults: Mapping[int, FaultKind]) -> None:
    """Add faults. A pod that was replaced and is faulty again counts as old from now on, and as reached."""
    turn.edit(cut=not_replaced(turn.state, turn.episode, turn.episode.cut))
    origin = dict(turn.episode.origin)
    for pod in turn.state.shape.pods_of(faults):
        seen = turn.state.pods.get(pod)
        if seen is not None:
            origin[pod] = seen.uid
    turn.edit(faults=merge(turn.episode.faults, faults), origin=origin)
    if faults:
        label_pods(turn)


# ------------------------------------------------------------------------------- what all are told and asked


def announce(turn: Turn) -> None:
    """Tell all which ranks are faulty, and ask what can be done; or wait for devices first."""
    state, episode = turn.state, turn.episode
    if wants_retry(state.policy, episode):
        network = FaultKind.NETWORK in episode.faults.values()
        timeout_s = names.NETWORK_TIMEOUT_S if network else 0
        turn.send(SignalType.GLOBAL_FAULT, Action.ON_GLOBAL_RANK, faults=episode.faults, timeout_s=timeout_s)
        turn.enter(Phase.ASKING, state.limits.report_s)
        return
    turn.edit(faults=as_normal(causes(episode.faults, episode.devices)))
    in_place, leaving, waiting = _sort_pods(state, turn.episode)
    if waiting and Phase.HEALING not in turn.episode.marks:
        turn.settle()
        turn.enter(Phase.HEALING, state.limits.heal_s)
        return
    _announce_normal(turn, in_place, union(leaving, waiting))


def heal(turn: Turn, *, late: bool) -> None:
    """Go on when the devices are back, or when they had their time."""
    in_place, leaving, waiting = _sort_pods(turn.state, turn.episode)
    if waiting and not late:
        return
    if waiting:
        pods = ", ".join(map(str, waiting))
        limit = turn.state.limits.heal_s
        turn.edit(reason=f"the devices of pod {pods} were still faulty after {limit:g} s: not in place")
    _announce_normal(turn, in_place, union(leaving, waiting))


def _sort_pods(state: JobState, episode: Episode) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Sort faulty pods: can go on in place, must leave, may go on in place if its devices come back."""
    pods = state.shape.pods_of(episode.faults)
    old = not_replaced(state, episode, pods)
    only_processes = not episode.devices and not any(rank in state.devices for rank in episode.faults)
    if episode.cut and set(pods) <= set(episode.cut):
        return (), pods, ()
    if (
        not state.policy.allows(Strategy.IN_PLACE)
        or Change.RECOVER in episode.tried
        or (only_processes and len(pods) > 1 and state.policy.allows(Strategy.RECOVER))
    ):
        return (), pods, ()
    in_place, leaving, waiting = [], [], []
    for pod in pods:
        ranks = state.shape.ranks_of(pod)
        levels = {found.level for rank in ranks for found in _faults_of(state, rank)}
        seen = state.pods.get(pod)
        stands = seen is not None and seen.running
        if not stands or pod not in old or pod in episode.cut or not levels <= PASSING_LEVELS:
            leaving.append(pod)
        elif levels:
            waiting.append(pod)
        else:
            in_place.append(pod)
    return tuple(in_place), tuple(leaving), tuple(waiting)


def _faults_of(state: JobState, rank: int) -> tuple[RankFault, ...]:
    return tuple(view[rank] for view in (state.devices, state.slow) if rank in view)


def _announce_normal(turn: Turn, in_place: tuple[int, ...], leaving: tuple[int, ...]) -> None:
    turn.edit(in_place=in_place, leaving=leaving, asked_at=turn.now)
    ranks = named(turn.state, turn.episode)
    nodes = not_replaced(turn.state, turn.episode, leaving)
    turn.reset(ResetKind.FAULTY, tuple(ranks), in_place=bool(in_place))
    turn.send(SignalType.GLOBAL_FAULT, Action.ON_GLOBAL_RANK, Action.NODES_EXIT, faults=ranks, nodes=nodes)
    turn.ask(Wish.REPLACE, nodes, turn.episode.what)
    turn.ask(Wish.KEEP, in_place, turn.episode.what)
    turn.enter(Phase.ASKING, turn.state.limits.report_s)


# ------------------------------------------------------------------------------------------- what is ordered


def decide(turn: Turn) -> None:
    """Choose a strategy and order it."""
    state, episode = turn.state, turn.episode
    choice = choose(state.policy, episode)
    if choice.change is not Change.RETRY and wants_retry(state.policy, episode):
        turn.edit(tried=union(episode.tried, {Change.RETRY}))
        ask_again(turn, "the trainer does not offer retry; the faults count as normal ones")
        return
    turn.edit(ordered=choice.change, placed=choice.in_place, reason=choice.reason)
    match choice.change:
        case Change.RETRY:
            network = [rank for rank, kind in episode.faults.items() if kind is FaultKind.NETWORK]
            if any(rank in state.devices for rank in network):
                turn.settle()
                turn.enter(Phase.CONVERGING, state.limits.converge_s)
            else:
                order_retry(turn)
        case Change.RECOVER:
            _order_recover(turn, choice)
        case _:
            _order_leaving(turn, choice)
    if turn.state.episode is not None:
        turn.tell(RECOVERING)


def order_retry(turn: Turn) -> None:
    """Have the step repeated."""
    turn.send(
        SignalType.CHANGE_STRATEGY,
        Action.CHANGE_STRATEGY,
        faults=turn.episode.faults,
        change=Change.RETRY,
        nodes=turn.state.shape.pods_of(turn.episode.faults),
    )
    turn.enter(Phase.RETRYING, turn.state.limits.report_s)


def _order_recover(turn: Turn, choice: Choice) -> None:
    state, episode = turn.state, turn.episode
    ranks = named(state, episode)
    missing = not_replaced(state, episode, episode.leaving)
    standbys = {pod: name for pod, name in episode.relief.items() if pod in missing}
    if choice.in_place:
        turn.edit(clear_at=turn.now + state.limits.clear_s)
        turn.send(
            SignalType.CHANGE_STRATEGY,
            Action.CHANGE_STRATEGY,
            Action.NODES_RESTART,
            faults=ranks,
            change=Change.RECOVER,
            nodes=episode.in_place,
            extra=IN_PLACE_PARAMS,
            standbys=standbys,
        )
    else:
        turn.send(
            SignalType.CHANGE_STRATEGY,
            Action.CHANGE_STRATEGY,
            faults=ranks,
            change=Change.RECOVER,
            nodes=missing,
            standbys=standbys,
        )
    left_s = episode.asked_at + state.policy.reschedule_s - turn.now
    turn.enter(Phase.RECOVERING, max(left_s, 0.0) if missing else state.limits.report_s)
    if episode.leaving and not missing:
        turn.reset(ResetKind.CLEAR)


def _order_leaving(turn: Turn, choice: Choice) -> None:
    """Order a dump or an exit. What was to go on in place leaves too."""
    actions = [Action.CHANGE_STRATEGY]
    stayed = turn.episode.in_place
    all_leave(turn)
    nodes = not_replaced(turn.state, turn.episode, turn.episode.leaving)
    if stayed:
        actions.append(Action.NODES_EXIT)
        turn.reset(ResetKind.FAULTY, tuple(named(turn.state, turn.episode)))
    if choice.change is Change.EXIT:
        leave(turn, *actions)
        return
    turn.ask(Wish.REPLACE, nodes, turn.episode.what)
    turn.send(
        SignalType.CHANGE_STRATEGY,
        *actions,
        faults=named(turn.state, turn.episode),
        change=Change.DUMP,
        nodes=nodes,
    )
    turn.enter(Phase.DUMPING, turn.state.limits.report_s)


def leave(turn: Turn, *actions: Action, extra: str = "") -> None:
    """Order all processes to leave; the faulty pods are replaced and everything starts again."""
    all_leave(turn)
    nodes = not_replaced(turn.state, turn.episode, turn.episode.leaving)
    turn.edit(exited=True, ordered=Change.EXIT, placed=False)
    turn.send(
        SignalType.CHANGE_STRATEGY,
        *(actions or (Action.CHANGE_STRATEGY,)),
        faults=named(turn.state, turn.episode),
        change=Change.EXIT,
        nodes=nodes,
        extra=extra,
    )
    turn.ask(Wish.REPLACE, nodes, turn.episode.what)
    turn.enter(Phase.RESCHEDULING, turn.state.policy.reschedule_s)


def leave_at_once(turn: Turn, why: str) -> None:
    """Have all leave without asking the trainer what it could do."""
    all_leave(turn)
    turn.reset(ResetKind.FAULTY, tuple(named(turn.state, turn.episode)))
    leave(turn)
    turn.tell(RECOVERING, why)
