"""The machine of the manager is lost: another one takes over, and the training does not lose a bit.

Three launchers stand for three machines, each with a home of its own: two nodes of two ranks, and a spare.
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

from taskd.testing.kube.processes import free_port
from tests.roles.harness import RunningJob, eventually, wake
from tests.train.runs import DDP, MANY_STEPS, Run, assert_same, count_processes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

ROUNDS = int(os.environ.get("TASKD_ROUNDS", "1"))
PATIENCE_S = 150.0  # several machines on one: torch is imported three times at once


def _knows(job: RunningJob, count: int) -> bool:
    """Tell whether a machine has kept a roster of so many."""
    files = list(job.directory.glob("roster-*.json"))
    return bool(files) and files[0].read_text().count('"lookout"') == count


class Machines:
    """Several launchers of one job; the first one hosts the manager, those beyond --nnodes are spares."""

    def __init__(
        self, home: Path, count: int, nodes: int = 2, *flags: str, script: tuple[str, ...] = ()
    ) -> None:
        self.out = home / "out"
        self.out.mkdir(parents=True)
        where = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--rdzv-id", "x"]
        where += ("--manager-port", str(free_port()), "--nnodes", str(nodes), "--nproc-per-node", "2")
        script = (DDP, "--out", str(self.out), "--steps", str(MANY_STEPS), "--pause", "0.05", *script)
        self.jobs: list[RunningJob] = []
        for number in range(count):
            place = home / f"machine{number}"
            place.mkdir()
            self.jobs.append(RunningJob(place, *where, "--spares", "2", *flags, *script))
            if number == 0:
                eventually(lambda: self.first.saved_status().get("manager_pid"), "a manager")
            else:
                eventually(self._has_nodes(number + 1), "the next node")

    @property
    def first(self) -> RunningJob:
        return self.jobs[0]

    def _has_nodes(self, count: int) -> Callable[[], bool]:
        return lambda: len(self.first.saved_status().get("nodes", ())) >= count

    def at_step(self, step: int) -> dict[str, Any]:
        """Wait until every rank has done a step and every machine knows who could take over."""
        ledger = self.out / "ledger-0.jsonl"
        eventually(ledger.exists, "the first step", PATIENCE_S)
        status = self.first.at_step(step)
        for job in self.jobs:
            eventually(partial(_knows, job, len(self.jobs)), "the roster of all")
        return status

    def close(self) -> None:
        families = [process for job in self.jobs for process in job.family()]
        wake(families)
        for job in self.jobs:
            job.close()
        _, alive = psutil.wait_procs([each for each in families if each.is_running()], timeout=10)
        assert not alive, f"left behind: {alive}"


@contextlib.contextmanager
def machines(
    home: Path, count: int, *flags: str, nodes: int = 2, script: tuple[str, ...] = ()
) -> Iterator[Machines]:
    """Run a job on several machines, and see afterwards that nothing of it is left."""
    both = Machines(home, count, nodes, *flags, script=script)
    try:
        yield both
    finally:
        both.close()


def signal_all(job: RunningJob, sig: signal.Signals) -> None:
    """Do the same to every process of a machine, the launcher first."""
    for process in job.family():
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(sig)


def end_well(three: Machines) -> None:
    """Let the rest go quickly, and see that the other two machines end well."""
    (three.out / "hurry").touch()
    second, third = three.jobs[1:]
    assert [0, 0] == [second.wait(PATIENCE_S), third.wait(PATIENCE_S)], second.err + third.err


@pytest.fixture
def undisturbed(reference: Callable[..., Run]) -> Run:
    """The same script without faults; on how many machines makes no difference."""
    return reference(steps=MANY_STEPS)


@pytest.mark.parametrize("_round", range(ROUNDS))
def test_another_machine_takes_the_manager_over(tmp_path: Path, undisturbed: Run, _round: int) -> None:
    """Every process of the first machine is killed; its ranks come up on the spare, all others stay."""
    with machines(tmp_path, 3) as three:
        three.at_step(5)
        signal_all(three.first, signal.SIGKILL)
        second, third = three.jobs[1:]
        said = second.status() if eventually(lambda: second.saved_status().get("ranks"), "a status") else {}
        end_well(three)

    assert_same(undisturbed, three.out, (0, 1))
    assert [2, 2, 1, 1] == count_processes(three.out)
    assert "takes over" in second.err
    assert "has taken the manager over" in third.err
    assert "job" == said.get("job")
    incident = second.timeline()[-1]
    assert ("recover", "recovered") == (incident["strategy"], incident["outcome"])
    assert "with the manager on its machine" in incident["what"]


@pytest.mark.matrix
def test_the_machine_is_lost_during_a_recovery(tmp_path: Path, undisturbed: Run) -> None:
    """A rank of the second machine is dead already; the one that is left keeps its process."""
    with machines(tmp_path, 3) as three:
        status = three.at_step(5)
        os.kill(status["ranks"][2]["pid"], signal.SIGKILL)
        signal_all(three.first, signal.SIGKILL)
        end_well(three)

    assert_same(undisturbed, three.out, (0, 1, 2))
    assert 1 == count_processes(three.out)[3]


@pytest.mark.matrix
def test_a_machine_that_was_stopped_and_goes_on_does_no_harm(tmp_path: Path, undisturbed: Run) -> None:
    """The job has gone on without it; all of it there ends, and not one bit is different."""
    with machines(tmp_path, 3) as three:
        three.at_step(5)
        frozen = three.first.family()
        signal_all(three.first, signal.SIGSTOP)
        second = three.jobs[1]
        eventually(lambda: second.saved_status().get("phase") in ("recovering", "running"), "a new manager")
        wake(frozen)
        end_well(three)
        assert 5 == three.first.wait(PATIENCE_S)

    assert "has taken the job over" in three.first.err
    assert_same(undisturbed, three.out, (0, 1))
    assert 1 == count_processes(three.out)[2] == count_processes(three.out)[3]


@pytest.mark.parametrize("_round", range(ROUNDS))
def test_a_rank_that_wakes_up_between_a_step_and_the_word_of_it_says_nothing(
    tmp_path: Path, undisturbed: Run, _round: int
) -> None:
    """Stopped after an update that all others have made too: its successor tells the script of that step."""
    with machines(tmp_path, 3, script=("--linger", "0")) as three:
        three.at_step(5)
        (three.out / "linger").touch()
        eventually((three.out / "lingering").exists, "an update")
        frozen = three.first.family()
        signal_all(three.first, signal.SIGSTOP)
        (three.out / "linger").unlink()
        eventually(lambda: count_processes(three.out)[0] == 2, "a step of its successor", PATIENCE_S)
        wake(frozen)
        end_well(three)
        assert 5 == three.first.wait(PATIENCE_S)

    assert_same(undisturbed, three.out, (0, 1))
