import os
import signal
import subprocess
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter_ns

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskd.train.torch.slots import Slot, SlotTaken, read_entries, read_told

WRITER = """
import sys
from taskd.train.torch.slots import Slot
slot = Slot(sys.argv[1], create=True)
step = 0
while True:
    slot.write(step, step % 2, bytes([step % 251]) * (9000 + step % 7))
    if step == 0:
        print("begun", flush=True)
    step += 1
"""


def test_the_last_four_entries_are_there_newest_first(tmp_path: Path) -> None:
    slot = Slot(tmp_path / "slot", create=True)
    for step in range(5):
        slot.write(step, step % 2, b"state %d" % step)

    last = [(step, step % 2, b"state %d" % step) for step in (4, 3, 2, 1)]
    assert last == slot.read() == read_entries(tmp_path / "slot")


def test_the_same_bytes_may_be_written_again_and_again(tmp_path: Path) -> None:
    """They are copied once to each place, and again where the file has become a larger one."""
    slot = Slot(tmp_path / "slot", 100, create=True)
    same = b"as before"
    for step in range(9):
        slot.write(step, 0, same)
    assert [(step, 0, same) for step in (8, 7, 6, 5)] == slot.read()

    slot.write(9, 1, b"L" * 5000)
    for step in range(10, 14):
        slot.write(step, 0, same)
    assert [(step, 0, same) for step in (13, 12, 11, 10)] == slot.read()


def test_an_empty_slot_has_no_entries(tmp_path: Path) -> None:
    assert [] == Slot(tmp_path / "slot", create=True).read()
    assert [] == read_entries(tmp_path / "nowhere")


def test_a_process_that_takes_over_finds_what_was_left(tmp_path: Path) -> None:
    """And what the old one writes later is seen by nobody."""
    old = Slot(tmp_path / "slot", create=True)
    old.write(7, 0, b"seven")
    old.write(8, 1, b"eight")
    new = Slot(tmp_path / "slot", create=True)

    old.write(9, 0, b"a ghost's")
    assert [(8, 1, b"eight"), (7, 0, b"seven")] == new.read()

    new.write(9, 0, b"nine")
    assert [(9, 0, b"nine"), (8, 1, b"eight"), (7, 0, b"seven")] == new.read()


def test_a_payload_that_does_not_fit_gets_a_larger_file(tmp_path: Path) -> None:
    slot = Slot(tmp_path / "slot", 100, create=True)
    slot.write(1, 0, b"small")
    slot.write(2, 0, b"L" * 5000)
    slot.write(3, 0, b"L" * 6000)

    assert [(3, 0, b"L" * 6000), (2, 0, b"L" * 5000), (1, 0, b"small")] == slot.read()
    assert ["slot"] == os.listdir(tmp_path)  # noqa: PTH208 - names


def test_growing_carries_the_older_entry_over(tmp_path: Path) -> None:
    slot = Slot(tmp_path / "slot", 100, create=True)
    slot.write(1, 0, b"small")
    slot.write(2, 0, b"L" * 5000)

    assert [(2, 0, b"L" * 5000), (1, 0, b"small")] == slot.read()


def test_how_much_the_script_was_told_outlives_the_process(tmp_path: Path) -> None:
    """It is carried into a larger file and to the next process, and is no part of an entry."""
    path = tmp_path / "slot"
    assert 0 == read_told(path)
    slot = Slot(path, create=True)
    assert 0 == read_told(path)
    slot.tell(7)
    for step in range(9):
        slot.write(step, 1, b"x" * 100)
    assert 7 == read_told(path)
    slot.write(9, 1, b"y" * 200_000)
    assert 7 == read_told(path)
    Slot(path, create=True)
    assert 7 == read_told(path)
    assert 9 == read_entries(path)[0].step
    raw = bytearray(path.read_bytes())
    raw[40] ^= 1
    path.write_bytes(raw)
    assert 0 == read_told(path)


def test_a_process_that_was_replaced_does_not_grow_the_file(tmp_path: Path) -> None:
    old = Slot(tmp_path / "slot", 100, create=True)
    Slot(tmp_path / "slot", 100, create=True).write(5, 0, b"new")

    with pytest.raises(SlotTaken):
        old.write(9, 0, b"x" * 500)
    assert [(5, 0, b"new")] == read_entries(tmp_path / "slot")


def test_without_create_the_numbering_goes_on(tmp_path: Path) -> None:
    Slot(tmp_path / "slot", create=True).write(1, 0, b"one")
    slot = Slot(tmp_path / "slot", create=False)
    slot.write(2, 0, b"two")

    assert [(2, 0, b"two"), (1, 0, b"one")] == slot.read()


PAYLOADS = st.lists(st.binary(max_size=200), min_size=1, max_size=5)


@given(PAYLOADS, st.data())
def test_damage_never_yields_a_wrong_entry(payloads: list[bytes], data: st.DataObject) -> None:
    """Whatever happens to the bytes of the file, an entry is right or missing; one flip costs one entry."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "slot"
        slot = Slot(path, 200, create=True)
        for step, payload in enumerate(payloads):
            slot.write(step, 0, payload)
        whole = slot.read()
        raw = bytearray(path.read_bytes())
        kind = data.draw(st.sampled_from(["flip", "cut", "zero"]))
        place = data.draw(st.integers(0, len(raw) - 1))
        if kind == "flip":
            raw[place] ^= data.draw(st.integers(1, 255))
        elif kind == "cut":
            del raw[place:]
        else:
            raw[place:] = bytes(len(raw) - place)
        path.write_bytes(raw)

        left = read_entries(path)

        assert [entry for entry in whole if entry in left] == left
        if kind == "flip":
            assert len(left) >= len(whole) - 1
        slot = Slot(path, 200, create=False)
        slot.write(99, 3, b"goes on")
        assert (99, 3, b"goes on") == slot.read()[0]


@given(st.binary(max_size=200), st.binary(max_size=200), st.data())
def test_a_torn_write_leaves_the_entry_before(old: bytes, new: bytes, data: st.DataObject) -> None:
    """Killed when any part of the bytes that a write changes are there, the entry before it is whole."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "slot"
        slot = Slot(path, 200, create=True)
        slot.write(1, 0, b"older")
        slot.write(2, 0, old)
        before = path.read_bytes()
        slot.write(3, 0, new)
        after = path.read_bytes()
        changed = [place for place in range(len(before)) if before[place] != after[place]]
        arrived = data.draw(st.sets(st.sampled_from(changed))) if changed else set()
        path.write_bytes(bytes(after[i] if i in arrived else before[i] for i in range(len(before))))

        entries = read_entries(path)

        assert (2, 0, old) in entries
        assert set(entries) <= {(1, 0, b"older"), (2, 0, old), (3, 0, new)}


@pytest.mark.slow
def test_a_killed_writer_leaves_a_whole_entry(tmp_path: Path) -> None:
    for attempt in range(5):
        path = tmp_path / f"slot{attempt}"
        with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            writer.send_signal(signal.SIGKILL)

        entries = read_entries(path)

        assert entries
        for step, kind, payload in entries:
            assert (step % 2, bytes([step % 251]) * (9000 + step % 7)) == (kind, payload)


def test_a_write_costs_microseconds(tmp_path: Path) -> None:
    """30 are promised; the limit here leaves room for a busy machine."""
    slot = Slot(tmp_path / "slot", create=True)
    payload = os.urandom(8192)
    times = []
    for step in range(500):
        begin = perf_counter_ns()
        slot.write(step, 0, payload)
        times.append(perf_counter_ns() - begin)

    assert median(times) < 100_000
