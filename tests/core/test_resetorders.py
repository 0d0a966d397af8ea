"""The mounted reset-config: what it asks of a job for which no control plane speaks."""

from dataclasses import replace

import pytest

from taskd.core.exits import ExitCode
from taskd.core.faults.texts.reset import RankStatus, Reset, ResetRank
from taskd.core.jobstate import PlaneChanged, ResetRead, Ticked
from taskd.core.messages import Finish, NodePhase, Recover, Start, Stop
from taskd.core.status import JobPhase
from tests.core.scenes import KILLED, Scene, scene
from tests.core.test_recovery_machine import keeping, orders

CALM = Reset()
NODES = ("0", "1")


def say(play: Scene, reset: Reset) -> None:
    play.step(ResetRead(play.at(), play.now, reset))


def ranks(status: RankStatus, *numbers: int) -> Reset:
    return Reset(tuple(ResetRank(number, status=status, policy="reset") for number in numbers))


def running(nodes: int = 2) -> Scene:
    play = scene(nodes).running()
    say(play, CALM)
    play.effects.clear()
    return play


def stopped(play: Scene) -> None:
    for node in NODES:
        play.stopped(node)


def test_an_unrecovered_device_stops_the_training_and_a_recovered_one_starts_it() -> None:
    play = running()
    say(play, ranks(RankStatus.UNRECOVERED, 1))

    assert ["0", "1"] == play.orders(Stop)
    stopped(play)
    assert [] == play.orders(Start)
    assert (JobPhase.GATHERING, "the device of rank 1 is being reset") == (play.job.phase, play.job.reason)
    say(play, ranks(RankStatus.RECOVERED, 1))
    assert ["0", "1"] == play.orders(Start)
    assert "the device of rank 1 is being reset" in play.incidents[1].reason


def test_all_devices_have_to_be_recovered() -> None:
    play = running()
    say(play, ranks(RankStatus.UNRECOVERED, 0, 1))
    stopped(play)
    mixed = (ResetRank(0, status=RankStatus.RECOVERED), ResetRank(1, status=RankStatus.UNRECOVERED))
    say(play, Reset(mixed))

    assert [] == play.orders(Start)
    say(play, CALM)
    assert ["0", "1"] == play.orders(Start)


def test_a_reset_that_was_over_before_it_was_seen_restarts_once() -> None:
    """A kubelet is slow: the processes saw their device go, and nobody stopped them."""
    play = running()
    say(play, ranks(RankStatus.RECOVERED, 1))
    stopped(play)

    assert ["0", "1"] == play.orders(Start)
    for node in NODES:
        play.started(node)
    say(play, replace(ranks(RankStatus.RECOVERED, 1), update_time=7))
    assert 2 == len(play.orders(Stop))


def test_a_device_that_could_not_be_reset_stands_until_its_pod_is_another() -> None:
    """The job waits for the new pod and for the file to be cleared, in either order."""
    play = running()
    say(play, ranks(RankStatus.FAILED, 1))
    play.stopped("0")
    play.lost("1")
    play.announce("1", "b")

    assert [] == play.orders(Start)
    assert "could not be reset" in play.job.reason
    say(play, replace(CALM, retry_time=1))
    assert ["0", "1"] == play.orders(Start)
    for node, life in (("0", "a"), ("1", "b")):
        play.started(node, life)
    assert JobPhase.RUNNING is play.job.phase
    assert 1 == play.job.restarts, "the higher count is about the pod that was replaced just now"


def test_a_hold_that_never_ends_ends_the_job() -> None:
    play = running()
    say(play, ranks(RankStatus.FAILED, 1))
    stopped(play)
    play.step(Ticked(play.at(play.options.join_timeout_s + 1)))

    assert ["0", "1"] == play.orders(Finish)
    assert ExitCode.NODES_MISSING == play.ending.code
    assert "could not be reset" in play.ending.reason


def test_a_higher_count_restarts_all_once() -> None:
    play = running()
    say(play, replace(CALM, retry_time=1))
    stopped(play)
    for node in NODES:
        play.started(node)
    say(play, replace(CALM, retry_time=1, update_time=9))

    assert (["0", "1"], ["0", "1"]) == (play.orders(Stop), play.orders(Start))
    assert "RetryTime 1" in play.incidents[1].reason


