"""Asking the control plane about a fault: the question, the answer, and the price of silence."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskd.core.consulting import offers
from taskd.core.jobstate import Advised, Consult, NodeLost, PlaneChanged, Refuse, Ticked, Warned
from taskd.core.messages import Beat, Finish, Recover, Start, Stop, Trouble
from taskd.core.status import JobPhase
from taskd.core.testimony import Place, Statement
from taskd.manager.liaison import STOCK_S
from tests.core.scenes import KILLED, Scene
from tests.core.test_recovery_machine import keeping, orders

LIMIT_S = 2.0
STRATEGIES = ("retry", "recover", "recover-in-place", "dump", "exit", "unheard of")


def planned() -> Scene:
    """A running job of three ranks, one a node, that keep their state; there is a control plane."""
    play = keeping()
    play.step(PlaneChanged(play.at(), play.now, LIMIT_S))
    return play


def asked(play: Scene) -> list[tuple[tuple[int, str], ...]]:
    return [effect.ranks for effect in play.effects if isinstance(effect, Consult)]


def advise(play: Scene, strategy: str, ranks: tuple[int, ...] = (), nodes: tuple[int, ...] = ()) -> None:
    play.step(Advised(play.at(), play.now, strategy, ranks, nodes))


def test_a_death_is_told_before_it_is_answered() -> None:
    """Nobody is ordered anything until the plane has decided."""
    play = planned()
    play.exited("1", KILLED, step=4)

    assert [((1, "1"),)] == asked(play)
    assert [] == orders(play, Recover)
    assert JobPhase.RUNNING is play.job.phase


def test_the_plane_hears_which_nodes_nobody_reaches() -> None:
    """It must not wait for somebody there to confirm anything; an agent that died is another matter."""
    play = planned()
    play.lost("1")
    play.step(NodeLost(play.at(), play.now, "2", "2a", "it is out of reach", cut=True))

    told = [effect for effect in play.effects if isinstance(effect, Consult)]
    assert [(), (2,)] == [effect.cut for effect in told]
    assert ((1, "1"), (2, "1")) == told[-1].ranks


def test_the_decision_is_carried_out_and_named() -> None:
    """The reason in the timeline says who decided."""
    play = planned()
    play.exited("1", KILLED, step=4)
    advise(play, "recover-in-place", ranks=(1,))

    assert ["0", "1", "2"] == orders(play, Recover)
    assert "recover-in-place" == play.incidents[1].strategy
    assert "the control plane decided: recover-in-place" in play.incidents[1].reason


def test_a_silent_plane_costs_its_limit_and_no_more() -> None:
    """After it the job answers by itself, and the reason says so."""
    play = planned()
    play.exited("1", KILLED, step=4)
    play.step(Ticked(play.at(LIMIT_S - 0.5)))
    assert [] == orders(play, Recover)

    play.step(Ticked(play.at(0.6)))

    assert ["0", "1", "2"] == orders(play, Recover)
    assert "did not decide within 2 s" in play.incidents[1].reason


def test_a_stock_plane_has_longer_than_the_longest_that_was_seen() -> None:
    """26.03 s from the stop to its question, and up to 0.7 s before that."""
    play = planned()
    play.step(PlaneChanged(play.at(), play.now, STOCK_S))
    play.exited("1", KILLED, step=4)
    play.step(Ticked(play.at(26.03 + 0.7), play.now))
    assert play.job.consulting is not None
    advise(play, "recover-in-place", ranks=(1,))

    assert JobPhase.RECOVERING is play.job.phase


def test_ranks_that_wait_for_the_plane_do_not_hang() -> None:
    """They are silent for as long as it thinks, which may be longer than a step may take."""
    play = planned()
    play.step(PlaneChanged(play.at(), play.now, STOCK_S))
    play.exited("1", KILLED, step=4)
    for node in ("0", "2"):
        word = Statement(play.rank(node), 4, Place.IN_STEP, 31.0, 30.0, 600.0, waiting=node == "0")
        play.report(node, Beat(1, {play.rank(node): 4}, testimonies=(word,)))

    assert [((1, "1"),)] == asked(play)
    assert play.job.nodes["2"].workers[2].state.alive


def test_a_plane_that_leaves_is_not_waited_for() -> None:
    """An open question is answered here at once."""
    play = planned()
    play.exited("1", KILLED, step=4)
    play.step(PlaneChanged(play.at(), play.now, 0.0))

    assert ["0", "1", "2"] == orders(play, Recover)
    assert "out of reach" in play.incidents[1].reason


def test_what_survivors_feel_is_not_reported_as_their_fault() -> None:
    """Their broken connections are the death's; the plane hears of the dead rank alone."""
    play = planned()
    play.report("0", Trouble(1, 0, 5, "RuntimeError: Connection closed by peer", "", "network"))
    play.exited("1", KILLED, step=4)
    play.report("2", Trouble(1, 2, 5, "RuntimeError: Connection closed by peer", "", "network"))

    assert [((0, "2"),), ((1, "1"),)] == asked(play)
    advise(play, "recover-in-place")
    assert ["process"] == [incident.kind for incident in play.incidents.values()]


