"""Ways in which scripts train, for recovery tests: each is a few lines around the same small model.

``zero``: a sharded optimizer with two copies. ``two``: two optimizers, the second of which needs the others
after the first has updated. ``after``: the loss is averaged after the update. ``accumulate``: two backward
passes a step. ``scaler``: AMP's scaler, which leaves an update out now and then. ``loader``: a loader with a
sampler, whose augmentation draws random numbers. ``epochs``: a loop for each epoch, over shuffled data.
``talks``: a collective between two steps, which is not promised.
"""

import argparse
import atexit
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from taskd import train
from taskd.train.torch.exchange import digest

parser = argparse.ArgumentParser()
parser.add_argument("--kind", required=True)
parser.add_argument("--steps", type=int, default=14)
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--pause", type=float, default=0.02)
parser.add_argument("--die", action="append", default=[], help="POINT:RANK:STEP")
args = parser.parse_args()

job = train.join()
first = os.environ.get("TASKD_NEWCOMER") != "1"
plans = [plan.split(":") for plan in args.die]
deaths = {(point, int(step)) for point, rank, step in plans if int(rank) == job.rank and first}


def be_killed() -> None:
    """Mark the place and wait here for the test, which kills from outside."""
    (args.out / f"doomed-{os.getpid()}").touch()
    time.sleep(3600)


def at(point: str, step: int) -> None:
    """Be killed here, if this is the place."""
    if (point, step) in deaths:
        be_killed()


def net() -> nn.Sequential:
    """Return a small model with dropout and several buckets."""
    layers: list[nn.Module] = [nn.Linear(16, 64)]
    for _ in range(4):
        layers += [nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 64)]
    return nn.Sequential(*layers, nn.Linear(64, 4))


class Samples(Dataset[tuple[torch.Tensor, int]]):
    """Adds noise from the global generator, as augmentations do."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        own = torch.Generator().manual_seed(index)
        return torch.randn(16, generator=own) + 0.1 * torch.randn(16), index % 4


def batch_of(step: int, part: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a rank's batch of a step."""
    generator = torch.Generator().manual_seed(1000 * step + 10 * job.rank + part)
    return torch.randn(8, 16, generator=generator), torch.randint(0, 4, (8,), generator=generator)


torch.set_num_threads(1)
torch.manual_seed(3)
model = net()
other = net()
torch.manual_seed(50 + job.rank)
ddp = job.wrap(lambda: DistributedDataParallel(model, bucket_cap_mb=0.02))
state: dict[str, Any] = {"model": model}
if args.kind == "zero":
    optimizer: Any = train.ShardedOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)
else:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5)
state.update(optimizer=optimizer, scheduler=scheduler)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**60, growth_interval=3)
if args.kind == "scaler":
    state.update(scaler=scaler)
if args.kind == "two":
    ddp_other = job.wrap(lambda: DistributedDataParallel(other, bucket_cap_mb=0.02))
    second = torch.optim.SGD(other.parameters(), lr=1e-2, momentum=0.9)
    state.update(other=other, second=second)
job.register(**state)


def loss_of(module: Callable[..., Any], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Forward."""
    loss: torch.Tensor = nn.functional.cross_entropy(module(x), y)
    return loss


def train_step(step: int, batch: Any = None) -> float:
    """One step of the chosen kind."""
    at("before", step)
    time.sleep(args.pause)
    optimizer.zero_grad()
    x, y = batch if batch is not None else batch_of(step)
    loss = loss_of(ddp, x, y)
    if args.kind == "accumulate":
        with ddp.no_sync():
            loss.backward()
        loss = loss_of(ddp, *batch_of(step, 1))
    at("forward", step)
    if args.kind == "scaler":
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    else:
        loss.backward()
        optimizer.step()
    at("updated", step)
    if args.kind == "two":
        second.zero_grad()
        with torch.no_grad():
            target = model(x)  # the second needs what the first has become
        extra = nn.functional.mse_loss(ddp_other(x), target)
        extra.backward()
        at("between", step)
        second.step()
        loss = loss + extra.detach()
    value = loss.detach().clone()
    if args.kind == "after":
        dist.all_reduce(value)
    scheduler.step()
    at("after", step)
    return float(value.item())


data = None
if args.kind == "loader":
    samples = Samples()
    sampler: DistributedSampler[Any] = DistributedSampler(samples, shuffle=True, seed=1)
    data = DataLoader(samples, batch_size=4, sampler=sampler)
epoch = args.steps
if args.kind == "epochs":
    epoch = 5
    data = DataLoader(Samples(), batch_size=8, shuffle=True)
with (args.out / f"ledger-{job.rank}.jsonl").open("a") as ledger:
    for begin in range(0, args.steps, epoch):
        end = min(begin + epoch, args.steps)
        for done, result in job.steps(train_step, start=begin, until=end, data=data):
            ledger.write(json.dumps({"step": done, "loss": result.hex(), "pid": os.getpid()}) + "\n")
            ledger.flush()
            if args.kind == "talks":
                dist.all_reduce(torch.ones(1))
        torch.rand(1)  # a script may draw numbers between two loops
final = (
    digest({"model": model, "other": other}) + digest({"optimizer": optimizer})[: 64 * (args.kind != "zero")]
)
(args.out / f"digest-{job.rank}.txt").write_text(final)
atexit._run_exitfuncs()
os._exit(0)  # torch takes a second to leave an interpreter, and nothing here is about that
