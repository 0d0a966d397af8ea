"""A small run in a topology of four ranks, written as a user would, for recovery tests.

``--kind`` chooses: ``hsdp`` (2 replicas x 2 shards), ``fsdp`` (4 shards), ``tp`` (2 data x 2 tensor
parallel), ``pp`` (2 stages x 2 data) and ``own`` (DDP over a group that the script made by itself). Every
committed step goes to a ledger, and each step that was computed to a file of its process. ``--two`` gives
half of the parameters to a second optimizer.

``--die POINT:RANK:STEP`` lets a rank be killed and ``--raise`` makes it fail once, in its first process only.
A recovery has points too, in the step that was interrupted: ``joining`` the next group, and ``settling`` in
it when state has moved. Instead of a step there may be ``new``: the rank's first replacement.
"""

import argparse
import atexit
import faulthandler
import json
import os
import signal
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import init_process_group  # imported before join, as many scripts do
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from taskd import train
from taskd.core.messages import Regroup
from taskd.train.torch import snapshots
from taskd.train.torch.ballots import Ballot
from taskd.train.torch.exchange import digest
from taskd.train.torch.meeting import Meeting
from taskd.train.torch.snapfile import file_of, headers
from taskd.train.torch.voting import Votes

WIDTH = 48

parser = argparse.ArgumentParser()
parser.add_argument("--kind", required=True)
parser.add_argument("--steps", type=int, default=14)
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--pause", type=float, default=0.02, help="of each step, until there is a file hurry")
parser.add_argument("--two", action="store_true", help="optimizers")
parser.add_argument("--die", action="append", default=[])
parser.add_argument("--outside", action="store_true", help="turn the schedule in the body of the loop")
parser.add_argument("--corrupt", default="", help="RANK:STEP, its newest snapshot; killed then")
parser.add_argument("--raise", dest="raising", action="append", default=[])
args = parser.parse_args()

faulthandler.register(signal.SIGUSR1)  # a test that hangs can be asked where
torch.set_num_threads(1)
job = train.join()
newcomer = os.environ.get("TASKD_NEWCOMER") == "1"


def parse(plans: list[str]) -> set[tuple[str, int]]:
    """Return where and when something happens in this process of the rank."""
    split = [plan.split(":") for plan in plans if newcomer == plan.endswith(":new")]
    return {(point, -1 if newcomer else int(step)) for point, rank, step in split if int(rank) == job.rank}


deaths, errors = parse(args.die), parse(args.raising)
at_step = -1


def be_killed() -> None:
    """Mark the place and wait here for the test, which kills from outside."""
    (args.out / f"doomed-{os.getpid()}").touch()
    time.sleep(3600)


def point(name: str) -> None:
    """Be killed or fail here, if this is the place; either comes once, also if all ranks restart."""
    if (name, at_step) in deaths and not (died := args.out / f"died-{name}-{job.rank}-{at_step}").exists():
        died.touch()
        be_killed()
    if (name, at_step) in errors:
        errors.discard((name, at_step))
        raise RuntimeError(f"a passing error in {name}")


class Midway(TorchDispatchMode):
    """Is a place inside an update: some parameters have been changed, one is about to be, others have not."""

    def __init__(self) -> None:
        super().__init__()
        self._left = 4

    def __torch_dispatch__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.addcdiv_.default:
            self._left -= 1
            if not self._left:
                point("inside")
        return func(*args, **(kwargs or {}))


begin_vote, offer_vote, join_group = Votes.begin, Votes.offer, Meeting._join


def begin(votes: Votes, ballot: Ballot) -> None:
    """Two points: before the others are told, and after it."""
    point("vote")
    begin_vote(votes, ballot)
    point("in-vote")


def offer(votes: Votes, generation: int) -> int:
    """What was missing has been moved, and all are about to agree on the next steps."""
    point("settling")
    return offer_vote(votes, generation)


def join(meeting: Meeting, regroup: Regroup) -> None:
    """All stand, and are about to connect."""
    point("joining")
    join_group(meeting, regroup)


for owner, name, trap in ((Votes, "begin", begin), (Votes, "offer", offer), (Meeting, "_join", join)):
    setattr(owner, name, trap)


