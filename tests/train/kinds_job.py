"""Kinds of state that a script may have, for recovery tests: each is what some real trainings have.

All have tied, frozen, turned and 0-dimensional weights, batch norm, an averaged copy and two schedulers in
one. ``clip``: AMP's scaler with clipping, so gradients are unscaled before the vote. ``fused``: a scaler that
lets a fused optimizer unscale. ``closure``: an optimizer that computes the loss itself. ``lbfgs``: one whose
state is lists and numbers. ``sparse``: sparse gradients, with the optimizer that they need, and another one.
``master``: 64-bit state of 32-bit parameters. ``muon``: an optimizer that talks to the others in its update.
``compiled``: a compiled module.
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
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from taskd import train
from taskd.train.torch.exchange import digest

parser = argparse.ArgumentParser()
parser.add_argument("--kind", required=True)
parser.add_argument("--steps", type=int, default=8)
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--pause", type=float, default=0.0)
parser.add_argument("--die", default="", help="POINT:RANK:STEP")
args = parser.parse_args()

job = train.join()
point, rank, when = args.die.split(":") if args.die else ("", "-1", "-1")
mortal = int(rank) == job.rank and os.environ.get("TASKD_NEWCOMER") != "1"
mortal &= os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"


def at(here: str, step: int) -> None:
    """Be killed here, if this is the place."""
    if mortal and here == point and step == int(when):
        time.sleep(0.1)  # the others are in their next collective by now
        (args.out / f"doomed-{os.getpid()}").touch()
        time.sleep(3600)  # the test kills from outside


class Net(nn.Module):
    """Tied, frozen, odd and normalized parts."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(32, 16, sparse=args.kind == "sparse")
        self.norm = nn.BatchNorm1d(16)
        self.frozen = nn.Linear(16, 16)
        self.frozen.requires_grad_(requires_grad=False)
        self.gain = nn.Parameter(torch.tensor(1.0))
        turned = torch.rand(16, 24).t()
        # LBFGS views gradients as one row, and torch gives a gradient its parameter's strides.
        self.turned = nn.Parameter(turned.contiguous() if args.kind == "lbfgs" else turned)
        self.drop = nn.Dropout(0.1)
        self.last = nn.Linear(24, 32, bias=False)
        self.out = nn.Linear(32, 32, bias=False)
        self.again = self.out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Forward."""
        mean = self.words(x).mean(1)
        y = self.drop(self.frozen(self.norm(mean) * self.gain)) @ self.turned.t()
        return self.again(torch.relu(self.out(self.last(y))))  # type: ignore[no-any-return]


class Master(torch.optim.Optimizer):
    """Keeps parameters with more bits than they have, and counts in a plain number."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.01})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update the copies."""
        for group in self.param_groups:
            for each in group["params"]:
                if each.grad is None:
                    continue
                state = self.state[each]
                if not state:
                    state.update(master=each.double(), count=0)
                state["count"] += 1
                state["master"] = state["master"] - group["lr"] / state["count"] * each.grad.double()
                each.copy_(state["master"])
        return closure


class Muon(torch.optim.Optimizer):
    """Each rank works on its share of the parameters; the others get the result at once."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.01})
        self.updates = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update one parameter after the other."""
        for group in self.param_groups:
            for number, each in enumerate(group["params"]):
                change = torch.zeros_like(each)
                if number % job.world_size == job.rank:
                    change = torch.sign(each.grad)
                at(f"share{number}", self.updates)
                dist.all_reduce(change)
                each.sub_(change, alpha=group["lr"])
        self.updates += 1
        return closure


torch.set_num_threads(1)
torch.manual_seed(3)
model = Net()
torch.manual_seed(50 + job.rank)
fast: Any = torch.compile(model, backend="eager") if args.kind == "compiled" else model
ddp = job.wrap(lambda: DistributedDataParallel(fast, bucket_cap_mb=1))
optimizers: list[torch.optim.Optimizer]
trained = [each for each in model.parameters() if each.requires_grad]
match args.kind:
    case "lbfgs":
        optimizers = [torch.optim.LBFGS(trained, lr=0.1, max_iter=3, history_size=4)]
    case "sparse":
        rest = [each for each in trained if each is not model.words.weight]
        optimizers = [torch.optim.SparseAdam([model.words.weight]), torch.optim.AdamW(rest)]
    case "master":
        optimizers = [Master(trained)]
    case "muon":
        optimizers = [Muon(trained)]
    case _:
        optimizers = [torch.optim.AdamW(trained, fused=args.kind == "fused")]
average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
scheduler = torch.optim.lr_scheduler.SequentialLR(
    optimizers[-1],
    [
        torch.optim.lr_scheduler.LinearLR(optimizers[-1], 0.1, total_iters=3),
        torch.optim.lr_scheduler.CosineAnnealingLR(optimizers[-1], 10),
    ],
    [3],
)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
state: dict[str, Any] = {"model": fast, "average": average, "scheduler": scheduler, "scaler": scaler}
state.update({f"optimizer{number}": each for number, each in enumerate(optimizers)})
job.register(**state)


def loss_of(step: int, call: int = 0) -> torch.Tensor:
    """Forward."""
    made = torch.Generator().manual_seed(1000 * step + 10 * job.rank)
    x, y = torch.randint(0, 32, (8, 5), generator=made), torch.randint(0, 32, (8,), generator=made)
    loss: torch.Tensor = nn.functional.cross_entropy(ddp(x), y)
    at(f"call{call}", step)
    return loss


def update(step: int, loss: torch.Tensor) -> None:
    """Backward and update, in the way of the kind."""
    if args.kind in {"clip", "fused"}:
        scaler.scale(loss).backward()
        at("backward", step)
        if args.kind == "clip":
            scaler.unscale_(optimizers[0])
            nn.utils.clip_grad_norm_(trained, 0.5)
        at("unscaled", step)
        scaler.step(optimizers[0])
        scaler.update()
        return
    loss.backward()
    at("backward", step)
    for number, each in enumerate(optimizers):
        at(f"update{number}", step)
        each.step()


def closure_of(step: int) -> Callable[[], float]:
    """Return what computes the loss, and counts how often it is called."""
    calls = 0

    def closure() -> float:
        nonlocal calls
        calls += 1
        optimizers[0].zero_grad()
        loss = loss_of(step, calls)
        loss.backward()
        return float(loss.item())

    return closure


def train_step(step: int) -> float:
    """One step."""
    at("before", step)
    if args.kind in {"closure", "lbfgs"}:
        first: Any = optimizers[0]
        value = first.step(closure_of(step))
    else:
        for each in optimizers:
            each.zero_grad()
        loss = loss_of(step)
        update(step, loss)
        value = float(loss.item())
    at("updated", step)
    average.update_parameters(model)
    scheduler.step()
    at("after", step)
    return float(value)


with (args.out / f"ledger-{job.rank}.jsonl").open("a") as ledger:
    for done, result in job.steps(train_step, until=args.steps):
        ledger.write(json.dumps({"step": done, "loss": result.hex(), "pid": os.getpid()}) + "\n")
        ledger.flush()
(args.out / f"digest-{job.rank}.txt").write_text(digest(state))
atexit._run_exitfuncs()
os._exit(0)  # torch takes a second to leave an interpreter, and nothing here is about that
