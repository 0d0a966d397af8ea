"""Ranks move to other processes while they train: no step is lost, none comes twice, and no bit differs."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.roles.harness import RunningJob, eventually
from tests.train import runs
from tests.train.runs import (
    MANY_STEPS,
    ONE_NODE,
    TWO_NODES,
    WORLD,
    Run,
    assert_same,
    count_processes,
    finish,
    pids_of,
)

pytestmark = pytest.mark.slow

MOVABLE = (*TWO_NODES, "--spare-nodes", "1")


def start(home: Path, *more: str, nodes: tuple[str, ...] = ONE_NODE) -> AbstractContextManager[RunningJob]:
    """Start the job; its steps take long enough for a process to be built beside them."""
    return runs.start(home, "--pause", "0.2", *more, steps=MANY_STEPS, nodes=nodes)


@pytest.fixture
def undisturbed(reference: Callable[..., Run]) -> Run:
    """The same command without a move."""
    return reference(steps=MANY_STEPS)


def begin(job: RunningJob, *what: str) -> subprocess.Popen[str]:
    """Ask for a move and come back at once."""
    command = [sys.executable, "-m", "taskd.cli.main", "switch", *what]
    return subprocess.Popen(command, env=job.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Return the code and the last words of a command."""
    out, err = process.communicate(timeout=60)
    return process.returncode, out + err


def standby(home: Path, rank: int) -> int:
    """Wait for a standby and return its process."""
    file = home / f"standby-{rank}"
    return int(eventually(lambda: file.exists() and file.read_text(), f"a standby of rank {rank}"))


def is_gone(pid: int) -> bool:
    """Tell whether a process has ended."""
    return not Path(f"/proc/{pid}").exists()


# With TASKD_MATRIX=1 (make matrix) also those that have no rank 0.
EVERY = [
    ("--rank 0", (0,), ONE_NODE),
    ("--rank 2", (2,), ONE_NODE),
    ("--node 0", (0, 1), MOVABLE),
    ("--node 1", (2, 3), MOVABLE),
]
MOVES = EVERY if os.environ.get("TASKD_MATRIX") else EVERY[::2]


@pytest.mark.parametrize(("what", "moved", "nodes"), MOVES)
def test_a_move_costs_no_step_and_no_bit(
    tmp_path: Path, undisturbed: Run, what: str, moved: tuple[int, ...], nodes: tuple[str, ...]
) -> None:
    """Every rank did every step once, also those that were moved; all others keep their processes."""
    with start(tmp_path, nodes=nodes) as job:
        before = {rank["rank"]: rank for rank in job.at_step(5)["ranks"]}
        assert "moved to" in job.cli("switch", "job", *what.split()).stdout
        after = {rank["rank"]: rank for rank in job.status()["ranks"]}
        finish(job)

    assert_same(undisturbed, tmp_path)
    assert [2 if rank in moved else 1 for rank in range(WORLD)] == count_processes(tmp_path)
    assert {rank: pids_of(tmp_path, rank)[-1] for rank in range(WORLD)} == {
        rank: each["pid"] for rank, each in after.items()
    }
    elsewhere = {rank for rank in after if before[rank]["node"] != after[rank]["node"]}
    assert (set(moved) if "node" in what else set()) == elsewhere
    (incident,) = job.timeline()
    assert ("switch", "hot-switch", "switched") == tuple(
        incident[key] for key in ("kind", "strategy", "outcome")
    )
    assert ["release", "join", "restore", "first step"] == list(incident["phases_ms"])


@pytest.mark.matrix
def test_a_rank_moves_again_and_is_killed_after_that(tmp_path: Path, undisturbed: Run) -> None:
    """A process that took a rank over can be left, and replaced, like any other."""
    with start(tmp_path) as job:
        job.at_step(5)
        job.cli("switch", "job", "--rank", "1")
        job.cli("switch", "job", "--rank", "1")
        os.kill(job.status()["ranks"][1]["pid"], signal.SIGKILL)
        finish(job)

    assert_same(undisturbed, tmp_path, (1,))
    assert [1, 4, 1, 1] == count_processes(tmp_path)
    assert ["switched", "switched", "recovered"] == [each["outcome"] for each in job.timeline()]


