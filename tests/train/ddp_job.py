"""A small DDP run for recovery tests: dropout, batch norm, clipping, a scheduler, several buckets.

It writes every committed step to a ledger. ``--die POINT:RANK:STEP`` lets one rank be killed at a point
inside a step, in the first process of that rank only; ``--hang HOW:RANK:STEP`` makes it do nothing for ever.
"""

import argparse
import atexit
import ctypes
import faulthandler
import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from taskd import train
from taskd.train.torch.ballots import Ballot
from taskd.train.torch.exchange import digest
from taskd.train.torch.voting import Votes

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--out", type=Path, required=True)
parser.add_argument(
    "--pause", type=float, default=0.02, help="in each step, until there is a file named hurry"
)
parser.add_argument("--fail-at", type=int, default=-1, help="rank 1 fails at this step, every time")
parser.add_argument("--die", action="append", default=[])
parser.add_argument("--hang", action="append", default=[], help="HOW:RANK:STEP; rank -1 is every rank")
parser.add_argument("--hang-again", action="store_true", help="in the replacement too")
parser.add_argument(
    "--save", default="-1:0", help="STEP:SECONDS that rank 0 takes for a checkpoint before it"
)
parser.add_argument("--corrupt", default="", help="RANK:STEP, one bit of a parameter, and nobody is told")
parser.add_argument("--stop-newcomer", action="store_true", help="the first replacement of a rank stops")
parser.add_argument("--standby-waits", action="store_true", help="until there is a file named go")
parser.add_argument("--die-moving", type=int, default=-1, help="this rank dies when it is to be moved")
parser.add_argument("--checkpoint", default="", help="DIR:N, a checkpoint every N steps")
parser.add_argument(
    "--linger", type=int, default=-1, help="this rank, after an update, while there is such a file"
)
parser.add_argument("--agree", action="store_true", help="on a seed and on names, before the loop")
args = parser.parse_args()

faulthandler.register(signal.SIGUSR1)  # a test that hangs can be asked where
job = train.join()
newcomer = os.environ.get("TASKD_NEWCOMER") == "1"
plans = [plan.split(":") for plan in args.die]
deaths = {(point, int(step)) for point, rank, step in plans if int(rank) == job.rank and not newcomer}
at_step = -1

if newcomer and args.stop_newcomer and not (stopped := args.out / "stopped").exists():
    stopped.touch()
    os.kill(os.getpid(), signal.SIGSTOP)

if os.environ.get("TASKD_STANDBY") == "1":
    (args.out / f"standby-{job.rank}").write_text(str(os.getpid()))
    while args.standby_waits and not (args.out / "go").exists():
        time.sleep(0.02)


def be_killed() -> None:
    """Mark the place and wait here for the test, which kills from outside."""
    (args.out / f"doomed-{os.getpid()}").touch()
    time.sleep(3600)


def die_at(point: str) -> None:
    """Be killed here, if this is the place."""
    if (point, at_step) in deaths:
        be_killed()


class Midway(TorchDispatchMode):
    """Is a place inside an update: some parameters have been changed, one is about to be, others have not."""

    def __init__(self) -> None:
        super().__init__()
        self._left = 4

    def __torch_dispatch__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.addcdiv_.default:
            self._left -= 1
            if not self._left:
                die_at("inside")
        return func(*args, **(kwargs or {}))


def sleep_for_ever() -> None:
    """Hang with the interpreter free."""
    while True:
        time.sleep(3600)


def spin_for_ever() -> None:
    """Hang with a processor in use."""
    while True:
        pass


def wait_for_nothing() -> None:
    """Wait for a message that nobody sends: with all ranks here, all stand in the same collective."""
    dist.recv(torch.zeros(1), src=(job.rank + 1) % job.world_size)


def lock_for_ever() -> None:
    """Hang with the interpreter locked: no other thread of the process runs Python any more."""
    ctypes.PyDLL(None).sleep(3600)


HANGS = {
    "sleep": sleep_for_ever,
    "spin": spin_for_ever,
    "recv": wait_for_nothing,
    "lock": lock_for_ever,
}
hangs = [plan.split(":") for plan in args.hang]


def hang_at(step: int) -> None:
    """Hang here, if this is the place; not again in a step that is tried again."""
    for plan in list(hangs):
        how, rank, at = plan
        if int(at) == step and int(rank) in (job.rank, -1) and (args.hang_again or not newcomer):
            hangs.remove(plan)
            HANGS[how]()