class At(nn.Module):
    """Passes on what it gets, and is a place in the forward and in the backward pass."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        point("forward")
        if x.requires_grad:
            x = x.clone()
            x.register_hook(lambda _: point("backward"))
        return x


def blocks(count: int) -> list[nn.Module]:
    """Return hidden layers with dropout."""
    return [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Dropout(0.1)) for _ in range(count)]


def hsdp(mesh_shape: tuple[int, ...], names: tuple[str, ...]) -> tuple[nn.Module, Any]:
    """Shard in place, outside of job.wrap, and let a wrap have the root."""
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", mesh_shape, mesh_dim_names=names)
    model = nn.Sequential(nn.Linear(16, WIDTH), *blocks(2), At(), *blocks(2), nn.Linear(WIDTH, 8))
    for layer in model:
        if not isinstance(layer, At):
            fully_shard(layer, mesh=mesh)
    if len(mesh_shape) == 1:
        fully_shard(model, mesh=mesh)
        return model, model
    return model, job.wrap(lambda: fully_shard(model, mesh=mesh))


def tensor_parallel() -> tuple[nn.Module, Any]:
    """Two by two in a DeviceMesh, DDP over the data dimension."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    up, down = ["0", "4", "7"], ["2", "6", "9"]
    model = nn.Sequential(
        *(nn.Linear(16, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.Dropout(0.1)),
        *(nn.Linear(WIDTH, WIDTH), At(), nn.Linear(WIDTH, WIDTH)),
        *(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 8)),
    )
    plan: dict[str, Any] = {name: ColwiseParallel() for name in up}
    plan.update({name: RowwiseParallel() for name in down})
    parallelize_module(model, mesh["tp"], plan)
    return model, job.wrap(lambda: DistributedDataParallel(model, device_mesh=mesh["dp"], bucket_cap_mb=0.01))


class FromBefore(torch.autograd.Function):
    """Receives a stage's input, and sends its gradient back."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, peer: int, group: Any) -> torch.Tensor:
        ctx.peer, ctx.group = peer, group
        x = torch.empty(8, WIDTH)
        dist.recv(x, peer, group=group)
        return x + 0 * anchor

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        dist.send(grads[0].contiguous(), ctx.peer, group=ctx.group)
        return None, None, None


class ToNext(torch.autograd.Function):
    """Sends a stage's output, and receives its gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, peer: int, group: Any) -> torch.Tensor:
        ctx.peer, ctx.group, ctx.shape = peer, group, x.shape
        dist.send(x.contiguous(), peer, group=group)
        return x.sum()

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> Any:
        grad = torch.empty(ctx.shape)
        dist.recv(grad, ctx.peer, group=ctx.group)
        return grad, None, None


class Stage(nn.Module):
    """One of two stages, in a line of ranks that differ by two."""

    def __init__(self, line: Any) -> None:
        super().__init__()
        self.first = job.rank < 2
        self.line, self.peer = [line], job.rank + 2 if self.first else job.rank - 2
        head = nn.Linear(16, WIDTH) if self.first else nn.Linear(WIDTH, WIDTH)
        tail = nn.Linear(WIDTH, WIDTH) if self.first else nn.Linear(WIDTH, 8)
        self.layers = nn.Sequential(head, *blocks(2), At(), *blocks(1), tail)
        self.anchor = nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.first:
            out: torch.Tensor = ToNext.apply(self.layers(x) + 0 * self.anchor, self.peer, self.line[0])
            return out
        found: torch.Tensor = self.layers(FromBefore.apply(self.anchor, self.peer, self.line[0]))
        return found


