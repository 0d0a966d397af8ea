"""Checkpoints on disk: what was saved comes back, and is believed only after it was compared."""

import json
import shutil
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from taskd.train.torch.checkpointer import capture_objects, dump
from taskd.train.torch.checkpoints import agree, check_whole, choose, find_offers, load
from taskd.train.torch.exchange import digest
from taskd.train.torch.manifests import (
    FORMAT,
    MANIFEST,
    CheckpointDamaged,
    CheckpointError,
    FormatDiffers,
    Layout,
    LayoutDiffers,
    RankState,
    find_latest,
)
from taskd.train.torch.own import LENGTH
from taskd.train.torch.rounds import prune
from taskd.train.torch.saver import Saver
from tests.train.checkpoint_states import ONE, Holder, hidden, read, save
from tests.train.crew import run_crew

pytestmark = pytest.mark.usefixtures("small_blocks")


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
        shards=[("all", capture_objects(objects))],
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


# --- another version ----------------------------------------------------------------------------------------


def rewrite(path: Path, version: int) -> None:
    """Make it one that another version wrote."""
    body = json.loads((path / MANIFEST).read_text())
    del body["seal"]
    body["format"] = version
    sealed = {**body, "seal": f"{zlib.crc32(json.dumps(body, sort_keys=True).encode()):08x}"}
    (path / MANIFEST).write_text(json.dumps(sealed))


@pytest.mark.parametrize(("version", "age"), [(1, "an older"), (FORMAT + 1, "a later")])
def test_a_checkpoint_of_another_version_is_an_error_that_says_so(
    tmp_path: Path, version: int, age: str
) -> None:
    """Not a fresh start, and nothing of it is read: what belongs to a rank is bytes that have a form."""
    for step in (1, 2, 3):
        rewrite(save(tmp_path, step, {"n": step}), version)
    holder = Holder("untouched")

    wanted = f"written by {age} version of TaskD: it has format {version}, and this version reads {FORMAT}"
    with pytest.raises(FormatDiffers, match=wanted.replace("reads ", "reads format ")):
        load(tmp_path, {"holder": holder}, layout=ONE, rank=0)
    assert "untouched" == holder.state


def test_one_of_this_version_is_taken_beside_those_of_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path, 1, {"n": 1})
    rewrite(save(tmp_path, 2, {"n": 2}), 1)

    assert 1 == read(tmp_path)[1]["n"]
    assert "step-00000002 was written by an older version" in caplog.text
    prune(tmp_path, 2, 1)
    assert [2, 1] == [step for step, _ in find_latest(tmp_path)], (
        "what another version wrote is not ours to remove"
    )


def test_a_run_does_not_go_on_from_a_dump_of_another_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rewrite(save(tmp_path, 3, {"n": 1}), 1)
    monkeypatch.setenv("TASKD_RESUME", str(tmp_path))

    with pytest.raises(FormatDiffers, match="written by an older version of TaskD"):
        Saver(0, 1).resume({"holder": Holder()}, ("all",))


def test_another_form_of_what_belongs_to_a_rank_is_another_format() -> None:
    """Whoever changes the form there changes the number here, or old files are read as nonsense."""
    assert (2, "<4Q") == (FORMAT, LENGTH.format)


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


# --- real processes ----------------------------------------------------------------------------------------


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
