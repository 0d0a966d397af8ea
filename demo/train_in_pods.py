"""A small DDP run over gloo that writes down each step it has committed, for whoever watches from outside.

Dropout and AdamW make it sensitive: one lost or repeated step, or one wrong bit, changes every loss after it.
"""

import argparse
import json
import os
import time
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

from taskd import train
from taskd.train.torch.exchange import digest


def main() -> None:
    """Train to the last step."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--pause", type=float, default=0.0, help="in each step, until there is a file hurry")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()

    job = train.join()
    torch.manual_seed(1)
    layers = [torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(256, 256)]
    model = torch.nn.Sequential(*layers, torch.nn.ReLU(), torch.nn.Linear(256, 8))
    torch.manual_seed(100 + job.rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ddp = job.wrap(lambda: DistributedDataParallel(model))
    job.register(model=model, optimizer=optimizer)

    def train_step(step: int) -> float:
        generator = torch.Generator().manual_seed(1000 * step + job.rank)
        x = torch.randn(32, 64, generator=generator)
        y = torch.randint(0, 8, (32,), generator=generator)
        if not (args.out / "hurry").exists():
            time.sleep(args.pause)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(ddp(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    for step, loss in job.steps(train_step, until=args.steps):
        entry = {"step": step, "loss": loss.hex(), "pid": os.getpid(), "at": time.monotonic()}
        with (args.out / f"ledger-{job.rank}.jsonl").open("a") as file:
            file.write(json.dumps(entry) + "\n")
    whole = digest({"model": model, "optimizer": optimizer})
    (args.out / f"digest-{job.rank}.txt").write_text(whole)


if __name__ == "__main__":
    main()
