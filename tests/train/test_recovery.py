"""A killed rank is replaced from memory: no step is lost, and the run ends with the same bits."""

import os
import signal
from pathlib import Path

import pytest

from tests.roles.harness import RunningJob, eventually
from tests.train.runs import (
    COUNTED,
    WORLD,
    Run,
    assert_same,
    count_processes,
    finish,
    read_logs,
    read_run,
    start,
    train,
    write_faults,
)

pytestmark = pytest.mark.slow

# One death a run with TASKD_MATRIX=1 (make matrix): every rank at every point. Otherwise each point once, but
# for the inside of the update, by several deaths a run, one after the other; two die together, and rank 0 is
# among them, in a test of its own.
POINTS = ["before", "forward", "backward", "vote", "in-vote", "voted", "inside", "updated", "after"]
SAMPLE = [
    ["before:0:3", "vote:3:7", "updated:2:11", "forward:1:15"],
    ["backward:1:3", "in-vote:2:7", "voted:0:11", "after:3:15"],
]
MATRIX = [[f"{point}:{rank}:8"] for point in POINTS for rank in range(WORLD)]
CASES = MATRIX if os.environ.get("TASKD_MATRIX") else SAMPLE


@pytest.mark.parametrize("deaths", CASES, ids=",".join)
def test_a_kill_at_any_point_of_a_step_costs_no_bit(
    tmp_path: Path, undisturbed: Run, deaths: list[str]
) -> None:
    """Losses and parameters equal the undisturbed run's; only killed ranks have another process."""
    job = train(tmp_path, *(word for death in deaths for word in ("--die", death)))

    dead = {int(rank): point for point, rank, _ in (death.split(":") for death in deaths)}
    assert_same(undisturbed, tmp_path, tuple(rank for rank, point in dead.items() if point in COUNTED))
    assert [2 if rank in dead else 1 for rank in range(WORLD)] == count_processes(tmp_path)
    incidents = job.timeline()
    assert list(dead) == [each["rank"] for each in incidents]
    assert {("recover-in-place", "recovered")} == {(each["strategy"], each["outcome"]) for each in incidents}


def test_two_ranks_at_once_and_one_later(tmp_path: Path, undisturbed: Run) -> None:
    """Two deaths in the same step, rank 0 among them, then another one."""
    train(tmp_path, *("--die", "before:0:6"), *("--die", "before:2:6"), *("--die", "backward:3:13"))

    assert_same(undisturbed, tmp_path)
    assert [2, 1, 2, 2] == count_processes(tmp_path)


@pytest.mark.parametrize("role", ["manager", "proxy"])
def test_a_role_dies_with_a_rank(tmp_path: Path, undisturbed: Run, role: str) -> None:
    """The manager or the proxy is gone when the rank dies: its successor recovers the rank."""
    with start(tmp_path, "--pause", "0.15") as job:
        status = job.at_step(3)
        pid = status["manager_pid"] if role == "manager" else status["nodes"][0]["proxy_pid"]
        os.kill(pid, signal.SIGKILL)
        os.kill(status["ranks"][2]["pid"], signal.SIGKILL)
        finish(job)

    assert_same(undisturbed, tmp_path, (2,))
    assert [1, 1, 2, 1] == count_processes(tmp_path)


def test_a_fault_of_the_replacement(tmp_path: Path, undisturbed: Run) -> None:
    """The replacement is killed as soon as it exists: another one takes its place."""
    with start(tmp_path, "--pause", "0.15") as job:
        first = job.at_step(3)["ranks"][1]["pid"]
        os.kill(first, signal.SIGKILL)
        second = eventually(lambda: _other(job, first), "a replacement")
        os.kill(second, signal.SIGKILL)
        finish(job)

    assert_same(undisturbed, tmp_path, (1, 1))


def test_a_replacement_that_is_stopped_on_its_way_is_replaced(tmp_path: Path, undisturbed: Run) -> None:
    """It has not come to its loop yet, and all others wait for it."""
    job = train(tmp_path, "--die", "forward:1:5", "--stop-newcomer")

    assert_same(undisturbed, tmp_path, (1,))
    assert ["interrupted by fault 2", "recovered"] == [each["outcome"] for each in job.timeline()]


def test_a_passing_error_is_tried_again_by_the_same_processes(tmp_path: Path, undisturbed: Run) -> None:
    """retry: nobody gets a new process, the step is repeated, the bits are the same."""
    faults = [{"step": 6, "rank": 2, "kind": "raise"}, {"step": 11, "rank": 0, "kind": "raise"}]
    job = train(tmp_path, flags=write_faults(tmp_path, *faults))

    assert undisturbed == read_run(tmp_path)
    assert [1, 1, 1, 1] == count_processes(tmp_path)
    assert ["retry", "retry"] == [incident["strategy"] for incident in job.timeline()]


def test_an_error_that_comes_back_ends_the_job_with_its_stack(tmp_path: Path) -> None:
    """The same rank, step and error three times: the job ends with that, instead of trying for ever."""
    with start(tmp_path, "--fail-at", "5") as job:
        assert 1 == job.wait(90), job.err

    assert "3 times in a row" in job.err
    assert "ValueError: this step cannot be done" in job.err
    told = [incident["strategy"] for incident in job.timeline()]
    assert ["retry", "retry"] == told[:2]
    assert 3 >= len(told)


def test_a_damaged_replica_is_outvoted_and_repaired(tmp_path: Path, undisturbed: Run) -> None:
    """Rank 0, which would be the source, has lost a bit and does not know: its state is given to nobody."""
    train(tmp_path, *("--corrupt", "0:8"), *("--die", "before:2:8"))

    assert_same(undisturbed, tmp_path)
    assert "the state of rank 0 differed from its replicas' and was replaced" in read_logs(tmp_path)


def _other(job: RunningJob, first: int) -> int:
    ranks = job.status().get("ranks", [])
    pids = [rank["pid"] for rank in ranks if rank["rank"] == 1]
    return pids[0] if pids and pids[0] not in (0, first) else 0


def test_without_the_strategy_all_ranks_restart(tmp_path: Path) -> None:
    """``elastic-training,exit`` allows no recovery from memory: the reason says so, and what is not built."""
    faults = write_faults(tmp_path, {"step": 8, "rank": 1, "kind": "kill"})
    job = train(tmp_path, flags=("--recover-strategy", "elastic-training,exit", *faults))

    (incident,) = job.timeline()
    assert "restart" == incident["strategy"]
    assert "recover-in-place is not among the strategies" in incident["reason"]
    assert "elastic-training was skipped: it is not supported yet" in incident["reason"]
