"""Ways in which scripts train, for recovery tests: each is a few lines around the same small model.

``zero``: a sharded optimizer with two copies. ``two``: two optimizers, the second of which needs the others
after the first has updated. ``after``: the loss is averaged after the update. ``accumulate``: two backward
passes a step. ``scaler``: AMP's scaler, which leaves an update out now and then. ``loader``: a loader with a
sampler, whose augmentation draws random numbers. ``epochs``: a loop for each epoch, over shuffled data.
``talks``: a collective between two steps, which is not promised. ``habits``: what scripts change beside their
parameters, before the update (a counter, a schedule that is turned without an update too, a momentum encoder,
a model that is frozen for a while) and after it (a hidden state of the rank's own).
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


class Carried:
    """A state of the rank's own, and a count."""

    def __init__(self) -> None:
        self.value, self.seen = torch.zeros(16), 0

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""
        return {"value": self.value, "seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take it."""
        self.value, self.seen = state["value"], state["seen"]


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
carried = Carried()
if args.kind == "habits":
    state.update(other=other.requires_grad_(requires_grad=False), carried=carried)
job.register(**state)


def loss_of(module: Callable[..., Any], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Forward."""
    loss: torch.Tensor = nn.functional.cross_entropy(module(x), y)
    return loss


def step_with_habits(step: int) -> float:
    """One step that changes many things."""
    at("before", step)
    time.sleep(args.pause)
    carried.seen += 1
    optimizer.zero_grad()
    x, y = batch_of(step)
    with torch.no_grad():
        for mine, theirs in zip(other.parameters(), model.parameters(), strict=True):
            mine.lerp_(theirs, 0.1)
    model.requires_grad_(requires_grad=False)
    target = other(x)
    at("frozen", step)
    dist.all_reduce(target)
    model.requires_grad_(requires_grad=True)
    out = ddp(x * (1 + 0.01 * carried.seen) + 0.1 * carried.value)
    loss = nn.functional.cross_entropy(out, y) + nn.functional.mse_loss(out, target / job.world_size)
    at("forward", step)
    loss.backward()
    scheduler.step()
    if step % 3:
        optimizer.step()
    at("updated", step)
    carried.value = x.mean(0)
    at("after", step)
    return float(loss.item())


def train_step(step: int, batch: Any = None) -> float:
    """One step of the chosen kind."""
    if args.kind == "habits":
        return step_with_habits(step)
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
