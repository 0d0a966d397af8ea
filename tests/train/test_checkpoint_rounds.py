"""A checkpoint is written by all ranks together: whole or not at all, and nothing is left of a failed one."""

import fcntl
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from taskd.train.torch import rounds
from taskd.train.torch.checkpointer import capture_objects
from taskd.train.torch.manifests import (
    MANIFEST,
    Layout,
    RankState,
    RoundIncomplete,
    find_latest,
)
from taskd.train.torch.rounds import Round, prune, sweep
from taskd.train.torch.statefile import write_file
from tests.train.checkpoint_states import ONE, Holder, hidden, read, save
from tests.train.crew import run_crew

pytestmark = pytest.mark.usefixtures("small_blocks")


# --- writing together --------------------------------------------------------------------------------------


def test_a_checkpoint_is_not_there_before_its_last_part(tmp_path: Path) -> None:
    layout = Layout(("a", "b"))
    with Round(tmp_path, layout, 5, run="run", generation=1) as round_:
        round_.add_shard("a", capture_objects({"holder": Holder(1)}))
        round_.add_rank(0, RankState(b"own of 0", 5).capture())
        with pytest.raises(RoundIncomplete, match="shard-00001, rank-00001 did not come"):
            round_.wait(limit_s=0.01)
        with pytest.raises(RoundIncomplete):
            round_.publish()
        assert [] == find_latest(tmp_path)
        with Round(tmp_path, layout, 5, run="run", generation=1) as other:
            other.add_shard("b", capture_objects({"holder": Holder(2)}))
            other.add_rank(1, RankState(b"own of 1", 5).capture())
        round_.wait()
        round_.publish()

    assert (5, 1) == read(tmp_path, layout=layout, rank=0)
    assert (5, 2) == read(tmp_path, layout=layout, rank=1)


def test_two_writers_of_the_same_part_hurt_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the same time, or after it was published; nothing is left of the second."""
    late = Round(tmp_path, ONE, 5, run="run", generation=1)

    def write_slowly(*args: Any) -> Any:
        seal = write_file(*args)
        monkeypatch.setattr(rounds, "write_file", write_file)
        save(tmp_path, 5, {"n": 1})  # another process is faster
        return seal

    with late:
        monkeypatch.setattr(rounds, "write_file", write_slowly)
        late.add_shard("all", capture_objects({"holder": Holder({"n": 1})}))
        assert not late.open
    files = sorted(path.name for path in (tmp_path / "step-00000005").iterdir())

    assert [MANIFEST, "rank-00000.state", "shard-00000.state"] == files
    assert (5, {"n": 1}) == read(tmp_path)
    assert [] == hidden(tmp_path)


@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_second_checkpoint_of_a_step_takes_the_place_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_exchange: bool
) -> None:
    if not can_exchange:
        monkeypatch.setattr(rounds, "_renameat2", lambda: None)
    save(tmp_path, 5, {"n": 1}, run="first")
    save(tmp_path, 5, {"n": 2}, run="second")

    assert (5, {"n": 2}) == read(tmp_path)
    assert [] == hidden(tmp_path)


def test_a_round_that_was_dropped_takes_no_more_parts(tmp_path: Path) -> None:
    with Round(tmp_path, ONE, 5, run="run", generation=1) as round_:
        round_.drop()
        with pytest.raises((RoundIncomplete, FileNotFoundError)):
            round_.add_rank(0, RankState(b"", 5).capture())

    assert [] == list(tmp_path.iterdir())


def test_what_a_killed_publisher_left_can_be_published(tmp_path: Path) -> None:
    """Also when it had given some files their last names."""
    with Round(tmp_path, ONE, 5, run="run", generation=1) as round_:
        round_.add_shard("all", capture_objects({"holder": Holder({"n": 1})}))
        round_.add_rank(0, RankState(b"own of 0", 5).capture())
        round_._settle()
    with Round(tmp_path, ONE, 5, run="run", generation=1) as again:
        assert [] == again.missing()
        again.publish()

    assert (5, {"n": 1}) == read(tmp_path)


def test_a_run_never_takes_a_part_of_another_launch(tmp_path: Path) -> None:
    with Round(tmp_path, ONE, 5, run="first", generation=1) as old:
        old.add_shard("all", capture_objects({"holder": Holder(1)}))
    with Round(tmp_path, ONE, 5, run="second", generation=1) as new:
        assert ["shard-00000", "rank-00000"] == new.missing()
    with Round(tmp_path, ONE, 5, run="se/cond", generation=1) as slash:
        assert slash.path.parent == tmp_path


# --- what is left ------------------------------------------------------------------------------------------


def test_rounds_of_the_dead_are_removed_and_those_of_the_living_are_not(tmp_path: Path) -> None:
    def leave(run: str, generation: int, step: int, age_s: float) -> str:
        with Round(tmp_path, ONE, step, run=run, generation=generation) as round_:
            round_.add_rank(0, RankState(b"", 1).capture())
        then = time.time() - age_s
        for path in [*round_.path.iterdir(), round_.path]:
            os.utime(path, (then, then))
        return round_.path.name

    leave("mine", 1, 9, 0)
    leave("mine", 2, 5, 0)
    leave("other", 7, 9, 10_000)
    kept = [leave("mine", 2, 6, 0), leave("mine", 3, 1, 0), leave("other", 7, 10, 60)]
    held = leave("other", 8, 1, 10_000)
    (tmp_path / "step-00000001").mkdir()
    (tmp_path / ".git").mkdir()
    with (tmp_path / held / "lock").open("r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        sweep(tmp_path, "mine", 2, published=5)

    assert sorted([*kept, held, ".git"]) == sorted(hidden(tmp_path))
    assert (tmp_path / "step-00000001").exists()


def test_the_newest_whole_ones_are_kept(tmp_path: Path) -> None:
    """Damaged ones do not count, others' directories are not touched, and nothing later is."""
    for step in (1, 2, 3, 4, 9):
        save(tmp_path, step, {"n": step})
    (tmp_path / "step-00000003" / "shard-00000.state").write_bytes(b"")
    strange = tmp_path / "step-00000000"
    strange.mkdir()
    (strange / MANIFEST).write_text("{}")
    prune(tmp_path, 4, 2)

    assert [9, 4, 3, 2, 0] == [step for step, _ in find_latest(tmp_path)]
    prune(tmp_path, 4, 1)
    assert [9, 4, 0] == [step for step, _ in find_latest(tmp_path)]
    assert [] == hidden(tmp_path)


# --- real processes ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_killed_at_any_point_a_writer_leaves_the_old_or_the_new(tmp_path: Path) -> None:
    """At every system call that changes something, and half-way through every write."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as root:
        seen = run_crew("checkpoint_ranks.py", 1, tmp_path, "kills", root, limit_s=100)[0]["seen"]

    for value, found in seen.items():
        before = found.count(int(value) - 1)
        assert [int(value) - 1] * before + [int(value)] * (len(found) - before) == found
        assert before > 20
        assert len(found) - before > 5
