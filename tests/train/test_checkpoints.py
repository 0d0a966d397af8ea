"""Checkpoints on disk: written whole or not at all, and believed only after they were compared."""

import fcntl
import json
import os
import resource
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from taskd.train.torch import checkpointer, rounds, statefile
from taskd.train.torch.checkpointer import Checkpointer, capture_objects, dump
from taskd.train.torch.checkpoints import agree, check_whole, choose, find_offers, load
from taskd.train.torch.exchange import digest
from taskd.train.torch.manifests import (
    MANIFEST,
    CheckpointDamaged,
    CheckpointError,
    Layout,
    LayoutDiffers,
    RankState,
    RoundIncomplete,
    find_latest,
)
from taskd.train.torch.rounds import Round, prune, sweep
from taskd.train.torch.statefile import write_file
from tests.train.crew import run_crew

ONE = Layout(("all",))


@pytest.fixture(autouse=True)
def small_blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that small files have several of them; other processes have the real ones."""
    if not request.node.get_closest_marker("slow"):
        monkeypatch.setattr(statefile, "BLOCK_BYTES", 4096)


class Holder:
    def __init__(self, state: Any = None) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state_dict: Any) -> None:
        self.state = state_dict


def save(root: Path, step: int, value: Any, *, run: str = "run", layout: Layout = ONE) -> Path:
    """A checkpoint by a single process that stands for all ranks."""
    root.mkdir(exist_ok=True)
    with Round(root, layout, step, run=run, generation=1) as round_:
        for shard in layout.keys:
            round_.add_shard(shard, capture_objects({"holder": Holder(value)}))
        for rank in range(layout.world_size):
            round_.add_rank(rank, RankState(b"own of %d" % rank, step).capture())
        return round_.publish()


def read(root: Path, *, layout: Layout = ONE, rank: int = 0) -> tuple[int, Any]:
    holder = Holder()
    found = load(root, {"holder": holder}, layout=layout, rank=rank)
    assert found is not None
    assert b"own of %d" % rank == found[1].own
    assert found[0] == found[1].position
    return found[0], holder.state


def hidden(root: Path) -> list[str]:
    return [path.name for path in root.iterdir() if path.name.startswith(".")]


# --- what comes back ---------------------------------------------------------------------------------------


def test_every_kind_of_state_comes_back_to_the_bit(tmp_path: Path) -> None:
    base = torch.rand(40, 50)
    tied = torch.rand(3, 3)
    state = {
        "transposed": base.t(),
        "sliced": base[::3, 5:17],
        "expanded": base[:1].expand(4, 50),
        "channels last": torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "bf16": base.bfloat16(),
        "half": base.half(),
        "bool": base > 0.5,
        "int8": (base * 100).to(torch.int8),
        "int64": (base * 1e15).long(),
        "complex": torch.complex(base, base).conj(),
        "float8": base.to(torch.float8_e4m3fn),
        "nothing": torch.empty(0, 7),
        "scalar": torch.tensor(3),
        "nan": torch.tensor([float("nan"), -0.0, float("inf")]),
        "tied": [tied, tied, (tied, {"again": tied})],
        "sparse": torch.eye(4).to_sparse(),
        "python": {"a": [1, 2.5, None, (True, "text")], 4: b"bytes", "set": {5, 6}},
    }
    save(tmp_path, 7, state)
    step, got = read(tmp_path)

    assert 7 == step
    assert digest({"x": Holder(state)}) == digest({"x": Holder(got)})
    assert got["tied"][0] is got["tied"][1] is got["tied"][2][1]["again"]
    assert got["channels last"].is_contiguous(memory_format=torch.channels_last)
    assert state["python"] == got["python"]


@pytest.mark.parametrize("state", [{}, {"empty": torch.empty(0)}, None, {"one": torch.tensor(1.0)}])
def test_next_to_nothing_is_a_state_too(tmp_path: Path, state: Any) -> None:
    save(tmp_path, 1, state)

    assert digest({"x": Holder(state)}) == digest({"x": Holder(read(tmp_path)[1])})


def make_training() -> tuple[dict[str, Any], Any]:
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(9, 33), nn.BatchNorm1d(33), nn.Linear(33, 3))
    adam = torch.optim.AdamW(net.parameters(), lr=1e-2, amsgrad=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, 10)

    def step(number: int) -> str:
        adam.zero_grad()
        made = torch.Generator().manual_seed(number)
        loss = net(torch.randn(5, 9, generator=made)).square().sum()
        loss.backward()
        adam.step()
        schedule.step()
        return float(loss.detach()).hex()

    return {"net": net, "adam": adam, "schedule": schedule}, step


def test_a_new_job_goes_on_with_the_same_losses(tmp_path: Path) -> None:
    """From a dump: every parameter is still the object that the optimizer has."""
    objects, step = make_training()
    for number in range(4):
        step(number)
    place = dump(
        tmp_path,
        step=4,
        layout=ONE,
        run="first",
        generation=2,
        objects=objects,
        shard="all",
        ranks={0: RankState(b"own", 4, {"epoch": 1})},
        publish=True,
    )
    later = [step(number) for number in range(4, 8)]
    fresh, fresh_step = make_training()
    found = load(tmp_path, fresh, layout=ONE, rank=0)

    assert str(tmp_path / "step-00000004") == place
    assert (4, RankState(b"own", 4, {"epoch": 1})) == found
    assert later == [fresh_step(number) for number in range(4, 8)]
    assert digest(objects) == digest(fresh)
    assert [] == hidden(tmp_path)


# --- damage ------------------------------------------------------------------------------------------------


def files_of(checkpoint: Path) -> Iterator[Path]:
    yield from sorted(checkpoint.iterdir())


def test_any_damage_is_seen_and_the_older_one_is_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever byte of whatever file changes, is missing or is too much; and it is said what was wrong."""
    save(tmp_path, 1, {"n": 1, "w": torch.zeros(5000)})
    newest = save(tmp_path, 2, {"n": 2, "w": torch.zeros(5000)})
    for file in files_of(newest):
        whole = file.read_bytes()
        places = {0, 9, 13, 25, len(whole) // 3, len(whole) // 2, len(whole) - 30, len(whole) - 2}
        broken = [whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :] for at in places]
        for content in [*broken, whole[:-2], whole[: len(whole) // 2], whole + b"x", b"", None]:
            caplog.clear()
            if content is None:
                file.unlink()
            else:
                file.write_bytes(content)

            assert 1 == read(tmp_path)[1]["n"], file
            assert "step-00000002" in caplog.text
            assert "step-00000001 is taken instead" in caplog.text
            if file.name != MANIFEST:
                assert file.name in caplog.text
            with pytest.raises(CheckpointDamaged):
                check_whole(newest)
        file.write_bytes(whole)

    assert 2 == read(tmp_path)[1]["n"]


def test_nothing_that_can_be_read_is_an_error_and_no_fresh_start(tmp_path: Path) -> None:
    path = save(tmp_path, 3, {"n": 1})
    (path / "rank-00000.state").unlink()

    with pytest.raises(CheckpointError, match="none that all ranks can read whole; rank 0 can read none"):
        load(tmp_path, {"holder": Holder()}, layout=ONE, rank=0)
    assert load(tmp_path / "other", {"holder": Holder()}, layout=ONE, rank=0) is None


def test_a_rank_needs_only_its_own_files(tmp_path: Path) -> None:
    layout = Layout(("a", "b", "a", "b"))
    path = save(tmp_path, 3, {"n": 1}, layout=layout)
    (path / "shard-00001.state").write_bytes(b"")

    assert [3] == [offer.step for offer in find_offers(tmp_path, layout, 2)]
    assert [] == find_offers(tmp_path, layout, 1)


def test_a_failing_load_says_which_object_and_where(tmp_path: Path) -> None:
    save(tmp_path, 3, {"weight": torch.zeros(3)})
    with pytest.raises(RuntimeError) as failure:
        load(tmp_path, {"holder": nn.Linear(2, 2)}, layout=ONE, rank=0)

    assert ["'holder'"] == [word for note in failure.value.__notes__ for word in note.split() if "'" in word]


# --- another shape -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (("a",), "written by 2 ranks with 2 shards, and this job has 1 ranks with 1 shard"),
        (("a", "a"), "written by 2 ranks with 2 shards, and this job has 2 ranks with 1 shard"),
        (("a", "c"), "rank 1 held shard 'b' and holds 'c' now"),
    ],
)
def test_a_job_of_another_shape_is_told_both(tmp_path: Path, layout: tuple[str, ...], message: str) -> None:
    save(tmp_path, 3, {"n": 1}, layout=Layout(("a", "b")))

    with pytest.raises(LayoutDiffers, match=message):
        find_offers(tmp_path, Layout(layout), 0)


