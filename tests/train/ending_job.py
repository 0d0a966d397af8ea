"""A DDP run whose interesting part is outside of its steps: what it does between them and after the last one.

``--stop PLACE:RANK`` makes the first process of a rank mark the place and wait there to be killed;
``--busy PLACE:RANK`` makes it mark the place and be busy until there is a file named ``go``. The places are
``between`` (after step 5), ``end`` (after the loop) and ``last`` (when the script has nothing left to do).
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from taskd import train
from taskd.train.torch.exchange import digest

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--pause", type=float, default=0.0)
parser.add_argument("--stop", default="")
parser.add_argument("--busy", default="")
parser.add_argument("--leave", type=int, default=-1, help="leave the loop after this step")
parser.add_argument("--destroy", action="store_true", help="destroy the process group after the loop")
parser.add_argument("--fail", default="", help="raise, exit, system-exit: rank 1 fails after the loop")
args = parser.parse_args()

job = train.join()
newcomer = os.environ.get("TASKD_NEWCOMER") == "1"


def come_to(place: str) -> None:
    """Do what was asked for this place."""
    if newcomer:
        return
    if args.stop == f"{place}:{job.rank}":
        (args.out / "stopped").write_text(str(os.getpid()))
        time.sleep(3600)
    if args.busy == f"{place}:{job.rank}":
        (args.out / "busy").write_text(str(os.getpid()))
        while not (args.out / "go").exists():
            time.sleep(0.05)


torch.manual_seed(7)
model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Dropout(0.1), torch.nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
ddp = job.wrap(lambda: DistributedDataParallel(model))
job.register(model=model, optimizer=optimizer)
torch.manual_seed(100 + job.rank)


def train_step(_: int) -> float:
    """One step."""
    optimizer.zero_grad()
    loss = ddp(torch.randn(16, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return float(loss.item())


for done, value in job.steps(train_step, until=args.steps):
    with (args.out / f"ledger-{job.rank}.jsonl").open("a") as file:
        file.write(json.dumps({"step": done, "loss": value.hex(), "pid": os.getpid()}) + "\n")
    if done == 5:
        come_to("between")
    if done == args.leave:
        break
if args.destroy:
    dist.destroy_process_group()
come_to("end")
if args.fail and job.rank == 1:
    if args.fail == "exit":
        sys.exit("the model cannot be exported")
    if args.fail == "system-exit":
        raise SystemExit("the model cannot be exported")
    raise ValueError("the model cannot be exported")
(args.out / f"digest-{job.rank}.txt").write_text(digest({"model": model, "optimizer": optimizer}))
with (args.out / f"ends-{job.rank}.txt").open("a") as file:
    file.write(f"{os.getpid()}\n")
come_to("last")
