# ruff: noqa: E402
"""A small DDP run over gloo with AdamW. It stamps where it is, from its first line on."""

import time

first_line = time.monotonic()

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

imported = time.monotonic()

from taskd import train

STEP_S = 0.1


class Marks:
    """The file of this rank and attempt: a name and a time per line."""

    def __init__(self) -> None:
        where = Path(os.environ["BENCH_MARKS"])
        path = where / f"{os.environ['RANK']}.{os.environ['TORCHELASTIC_RESTART_COUNT']}"
        self._file = path.open("w", buffering=1, encoding="ascii")
        self._file.write(f"pid {os.getpid()}\n")

    def note(self, name: str, at: float | None = None) -> None:
        """Write a line."""
        self._file.write(f"{name} {time.monotonic() if at is None else at}\n")


def main() -> None:
    """Train until the last step, from the last checkpoint if there is one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--checkpoint", type=Path, required=True)
    args = parser.parse_args()
    marks = Marks()
    marks.note("first_line", first_line)
    marks.note("imported", imported)
    job = train.join()
    dist.init_process_group("gloo")
    marks.note("group")
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 8))
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    start = 0
    if args.checkpoint.exists():
        saved = torch.load(args.checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        start = saved["step"] + 1
    marks.note("built")

    def train_step(step: int) -> float:
        begun = time.monotonic()
        generator = torch.Generator().manual_seed(1000 * step + job.rank)
        x = torch.randn(32, 64, generator=generator)
        y = torch.randint(0, 8, (32,), generator=generator)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(ddp(x), y)
        loss.backward()
        optimizer.step()
        # The same pace for everybody, whatever else the machine does.
        time.sleep(max(0.0, STEP_S - (time.monotonic() - begun)))
        return float(loss.item())

    for done, (step, _) in enumerate(job.steps(train_step, until=args.steps, start=start), start=1):
        if done == 1:
            marks.note("first_step")
        if done % args.every == 0:
            marks.note(f"steps-{done}")
        if step % args.every == args.every - 1 and job.rank == 0:
            draft = args.checkpoint.with_suffix(".tmp")
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, draft)
            draft.replace(args.checkpoint)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
