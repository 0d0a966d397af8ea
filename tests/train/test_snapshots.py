import json
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from torch import nn

from taskd.train.torch import snapshots
from taskd.train.torch.exchange import StateMismatch, digest
from taskd.train.torch.keeping import Keeping
from taskd.train.torch.notes import Origin, SetupNotes
from taskd.train.torch.snapshots import Snapshot, SnapshotDamaged
from taskd.train.torch.spread import Meshes
from tests.train.crew import run_crew
from tests.train.snapshot_writer import Filled

WRITER = Path(__file__).with_name("snapshot_writer.py")


def make(seed: int, width: int = 40) -> dict[str, Any]:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(8, width), nn.BatchNorm1d(width), nn.Dropout(0.2), nn.Linear(width, 8))
    adam = torch.optim.AdamW(net.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, 50)
    return {"net": net, "adam": adam, "schedule": schedule}


def train(objects: dict[str, Any], steps: int = 1) -> None:
    for _ in range(steps):
        objects["adam"].zero_grad()
        objects["net"](torch.randn(6, 8)).sum().backward()
        objects["adam"].step()
        objects["schedule"].step()


@pytest.fixture
def path() -> Iterator[str]:
    """A place in shared memory, if there is such a thing."""
    shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with TemporaryDirectory(dir=shared, prefix="taskd-test-") as folder:
        yield f"{folder}/rank0"


def take(path: str, step: int, objects: dict[str, Any], extra: bytes = b"") -> Snapshot:
    snapshot = Snapshot(path, create=True)
    snapshot.take(step, objects, extra=extra)
    assert snapshot.settle()
    return snapshot


def test_what_is_loaded_is_what_was_taken(path: str) -> None:
    """Into objects that have made no step, and into others; later steps are the same too."""
    objects = make(1)
    train(objects, 3)
    take(path, 3, objects, b"and more")
    expected = digest(objects)
    torch.manual_seed(5)
    train(objects, 2)
    later = digest(objects)

    for steps in (0, 4):
        other = make(2)
        train(other, steps)
        assert b"and more" == snapshots.load(path, 3, other)
        assert expected == digest(other)
        torch.manual_seed(5)
        train(other, 2)
        assert later == digest(other)


def test_loading_writes_into_the_tensors_that_are_there(path: str) -> None:
    """Parameters stay the objects that they are, and an optimizer's state stays where it is."""
    objects, other = make(1), make(2)
    train(objects)
    train(other, 2)
    take(path, 1, objects)
    parameters = list(other["net"].parameters())
    places = [tensor.data_ptr() for state in other["adam"].state.values() for tensor in state.values()]

    snapshots.load(path, 1, other)

    assert all(map(lambda one, two: one is two, parameters, other["net"].parameters()))
    assert places == [t.data_ptr() for state in other["adam"].state.values() for t in state.values()]
    # And not into the shared memory: a later step must not change the snapshot.
    train(other, 2)
    snapshots.verify(path, 1)


def test_the_last_two_are_there_newest_first(path: str) -> None:
    assert [] == snapshots.versions(path)
    objects = make(1)
    snapshot = Snapshot(path, create=True)
    hashes = {}
    for step in range(5):
        snapshot.wait()
        train(objects)
        hashes[step] = digest(objects)
        snapshot.take(step, objects)
    assert snapshot.settle()

    assert [4, 3] == snapshots.versions(path)
    for step in (3, 4):
        other = make(9)
        snapshots.load(path, step, other)
        assert hashes[step] == digest(other)
    with pytest.raises(SnapshotDamaged):
        snapshots.load(path, 2, make(9))
    snapshots.remove(path)
    assert [] == os.listdir(Path(path).parent)  # noqa: PTH208 - names


def test_a_forward_pass_does_not_change_what_was_taken(path: str) -> None:
    """Nor does anything that is not a tensor: only an update has to wait."""
    objects = make(1)
    train(objects, 2)
    snapshot = Snapshot(path, create=True)
    for step in range(3):  # the later ones find the work of the first
        expected = digest(objects)
        snapshot.take(step, objects)
        objects["net"](torch.randn(6, 8))
        objects["schedule"].step()
        assert snapshot.settle()
        other = make(2)
        snapshots.load(path, step, other)
        assert expected == digest(other)