def pipeline() -> tuple[nn.Module, Any]:
    """Two stages of two ranks each, in a DeviceMesh; the two stages have nearly equal parameters."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
    model = Stage(mesh.get_group("pp"))
    replicas = mesh.get_group("dp")
    return model, job.wrap(lambda: DistributedDataParallel(model, process_group=replicas, bucket_cap_mb=0.01))


def own_group() -> tuple[nn.Module, Any]:
    """DDP over a group that the script made, after agreeing on a seed as scripts do."""
    init_process_group("gloo")
    names: list[Any] = [f"run-{os.getpid()}" if job.rank == 0 else None]
    dist.broadcast_object_list(names)
    seed = torch.tensor([int.from_bytes(names[0].encode()[:4]) % 1000 if job.rank == 0 else 0])
    dist.broadcast(seed, 0)
    dist.barrier()
    (args.out / f"seed-{job.rank}-{os.getpid()}.txt").write_text(f"{names[0]} {seed.item()}")
    dp_group = dist.new_group(list(range(job.world_size)))
    model = nn.Sequential(nn.Linear(16, WIDTH), *blocks(2), At(), *blocks(2), nn.Linear(WIDTH, 8))
    return model, job.wrap(lambda: DistributedDataParallel(model, process_group=dp_group, bucket_cap_mb=0.01))


torch.manual_seed(7)
data_rank = job.rank
match args.kind:
    case "hsdp":
        model, net = hsdp((2, 2), ("replicate", "shard"))
    case "fsdp":
        model, net = hsdp((4,), ("shard",))
    case "tp":
        model, net = tensor_parallel()
        data_rank = job.rank // 2
    case "pp":
        model, net = pipeline()
        data_rank = job.rank % 2
    case _:
        model, net = own_group()
torch.manual_seed(100 + data_rank)
parameters = list(model.parameters())
count = len(parameters) // (2 if args.two else 1)
optimizer = torch.optim.AdamW(parameters[:count], lr=1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=50)
states: dict[str, Any] = {"model": model, "optimizer": optimizer}
if args.two:
    states["second"] = torch.optim.SGD(parameters[count:], lr=1e-2, momentum=0.9)
job.register(**states, scheduler=scheduler)
optimizer.register_step_pre_hook(lambda *_: point("voted"))
optimizer.register_step_post_hook(lambda *_: point("updated"))


def corrupt_snapshot(step: int) -> None:
    """Change a byte of the tensors in the snapshot of this step, once it is there."""
    path = os.environ["TASKD_SLOT"] + ".snap"
    while step not in snapshots.versions(path):
        time.sleep(0.005)
    index = next(index for index, header in headers(path) if header.step == step)
    with Path(file_of(path, index)).open("r+b") as file:
        # The first tensors are behind the head; a whole page of them is zeroed.
        file.seek(4096)
        file.write(bytes(4096))


def train_step(step: int) -> float:
    """One step; everything in it is a function of the step, the rank's data and the random state."""
    global at_step  # noqa: PLW0603 - for the points
    at_step = step
    if args.corrupt == f"{job.rank}:{step}" and not newcomer:
        corrupt_snapshot(step)
        be_killed()
    point("before")
    generator = torch.Generator().manual_seed(1000 * step + data_rank)
    x = torch.randn(8, 16, generator=generator)
    y = torch.randint(0, 8, (8,), generator=generator)
    if not (args.out / "hurry").exists():
        time.sleep(args.pause)
    model.zero_grad()
    # A first stage has no loss of its own; what it propagates back comes from the next one.
    first = args.kind == "pp" and job.rank < 2
    loss = net(x) if first else nn.functional.cross_entropy(net(x), y)
    loss.backward()
    if args.kind != "pp":
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    with Midway() if ("inside", step) in deaths | errors else nullcontext():
        optimizer.step()
    if args.two:
        point("between")
        states["second"].step()
    if not args.outside:
        scheduler.step()
    point("after")
    with (args.out / f"computed-{job.rank}-{os.getpid()}.txt").open("a") as file:
        file.write(f"{step}\n")
    return float(loss.item())


ledger = args.out / f"ledger-{job.rank}.jsonl"
for done, value in job.steps(train_step, until=args.steps):
    if args.outside:
        scheduler.step()
    with ledger.open("a") as file:
        file.write(json.dumps({"step": done, "loss": value.hex(), "pid": os.getpid()}) + "\n")
(args.out / f"digest-{job.rank}.txt").write_text(digest(states))
if args.kind != "own":
    atexit._run_exitfuncs()
    os._exit(
        0
    )  # torch takes a second of each core to leave an interpreter; one kind of run is enough for that
