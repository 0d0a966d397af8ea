"""A real run under a control plane that decides: a stock one, played from what was observed of it."""

import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from taskd.manager.liaison import STOCK_S
from taskd.testing.kube.processes import free_port
from taskd.train.torch.meeting import RAISE_LIMIT_S
from taskd.wire.recover import FaultRank
from tests.roles.harness import eventually
from tests.train.runs import MANY_STEPS, Run, assert_same, count_processes, finish, start
from tests.train.stock_plane import StockPlane

pytestmark = pytest.mark.slow

Reference = Callable[..., Run]
IN_PLACE = ["ReportProcessFault", "ReportStopComplete", "ReportRecoverStrategy", "ReportRecoverStatus"]


def ended(plane: StockPlane, episodes: int) -> bool:
    """So many episodes were brought to their end, and the manager listens again."""
    subscribed = plane.heard.count(("Subscribe", None))
    return plane.calls().count("ReportRecoverStatus") == episodes and subscribed > episodes


def joined(plane: StockPlane) -> None:
    eventually(lambda: ("Subscribe", None) in plane.heard, "the manager's subscription")


def test_a_death_is_decided_by_the_plane_and_recovered_from_memory(
    tmp_path: Path, reference: Reference
) -> None:
    """Twice, since the stream ends after each episode; the last word of a stock plane does no harm."""
    plane = StockPlane(extra="recover-in-place", ghost=True)
    with plane.serving(), start(tmp_path, "--pause", "0.1", steps=MANY_STEPS, env=plane.environment()) as job:
        joined(plane)
        for rank, step in ((1, 4), (2, 20)):
            os.kill(job.at_step(step)["ranks"][rank]["pid"], signal.SIGKILL)
            eventually(partial(ended, plane, rank), f"the end of the episode of rank {rank}")
        finish(job)

    assert_same(reference(steps=MANY_STEPS), tmp_path, (1, 2))
    assert [1, 2, 2, 1] == count_processes(tmp_path)
    assert IN_PLACE * 2 == plane.calls()
    told = dict(plane.heard)
    assert (FaultRank("2", "1"),) == told["ReportProcessFault"].faultRanks
    assert ("recover", "dump", "exit") == told["ReportRecoverStrategy"].strategies
    assert (0, "recover") == (told["ReportRecoverStatus"].status.code, told["ReportRecoverStatus"].strategy)
    incidents = job.timeline()
    assert ["recover-in-place"] * 2 == [incident["strategy"] for incident in incidents]
    assert all("the control plane decided: recover-in-place" in incident["reason"] for incident in incidents)


@pytest.mark.matrix
def test_a_plane_that_says_nothing_is_not_waited_for_long(tmp_path: Path, reference: Reference) -> None:
    """A stock plane has 40 s; its own death ends the waiting at once. The job goes on by itself."""
    plane = StockPlane(silent=True)
    with start(tmp_path, "--pause", "0.1", steps=MANY_STEPS, env=_soon(plane)) as job:
        with plane.serving():
            joined(plane)
            os.kill(job.at_step(4)["ranks"][1]["pid"], signal.SIGKILL)
            eventually(lambda: "ReportProcessFault" in plane.calls(), "the question")
        finish(job)

    assert_same(reference(steps=MANY_STEPS), tmp_path, (1,))
    assert [1, 2, 1, 1] == count_processes(tmp_path)
    assert "the control plane is out of reach" in job.timeline()[0]["reason"]


def test_a_rank_waits_longer_than_the_slowest_plane() -> None:
    """It would leave with its error otherwise, just when it is told what to do about it."""
    assert STOCK_S < RAISE_LIMIT_S


@pytest.mark.matrix
def test_a_plane_that_takes_its_longest_is_waited_for(tmp_path: Path, reference: Reference) -> None:
    """A ClusterD whose device does not come back asks after 26.03 s; nobody else is replaced meanwhile."""
    plane = StockPlane(extra="recover-in-place", delay_s=26.03)
    with plane.serving(), start(tmp_path, "--pause", "0.1", steps=MANY_STEPS, env=plane.environment()) as job:
        joined(plane)
        os.kill(job.at_step(4)["ranks"][1]["pid"], signal.SIGKILL)
        eventually(partial(ended, plane, 1), "the end of the episode", 60.0)
        finish(job)

    assert_same(reference(steps=MANY_STEPS), tmp_path, (1,))
    assert [1, 2, 1, 1] == count_processes(tmp_path)
    assert "the control plane decided: recover-in-place" in job.timeline()[0]["reason"]


def test_a_memory_error_that_only_the_plane_knows_of_is_repaired(
    tmp_path: Path, reference: Reference
) -> None:
    """The rank receives its state anew and the step is tried again; no process changes."""
    plane = StockPlane("retry")
    with plane.serving(), start(tmp_path, "--pause", "0.1", steps=MANY_STEPS, env=plane.environment()) as job:
        joined(plane)
        job.at_step(4)
        plane.say("stopTrain", actions=("stop_train",), faultRanks=(FaultRank("1", "0"),))
        eventually(lambda: "ReportRecoverStatus" in plane.calls(), "the end of the retry")
        finish(job)

    assert_same(reference(steps=MANY_STEPS), tmp_path)
    assert [1, 1, 1, 1] == count_processes(tmp_path)
    told = dict(plane.heard)
    assert (FaultRank("1", "0"),) == told["ReportProcessFault"].faultRanks
    assert (0, "retry") == (told["ReportRecoverStatus"].status.code, told["ReportRecoverStatus"].strategy)
    assert [("uce", "retry")] == [(each["kind"], each["strategy"]) for each in job.timeline()]


def test_a_job_that_our_plane_wants_saved_goes_on_from_its_dump(tmp_path: Path, reference: Reference) -> None:
    """The state is written and the plane is told; all processes start again, and no step is done twice."""
    plane = StockPlane(silent=True, ours=True)
    flags = ("--recover-strategy", "dump", "--dump-dir", str(tmp_path / "dumps"))
    with (
        plane.serving(),
        start(tmp_path, "--pause", "0.1", steps=MANY_STEPS, env=plane.environment(), flags=flags) as job,
    ):
        joined(plane)
        job.at_step(4)
        plane.say(
            "saveAndExit", actions=("save_and_exit",), faultRanks=(FaultRank("1", "1"),), nodeRankIds=("0",)
        )
        eventually(lambda: "ReportRecoverStatus" in plane.calls(), "the report of the dump")
        eventually(lambda: [2, 2, 2, 2] == count_processes(tmp_path), "new processes")
        finish(job)

    assert_same(reference(steps=MANY_STEPS), tmp_path)
    first, *_ = [said for name, said in plane.heard if name == "ReportRecoverStatus"]
    assert (0, "dump") == (first.status.code, first.strategy)
    assert ["dump", "restart"] == [incident["strategy"] for incident in job.timeline()]


def _soon(plane: StockPlane) -> dict[str, str]:
    """Return the environment of a plane that is not there yet."""
    plane.port = free_port()
    return plane.environment()
