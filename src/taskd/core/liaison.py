"""How the manager speaks with a control plane: its signals in, reports to it and events for the job out.

One *episode* is one fault: it is reported, the plane says stop, asks what the training side can do, decides,
and is told how that went. The plane may be ours or a stock ClusterD, whose stream ends after each episode,
which sends ghosts of episodes that are over, lists without ranks, and one more ``exit`` after everything went
well. So nothing is obeyed that does not fit what is under way here: what the plane says about a job in which
nothing is wrong is noted and refused.

The job is stopped for real when its recovery begins: its ranks cannot get past a dead one anyway, and a rank
whose device is in doubt shall train on while somebody thinks. So a stop is confirmed at once; only a rank
whose memory is in doubt has to say so first, at its next step, because only then it is known to all.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from taskd.core.advice import GIVE_UP
from taskd.core.consulting import FaultType
from taskd.core.launch import DUMP, RECOVER, RECOVER_IN_PLACE, RETRY, Plan
from taskd.core.podplace import STANDBY_NODE

OK, RETRY_FAILED, FAILED = 0, 405, 499
MIGRATION = "migration"
STANDS = "the ranks stand"


class SignalKind(StrEnum):
    """What a signal of the plane is about."""

    KEEP_ALIVE = "keep-alive"
    KILL_MASTER = "killMaster"
    STOP_TRAIN = "stopTrain"
    GLOBAL_FAULT = "globalFault"
    CHANGE_STRATEGY = "changeStrategy"
    SAVE_AND_EXIT = "saveAndExit"
    FAULT_NODES_EXIT = "faultNodesExit"
    HOT_SWITCH = "hot-switch"
    PAUSE_START_AGENT = "pauseStartAgent"
    CONTINUE_START_AGENT = "continueStartAgent"
    PRE_EXIT_PROCESS = "preExitProcess"


PAUSE = "pause_train"
PREPARE, ABANDON, STANDBY_RUNS = "hot switch", "stop switch", "new pod running"


@dataclass(frozen=True, slots=True)
class Signal:
    """One signal, as it came; ranks are pairs of rank and kind of fault."""

    uuid: str
    kind: str
    actions: tuple[str, ...] = ()
    ranks: tuple[tuple[int, str], ...] = ()
    strategy: str = ""
    nodes: tuple[int, ...] = ()
    extra: str = ""
    standbys: tuple[tuple[int, str], ...] = ()
    shunned: tuple[str, ...] = ()


class Stage(StrEnum):
    """How far an episode is."""

    QUIET = "quiet"
    WARNED = "warned"
    """Ranks whose memory is in doubt were told so; the stop is confirmed when they say it themselves."""
    ASKED = "asked"
    DECIDED = "decided"
    SWITCHING = "switching"
    SWITCHED = "switched"


@dataclass(frozen=True, slots=True)
class ReportOutcome:
    """Tell the plane how its decision went."""

    code: int
    info: str
    strategy: str
    alone: bool = False
    """The job answered the fault by itself, while no plane was there to ask."""
    uuid: str = ""
    """The episode that it ended, where that is over here."""


@dataclass(frozen=True, slots=True)
class Talk:
    """What is under way between a job and its plane."""

    stage: Stage = Stage.QUIET
    uuid: str = ""
    strategy: str = ""
    ranks: tuple[tuple[int, str], ...] = ()
    moved: str = ""
    """The last switch that was done, by its uuid: a plane that was started again may ask for it once more."""
    told: ReportOutcome | None = None
    """How the last decision went. A plane that died before it had kept that gives the same order again."""

    def over(self) -> "Talk":
        """Return the quiet after an episode."""
        return Talk(moved=self.moved, told=self.told)


# --- what is done ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReportFault:
    """Tell the plane which ranks are hurt, and which nodes nobody reaches."""

    ranks: tuple[tuple[int, str], ...]
    cut: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ReportStopped:
    """Tell the plane that the training stands, or will not."""

    code: int
    info: str
    ranks: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class ReportOffers:
    """Tell the plane what the training side can do; ``strategies`` empty: whatever the job can do now."""

    ranks: tuple[tuple[int, str], ...] = ()
    strategies: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Warn:
    """Tell the job of a fault that it has not felt."""

    ranks: tuple[tuple[int, str], ...]
    what: str


@dataclass(frozen=True, slots=True)
class Advise:
    """Tell the job what was decided."""

    strategy: str
    ranks: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()
    standbys: tuple[tuple[int, str], ...] = ()
    """The pods that take the places of others, by the place; the operator was told the same."""
    shunned: tuple[str, ...] = ()
    """The standby pods that are not to be used."""


@dataclass(frozen=True, slots=True)
class SaveAndLeave:
    """Have the state written and the job ended; or started again, for a plane that replaces its pods."""

    order: Signal


@dataclass(frozen=True, slots=True)
class MoveRanks:
    """Move the node of these ranks to the standby that runs now."""

    ranks: tuple[int, ...]
    standby: str = ""
    """That pod, where the plane says which it is."""


@dataclass(frozen=True, slots=True)
class Ignore:
    """Nothing fits; say so in the log."""

    why: str


Deed = (
    ReportFault
    | ReportStopped
    | ReportOffers
    | ReportOutcome
    | Warn
    | Advise
    | SaveAndLeave
    | MoveRanks
    | Ignore
)
Outcome = tuple[Talk, tuple[Deed, ...]]


# --- the job's side --------------------------------------------------------------------------------------


def ask(talk: Talk, ranks: Sequence[tuple[int, str]], cut: Sequence[int] = ()) -> Outcome:
    """The job has a fault, or learned more of it."""
    told = tuple(sorted(ranks))
    deeds: tuple[Deed, ...] = (ReportFault(told, tuple(cut)),)
    if talk.stage is Stage.WARNED:
        deeds += (ReportStopped(OK, STANDS, told),)
    return replace(talk, stage=Stage.ASKED, ranks=told), deeds


def settle(talk: Talk, *, recovered: bool, why: str) -> Outcome:
    """The job got over its fault, or the strategy did not reach; the plane is told what became of it."""
    if talk.stage is Stage.DECIDED:
        failed = RETRY_FAILED if talk.strategy == RETRY else FAILED
        outcome = ReportOutcome(OK if recovered else failed, why, talk.strategy, uuid=talk.uuid)
        return replace(talk.over(), told=outcome), (outcome,)
    if talk.stage is Stage.WARNED:
        # It was answered together with something else, or could not be felt.
        return replace(talk, stage=Stage.ASKED), (ReportStopped(OK, STANDS, talk.ranks),)
    if talk.stage is Stage.ASKED:
        # The job went on without waiting. A plane that speaks of this episode later is told nothing new.
        return talk.over(), (Ignore(f"the episode ended without a decision of the plane: {why}"),)
    return talk, ()


def switched(talk: Talk, *, done: bool, why: str) -> Outcome:
    """The move of ranks came to its end."""
    if talk.stage is not Stage.SWITCHING:
        return talk, ()
    if done:
        return replace(talk, stage=Stage.SWITCHED, moved=talk.uuid), (_paused(talk),)
    return talk.over(), (ReportOffers(talk.ranks, ("exit",)), Ignore(f"the move was called off: {why}"))


def lose_plane(talk: Talk) -> Talk:
    """The plane is gone. Ranks that are being moved go on moving, and the next plane asks about them."""
    return talk if talk.stage in (Stage.SWITCHING, Stage.SWITCHED) else talk.over()


def placed(plan: Plan | None) -> tuple[tuple[int, str], ...]:
    """Return the places that pods have which began as standbys, each with the pod's host name.

    A plane that was away does not know that the pods which had them before have none any more.
    """
    places = plan.places if plan is not None else ()
    return tuple(
        (place.node_rank, place.node.removeprefix(STANDBY_NODE))
        for place in places
        if place.node.startswith(STANDBY_NODE)
    )


# --- the plane's side ------------------------------------------------------------------------------------


def hear(talk: Talk, signal: Signal) -> Outcome:
    """Return what a signal means here."""
    match signal.kind:
        case SignalKind.KEEP_ALIVE | SignalKind.PAUSE_START_AGENT | SignalKind.CONTINUE_START_AGENT:
            return talk, ()
        case SignalKind.STOP_TRAIN:
            return _stop(talk, signal)
        case SignalKind.PRE_EXIT_PROCESS:
            if not signal.ranks:
                return talk, (Ignore("a warning without ranks"),)
            return talk, (Warn(signal.ranks, _describe(signal)),)
        case SignalKind.GLOBAL_FAULT:
            if talk.stage is Stage.QUIET or not signal.uuid:
                return talk, (Ignore("a fault of an episode that is over"),)
            return replace(talk, uuid=signal.uuid), (ReportOffers(signal.ranks or talk.ranks),)
        case SignalKind.CHANGE_STRATEGY:
            return _decide(talk, signal)
        case SignalKind.KILL_MASTER:
            if talk.stage is not Stage.ASKED:
                return talk, (Ignore("the plane gives up a job in which nothing is wrong"),)
            return talk.over(), (Advise(GIVE_UP),)
        case SignalKind.SAVE_AND_EXIT:
            if talk.told is not None and _is_told(talk, signal.uuid, DUMP):
                return talk, (talk.told,)
            return talk, (SaveAndLeave(signal),)
        case SignalKind.HOT_SWITCH:
            return _switch(talk, signal)
        case SignalKind.FAULT_NODES_EXIT:
            return talk, (Ignore("elastic training is not built"),)
        case _:
            return talk, (Ignore(f"signal {signal.kind!r} is not known"),)


def _stop(talk: Talk, signal: Signal) -> Outcome:
    stopped = ReportStopped(OK, STANDS, signal.ranks or talk.ranks)
    if PAUSE in signal.actions:
        return replace(talk, uuid=signal.uuid), (replace(stopped, ranks=()),)
    if talk.stage in (Stage.ASKED, Stage.DECIDED):
        return replace(talk, stage=Stage.ASKED, uuid=signal.uuid), (stopped,)
    if not signal.ranks:
        return talk, (stopped, Ignore("a stop without ranks, and nothing is wrong here"))
    warning = Warn(signal.ranks, _describe(signal))
    told = replace(talk, stage=Stage.WARNED, uuid=signal.uuid, ranks=signal.ranks)
    if all(kind == FaultType.MEMORY for _, kind in signal.ranks):
        # A decision before the rank has said so would be one about a fault that the job has not felt.
        return told, (warning,)
    return replace(told, stage=Stage.ASKED), (warning, stopped)


def _decide(talk: Talk, signal: Signal) -> Outcome:
    strategy = signal.strategy
    if strategy == "continue":
        return talk.over(), (ReportOutcome(OK, "goes on", strategy),)
    if strategy == MIGRATION:
        if talk.stage is not Stage.SWITCHED and not _is_done(talk, signal):
            return talk, (Ignore("a migration that was not prepared"),)
        return talk.over(), (ReportOutcome(OK, "the ranks were moved", MIGRATION),)
    if talk.stage is not Stage.ASKED:
        if talk.told is not None and _is_told(talk, signal.uuid, strategy):
            return talk, (talk.told,)
        return talk, (Ignore(f"{strategy} for an episode that is over"),)
    told = replace(talk, stage=Stage.DECIDED, strategy=strategy, uuid=talk.uuid or signal.uuid)
    if strategy == RECOVER and signal.extra == RECOVER_IN_PLACE:
        strategy = RECOVER_IN_PLACE
    ranks = tuple(rank for rank, _ in signal.ranks or talk.ranks)
    return told, (Advise(strategy, ranks, signal.nodes, signal.standbys, signal.shunned),)


def _switch(talk: Talk, signal: Signal) -> Outcome:
    if PREPARE in signal.actions:
        return Talk(Stage.SWITCHING, signal.uuid, ranks=signal.ranks, moved=talk.moved), ()
    if STANDBY_RUNS in signal.actions and _is_done(talk, signal):
        return replace(talk, stage=Stage.SWITCHED, uuid=signal.uuid), (_paused(talk),)
    if talk.stage is not Stage.SWITCHING:
        return talk, (Ignore(f"{', '.join(signal.actions)}, and no switch is under way"),)
    if STANDBY_RUNS in signal.actions:
        standby = next((pod for _, pod in signal.standbys), "")
        return talk, (MoveRanks(tuple(rank for rank, _ in talk.ranks), standby),)
    return talk.over(), (Ignore("the plane called the switch off"),)


def _is_done(talk: Talk, signal: Signal) -> bool:
    return bool(signal.uuid) and signal.uuid == talk.moved


def _is_told(talk: Talk, uuid: str, strategy: str) -> bool:
    """Tell whether an order was carried out, and the plane that gave it may not have kept how it went."""
    told = talk.told
    return told is not None and bool(uuid) and (told.uuid, told.strategy) == (uuid, strategy)


def save_now(talk: Talk, order: Signal) -> Outcome:
    """Take an order to save for the decision about a fault that the job has: all ranks start again after it.

    For a plane that replaces the faulty pods and waits for the others; if they ended, the job would have
    failed. One that has no such fault, since it is starting or ending, has nothing to save.
    """
    talk, deeds = _decide(talk, replace(order, strategy=DUMP))
    if talk.stage is Stage.DECIDED:
        return talk, deeds
    return talk, (ReportOutcome(FAILED, "the job does not train", DUMP, uuid=order.uuid),)


def _paused(talk: Talk) -> ReportOffers:
    return ReportOffers(talk.ranks, (MIGRATION, "exit"))


def _describe(signal: Signal) -> str:
    names = ", ".join(str(rank) for rank, _ in signal.ranks)
    return f"the control plane reports a fault of the device of rank {names}"