def test_a_memory_error_is_told_as_one() -> None:
    """Type 0: the plane may choose to have the step tried again, and nobody is replaced."""
    play = planned()
    play.report("1", Trouble(1, 1, 5, "DeviceMemoryError: UCE ERROR", "", "uce"))
    assert [((1, "0"),)] == asked(play)
    assert ("retry", "recover", "dump", "exit") == offers(play.job)

    advise(play, "retry")

    assert "retry" == play.incidents[1].strategy
    assert ["0", "1", "2"] == orders(play, Recover)


def test_two_deaths_are_one_question() -> None:
    """The second makes it wider, and one decision answers both."""
    play = planned()
    play.exited("1", KILLED, step=4)
    play.exited("2", KILLED, step=4)
    advise(play, "recover-in-place")

    assert [((1, "1"),), ((1, "1"), (2, "1"))] == asked(play)
    recover = play.job.recovering
    assert recover is not None
    assert recover.order is not None
    assert (1, 2) == recover.order.replace


def test_a_fault_in_the_middle_of_a_recovery_is_not_asked_about() -> None:
    """The survivors do not wait for a second decision."""
    play = planned()
    play.exited("1", KILLED, step=4)
    advise(play, "recover-in-place")
    play.effects.clear()
    play.exited("2", KILLED, step=4)

    assert [] == asked(play)
    assert ["0", "1", "2"] == orders(play, Recover)


def test_a_strategy_that_does_not_reach_falls_through() -> None:
    """A retry cannot bring a dead rank back: what the living have is saved before all restart."""
    play = planned()
    play.exited("1", KILLED, step=4)
    advise(play, "retry")

    assert JobPhase.SAVING is play.job.phase


def test_a_node_that_the_plane_wants_left_is_left() -> None:
    """Its agent ends with a failure, so that the pod is replaced, and its ranks wait for the new one."""
    play = planned()
    play.step(Warned(play.at(), play.now, ((1, "1"),), "device Ascend910-3 of node-b: 80C98000 (RestartNPU)"))
    assert [((1, "1"),)] == asked(play)
    advise(play, "recover", nodes=(1,))

    assert ["1"] == orders(play, Finish)
    assert ["0", "2"] == orders(play, Recover)
    assert "Ascend910-3" in play.incidents[1].what
    play.effects.clear()
    play.announce("1", "b")
    assert ["1"] == orders(play, Recover)


@pytest.mark.parametrize("nodes", [(1,), ()], ids=["the old pod is there", "it was replaced"])
def test_a_job_that_allows_recover_alone_offers_it_for_a_pod_that_only_the_plane_misses(
    nodes: tuple[int, ...],
) -> None:
    """The others hold the state; whether its node is known to be lost here makes no difference."""
    play = planned()
    play.job = replace(play.job, options=replace(play.job.options, strategies=("recover", "exit")))
    play.step(Warned(play.at(), play.now, ((1, "1"),), "pod 1 is gone"))
    assert ("recover", "exit") == offers(play.job)
    play.step(Advised(play.at(), play.now, "recover", nodes=nodes, end_agents=False))

    assert JobPhase.RECOVERING is play.job.phase
    recovering = play.job.recovering
    assert recovering is not None
    assert recovering.order is not None
    assert (1,) == recovering.order.replace


