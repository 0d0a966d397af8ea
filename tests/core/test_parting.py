"""The end of a run: who is let go when, and what a fault means before and after that."""

from dataclasses import replace

from taskd.core.exits import ExitCode
from taskd.core.jobstate import SendWorkers, Ticked
from taskd.core.messages import (
    Coming,
    Farewell,
    NodePhase,
    Progress,
    Regroup,
    Standing,
    Through,
    WorkersStarted,
    WorkerState,
)
from taskd.core.recovery import LIMIT_S
from taskd.core.status import JobPhase
from tests.core.scenes import DONE, KILLED, RAISED, Scene

NODES = ("0", "1", "2")


def keeping() -> Scene:
    """A running job whose ranks, one a node, keep their state."""
    play = Scene(3).running()
    for node in NODES:
        play.report(node, Progress(1, play.rank(node), joined=True, step=4, ready=True))
    play.effects.clear()
    return play


def is_through(play: Scene, *nodes: str) -> None:
    for node in nodes:
        play.report(node, Through(play.job.generation, play.rank(node), 9))


def farewells(play: Scene) -> list[str]:
    return [e.node for e in play.effects if isinstance(e, SendWorkers) and isinstance(e.message, Farewell)]


def test_all_are_let_go_when_the_last_one_is_through() -> None:
    """Not before, and once each; one that says it again is told again."""
    play = keeping()
    is_through(play, "0", "1")
    assert [] == farewells(play)

    is_through(play, "2")
    assert ["0", "1", "2"] == farewells(play)

    is_through(play, "1")
    assert ["0", "1", "2", "1"] == farewells(play)


def test_a_rank_that_ended_without_a_word_is_through_too() -> None:
    """A script may leave in ways of its own."""
    play = keeping()
    play.exited("0", DONE, step=9)
    is_through(play, "1", "2")

    assert ["0", "1", "2"] == farewells(play)


def test_a_death_before_the_farewell_is_recovered_from_those_who_stay() -> None:
    """Those who are through stand again, and are through again, also for the end of the recovery."""
    play = keeping()
    is_through(play, "0", "1")
    play.exited("2", KILLED, step=9)
    assert (JobPhase.RECOVERING, []) == (play.job.phase, farewells(play))

    play.report("2", WorkersStarted(2, (play.view("2"),)))
    for node, has in (("0", True), ("1", True), ("2", False)):
        play.report(node, Standing(2, play.rank(node), has, 10, complete=False, store="h:1" if has else ""))
    assert any(isinstance(e, SendWorkers) and isinstance(e.message, Regroup) for e in play.effects)

    is_through(play, *NODES)
    assert JobPhase.RUNNING == play.job.phase
    assert ["recovered"] == [incident.outcome for incident in play.incidents.values()]
    assert ["0", "1", "2"] == farewells(play)


def test_what_is_killed_after_the_farewell_had_nothing_left_to_do() -> None:
    """A crash while an interpreter ends, and a node that is lost then, cost nothing."""
    play = keeping()
    is_through(play, *NODES)
    play.exited("0", KILLED, step=9)
    play.lost("1")
    play.exited("2", DONE, step=9)

    assert (JobPhase.FINISHING, ExitCode.OK) == (play.job.phase, play.ending.code)
    assert {} == play.incidents


def test_a_new_manager_learns_of_the_farewell_from_who_heard_it() -> None:
    """The one that said it died, and a rank was killed: it had nothing left to do, all the same."""
    play = keeping()
    views = {
        "0": replace(play.view("0", WorkerState.SUCCEEDED), exit=DONE, let_go=True),
        "1": replace(play.view("1", WorkerState.FAILED), exit=KILLED),
        "2": play.view("2"),
    }
    plan = play.job.plan
    later = Scene(3)
    for node, view in views.items():
        later.announce(node, phase=NodePhase.RUNNING, generation=1, plan=plan, workers=(view,))
    assert JobPhase.RUNNING == later.job.phase

    later.exited("2", DONE, step=9)
    assert (JobPhase.FINISHING, ExitCode.OK) == (later.job.phase, later.ending.code)
    assert {} == later.incidents


def test_an_exit_code_after_the_farewell_is_a_failure() -> None:
    """It is the script's own word."""
    play = keeping()
    is_through(play, *NODES)
    play.exited("0", RAISED, step=9)

    assert JobPhase.RECOVERING == play.job.phase


def test_a_rank_that_leaves_in_a_recovery_is_not_waited_for() -> None:
    """Who needs its state would wait for nothing; the next strategy begins at once."""
    play = keeping()
    play.exited("2", KILLED, step=4)
    play.exited("0", DONE, step=4)

    assert JobPhase.STOPPING == play.job.phase
    assert play.job.culprit is not None
    assert "rank 0 ended before all had come together" == play.job.culprit.why_restart


def test_a_rank_on_its_way_is_waited_for() -> None:
    """As long as it says so; without a word the recovery is given up."""
    play = keeping()
    play.exited("2", KILLED, step=4)
    for _ in range(3):
        play.now += LIMIT_S - 1
        play.report("0", Coming(2, 0))
        play.step(Ticked(play.at(), play.now))
    assert JobPhase.RECOVERING == play.job.phase

    play.now += LIMIT_S
    play.step(Ticked(play.at(), play.now))
    assert JobPhase.RECOVERING != play.job.phase