@pytest.mark.parametrize(
    "change",
    ["replaced parameter", "moved memory", "new state", "learning rate", "other shape", "module", "buffer"],
)
def test_a_state_that_changes_its_parts_is_taken_anew(path: str, change: str) -> None:
    objects = make(1)
    if change != "new state":
        train(objects, 2)
    snapshot = Snapshot(path, create=True)
    snapshot.take(0, objects)
    snapshot.wait()
    first = objects["net"][0]
    if change == "replaced parameter":
        first.weight = nn.Parameter(first.weight * 2)
    elif change == "moved memory":
        first.weight.data = first.weight.data * 3
    elif change == "new state":
        train(objects, 1)
    elif change == "module":
        objects["net"][2] = nn.PReLU()
    elif change == "buffer":
        objects["net"][1].running_mean = torch.full((40,), 5.0)
    elif change == "learning rate":
        objects["adam"].param_groups[0]["lr"] = 0.5
    else:
        first.weight.data = first.weight.data[:, :4].clone()
    snapshot.take(1, objects)
    assert snapshot.settle()
    other = make(2)
    if change == "module":
        other["net"][2] = nn.PReLU()
    if change == "other shape":
        other["net"][0].weight.data = other["net"][0].weight.data[:, :4].clone()

    snapshots.load(path, 1, other)

    assert digest(objects) == digest(other)


def test_states_of_all_kinds_are_taken(path: str) -> None:
    """Views, odd types, tied tensors and things that are no tensors at all, as they are at each time."""
    base = torch.rand(40, 50)
    tied = torch.rand(3, 3)
    state = Filled()
    state.state = {
        "transposed": base.t(),
        "sliced": base[::3, 5:17],
        "unaligned": torch.arange(100, dtype=torch.uint8)[3:50],
        "conjugated": torch.complex(base, base).conj(),
        "nothing": torch.empty(0, 7),
        "scalar": torch.tensor(3),
        "bf16": base.bfloat16(),
        "tied": [tied, tied, (tied,)],
        "sparse": torch.eye(4).to_sparse(),
        "others": [1, 2.5, None, "text", {4, 5}, slice(1, 2)],
    }
    snapshot = Snapshot(path, create=True)
    for step in range(3):
        base += 1
        tied *= 2
        expected = digest({"state": state})
        snapshot.take(step, {"state": state})
        assert snapshot.settle()
        other = Filled()
        snapshots.load(path, step, {"state": other})
        assert expected == digest({"state": other})
    assert other.state["tied"][0] is other.state["tied"][1]


def test_a_damaged_byte_is_noticed_before_anything_is_loaded(path: str) -> None:
    objects = make(1)
    train(objects, 2)
    take(path, 7, objects)
    whole = bytearray(Path(f"{path}.0").read_bytes())
    used = len(snapshots.export(path, 7))
    other = make(2)
    before = digest(other)
    rng = random.Random(1)
    for _ in range(150):
        place = rng.choice([rng.randrange(64), rng.randrange(4096, used), rng.randrange(used - 500, used)])
        damaged = bytearray(whole)
        damaged[place] ^= 1 << rng.randrange(8)
        Path(f"{path}.0").write_bytes(damaged)
        with pytest.raises(SnapshotDamaged):
            snapshots.load(path, 7, other)
        assert before == digest(other)
    Path(f"{path}.0").write_bytes(whole)
    snapshots.load(path, 7, other)


def test_other_objects_are_refused(path: str) -> None:
    objects = make(1)
    take(path, 1, objects)
    with pytest.raises(StateMismatch):
        snapshots.load(path, 1, {"net": objects["net"]})


def test_a_larger_state_gets_a_larger_file(path: str) -> None:
    """And the older version is there until the new one is."""
    snapshot = Snapshot(path, create=True)
    for step, width in enumerate((10, 500, 20, 900)):
        objects = make(1, width)
        snapshot.take(step, objects)
        assert snapshot.settle()
        other = make(2, width)
        snapshots.load(path, step, other)
        assert digest(objects) == digest(other)
    assert [3, 2] == snapshots.versions(path)


def test_a_snapshot_can_be_stored_elsewhere(path: str) -> None:
    objects = make(1)
    snapshot = Snapshot(path, create=True)
    hashes = {}
    for step in range(4):
        train(objects)
        hashes[step] = digest(objects)
        snapshot.take(step, objects)
        assert snapshot.settle()
        data = snapshots.export(path, step)
        as_sent = data.clone() if step % 2 else bytes(data.tolist())
        assert step == snapshots.import_bytes(f"{path}.buddy", as_sent)
    snapshots.remove(path)

    assert [3, 2] == snapshots.versions(f"{path}.buddy")
    for step in (2, 3):
        other = make(5)
        snapshots.load(f"{path}.buddy", step, other)
        assert hashes[step] == digest(other)


