"""A training script as a user would write it: some gigabytes of state on a device, DDP over gloo, AdamW.

Most of the state is a frozen base, as in fine-tuning, because gloo takes each gradient over the host: with
ten gigabytes of trained state a step would be seconds of copying. All of it is registered all the same.

It tells what it did in a file for each rank: a line for each step that counts, with the monotonic clock.
"""

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STARTED = time.monotonic()
parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--state-gb", type=float, default=10.0)
parser.add_argument("--width", type=int, default=2048)
parser.add_argument("--layers", type=int, default=4)
parser.add_argument("--work", type=int, default=4, help="passes through the layers in a step")
parser.add_argument("--least-s", type=float, default=0.0, help="a step takes at least so long")
parser.add_argument("--device", default="cuda")
args = parser.parse_args()


class Net(nn.Module):
    """Trained layers over a base that stays as it is."""

    def __init__(self) -> None:
        """Make the base as large as it takes to come to the size that is asked for."""
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(args.width, args.width) for _ in range(args.layers))
        trained = sum(p.numel() for p in self.parameters())
        tables = int(args.state_gb * 1e9 - 12 * trained) // (4 * args.width * args.width)
        self.base = nn.ParameterList(
            nn.Parameter(torch.rand(args.width, args.width), requires_grad=False) for _ in range(tables)
        )
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Go through the layers several times, with a different part of the base in each pass."""
        for number in range(args.work):
            if len(self.base):
                x = x + x @ self.base[number % len(self.base)] / args.width
            for layer in self.layers:
                x = self.dropout(torch.relu(layer(x))) + x
            x = nn.functional.normalize(x, dim=-1)
        return x


def note(name: str, **values: object) -> None:
    """Write a line."""
    with (args.out / f"rank{job.rank}.jsonl").open("a") as file:
        line = {"what": name, "at": time.monotonic(), "pid": os.getpid(), **values}
        file.write(json.dumps(line) + "\n")


from taskd import train  # noqa: E402 - the stamp above is the script's first line

job = train.join()
device = torch.device(args.device)
if device.type == "cuda":
    torch.cuda.set_device(job.local_rank % torch.cuda.device_count())
note("first line", started=STARTED)
torch.manual_seed(1)
with device:
    net = Net()
optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=1e-3)
note("built")
ddp = job.wrap(lambda: DistributedDataParallel(net))
job.register(net=net, optimizer=optimizer)
note("registered")


def train_step(step: int) -> float:
    """Train on data that follows from the step and the rank."""
    begun = time.monotonic()
    generator = torch.Generator(device).manual_seed(1000 * step + job.rank)
    batch = torch.randn(256, args.width, device=device, generator=generator)
    optimizer.zero_grad()
    loss = ddp(batch).square().mean() + (ddp.module.layers[0].weight.square().mean())
    loss.backward()
    time.sleep(max(0.0, args.least_s - (time.monotonic() - begun)))
    optimizer.step()
    return float(loss.item())


for step, loss in job.steps(train_step, until=args.steps):
    note("step", step=step, loss=loss.hex())


def checksum() -> int:
    """Return one number for all parameters and all of the optimizer's state."""
    from taskd.train.torch import sums

    tensors: list[Any] = [p.detach() for p in net.parameters()]
    tensors += [t for state in optimizer.state.values() for t in state.values()]
    return sum(sums.checksum(t.reshape(-1).view(torch.uint8)) for t in tensors)


note("end", checksum=checksum())
