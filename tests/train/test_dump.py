"""Where there is no way on, the state is written to disk, and a later run goes on with the same bits."""

import json
import os
import signal
from pathlib import Path

import pytest

from tests.roles.harness import eventually
from tests.train.runs import Run, assert_same, read_run, start, train, write_faults

pytestmark = pytest.mark.slow


def last_step(home: Path) -> int:
    """Return the last step that rank 0 was told of."""
    lines = (home / "ledger-0.jsonl").read_text().splitlines()
    return int(json.loads(lines[-1])["step"])


def visible(saves: Path) -> list[str]:
    """Return the checkpoints that are whole, the newest last."""
    return sorted(path.name for path in saves.glob("step-*"))


def test_a_job_that_gets_sigterm_goes_on_later(tmp_path: Path, undisturbed: Run) -> None:
    """The state of the last step is written; the next job computes none again and ends with the same bits."""
    dumps = tmp_path / "dumps"
    with start(tmp_path, "--pause", "0.1", flags=("--dump-dir", str(dumps))) as job:
        job.at_step(5)
        os.kill(job.process.pid, signal.SIGTERM)
        assert 143 == job.wait(90), job.err
    (incident,) = job.timeline()
    assert ("dump", "stop") == (incident["strategy"], incident["kind"])
    (dump,) = dumps.iterdir()
    assert f"step-{last_step(tmp_path) + 1:08d}" == dump.name
    assert str(dump) in incident["outcome"]

    train(tmp_path, flags=("--resume", str(dumps)))
    assert undisturbed == read_run(tmp_path)


def test_a_fault_that_cannot_be_recovered_restarts_from_its_dump(tmp_path: Path, undisturbed: Run) -> None:
    """Without recover-in-place a killed rank costs a restart of all, but no step."""
    faults = write_faults(tmp_path, {"step": 8, "rank": 1, "kind": "kill"})
    job = train(tmp_path, flags=("--recover-strategy", "dump,exit", *faults))

    assert ["dump", "restart"] == [incident["strategy"] for incident in job.timeline()]
    assert_same(undisturbed, tmp_path, (1,))


def test_a_dump_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    """A directory that is a file: the job ends all the same, and the timeline has the reason."""
    blocked = tmp_path / "blocked"
    with start(tmp_path, "--pause", "0.1", flags=("--dump-dir", str(blocked))) as job:
        job.at_step(5)
        blocked.write_text("in the way")
        os.kill(job.process.pid, signal.SIGTERM)
        assert 143 == job.wait(90), job.err

    (incident,) = job.timeline()
    assert "the dump failed" in incident["outcome"]
    assert "is a file" in incident["outcome"]


def test_a_run_resumes_from_its_checkpoints(tmp_path: Path, undisturbed: Run) -> None:
    """``job.checkpoint``: the whole job is killed, the newest one is damaged, and the one before it does."""
    saves = tmp_path / "saves"
    with start(tmp_path, "--pause", "0.2", "--checkpoint", f"{saves}:4") as job:
        eventually(lambda: len(visible(saves)) >= 2, "two checkpoints")
        os.kill(job.process.pid, signal.SIGKILL)
    names = visible(saves)
    assert [0] * len(names) == [int(name.removeprefix("step-")) % 4 for name in names]
    newest = saves / names[-1]
    damaged = next(path for path in newest.iterdir() if path.name.startswith("shard"))
    damaged.write_bytes(damaged.read_bytes()[:-100] + bytes(100))
    for ledger in tmp_path.glob("ledger-*"):
        ledger.unlink()
    train(tmp_path, "--checkpoint", f"{saves}:4")

    run = read_run(tmp_path)
    begun = {min(losses) for losses, _ in run.values()}
    assert {int(names[-2].removeprefix("step-"))} == begun
    for rank, (losses, digest) in run.items():
        expected, end = undisturbed[rank]
        assert {step: loss for step, loss in expected.items() if step >= min(begun)} == losses
        assert end == digest


def test_nothing_to_resume_from_is_an_error(tmp_path: Path) -> None:
    """Instead of beginning at the beginning unasked."""
    empty = tmp_path / "empty"
    empty.mkdir()
    with start(tmp_path, flags=("--max-restarts", "0", "--resume", str(empty))) as job:
        assert 0 != job.wait(90)
    assert "there is no checkpoint in" in job.err