def test_the_count_that_is_there_at_first_asks_for_nothing() -> None:
    """A manager that was born later does not know what it was before, and all it starts is new."""
    play = scene(2).running()
    say(play, replace(CALM, retry_time=7))

    assert [] == play.orders(Stop)


def test_a_replaced_pod_is_not_paid_for_twice() -> None:
    """Its loss has restarted all; the count that tells of it comes a minute later."""
    play = running()
    play.lost("1")
    play.stopped("0")
    play.announce("1", "b")
    play.started("0")
    play.started("1", "b")
    play.step(Ticked(play.at(60.0)))
    play.effects.clear()
    say(play, replace(CALM, retry_time=1))

    assert [] == play.orders(Stop)
    say(play, replace(CALM, retry_time=2))
    assert ["0", "1"] == play.orders(Stop), "and another one is another restart"


def test_a_manager_that_takes_over_does_not_pay_for_its_predecessors_pod() -> None:
    """It was born because that pod was replaced; the count that tells of it comes later."""
    old = running()
    play = scene(2)
    say(play, CALM)
    for node in NODES:
        views = (old.view(node),)
        play.announce(
            node,
            "b",
            phase=NodePhase.RUNNING,
            generation=old.job.generation,
            plan=old.job.plan,
            workers=views,
        )
    play.step(Ticked(play.at(10.0)))
    say(play, replace(CALM, retry_time=1))

    assert JobPhase.RUNNING is play.job.phase
    assert [] == play.orders(Stop)


def test_a_graceful_exit_stops_all_until_it_is_taken_back() -> None:
    play = running()
    say(play, replace(CALM, graceful_exit=1))
    stopped(play)

    assert ([*"01"], []) == (play.orders(Stop), play.orders(Start))
    say(play, replace(CALM, retry_time=1))
    assert ["0", "1"] == play.orders(Start)


def test_nobody_is_started_while_faults_are_gathered() -> None:
    """Those who run are left alone."""
    play = running()
    say(play, replace(CALM, flushing=True))
    assert [] == play.effects
    fresh = scene(2)
    say(fresh, replace(CALM, flushing=True))
    for node in NODES:
        fresh.announce(node)
    assert [] == fresh.orders(Start)
    say(fresh, CALM)
    assert ["0", "1"] == fresh.orders(Start)


def test_a_manager_born_into_a_reset_stops_what_runs() -> None:
    """It learns from the file before it hears the agents."""
    old = running()
    play = scene(2)
    say(play, ranks(RankStatus.UNRECOVERED, 1))
    for node in NODES:
        play.announce(
            node,
            "b",
            phase=NodePhase.RUNNING,
            generation=old.job.generation,
            plan=old.job.plan,
            workers=(old.view(node),),
        )
    play.step(Ticked(play.at(10.0)))
    play.step(Ticked(play.at()))

    assert ["0", "1"] == play.orders(Stop)


@pytest.mark.parametrize(
    "reset",
    [
        ranks(RankStatus.UNRECOVERED, 1),
        replace(CALM, graceful_exit=1),
        replace(CALM, retry_time=1),
        ranks(RankStatus.FAULT, 1),
    ],
)
def test_under_a_control_plane_the_file_is_not_obeyed(reset: Reset) -> None:
    """The same comes over the wire; also while the plane is away for a moment."""
    play = running()
    play.step(PlaneChanged(play.at(), play.now, 2.0))
    say(play, reset)
    play.step(PlaneChanged(play.at(), play.now, 0.0))
    say(play, CALM)
    say(play, reset)

    assert [] == play.orders(Stop)


def test_a_refused_job_is_restarted_and_not_recovered() -> None:
    """The plane answered 403: processes are not recovered one by one, although they could be."""
    play = keeping()
    play.step(PlaneChanged(play.at(), play.now, 0.0, "fault-scheduling is absent or off"))
    play.exited("1", KILLED, step=4)

    assert ([], ["0", "1", "2"]) == (orders(play, Recover), orders(play, Stop))
    assert play.job.culprit is not None
    assert "the control plane does not allow it: fault-scheduling is absent or off" == (
        play.job.culprit.why_restart
    )
    play.step(PlaneChanged(play.at(), play.now, 2.0))
    assert "" == play.job.refused
