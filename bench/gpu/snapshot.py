"""What a snapshot of some gigabytes costs a training step: blocks of steps with and without, in turns.

Prints one line of JSON. The work of a step is matrix products in bfloat16 until it takes ``--step-s``.
"""

import argparse
import json
import os
import statistics
import tempfile
import time

import torch

from taskd.train.torch import snapshots

parser = argparse.ArgumentParser()
parser.add_argument("--state-gb", type=float, default=10.0)
parser.add_argument("--step-s", type=float, default=1.0)
parser.add_argument("--blocks", type=int, default=8)
parser.add_argument("--steps", type=int, default=4)
parser.add_argument("--device", default="cuda")
parser.add_argument("--size", type=int, default=8192)
args = parser.parse_args()

width = 4096 if args.state_gb >= 1 else 256
count = max(1, round(args.state_gb * 1e9 / (12 * width * width)))
with torch.device(args.device):
    net = torch.nn.ParameterList(torch.nn.Parameter(torch.rand(width, width)) for _ in range(count))
    kind_of_work = torch.bfloat16 if args.device == "cuda" else torch.float32
    a = torch.randn(args.size, args.size, dtype=kind_of_work)
    b = torch.randn(args.size, args.size, dtype=kind_of_work)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
for parameter in net:
    parameter.grad = torch.full_like(parameter, 1e-3)
objects = {"net": net, "optimizer": optimizer}


def sync() -> None:
    """Wait for the device."""
    if args.device == "cuda":
        torch.cuda.synchronize()


def step(number: int, snapshot: snapshots.Snapshot | None, products: int) -> float:
    """Compute, update, and begin a snapshot; return how long it took."""
    begun = time.perf_counter()
    for _ in range(products):
        torch.matmul(a, b)
    if snapshot is not None:
        snapshot.wait()
    optimizer.step()
    sync()
    if snapshot is not None:
        snapshot.take(number, objects)
    return time.perf_counter() - begun


def block(snapshot: snapshots.Snapshot | None, first: int) -> list[float]:
    """Run the steps of a block and return their times."""
    return [step(first + number, snapshot, products) for number in range(args.steps)]


products = 1
step(0, None, 1)
update = step(0, None, 0)
one = max((step(0, None, 21) - step(0, None, 1)) / 20, 1e-5)
products = max(1, round((args.step_s - update) / one))
folder = tempfile.mkdtemp(dir="/dev/shm", prefix="taskd-bench-")
try:
    snapshot = snapshots.Snapshot(f"{folder}/rank0", create=True)
    begun = time.perf_counter()
    for number in range(2):  # both buffers are allocated and pinned
        snapshot.take(number, objects)
        assert snapshot.settle(120)
    first_s = (time.perf_counter() - begun) / 2
    begun = time.perf_counter()
    snapshot.take(2, objects)
    started_s = time.perf_counter() - begun
    snapshot.settle()
    whole_s = time.perf_counter() - begun
    blocks: dict[str, list[float]] = {"bare": [], "snapshots": [], "bare again": []}
    number = 10
    for _ in range(args.blocks):
        for kind, means in blocks.items():
            times = block(snapshot if kind == "snapshots" else None, number)
            number += args.steps
            if kind == "snapshots":
                snapshot.settle()
                assert snapshots.versions(snapshot.path)[0] == number - 1
            # The first of a block has the end of the other kind in it.
            means.append(statistics.mean(times[1:]))
    expected = [p.detach().clone() for p in net]
    snapshot.take(number, objects)
    snapshot.settle()
    begun = time.perf_counter()
    with torch.no_grad():
        for parameter in net:
            parameter.zero_()
    snapshots.load(snapshot.path, number, objects)
    load_s = time.perf_counter() - begun
    equal = all(map(torch.equal, expected, net))
    size = sum(os.path.getsize(f"{folder}/rank0.{index}") for index in (0, 1)) / 2  # noqa: PTH202 - plain
    bare = statistics.median([*blocks["bare"], *blocks["bare again"]])
    print(
        json.dumps(
            {
                "gb": size / 1e9,
                "tensors": 4 * count,
                "step_s": bare,
                "with_s": statistics.median(blocks["snapshots"]),
                "cost_percent": 100 * (statistics.median(blocks["snapshots"]) / bare - 1),
                "bare_differs_percent": 100
                * abs(statistics.median(blocks["bare"]) / statistics.median(blocks["bare again"]) - 1),
                "starting_ms": 1000 * started_s,
                "whole_s": whole_s,
                "first_s": first_s,
                "load_s": load_s,
                "equal": equal,
            }
        )
    )
    snapshot.close()
finally:
    snapshots.remove(f"{folder}/rank0")
    os.rmdir(folder)  # noqa: PTH106 - plain
