"""The manager's machine is lost or cut off: another one takes over, and never do two decide at once.

Each launcher stands for a machine, with a home of its own. Nothing here keeps state in memory: ranks restart.
"""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from taskd.core.certificates import VARIABLE
from taskd.testing.kube.processes import free_port
from tests.links.papers import authority, job_papers
from tests.roles.harness import RunningJob, eventually, wake

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

STEPS = str(Path(__file__).with_name("steps.py"))

Start = Callable[..., RunningJob]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a launcher in a home of that name, and see afterwards that nothing is left."""
    where = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--rdzv-id", "x"]
    where += ("--manager-port", str(free_port()), "--nproc-per-node", "1")
    jobs: list[RunningJob] = []
    families: list[psutil.Process] = []

    def begin(name: str, *flags: str, nodes: int = 2, steps: int = 100000) -> RunningJob:
        home = tmp_path / name
        home.mkdir(exist_ok=True)
        job = RunningJob(home, *where, "--nnodes", str(nodes), *flags, STEPS, str(steps), "0.02")
        jobs.append(job)
        return job

    yield begin
    for job in jobs:
        families += job.family()
        with contextlib.suppress(psutil.NoSuchProcess):
            signal_all(job, signal.SIGCONT)
        job.close()
    _, alive = psutil.wait_procs([each for each in families if each.is_running()], timeout=10)
    assert not alive, f"left behind: {alive}"


def signal_all(job: RunningJob, sig: signal.Signals) -> list[psutil.Process]:
    """Do the same to every process of a machine, the launcher first."""
    family = job.family()
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(sig)
    return family


def joined(first: RunningJob, others: list[RunningJob]) -> dict[str, Any]:
    """Wait until all ranks run, and every machine has kept the roster of all."""
    status = first.at_step(3)
    for job in (first, *others):
        eventually(partial(_knows, job, 1 + len(others)), "the roster of all")
    return status


def _knows(job: RunningJob, count: int) -> bool:
    files = list(job.directory.glob("roster-*.json"))
    return bool(files) and files[0].read_text().count('"lookout"') == count


def three(start: Start) -> list[RunningJob]:
    """Start two nodes and a spare one, in this order."""
    jobs = [start("first")]
    for name in ("second", "third"):
        eventually(lambda: jobs[0].saved_status().get("nodes"), "the first node")
        jobs.append(start(name))
        eventually(lambda: len(jobs[0].saved_status()["nodes"]) == len(jobs), "the next node")
    joined(jobs[0], jobs[1:])
    return jobs


def runs_at(job: RunningJob) -> dict[str, Any] | None:
    """Return the status that a machine's manager wrote, once the job runs there."""
    status = job.saved_status()
    return status if status.get("phase") == "running" else None


@pytest.fixture(params=["in the clear", "with certificates"])
def secured(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job has certificates, or has none."""
    if request.param == "with certificates":
        identity = "3d5fe1c4-9d1f-4b8a-9f5e-0c7e1c3b2a10"
        papers = job_papers(tmp_path / "certificates", authority(), identity)
        monkeypatch.setenv(VARIABLE, papers.directory)
        monkeypatch.setenv("MINDX_TASK_ID", identity)


@pytest.mark.usefixtures("secured")
def test_a_killed_machine_s_manager_comes_up_on_the_next_one(start: Start) -> None:
    """With all its ranks; the job's commands work there, and the incident says what happened."""
    first, second, third = three(start)
    signal_all(first, signal.SIGKILL)

    status = eventually(lambda: runs_at(second), "the job to run under the second machine's manager")
    assert [0, 1] == [rank["rank"] for rank in status["ranks"]]
    assert "with the manager on its machine" in second.timeline()[-1]["what"]
    second.cli("stop", "job")
    assert [143, 143] == [second.wait(), third.wait()]


def test_a_machine_that_was_cut_off_and_comes_back_ends(start: Start) -> None:
    """Its manager decides nothing any more, and its launcher says where the job is now."""
    first, second, third = three(start)
    frozen = signal_all(first, signal.SIGSTOP)
    status = eventually(lambda: runs_at(second), "the job to run under the second machine's manager")
    pids = {rank["rank"]: rank["pid"] for rank in status["ranks"]}

    wake(frozen)
    assert 5 == first.wait()
    assert "has taken the job over" in first.err
    assert pids == second.pids()
    second.cli("stop", "job")
    assert [143, 143] == [second.wait(), third.wait()]


def test_a_manager_that_its_launcher_replaces_is_not_taken_over(start: Start) -> None:
    """The machine is there, so its own launcher's manager goes on; no process is touched."""
    first, second, _ = three(start)
    before = first.pids()
    old = first.saved_status()["manager_pid"]
    os.kill(old, signal.SIGKILL)

    eventually(lambda: first.saved_status().get("manager_pid") != old and runs_at(first), "another manager")
    assert before == first.pids()
    assert "takes over" not in second.err
    first.cli("stop", "job")
    assert 143 == first.wait()


def test_one_of_two_machines_does_not_take_over(start: Start) -> None:
    """Nobody can tell a lost machine from a lost line: it says so, and leaves in time."""
    flags = ("--rdzv-conf", "timeout=12")
    first = start("first", *flags)
    eventually(lambda: first.saved_status().get("nodes"), "the first node")
    second = start("second", *flags)
    joined(first, [second])
    signal_all(first, signal.SIGKILL)

    assert 5 == second.wait()
    assert "1 of 2 machines are not enough" in second.err


def test_a_launcher_that_is_started_again_joins_where_the_job_is_now(start: Start) -> None:
    """It finds the others by what it knew of them, and its node is a spare one."""
    first, second, third = three(start)
    signal_all(first, signal.SIGKILL)
    first.wait()
    eventually(lambda: runs_at(second), "the job to run under the second machine's manager")

    again = start("first")
    eventually(
        lambda: sum(node["connected"] for node in second.saved_status()["nodes"]) == 3, "the node back"
    )
    assert "manages this job by now" in again.err
    second.cli("stop", "job")
    assert [143, 143, 143] == [second.wait(), third.wait(), again.wait()]


def test_managers_are_taken_over_again_and_again(start: Start) -> None:
    """The one that took over is lost too; by then a new spare machine has made the roster large enough."""
    first, second, third = three(start)
    signal_all(first, signal.SIGKILL)
    first.wait()
    eventually(lambda: runs_at(second), "the job to run under the second machine's manager")
    again = start("first")
    eventually(lambda: _knows(third, 3) and len(second.saved_status()["nodes"]) > 2, "a new spare")
    signal_all(second, signal.SIGKILL)

    eventually(lambda: runs_at(third), "the job to run under the third machine's manager")
    third.cli("stop", "job")
    assert [143, 143] == [third.wait(), again.wait()]