def dying_at(point: str) -> Callable[..., None]:
    """Return a hook that does it."""
    return lambda *_: die_at(point)


def agree() -> int:
    """Agree with the others as scripts do before they train: on what rank 0 made up, and on who is there."""
    dist.init_process_group("gloo")
    made_up: list[Any] = [{"seed": 7, "run": f"run-{os.getpid()}"} if job.rank == 0 else None]
    dist.broadcast_object_list(made_up)
    names: list[Any] = [None] * job.world_size
    dist.all_gather_object(names, f"rank-{job.rank}")
    count = torch.tensor([job.rank + 1])
    dist.all_reduce(count)
    share = torch.zeros(1, dtype=torch.int64)
    shares = [torch.tensor([10 * rank]) for rank in range(job.world_size)] if job.rank == 0 else None
    dist.scatter(share, shares)
    agreed = [made_up[0]["run"], names, count.item(), share.item()]
    (args.out / f"agreed-{job.rank}-{os.getpid()}.json").write_text(json.dumps(agreed))
    return int(made_up[0]["seed"])


torch.manual_seed(agree() if args.agree else 7)
width = 192
blocks = []
for _ in range(6):
    blocks += [
        torch.nn.Linear(width, width),
        torch.nn.BatchNorm1d(width),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.1),
    ]
model = torch.nn.Sequential(torch.nn.Linear(32, width), *blocks, torch.nn.Linear(width, 10))
torch.manual_seed(100 + job.rank)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=50)
ddp = job.wrap(lambda: DistributedDataParallel(model, bucket_cap_mb=0.25))
job.register(model=model, optimizer=optimizer, scheduler=scheduler)
if args.checkpoint:
    directory, _, every = args.checkpoint.rpartition(":")
    job.checkpoint(directory, every=int(every))
optimizer.register_step_pre_hook(dying_at("voted"))
optimizer.register_step_post_hook(dying_at("updated"))
list(model.parameters())[8].register_hook(dying_at("backward"))
begin_vote = Votes.begin


def begin(votes: Votes, ballot: Ballot) -> None:
    """Die before the others are told, or after it."""
    die_at("vote")
    begin_vote(votes, ballot)
    die_at("in-vote")


setattr(Votes, "begin", begin)  # noqa: B010 - a test's own trap


def train_step(step: int) -> float:
    """One step; everything in it is a function of the step, the rank and the random state."""
    global at_step  # noqa: PLW0603 - for the hooks
    at_step = step
    if args.corrupt == f"{job.rank}:{step}" and not job.replaying:
        time.sleep(0.1)  # the others are in the step, where one of them dies
        with torch.no_grad():
            next(model.parameters()).view(torch.int32).view(-1)[5] ^= 1 << 20
    die_at("before")
    hang_at(step)
    if args.fail_at == step and job.rank == 1:
        raise ValueError("this step cannot be done")
    generator = torch.Generator().manual_seed(1000 * step + job.rank)
    x = torch.randn(16, 32, generator=generator)
    y = torch.randint(0, 10, (16,), generator=generator)
    if not (args.out / "hurry").exists():
        time.sleep(args.pause)
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(ddp(x), y)
    die_at("forward")
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    with Midway() if ("inside", step) in deaths else nullcontext():
        optimizer.step()
    scheduler.step()
    die_at("after")
    while args.linger == job.rank and not newcomer and (args.out / "linger").exists():
        (args.out / "lingering").touch()
        time.sleep(0.02)
    return loss.item()


ledger = args.out / f"ledger-{job.rank}.jsonl"
save_before, save_s = args.save.split(":")
for done, value in job.steps(train_step, until=args.steps):
    if job.rank == 0 and done + 1 == int(save_before):
        time.sleep(float(save_s))
    with ledger.open("a") as file:
        entry = {"step": done, "loss": value.hex(), "pid": os.getpid(), "at": time.monotonic()}
        file.write(json.dumps(entry) + "\n")
    if args.die_moving == job.rank and getattr(job, "_engine")._moving:  # noqa: B009 - no user sees it
        be_killed()
(args.out / f"digest-{job.rank}.txt").write_text(digest({"model": model, "optimizer": optimizer}))
atexit._run_exitfuncs()
os._exit(0)  # torch takes a second to leave an interpreter, and nothing here is about that
