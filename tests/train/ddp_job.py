"""A small DDP run for recovery tests: dropout, a scheduler, several buckets; writes what it did to files."""

import argparse
import hashlib
import json
import os
import time
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

from taskd import train

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--pause", type=float, default=0.02)
parser.add_argument("--width", type=int, default=192)
args = parser.parse_args()

job = train.join()
torch.manual_seed(7)
width = args.width
blocks = [
    torch.nn.Sequential(
        torch.nn.Linear(width, width), torch.nn.BatchNorm1d(width), torch.nn.ReLU(), torch.nn.Dropout(0.1)
    )
    for _ in range(6)
]
model = torch.nn.Sequential(torch.nn.Linear(32, width), *blocks, torch.nn.Linear(width, 10))
torch.manual_seed(100 + job.rank)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=50)
ddp = job.wrap(lambda: DistributedDataParallel(model, bucket_cap_mb=0.25))
job.register(model=model, optimizer=optimizer, scheduler=scheduler)


def train_step(step: int) -> float:
    generator = torch.Generator().manual_seed(1000 * step + job.rank)
    x = torch.randn(16, 32, generator=generator)
    y = torch.randint(0, 10, (16,), generator=generator)
    time.sleep(args.pause)
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(ddp(x), y)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    return loss.item()


ledger = args.out / f"ledger-{job.rank}.jsonl"
for step, loss in job.steps(train_step, until=args.steps):
    with ledger.open("a") as file:
        line = {"step": step, "loss": loss.hex() if loss is not None else None, "pid": os.getpid()}
        file.write(json.dumps(line) + "\n")
digest = hashlib.sha256()
for parameter in [*model.parameters(), *model.buffers()]:
    digest.update(parameter.detach().numpy().tobytes())
(args.out / f"digest-{job.rank}.txt").write_text(digest.hexdigest())
