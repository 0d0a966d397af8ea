"""A small training run: four processes, DDP over gloo, a checkpoint every few steps.

It is an ordinary PyTorch script with five TaskD lines. A killed process is replaced from memory; the
checkpoint is for the day when everything is gone.
"""

import argparse
import os
import time
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

from taskd import train


def main() -> None:
    """Train to the last step."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--every", type=int, default=10, help="steps between checkpoints")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds to wait in each step")
    parser.add_argument("--checkpoint", type=Path, required=True)
    args = parser.parse_args()

    job = train.join()
    torch.manual_seed(1)
    layers = [torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(256, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ddp = job.wrap(lambda: DistributedDataParallel(model))
    job.register(model=model, optimizer=optimizer)
    start = 0
    if args.checkpoint.exists():
        saved = torch.load(args.checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        start = saved["step"] + 1

    def train_step(step: int) -> float:
        generator = torch.Generator().manual_seed(1000 * step + job.rank)
        x = torch.randn(32, 64, generator=generator)
        y = torch.randint(0, 8, (32,), generator=generator)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(ddp(x), y)
        loss.backward()
        optimizer.step()
        time.sleep(args.pause)
        return loss.item()

    for step, loss in job.steps(train_step, until=args.steps, start=start):
        print(f"rank {job.rank} pid {os.getpid()} step {step} loss {loss:.4f}", flush=True)
        if step % args.every == args.every - 1 and job.rank == 0:
            draft = args.checkpoint.with_suffix(".tmp")
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, draft)
            draft.replace(args.checkpoint)


if __name__ == "__main__":
    main()