def test_a_pod_that_the_plane_has_deleted_does_not_fail_first() -> None:
    """Its agent is left alone: the deletion ends it, and is no failure of the job."""
    play = planned()
    play.step(Warned(play.at(), play.now, ((1, "1"),), "device 3 of node-b"))
    play.step(Advised(play.at(), play.now, "recover", nodes=(1,), end_agents=False))

    assert [] == orders(play, Finish)
    assert ["0", "2"] == orders(play, Recover)


def test_a_rank_on_a_broken_device_is_replaced_although_it_lives() -> None:
    """In place: the process is made anew, and nobody else is."""
    play = planned()
    play.step(Warned(play.at(), play.now, ((2, "1"),), "device 0 of node-c: 80E18005"))
    advise(play, "recover-in-place", ranks=(2,))

    recovering = play.job.recovering
    assert recovering is not None
    assert recovering.order is not None
    assert (2,) == recovering.order.replace


def test_a_link_that_the_plane_says_is_broken_costs_nobody_his_process() -> None:
    """The groups are made anew and the step is tried again."""
    play = planned()
    play.step(Warned(play.at(), play.now, ((2, "2"),), "the link of node-c: 81078603"))
    assert [((2, "2"),)] == asked(play)
    advise(play, "retry")

    recovering = play.job.recovering
    assert recovering is not None
    assert recovering.order is not None
    assert () == recovering.order.replace


def test_a_warning_for_nobody_is_refused() -> None:
    """A rank that does not exist harms nothing."""
    play = planned()
    play.step(Warned(play.at(), play.now, ((99, "1"),), "somewhere"))

    assert [] == asked(play)
    refusals = [effect.why for effect in play.effects if isinstance(effect, Refuse)]
    assert ["a warning that names no rank of this job"] == refusals


def test_advice_that_nobody_asked_for_is_refused() -> None:
    """A late decision about something that is over changes nothing."""
    play = planned()
    advise(play, "recover")

    assert (JobPhase.RUNNING, 1) == (play.job.phase, play.job.generation)
    assert any(isinstance(effect, Refuse) for effect in play.effects)


@pytest.mark.parametrize(
    ("strategy", "phase"), [("exit", JobPhase.STOPPING), ("killMaster", JobPhase.FINISHING)]
)
def test_coarse_decisions_are_followed(strategy: str, phase: JobPhase) -> None:
    """Exit restarts all processes; giving the job up ends it with a failure."""
    play = planned()
    play.exited("1", KILLED, step=4)
    advise(play, strategy)

    assert phase is play.job.phase


def test_a_stop_ends_the_question() -> None:
    """What was asked is of no consequence in a job that ends."""
    play = planned()
    play.exited("1", KILLED, step=4)
    advise(play, "exit")

    assert play.job.consulting is None


@given(
    st.lists(
        st.sampled_from(["death", "trouble", "warn", "advise", "tick", "leave", "join", "lost"]), max_size=12
    )
)
def test_no_question_stays_open(course: list[str]) -> None:
    """Whatever happens in whatever order, after the limit no fault is left unanswered."""
    play = planned()
    for number, what in enumerate(course):
        node = str(number % 3)
        match what:
            case "death":
                play.exited(node, KILLED, step=4)
            case "trouble":
                play.report(node, Trouble(play.job.generation, number % 3, 5, "RuntimeError: x", "", "step"))
            case "warn":
                play.step(Warned(play.at(), play.now, ((number % 3, "12"[number % 2]),), "a device"))
            case "advise":
                advise(play, STRATEGIES[number % 6], nodes=(1,))
            case "tick":
                play.step(Ticked(play.at(), play.now))
            case "leave" | "join":
                play.step(PlaneChanged(play.at(), play.now, LIMIT_S if what == "join" else 0.0))
            case _:
                play.lost(node)
    open_before = play.job.consulting
    play.step(Ticked(play.at(LIMIT_S + 0.1), play.now))

    assert play.job.consulting is None
    if open_before is not None:
        answered = (Recover, Stop, Start, Finish)
        assert play.job.phase is not JobPhase.RUNNING or any(orders(play, kind) for kind in answered)