def test_the_states_of_another_rank_can_be_read_without_its_objects(path: str) -> None:
    """As a neighbour does that writes them down for one that died."""
    objects = make(1)
    train(objects, 2)
    take(path, 2, objects)

    states = snapshots.read(path, 2, Meshes(()))
    other = make(5)
    for name, thing in other.items():
        thing.load_state_dict(states[name])
    assert digest(objects) == digest(other)
    with pytest.raises(SnapshotDamaged):
        snapshots.read(path, 3, Meshes(()))


def test_what_arrives_damaged_is_not_stored_or_not_used(path: str) -> None:
    objects = make(1)
    take(path, 1, objects)
    data = snapshots.export(path, 1).clone()
    for length in (0, 10, 63, 5000, len(data) - 1):
        with pytest.raises(SnapshotDamaged):
            snapshots.import_bytes(f"{path}.buddy", data[:length])
    data[5000] ^= 1
    snapshots.import_bytes(f"{path}.buddy", data)
    with pytest.raises(SnapshotDamaged):
        snapshots.load(f"{path}.buddy", 1, objects)


def test_a_training_does_not_stand_still_while_much_is_allocated(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first steps have no snapshot then; and when the buffers are there, all have."""
    monkeypatch.setattr(snapshots, "PATIENCE_BYTES", 1000)
    allocate = os.posix_fallocate
    may = threading.Event()

    def slowly(*args: int) -> None:
        may.wait(30)
        allocate(*args)

    monkeypatch.setattr(os, "posix_fallocate", slowly)
    objects = make(1)
    snapshot = Snapshot(path, create=True)
    for step in (0, 1):
        snapshot.take(step, objects)
        assert not snapshot.wait()
    assert [] == snapshots.versions(path)
    may.set()
    for step in (2, 3):
        snapshot.take(step, objects)
        assert snapshot.settle()
    for step in (4, 5):
        snapshot.take(step, objects)
        assert snapshot.wait()
    assert snapshot.settle()
    assert [5, 4] == snapshots.versions(path)


def test_a_full_file_system_ends_the_snapshots_and_not_the_training(
    path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said once, the last version stays, and when there is room again they go on."""
    objects = make(1)
    snapshot = take(path, 1, objects)
    monkeypatch.setattr(snapshots, "RETRY_S", 0.0)
    with monkeypatch.context() as full:

        def refuse(*_: object) -> None:
            raise OSError(28, "No space left on device")

        full.setattr(os, "posix_fallocate", refuse)
        with caplog.at_level(logging.WARNING):
            for step in (2, 3):
                snapshot.take(step, objects)
                assert not snapshot.wait()
    assert 1 == len(caplog.records)
    assert [1] == snapshots.versions(path)

    snapshot.take(4, objects)
    assert snapshot.settle()
    assert [4, 1] == snapshots.versions(path)


@pytest.mark.slow
def test_a_limit_of_the_kernel_is_an_error_and_not_a_signal(path: str) -> None:
    done = subprocess.run(
        [sys.executable, str(WRITER), path, "full"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (0, "[0]") == (done.returncode, done.stdout.strip()), done.stderr
    assert 1 == done.stderr.count("no snapshot of step 1")


def test_a_process_that_takes_over_goes_on_in_the_same_files(path: str) -> None:
    """Allocating gigabytes again would take seconds; the process before is dead."""
    objects = make(1)
    first = take(path, 1, objects)
    first.take(2, objects)
    first.close()
    files = [os.stat(f"{path}.{index}").st_ino for index in (0, 1)]  # noqa: PTH116 - inodes

    second = Snapshot(path, create=True)
    assert [2, 1] == snapshots.versions(path)
    second.take(3, objects)
    assert second.settle()

    assert [3, 2] == snapshots.versions(path)
    assert files == [os.stat(f"{path}.{index}").st_ino for index in (0, 1)]  # noqa: PTH116 - as above


def test_a_process_that_was_replaced_writes_where_nobody_looks(path: str) -> None:
    objects, ghosts = make(1), make(2)
    ghost = take(path, 1, objects)
    ghost.take(2, objects)
    assert ghost.settle()

    new = Snapshot(path, create=True)
    for step in (3, 4):
        ghost.take(step, ghosts)
        ghost.wait()
    assert [2, 1] == snapshots.versions(path)
    new.take(3, objects)
    assert new.settle()
    ghost.close()

    assert [3, 2] == snapshots.versions(path)
    for step in (2, 3):
        other = make(3)
        snapshots.load(path, step, other)
        assert digest(objects) == digest(other)


@pytest.mark.slow
def test_a_process_that_was_forked_does_not_keep_the_files(path: str) -> None:
    """A data loader's worker outlives its parent for a while."""
    objects = make(1)
    snapshot = take(path, 1, objects)
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(tell, b"!")
        time.sleep(60)
        os._exit(0)
    os.read(told, 1)
    try:
        snapshot.close()
        inode = os.stat(f"{path}.0").st_ino  # noqa: PTH116 - inode
        Snapshot(path, create=True)
        assert inode == os.stat(f"{path}.0").st_ino  # noqa: PTH116 - as above
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(told)
        os.close(tell)


@pytest.mark.slow
def test_a_killed_writer_leaves_a_whole_version(path: str) -> None:
    """Whenever it is killed: each byte of what is loaded is that of its step, and the step is recent."""
    rng = random.Random(4)
    for attempt in range(2):
        place = f"{path}.{attempt}"
        with subprocess.Popen([sys.executable, str(WRITER), place], stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            # Stopped and looked at many times, which is as good as killed, and killed at last.
            for _ in range(60):
                time.sleep(rng.random() * 0.01)
                writer.send_signal(signal.SIGSTOP)
                os.waitpid(writer.pid, os.WUNTRACED)
                check(place)
                writer.send_signal(signal.SIGCONT)
            writer.send_signal(signal.SIGKILL)
        check(place)


def check(path: str) -> None:
    steps = snapshots.versions(path)
    assert steps
    for step in steps:
        got = Filled()
        snapshots.load(path, step, {"state": got})
        assert digest({"state": Filled(step)}) == digest({"state": got})


@pytest.mark.slow
def test_parts_of_spread_tensors_are_kept_without_asking_the_other_ranks(tmp_path: Path) -> None:
    """FSDP: each rank loads its own part, into a model that has made steps and into one that has not."""
    results = run_crew("snapshot_ranks.py", 2, tmp_path)

    for answer in results.values():
        assert {"fresh": True, "used": True, "later": True} == answer, json.dumps(answer)


def test_a_step_that_only_the_dead_had_counted_is_not_told_again(tmp_path: Path) -> None:
    """Its vote had ended for that rank alone; a job that starts anew tells everything anew."""

    def take_over(*, newcomer: bool) -> Keeping:
        notes = SetupNotes(tmp_path, Origin(1, 0, 2))
        return Keeping(0, 2, str(tmp_path / "rank-0.slot"), "", notes, newcomer=newcomer)

    take_over(newcomer=False).tell(6)
    assert 6 == take_over(newcomer=True).told_before(5)
    again = take_over(newcomer=True)
    assert 6 == again.told_before(5)
    assert 8 == again.told_before(8)
    assert 4 == again.told_before(3), "a number that cannot be is not believed"
    assert 5 == take_over(newcomer=False).told_before(5)
    assert 5 == take_over(newcomer=True).told_before(5)


def test_a_copy_that_was_under_way_when_memory_failed_is_not_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have what the failure left; the one before was done. One that was done in time is kept."""
    objects = make(0)
    notes = SetupNotes(tmp_path, Origin(1, 0, 2))
    keeping = Keeping(0, 2, str(tmp_path / "rank-0.slot"), "", notes, newcomer=False)
    keeping.agree(("a", "b"), 10, 5, objects)

    keeping.committed(6, objects)
    keeping.keep_last()
    keeping.begin()
    keeping.distrust(6)
    assert ((0, 6), (0, 5)) == keeping.copies()

    with monkeypatch.context() as patch:
        patch.setattr(Snapshot, "is_settled", lambda _: False)
        keeping.begin()
    keeping.distrust(6)
    assert ((0, 5),) == keeping.copies()

    keeping.committed(6, objects)
    keeping.keep_last()
    assert ((0, 6), (0, 5)) == keeping.copies()
