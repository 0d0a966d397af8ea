# ruff: noqa: E402
"""What every contestant trains: the same model, the same data, the same pace, the same ledger.

A step is a sleep and some work. The sleep stands for the device: it takes no core and no contestant can make
it shorter. Around it the model runs forward and backward, gradients are reduced over gloo and AdamW updates
5.4 MB of parameters (16 MB of state). With four ranks on two cores that makes about a tenth of a second.
The sleep has a fixed length; sleeping *until* a fixed moment would hide whatever a contestant adds.

The ledger has one file per process, ``PID``, in BENCH_LEDGER. Every line begins with a word and the monotonic
clock, which all processes of a machine share::

    begin TIME STEP RANK             a step is computed, perhaps not for the first time
    step TIME STEP RANK WORLD        a step was committed
    mark TIME NAME                   the process came to a place
"""

import time

first_line = time.monotonic()

import os
from pathlib import Path

import torch

imported = time.monotonic()

SLEEP_S = float(os.environ.get("BENCH_SLEEP_S", "0.065"))
STEPS = int(os.environ.get("BENCH_STEPS", "1000000"))
EVERY = int(os.environ.get("BENCH_EVERY", "0"))
GROUP_LIMIT_S = float(os.environ.get("BENCH_GROUP_LIMIT_S", "1800"))
PLACE = Path(os.environ["BENCH_LEDGER"])
CHECKPOINT = PLACE.parent / "checkpoint.pt"

WIDTH, DEPTH, CLASSES, BATCH = 512, 5, 64, 16

if os.environ.get("BENCH_PIN") == "1":
    # Which ranks share a core decides how long a step takes, and is drawn anew every few seconds otherwise.
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(os.environ["RANK"]) % len(cores)]})


class Ledger:
    """This process's file. A line is one write, so that a kill leaves whole lines."""

    def __init__(self) -> None:
        self._file = os.open(PLACE / str(os.getpid()), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self.mark("first_line", first_line)
        self.mark("imported", imported)

    def mark(self, name: str, at: float | None = None) -> None:
        """Note that the process is at a place."""
        os.write(self._file, f"mark {time.monotonic() if at is None else at} {name}\n".encode())

    def begin(self, step: int, rank: int, at: float | None = None) -> None:
        """Note that a step begins: one that is thrown away and done again begins twice."""
        os.write(self._file, f"begin {time.monotonic() if at is None else at} {step} {rank}\n".encode())

    def step(self, step: int, rank: int, world: int) -> None:
        """Note that a step was committed."""
        os.write(self._file, f"step {time.monotonic()} {step} {rank} {world}\n".encode())


def build() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """Make model and optimizer, the same in every process."""
    torch.set_num_threads(1)
    torch.manual_seed(11)
    layers: list[torch.nn.Module] = []
    for _ in range(DEPTH):
        layers += [torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU()]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, CLASSES))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what a rank learns at a step; it depends on nothing else."""
    generator = torch.Generator().manual_seed(7919 * step + rank)
    x = torch.randn(BATCH, WIDTH, generator=generator)
    return x, torch.randint(0, CLASSES, (BATCH,), generator=generator)


def compute(
    ledger: Ledger, wrapped: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int, rank: int
) -> float:
    """Do one step."""
    ledger.begin(step, rank)
    x, y = batch(step, rank)
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(wrapped(x), y)
    time.sleep(SLEEP_S)
    loss.backward()
    optimizer.step()
    return float(loss.item())


def save(model: torch.nn.Module, optimizer: torch.optim.Optimizer, following: int) -> None:
    """Write a checkpoint, whole or not at all."""
    draft = CHECKPOINT.with_suffix(".draft")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": following}, draft)
    draft.replace(CHECKPOINT)


def load(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Read the checkpoint if there is one; returns the step to go on with."""
    if not CHECKPOINT.exists():
        return 0
    saved = torch.load(CHECKPOINT, weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return int(saved["step"])
