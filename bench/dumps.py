"""What it costs to have a job's state on disk: a dump, and the copy that a checkpoint takes at a commit.

    python bench/dumps.py
    python bench/dumps.py --quick
    python bench/dumps.py --dir /data/scratch

A dump must not take longer than 1.3 times what the disk needs for as many bytes in plain large writes and one
fsync. Both are measured in turns, on the same file system, because a disk's speed is not the same twice.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import torch
from table import Result, print_table, read_load, tell
from torch import nn

from taskd.train.torch.checkpointer import Checkpointer, capture_objects, dump
from taskd.train.torch.checkpoints import load
from taskd.train.torch.manifests import Layout, RankState

GIGABYTE = 10**9
PIECE_BYTES = 64 * 2**20
LAYOUT = Layout(("all",))


def make_objects(size_bytes: int) -> dict[str, nn.Module | torch.optim.Optimizer]:
    """Make a model with an optimizer that has stepped; together they have so many bytes."""
    width = 1024
    layers = max(1, round(size_bytes / (3 * 4 * (width * width + width))))
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    return {"model": model, "optimizer": optimizer}


def write_plainly(home: Path, size_bytes: int, piece: memoryview) -> float:
    """Return the seconds that the disk needs for so many bytes."""
    path = home / "plain"
    began = time.perf_counter()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    left = size_bytes
    while left:
        left -= os.write(fd, piece[:left])
    os.fsync(fd)
    os.close(fd)
    took = time.perf_counter() - began
    path.unlink()
    return took


def write_dump(home: Path, objects: dict[str, nn.Module | torch.optim.Optimizer], run: str) -> float:
    """Return the seconds from the call to the verified checkpoint."""
    began = time.perf_counter()
    path = dump(
        home / "dump",
        step=1,
        layout=LAYOUT,
        run=run,
        generation=0,
        objects=objects,
        shard="all",
        ranks={0: RankState(b"own", 1)},
        publish=True,
    )
    took = time.perf_counter() - began
    assert path is not None
    shutil.rmtree(home / "dump")
    return took


def write_with_torch(home: Path, objects: dict[str, nn.Module | torch.optim.Optimizer]) -> float:
    """Return the seconds that torch.save and an fsync take; nothing is verified."""
    path = home / "torch"
    began = time.perf_counter()
    with path.open("wb") as file:
        torch.save({name: thing.state_dict() for name, thing in objects.items()}, file)
        file.flush()
        os.fsync(file.fileno())
    took = time.perf_counter() - began
    path.unlink()
    return took


def measure_dumps(*, quick: bool, home: Path) -> Result:
    """Measure in turns: plain writes, a dump, torch.save, a checkpoint's copy, and reading it again."""
    result = Result()
    rounds = 3 if quick else 10
    size_bytes = GIGABYTE // 10 if quick else GIGABYTE
    objects = make_objects(size_bytes)
    size_bytes = capture_objects(objects).length
    piece = memoryview(bytearray(os.urandom(PIECE_BYTES)))
    saver = Checkpointer(home / "saved", every=1, keep=1, rank=0, layout=LAYOUT, run="bench")
    plain, dumped, torch_saved, ratios, copied, loaded = [], [], [], [], [], []
    for number in range(1, rounds + 1):
        # The disk before and after: the mean of both is what a dump in between can be compared with.
        before = write_plainly(home, size_bytes, piece)
        dumped.append(write_dump(home, objects, f"run{number}"))
        after = write_plainly(home, size_bytes, piece)
        plain += [before, after]
        ratios.append(dumped[-1] / ((before + after) / 2))
        torch_saved.append(write_with_torch(home, objects))
        began = time.perf_counter()
        assert saver.take(number, objects, RankState(b"own", number))
        copied.append(time.perf_counter() - began)
        while saver.busy:
            time.sleep(0.01)
        began = time.perf_counter()
        assert load(home / "saved", objects, layout=LAYOUT, rank=0) is not None
        loaded.append(time.perf_counter() - began)
        tell(f"dumps: {number} of {rounds}")
    saver.close()
    megabytes = f"{size_bytes / 1e6:.0f} MB"
    result.add(f"plain writes and fsync, {megabytes}", [1000 * took for took in plain])
    result.add("dump: written, on disk, read back", [1000 * took for took in dumped])
    result.add("dump / plain writes", ratios, "", median=1.3)
    result.add("torch.save and fsync", [1000 * took for took in torch_saved])
    result.add("checkpoint: training waits for the copy", [1000 * took for took in copied])
    result.add("resume: compared twice and loaded", [1000 * took for took in loaded])
    result.note(f"the disk writes {size_bytes / 1e9 / (sum(plain) / len(plain)):.2f} GB/s")
    result.note("the first copy finds its memory, which takes longest; later ones use it again")
    return result


def main() -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="100 MB, fewer samples: to see that it works")
    parser.add_argument("--dir", type=Path, help="where to write (default: the system's temporary directory)")
    args = parser.parse_args()
    before = read_load()
    home = Path(tempfile.mkdtemp(prefix="taskd-bench-dumps-", dir=args.dir))
    try:
        result = measure_dumps(quick=args.quick, home=home)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    print_table([("dumps", result)])
    print(f"dumps: before, {before}; after, {read_load()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
