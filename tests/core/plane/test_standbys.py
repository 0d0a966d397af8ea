"""Which standby takes which place: the plane says it to the operator and to the manager alike."""

from dataclasses import replace

import pytest

from taskd.core.faults.isolating import Scope
from taskd.core.faults.view import Health
from taskd.core.plane.faultlists import Shape
from taskd.core.plane.jobs import JobView, StandbyView, ready_standbys
from taskd.core.plane.requests import requests
from taskd.core.plane.state import (
    Ask,
    FaultsReported,
    Phase,
    PodSeen,
    PodsSeen,
    StopReported,
    StrategiesReported,
)
from tests.core.plane.scenes import Play, broken, pods, views


def play_with(*ready: str, unfit: tuple[str, ...] = (), size: int = 4) -> Play:
    play = Play.of("recover", size=size)
    play.state = replace(play.state, ready=ready, unfit=unfit)
    return play


def asked(play: Play) -> list[dict[int, str]]:
    return [dict(each.standbys) for each in play.last if isinstance(each, Ask) and each.wish == "replace"]


def test_operator_and_manager_are_told_the_same() -> None:
    """In the order of ranks, whichever pod goes first; a standby that may not be used is named too."""
    play = play_with("s-1", "s-2", unfit=("s-0",))
    play.feed(FaultsReported((("25", "1"), ("9", "1"))))
    play.feed(StopReported(0))
    places = {1: "s-1", 3: "s-2"}
    assert [places] == asked(play)
    (ask,) = (each for each in play.last if isinstance(each, Ask))
    (request,) = requests(ask, views(4))
    assert {"1": "s-1", "3": "s-2"} == request["standbys"]
    play.feed(StrategiesReported(("recover",)))

    assert (places, ("s-0",)) == (play.signal.standbys, play.signal.shunned)


def test_what_was_given_holds_when_another_pod_is_lost() -> None:
    """The manager may have moved the ranks already, and the operator may be about to give the place."""
    play = play_with("s-0", "s-1")
    play.feed(FaultsReported((("17", "1"),)))
    play.feed(StopReported(0))
    play.feed(StrategiesReported(("recover",)))
    assert {2: "s-0"} == play.signal.standbys
    play.feed(FaultsReported((("9", "1"),)))
    play.feed(StopReported(0))
    assert [{1: "s-1", 2: "s-0"}] == asked(play)
    play.feed(StrategiesReported(("recover",)))
    assert {1: "s-1", 2: "s-0"} == play.signal.standbys


def test_a_standby_that_has_its_place_is_given_no_other() -> None:
    play = play_with("s-0", "s-1")
    play.feed(FaultsReported((("17", "1"),)))
    play.feed(StopReported(0))
    play.state = replace(play.state, ready=("s-1",))
    play.feed(PodsSeen({**pods(4), 2: PodSeen("s-0", "standby")}))
    play.feed(StrategiesReported(("recover",)))
    assert play.at(Phase.RECOVERING)
    assert {} == play.signal.standbys
    play.feed(FaultsReported((("17", "1"),)))
    play.feed(StopReported(0))

    assert [{2: "s-1"}] == asked(play), "it is lost like any other pod"


def test_a_switch_says_which_pod_took_over() -> None:
    play = Play.of("recover", subHealthyStrategy="hotSwitch")
    play.devices(broken(9, "SubHealthFault"), health=Health.SUB_HEALTHY)
    assert play.at(Phase.STANDBY)
    there = PodSeen("job-1", "uid-1", standby="u", standby_running=True, standby_name="s-1")
    play.feed(PodsSeen({**pods(2), 1: there}))

    assert {1: "s-1"} == play.signal.standbys


@pytest.mark.parametrize(
    ("isolated", "has_devices", "ready", "unfit"),
    [
        ({}, True, ("s-0", "s-1"), ()),
        ({"n0": Scope.NODE}, True, ("s-1",), ("s-0",)),
        ({"n0": Scope.DEVICE}, True, ("s-1", "s-0"), ()),
        ({"n0": Scope.DEVICE}, False, ("s-1",), ("s-0",)),
    ],
)
def test_isolated_nodes_count_as_they_do_for_the_operator(
    isolated: dict[str, Scope], has_devices: bool, ready: tuple[str, ...], unfit: tuple[str, ...]
) -> None:
    there = (StandbyView("s-0", "n0"), StandbyView("s-1", "n1"))
    job = JobView("uid", "job", "default", Shape(2, 8), standbys=there, has_devices=has_devices)

    assert (ready, unfit) == ready_standbys(job, isolated)