def test_other_names_are_told_and_nothing_is_loaded(tmp_path: Path) -> None:
    save(tmp_path, 3, {"n": 1})
    other = Holder("untouched")

    with pytest.raises(LayoutDiffers, match=r"the state of \['holder'\], but \['other'\] are registered"):
        load(tmp_path, {"other": other}, layout=ONE, rank=0)
    assert "untouched" == other.state


# --- which one ---------------------------------------------------------------------------------------------


@given(st.dictionaries(st.integers(0, 9), st.lists(st.integers(-1, 30)), max_size=5))
def test_all_ranks_take_the_highest_step_that_each_can_read(offers: dict[int, list[int]]) -> None:
    step = choose(offers)
    common = [s for s in range(31) if offers and all(s in have for have in offers.values())]

    assert (max(common) if common else None) == step


def test_ranks_agree_also_when_their_newest_have_nothing_in_common(tmp_path: Path) -> None:
    """Rank 0 can read all, rank 1 only the oldest of four: asked again, they find it."""
    layout = Layout(("a", "b"))
    for step in (1, 2, 3, 4):
        path = save(tmp_path, step, {"n": step}, layout=layout)
        if step > 1:
            (path / "shard-00001.state").write_bytes(b"")
    barrier = threading.Barrier(2, timeout=30)
    said: dict[int, list[int]] = {}
    rounds_seen: list[dict[int, list[int]]] = []
    taken: dict[int, int] = {}

    def take_part(rank: int) -> None:
        def gather(steps: list[int]) -> dict[int, list[int]]:
            said[rank] = steps
            if barrier.wait() == 0:
                rounds_seen.append(dict(said))
            barrier.wait()
            return rounds_seen[-1]

        offer = agree(tmp_path, layout, rank, gather)
        assert offer is not None
        taken[rank] = offer.step
        offer.close()

    threads = [threading.Thread(target=take_part, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert {0: 1, 1: 1} == taken
    assert [{0: [4, 3], 1: [1]}, {0: [4, 3, 2, 1], 1: [1]}] == rounds_seen


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


# --- every so many steps -----------------------------------------------------------------------------------


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


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_new_job_of_four_ranks_goes_on_with_the_same_losses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mesh of two replicas by two shards; the second job finds the checkpoints of the first half."""
    runs = {}
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        monkeypatch.setenv("RUN", name)
        runs[name] = run_crew("checkpoint_ranks.py", 4, tmp_path / name, "train", str(tmp_path), limit_s=120)
        steps = [step for step, _ in find_latest(tmp_path)]
        assert [12, 9, 6, 3] == steps
        for step in (9, 12):
            check_whole(tmp_path / f"step-{step:08d}")
            manifest = json.loads((tmp_path / f"step-{step:08d}" / MANIFEST).read_text())
            assert (4, step, name) == (manifest["world_size"], manifest["step"], manifest["run"])
            assert 6 == len(manifest["files"])
            shutil.rmtree(tmp_path / f"step-{step:08d}")

    for rank in range(4):
        first, second = runs["first"][rank], runs["second"][rank]
        assert (0, 6) == (first["begun"], second["begun"])
        later = {step: loss for step, loss in first["losses"].items() if int(step) >= 6}
        assert later == second["losses"]
        assert first["digest"] == second["digest"]
    assert [] == hidden(tmp_path)
