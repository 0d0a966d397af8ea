"""What happens outside of steps: a script's own work between them, and the end of a run."""

import os
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.roles.harness import RunningJob, eventually
from tests.train.runs import (
    HERE,
    WORLD,
    Run,
    assert_same,
    count_processes,
    pids_of,
    read_ledger,
    read_logs,
    start,
)

pytestmark = pytest.mark.slow

SCRIPT = str(HERE / "ending_job.py")
STEPS = 12


@pytest.fixture
def undisturbed(reference: Callable[..., Run]) -> Run:
    """The same script without faults."""
    return reference(script=SCRIPT, steps=STEPS)


def begin(home: Path, *script_args: str) -> AbstractContextManager[RunningJob]:
    """Start the script."""
    return start(home, *script_args, script=SCRIPT, steps=STEPS)


def marked(home: Path, name: str) -> int:
    """Wait until a rank has come to its place; returns its process."""
    eventually(lambda: (home / name).exists() and (home / name).read_text(), name)
    return int((home / name).read_text())


def ends(home: Path) -> list[int]:
    """Return how often each rank's script came to its end."""
    return [len((home / f"ends-{rank}.txt").read_text().splitlines()) for rank in range(WORLD)]


def strategies(job: RunningJob) -> list[tuple[str, str]]:
    """Return what was done about each fault."""
    return [(incident["strategy"], incident["outcome"]) for incident in job.timeline()]


@pytest.mark.parametrize("rank", [0, 3])
@pytest.mark.parametrize("more", [(), pytest.param(("--destroy",), marks=pytest.mark.matrix, id="destroyed")])
def test_a_rank_dies_after_the_last_step(
    tmp_path: Path, undisturbed: Run, rank: int, more: tuple[str, ...]
) -> None:
    """The others' scripts have ended; they stay, and the replacement ends its own with their state."""
    with begin(tmp_path, "--stop", f"end:{rank}", *more) as job:
        victim = marked(tmp_path, "stopped")
        others = [each for each in range(WORLD) if each != rank]
        eventually(lambda: all((tmp_path / f"ends-{each}.txt").exists() for each in others), "the others")
        os.kill(victim, signal.SIGKILL)
        assert 0 == job.wait(60), job.err

    assert_same(undisturbed, tmp_path, ())
    assert [1, 1, 1, 1] == ends(tmp_path)
    assert [("recover-in-place", "recovered")] == strategies(job)


def test_a_rank_dies_after_the_loop_was_left_early(tmp_path: Path, reference: Callable[..., Run]) -> None:
    """Its replacement does not go on with steps that the others will never do."""
    with begin(tmp_path, "--leave", "7", "--stop", "end:1") as job:
        os.kill(marked(tmp_path, "stopped"), signal.SIGKILL)
        assert 0 == job.wait(60), job.err

    assert_same(reference(script=SCRIPT, steps=8), tmp_path)
    assert [1, 1, 1, 1] == ends(tmp_path)
    assert [("recover-in-place", "recovered")] == strategies(job)


@pytest.mark.parametrize(("place", "processes"), [("between", [1, 1, 2, 1]), ("end", [1, 1, 1, 1])])
def test_a_death_while_another_rank_is_busy_outside_of_a_step(
    tmp_path: Path, undisturbed: Run, place: str, processes: list[int]
) -> None:
    """It writes a checkpoint, or its model, for longer than a step may take; it is let finish."""
    with begin(tmp_path, "--stop", f"{place}:2", "--busy", f"{place}:0") as job:
        busy, victim = marked(tmp_path, "busy"), marked(tmp_path, "stopped")
        os.kill(victim, signal.SIGKILL)
        eventually(lambda: "recovering" == job.status()["phase"], "a recovery")
        stay_busy(job)
        (tmp_path / "go").touch()
        assert 0 == job.wait(60), job.err

    assert_same(undisturbed, tmp_path, ())
    assert [1, 1, 1, 1] == ends(tmp_path)
    assert [busy] == pids_of(tmp_path, 0)
    assert processes == count_processes(tmp_path)
    assert [("recover-in-place", "recovered")] == strategies(job)


def stay_busy(job: RunningJob) -> None:
    """Let more time pass than a rank has to come out of a step, by the job's own clock."""
    began = job.status()["stamp"]
    eventually(lambda: job.status()["stamp"] - began > 4.0, "time to pass")


@pytest.mark.parametrize(
    "how", ["raise", *(pytest.param(how, marks=pytest.mark.matrix) for how in ("exit", "system-exit"))]
)
def test_an_error_after_the_loop_ends_the_job_within_three_rounds(tmp_path: Path, how: str) -> None:
    """It comes back each time; the training before it is not done again for it."""
    with begin(tmp_path, "--fail", how) as job:
        assert 1 == job.wait(90), job.err

    assert "the model cannot be exported" in job.err + read_logs(tmp_path)
    assert [STEPS] * WORLD == [len(read_ledger(tmp_path, rank)) for rank in range(WORLD)]
