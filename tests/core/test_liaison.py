"""The conversation with a control plane: ours, and a stock ClusterD with all that was observed of one."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from taskd.core.launch import NodePlace, Plan
from taskd.core.liaison import (
    Advise,
    Deed,
    Ignore,
    MoveRanks,
    ReportFault,
    ReportOffers,
    ReportOutcome,
    ReportStopped,
    SaveAndLeave,
    Signal,
    Stage,
    Talk,
    Warn,
    ask,
    hear,
    lose_plane,
    placed,
    save_now,
    settle,
    switched,
)

DEAD = ((1, "1"),)
STOP = Signal("u1", "stopTrain", ("stop_train",), DEAD)
GLOBAL = Signal("u1", "globalFault", ("on_global_rank", "fault_nodes_exit"), DEAD, nodes=(1,))


class Play:
    """A talk on a stage: what was done is written down."""

    def __init__(self) -> None:
        self.talk = Talk()
        self.deeds: list[Deed] = []

    def ask(self, *ranks: tuple[int, str]) -> None:
        self.talk, deeds = ask(self.talk, ranks)
        self.deeds.extend(deeds)

    def hear(self, *signals: Signal) -> None:
        for signal in signals:
            self.talk, deeds = hear(self.talk, signal)
            self.deeds.extend(deeds)

    def settle(self, *, recovered: bool = True) -> None:
        self.talk, deeds = settle(self.talk, recovered=recovered, why="as it went")
        self.deeds.extend(deeds)

    def obeyed(self) -> list[Deed]:
        return [deed for deed in self.deeds if not isinstance(deed, Ignore)]


def change(strategy: str, extra: str = "", nodes: tuple[int, ...] = ()) -> Signal:
    return Signal("u1", "changeStrategy", ("change_strategy",), DEAD, strategy, nodes, extra)


def test_a_recovery_in_place_from_report_to_result() -> None:
    """The wire says recover with a parameter; the job hears recover-in-place."""
    play = Play()
    play.ask(*DEAD)
    play.hear(STOP, GLOBAL, change("recover", "recover-in-place", nodes=(1,)))
    play.settle()

    assert [
        ReportFault(DEAD),
        ReportStopped(0, "the ranks stand", DEAD),
        ReportOffers(DEAD),
        Advise("recover-in-place", (1,), (1,)),
        ReportOutcome(0, "as it went", "recover", uuid="u1"),
    ] == play.deeds
    assert Stage.QUIET is play.talk.stage


def test_a_retry_that_fails_may_be_followed_by_another_strategy() -> None:
    """405 asks the plane for the next one; it stops again and decides again, in the same episode."""
    play = Play()
    play.ask((1, "0"))
    play.hear(STOP, GLOBAL, change("retry"))
    play.settle(recovered=False)

    assert ReportOutcome(405, "as it went", "retry", uuid="u1") == play.deeds[-1]


def test_a_fault_that_only_the_plane_sees_is_told_to_the_job() -> None:
    """A stop without a report before it, and the warning that a ClusterD sends for hardware."""
    play = Play()
    play.hear(STOP)
    assert [
        Warn(DEAD, "the control plane reports a fault of the device of rank 1"),
        ReportStopped(0, "the ranks stand", DEAD),
    ] == play.deeds
    early = Play()
    early.hear(Signal("u0", "preExitProcess", ("pre exit process",), DEAD, nodes=(1,)))
    assert [Warn(DEAD, "the control plane reports a fault of the device of rank 1")] == early.deeds


def test_a_stop_for_a_memory_error_is_confirmed_when_the_rank_has_said_so() -> None:
    """The rank learns of it at its next step; a decision before that would be about nothing."""
    doubted = ((1, "0"),)
    play = Play()
    play.hear(Signal("u1", "stopTrain", ("stop_train",), doubted))
    assert [Warn] == [type(deed) for deed in play.deeds]
    play.ask(*doubted)
    assert [ReportFault(doubted), ReportStopped(0, "the ranks stand", doubted)] == play.deeds[1:]
    play.hear(Signal("u1", "globalFault", ("on_global_rank",), doubted), change("retry"))
    play.settle()
    assert ReportOutcome(0, "as it went", "retry", uuid="u1") == play.deeds[-1]

    overtaken = Play()
    overtaken.hear(Signal("u1", "stopTrain", ("stop_train",), doubted))
    overtaken.settle()
    assert ReportStopped(0, "the ranks stand", doubted) == overtaken.deeds[-1]


def test_ghosts_are_refused() -> None:
    """What a ClusterD says of an episode that is over, or without ranks and names, does nothing."""
    play = Play()
    play.hear(
        Signal("", "globalFault", ("on_global_rank",)),
        change("exit", "dump_exit", nodes=(1,)),
        Signal("u9", "killMaster"),
        Signal("u9", "preExitProcess", ("pre exit process",)),
        Signal("u9", "hot-switch", ("new pod running",)),
        change("migration"),
        Signal("u9", "somethingNew"),
    )

    assert [] == play.obeyed()
    assert Talk() == play.talk


def test_a_stop_without_ranks_is_confirmed_and_harms_nothing() -> None:
    """A storm of faults at a ClusterD erases lists; whoever waits for the answer gets it."""
    play = Play()
    play.hear(Signal("u1", "stopTrain", ("stop_train",)))

    assert [ReportStopped(0, "the ranks stand", ())] == play.obeyed()


def test_a_job_that_did_not_wait_has_nothing_to_report_to_a_late_decision() -> None:
    """The decision of an episode that ended alone is refused."""
    play = Play()
    play.ask(*DEAD)
    play.hear(STOP)
    play.settle()
    play.hear(GLOBAL, change("recover"))

    assert [ReportFault(DEAD), ReportStopped(0, "the ranks stand", DEAD)] == play.obeyed()


def test_a_plane_that_died_before_it_kept_the_outcome_hears_it_again() -> None:
    """It gives the order again under the same name, and nothing is done twice; other orders are ghosts."""
    play = Play()
    play.ask(*DEAD)
    play.hear(STOP, GLOBAL, change("recover", "recover-in-place"))
    play.settle()
    play.talk = lose_plane(play.talk)
    said = len(play.deeds)
    play.hear(change("recover", "recover-in-place"))
    outcome = ReportOutcome(0, "as it went", "recover", uuid="u1")
    assert [outcome] == play.deeds[said:]
    play.hear(change("exit", "dump_exit"), replace(change("recover"), uuid="u2"))
    assert [outcome] == [deed for deed in play.deeds[said:] if not isinstance(deed, Ignore)]
    assert Stage.QUIET is play.talk.stage


def test_a_plane_that_gives_up_is_followed_where_something_is_wrong() -> None:
    """The whole job is rescheduled then."""
    play = Play()
    play.ask(*DEAD)
    play.hear(Signal("u1", "killMaster"))

    assert Advise("killMaster") == play.deeds[-1]


def test_a_dump_is_asked_for_by_name() -> None:
    """Jobs that have no other strategy are told to save and leave; asked again, they say how it went."""
    play = Play()
    order = Signal("u1", "saveAndExit", ("save_and_exit",), DEAD, nodes=(1,))
    play.hear(order)
    assert [SaveAndLeave(order)] == play.deeds
    play.ask(*DEAD)
    play.talk, deeds = save_now(play.talk, order)
    assert (Advise("dump", (1,), (1,)),) == deeds
    play.settle()
    play.talk = lose_plane(play.talk)
    play.hear(order)
    assert [ReportOutcome(0, "as it went", "dump", uuid="u1")] * 2 == play.deeds[-2:]


def test_a_job_that_does_not_train_has_nothing_to_save() -> None:
    """The plane is told so, and does not wait."""
    order = Signal("u1", "saveAndExit", ("save_and_exit",), DEAD, nodes=(1,))
    assert (Talk(), (ReportOutcome(499, "the job does not train", "dump", uuid="u1"),)) == save_now(
        Talk(), order
    )


def test_a_hot_switch_in_three_signals() -> None:
    """Prepared, the standby runs, the ranks are moved, the old pod goes, the end is confirmed."""
    play = Play()
    ranks = ((2, "1"), (3, "1"))
    play.hear(
        Signal("u1", "hot-switch", ("hot switch",), ranks), Signal("u1", "hot-switch", ("new pod running",))
    )
    assert [MoveRanks((2, 3))] == play.deeds
    play.talk, deeds = switched(play.talk, done=True, why="switched")
    play.deeds.extend(deeds)
    play.hear(change("migration"))

    assert ReportOffers(ranks, ("migration", "exit")) == play.deeds[1]
    assert ReportOutcome(0, "the ranks were moved", "migration") == play.deeds[2]


def test_the_plane_may_say_which_standbys_take_over() -> None:
    play = Play()
    play.ask(*DEAD)
    names = ((1, "j-standby-1"),)
    play.hear(Signal("u1", "changeStrategy", (), DEAD, "recover", (1,), "", names, ("j-standby-0",)))
    assert Advise("recover", (1,), (1,), names, ("j-standby-0",)) == play.deeds[-1]
    switch = Play()
    switch.hear(
        Signal("u1", "hot-switch", ("hot switch",), DEAD),
        Signal("u1", "hot-switch", ("new pod running",), standbys=names),
    )
    assert [MoveRanks((1,), "j-standby-1")] == switch.deeds


def test_a_plane_that_is_started_again_in_a_hot_switch_hears_how_it_went() -> None:
    """It says again whatever it said last; the ranks are moved once, and it is answered each time."""
    play = Play()
    ranks = ((2, "1"), (3, "1"))
    prepare = Signal("u1", "hot-switch", ("hot switch",), ranks)
    runs = Signal("u1", "hot-switch", ("new pod running",))
    play.hear(prepare, runs)
    play.talk = lose_plane(play.talk)
    play.talk, _ = switched(play.talk, done=True, why="switched")
    play.talk = lose_plane(play.talk)
    play.hear(runs, change("migration"), change("migration"))

    moved = ReportOutcome(0, "the ranks were moved", "migration")
    assert [MoveRanks((2, 3)), ReportOffers(ranks, ("migration", "exit")), moved, moved] == play.deeds
    play.hear(prepare)
    assert Stage.QUIET is lose_plane(Talk(Stage.ASKED, "u2")).stage


def test_a_hot_switch_that_is_called_off_leaves_nothing() -> None:
    """By the plane, or because the move did not come about here."""
    by_plane = Play()
    by_plane.hear(
        Signal("u1", "hot-switch", ("hot switch",), DEAD), Signal("", "hot-switch", ("stop switch",))
    )
    assert Talk() == by_plane.talk
    here = Play()
    here.hear(Signal("u1", "hot-switch", ("hot switch",), DEAD))
    talk, deeds = switched(here.talk, done=False, why="there is no spare node")
    assert Talk() == talk
    assert ReportOffers(DEAD, ("exit",)) in deeds


KINDS = (
    "stopTrain",
    "globalFault",
    "changeStrategy",
    "killMaster",
    "hot-switch",
    "preExitProcess",
    "keep-alive",
)
ACTIONS = ("stop_train", "pause_train", "hot switch", "new pod running")
SIGNALS = st.builds(
    Signal,
    st.sampled_from(["", "u1", "u2"]),
    st.sampled_from(
        [
            "stopTrain",
            "globalFault",
            "changeStrategy",
            "killMaster",
            "hot-switch",
            "preExitProcess",
            "keep-alive",
        ]
    ),
    st.lists(st.sampled_from(["stop_train", "pause_train", "hot switch", "new pod running"]), max_size=2).map(
        tuple
    ),
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from("012")), max_size=2).map(tuple),
    st.sampled_from(["", "retry", "recover", "dump", "exit", "migration", "continue"]),
)


@given(st.lists(st.one_of(SIGNALS, st.booleans(), st.just("ask")), max_size=20))
def test_the_job_is_advised_only_about_what_it_asked(course: list[Signal | bool | str]) -> None:
    """In any order of signals: one advice an open question at most; a fault of the job always opens one."""
    talk, is_open = Talk(), False
    for event in course:
        if isinstance(event, Signal):
            before = talk.stage
            talk, deeds = hear(talk, event)
            for deed in deeds:
                if isinstance(deed, Advise):
                    assert before is Stage.ASKED
                    assert is_open
                    is_open = False
                is_open = is_open or isinstance(deed, Warn) or talk.stage is Stage.ASKED
        elif isinstance(event, bool):
            talk, deeds = settle(talk, recovered=event, why="")
            is_open = talk.stage is Stage.ASKED
        else:
            talk, deeds = ask(talk, DEAD)
            is_open = True
            assert Stage.ASKED is talk.stage


def test_places_that_standbys_have_are_told_by_their_pods() -> None:
    places = (NodePlace("0", 0, 0, 2), NodePlace("standby-job-standby-1", 1, 2, 2))
    assert ((1, "job-standby-1"),) == placed(Plan(3, 0, "10.0.0.1", 29500, places))
    assert () == placed(None)
