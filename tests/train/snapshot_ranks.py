"""Two ranks of FSDP, each of which keeps its own part and loads it while the other one does nothing."""

import json
import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from taskd.train.torch import snapshots

dist: Any = torch.distributed  # its stores are exported, but not for the type checker


def make(seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(10, 31), nn.ReLU(), nn.Linear(31, 10))
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(net)
    return {"net": net, "adam": torch.optim.AdamW(net.parameters(), lr=0.01)}


def train(objects: dict[str, Any], steps: int, seed: int) -> None:
    torch.manual_seed(seed)
    for _ in range(steps):
        objects["adam"].zero_grad()
        objects["net"](torch.randn(4, 10)).square().sum().backward()
        objects["adam"].step()


def parts(objects: dict[str, Any]) -> list[torch.Tensor]:
    tensors = list(objects["net"].parameters())
    tensors += [t for state in objects["adam"].state.values() for t in state.values()]
    return [(t.to_local() if isinstance(t, DTensor) else t).detach().clone() for t in tensors]


def equal(one: list[torch.Tensor], two: list[torch.Tensor]) -> bool:
    return len(one) == len(two) and all(map(torch.equal, one, two))


me = int(os.environ["RANK"])
store = dist.FileStore(os.environ["STORE"], -1)
dist.init_process_group("gloo", store=store, rank=me, world_size=2, timeout=timedelta(seconds=30))
path = f"{os.environ['STORE']}.snapshot{me}"
objects = make(1)
train(objects, 2, me)
snapshot = snapshots.Snapshot(path, create=True)
for _ in range(2):
    snapshot.take(2, objects)
    assert snapshot.settle()
expected = parts(objects)
fresh, used = make(2), make(3)
train(used, 1, 9)
train(objects, 2, 5)
dist.barrier()
if me == 1:
    # While rank 0 waits: a collective in here would not come to an end.
    snapshots.load(path, 2, fresh)
    snapshots.load(path, 2, used)
dist.barrier()
if me == 0:
    snapshots.load(path, 2, fresh)
    snapshots.load(path, 2, used)
dist.barrier()
answer = {"fresh": equal(expected, parts(fresh)), "used": equal(expected, parts(used))}
train(fresh, 2, 5)
answer["later"] = equal(parts(objects), parts(fresh))
dist.barrier()
dist.destroy_process_group()
print(json.dumps(answer))