@pytest.mark.matrix
def test_a_rank_moves_right_after_a_recovery(tmp_path: Path, undisturbed: Run) -> None:
    """What is still cut of the group before is not taken for the group of now."""
    with start(tmp_path) as job:
        os.kill(job.at_step(5)["ranks"][1]["pid"], signal.SIGKILL)
        eventually(lambda: [each["outcome"] for each in job.timeline()] == ["recovered"], "a recovery")
        job.cli("switch", "job", "--rank", "2")
        finish(job)

    assert_same(undisturbed, tmp_path, (1,))
    assert [1, 2, 2, 1] == count_processes(tmp_path)
    assert ["recovered", "switched"] == [each["outcome"] for each in job.timeline()]


@pytest.mark.parametrize("victim", [1, pytest.param(2, marks=pytest.mark.matrix)])
def test_a_fault_while_the_new_process_is_built_comes_first(
    tmp_path: Path, undisturbed: Run, victim: int
) -> None:
    """A rank that is to be moved, or another one, is killed: it is replaced, and nothing is moved."""
    with start(tmp_path, "--standby-waits") as job:
        ranks = job.at_step(5)["ranks"]
        asked = begin(job, "job", "--rank", "2")
        waiting = standby(tmp_path, 2)
        os.kill(ranks[victim]["pid"], signal.SIGKILL)
        code, words = ended(asked)
        eventually(lambda: is_gone(waiting), "the end of the standby")
        finish(job)

    assert (1, True) == (code, f"cancelled: rank {victim}" in words), words
    assert_same(undisturbed, tmp_path, (victim,))
    assert [2 if rank == victim else 1 for rank in range(WORLD)] == count_processes(tmp_path)


def test_a_standby_that_dies_is_no_fault_of_the_job(tmp_path: Path, undisturbed: Run) -> None:
    """The move is off, and nobody notices; the next one works."""
    with start(tmp_path, "--standby-waits") as job:
        job.at_step(5)
        asked = begin(job, "job", "--rank", "2")
        os.kill(standby(tmp_path, 2), signal.SIGKILL)
        code, words = ended(asked)
        (tmp_path / "go").touch()
        job.cli("switch", "job", "--rank", "2")
        finish(job)

    assert (1, True) == (code, "the standby of rank 2" in words), words
    assert_same(undisturbed, tmp_path)
    assert [1, 1, 2, 1] == count_processes(tmp_path)


@pytest.mark.parametrize("victim", [1, pytest.param(2, marks=pytest.mark.matrix)])
def test_a_rank_that_dies_on_its_way_out_is_replaced(tmp_path: Path, undisturbed: Run, victim: int) -> None:
    """All were told to come together, and one who leaves, or one who stays, does not come."""
    with start(tmp_path, "--die-moving", str(victim)) as job:
        job.at_step(5)
        code, words = ended(begin(job, "job", "--rank", "2"))
        finish(job)

    assert (1, True) == (code, "cancelled" in words), words
    assert_same(undisturbed, tmp_path)
    assert [2 if rank == victim else 1 for rank in range(WORLD)] == count_processes(tmp_path)
    assert ["hot-switch", "recover-in-place"] == [each["strategy"] for each in job.timeline()]


def test_a_new_manager_knows_of_no_move(tmp_path: Path, undisturbed: Run) -> None:
    """The manager is killed while the standby is built: the standby ends, the training does not."""
    with start(tmp_path, "--standby-waits") as job:
        manager = job.at_step(5)["manager_pid"]
        asked = begin(job, "job", "--rank", "2")
        waiting = standby(tmp_path, 2)
        os.kill(manager, signal.SIGKILL)
        eventually(lambda: is_gone(waiting), "the end of the standby")
        code, words = ended(asked)
        finish(job)

    assert (1, True) == (code, "interrupted by the end of the manager" in words), words
    assert_same(undisturbed, tmp_path)
    assert [1, 1, 1, 1] == count_processes(tmp_path)


def test_what_cannot_be_moved_is_said_at_once(tmp_path: Path) -> None:
    """A node without a spare one, a rank that does not exist, and nothing at all."""
    with start(tmp_path) as job:
        job.at_step(5)
        sentences = [
            job.cli("switch", "job", *what.split(), check=False).stderr
            for what in ("--node 0", "--rank 9", "--rank 1 --node 0", "")
        ]
    assert "no spare node for the 4 ranks of node 0" in sentences[0]
    assert "no rank 9" in sentences[1]
    assert "found both" in sentences[2]
    assert "found none of them" in sentences[3]
    assert not json.loads((tmp_path / "taskd" / "jobs" / "job" / "status.json").read_text())["last_fault"]
