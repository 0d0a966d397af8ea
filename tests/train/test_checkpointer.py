"""Checkpoints every so many steps, beside the training, which never waits for them or fails with them."""

import os
import resource
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from taskd.train.torch import checkpointer, rounds
from taskd.train.torch.checkpointer import Checkpointer
from taskd.train.torch.manifests import (
    Layout,
    RankState,
    find_latest,
)
from taskd.train.torch.statefile import write_file
from tests.train.checkpoint_states import ONE, Holder, hidden, read, save

pytestmark = pytest.mark.usefixtures("small_blocks")


def make_saver(root: Path, **named: Any) -> Checkpointer:
    return Checkpointer(root, **{"every": 2, "rank": 0, "layout": ONE, "run": "run", **named})


def finish(*savers: Checkpointer) -> None:
    for saver in savers:
        assert saver._thread is not None
        saver._thread.join(30)
        assert not saver.busy


def test_checkpoints_come_every_so_many_steps_and_the_last_one_is_finished(tmp_path: Path) -> None:
    """What is written is the state at the commit, whatever the training does to it meanwhile."""
    saver = make_saver(tmp_path / "new" / "place", keep=2)
    weights = torch.zeros(3000)
    for step in range(1, 10):
        weights += 1
        if saver.due(step):
            assert saver.take(step, {"holder": Holder({"w": weights})}, RankState(b"own of 0", step))
            weights += 1000
            saver.close()
            weights -= 1000
    found = find_latest(tmp_path / "new" / "place")
    step, state = read(tmp_path / "new" / "place")

    assert [8, 6] == [number for number, _ in found]
    assert 8 == step == saver.written
    assert torch.equal(torch.full((3000,), 8.0), state["w"])
    assert not saver.busy


def test_a_round_is_left_out_while_one_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The training does not wait for a slow disk, and the other ranks do not wait for this one's parts."""
    go_on = threading.Event()

    def write_slowly(*args: Any) -> Any:
        assert go_on.wait(30)
        return write_file(*args)

    monkeypatch.setattr(rounds, "write_file", write_slowly)
    layout = Layout(("a", "b"))
    first = make_saver(tmp_path, rank=0, layout=layout)
    second = make_saver(tmp_path, rank=1, layout=layout)
    objects = {"holder": Holder(1)}
    for saver, rank in ((first, 0), (second, 1)):
        assert saver.take(2, objects, RankState(b"own of %d" % rank, 2))
    assert not first.take(4, objects, RankState(b"", 4))
    assert "no checkpoint at step 4: that of step 2 is still being written" in caplog.text
    go_on.set()
    finish(first, second)
    assert (2, 1) == read(tmp_path, layout=layout, rank=1)
    # Rank 1 was free by then; it hears that rank 0 left this one out, and waits for nobody.
    assert second.take(4, objects, RankState(b"own of 1", 4))
    finish(second)
    for saver, rank in ((first, 0), (second, 1)):
        assert saver.take(6, objects, RankState(b"own of %d" % rank, 6))
    first.close()
    second.close()

    assert [6, 2] == [step for step, _ in find_latest(tmp_path)]
    assert [] == hidden(tmp_path)


def test_a_round_that_waits_for_a_dead_rank_is_given_up_by_a_later_generation(tmp_path: Path) -> None:
    layout = Layout(("a", "b"))
    objects = {"holder": Holder(1)}
    first = make_saver(tmp_path, rank=0, layout=layout)
    assert first.take(2, objects, RankState(b"own of 0", 2))  # rank 1 is killed before it writes
    assert first._waiting.wait(30)
    second = make_saver(tmp_path, rank=1, layout=layout, generation=1)
    first.renew(1)
    for saver, rank in ((first, 0), (second, 1)):
        assert saver.take(4, objects, RankState(b"own of %d" % rank, 4))
    first.close()
    second.close()

    assert [4] == [step for step, _ in find_latest(tmp_path)]
    assert [] == hidden(tmp_path)


def test_the_end_of_the_loop_does_not_wait_for_a_rank_that_was_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(checkpointer, "GRACE_S", 0.0)
    saver = make_saver(tmp_path, rank=0, layout=Layout(("a", "b")))
    saver.take(2, {"holder": Holder(1)}, RankState(b"", 2))
    saver.renew(1)
    saver.close()

    assert "given up, shard-00001, rank-00001 did not come" in caplog.text
    assert [] == list(tmp_path.iterdir())


def test_errors_are_told_once_and_never_end_the_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A disk that takes no more, a directory that is gone, a state that cannot be written."""
    root = tmp_path / "root"
    saver = make_saver(root)
    objects = {"holder": Holder(torch.zeros(10_000))}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (9000, limits[1]))
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        for step in (2, 4, 6):
            saver.take(step, objects, RankState(b"", step))
            saver.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert 1 == caplog.text.count("File too large")
    assert [] == find_latest(root)
    assert [] == hidden(root)
    for step in (8, 10):
        assert not saver.take(step, {"holder": Holder(lambda: None)}, RankState(b"", step))
        saver.close()
    assert 1 == caplog.text.count("the training goes on without; said once: AttributeError")
    root.rename(tmp_path / "moved")
    for step in (12, 14):
        saver.take(step, objects, RankState(b"", step))
        saver.close()
    assert 1 == caplog.text.count("FileNotFoundError")
    (tmp_path / "moved").rename(root)
    saver.take(16, objects, RankState(b"own of 0", 16))
    saver.close()

    assert 16 == read(root)[0]


def test_a_full_disk_is_seen_before_it_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Space:
        f_blocks, f_bavail, f_frsize = 1000, 1, 512

    monkeypatch.setattr(os, "fstatvfs", lambda _: Space)

    with pytest.raises(OSError, match="no room for"):
        save(tmp_path, 1, {"w": torch.zeros(1000)})
    assert [] == find_latest(tmp_path)


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"every": 0}, "every must be 1 or more, not 0"),
        ({"every": -3}, "every must be 1 or more, not -3"),
        ({"every": 2.5}, "every must be a whole number, not 2.5"),
        ({"every": True}, "every must be a whole number, not True"),
        ({"keep": 0}, "keep must be 1 or more, not 0"),
    ],
)
def test_a_wrong_number_is_refused_at_the_call(tmp_path: Path, named: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        make_saver(tmp_path, **named)


def test_a_wrong_directory_is_refused_at_the_call(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()

    with pytest.raises(NotADirectoryError, match="is a file"):
        make_saver(file)
    with pytest.raises(NotADirectoryError, match="cannot be written"):
        make_saver(file / "below")
    with pytest.raises(OSError, match="checkpoints cannot be written"):
        make_saver(Path("/proc/checkpoints"))
    with pytest.raises(ValueError, match="has no name"):
        Checkpointer("", every=1, rank=0, layout=ONE, run="run")
