"""Ranks that spread a model in several ways, name their parts, and hand one over to a replica."""

import json
import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from taskd.train.torch.exchange import digest, receive_state, send_state
from taskd.train.torch.sharding import shard_key

dist: Any = torch.distributed  # its stores are exported, but not for the type checker


def make(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))


def stepped(model: nn.Module) -> torch.optim.Optimizer:
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(2, 6)).sum().backward()
    optimizer.step()
    return optimizer


if __name__ == "__main__":
    torch.set_num_threads(1)
    me, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.FileStore(os.environ["STORE"], -1)
    dist.init_process_group("gloo", store=store, rank=me, world_size=size, timeout=timedelta(seconds=30))
    keys: dict[str, str] = {}

    plain = make(0)
    keys["ddp"] = shard_key({"model": plain}, [DistributedDataParallel(plain)])
    keys["other shape"] = shard_key(
        {"model": nn.Linear(me + 1, 2)}, [DistributedDataParallel(nn.Linear(2, 2))]
    )
    keys["equal contents"] = shard_key({"model": make(0)}, [])
    keys["other contents"] = shard_key({"model": make(me)}, [])

    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    stage = DistributedDataParallel(make(0), process_group=pairs[me // 2])
    keys["stages"] = shard_key({"model": stage.module}, [stage])

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    hsdp: nn.Module = make(1)
    fully_shard(hsdp, mesh=mesh)
    unused = torch.optim.AdamW(hsdp.parameters())
    keys["hsdp"] = shard_key({"model": hsdp, "optimizer": unused}, [])
    optimizer = stepped(hsdp)
    keys["hsdp later"] = shard_key({"model": hsdp, "optimizer": optimizer}, [])
    keys["fsdp"] = shard_key({"model": fully_shard(make(1), mesh=init_device_mesh("cpu", (4,)))}, [])

    tensor = parallelize_module(make(1), mesh["shard"], {"0": ColwiseParallel()})
    keys["tp"] = shard_key(
        {"model": tensor}, [DistributedDataParallel(make(0), process_group=mesh.get_group(0))]
    )
    ours: Any = make(1)
    ours.taskd_shard = f"{me % 2} of 2"
    keys["ours"] = shard_key({"model": ours}, [DistributedDataParallel(make(0))])

    # Ranks 0 and 2 have the same part. Rank 2 forgets it, and nobody but rank 0 helps.
    objects: dict[str, Any] = {"model": hsdp, "optimizer": optimizer}
    before = digest(objects)
    if me == 0:
        send_state(objects, 2)
    elif me == 2:
        with torch.no_grad():
            for parameter in hsdp.parameters():
                assert isinstance(parameter, DTensor)
                parameter.to_local().zero_()
        objects["optimizer"] = torch.optim.AdamW(hsdp.parameters())
        assert before != digest(objects)
        receive_state(objects, 0)
    after = digest(objects)
    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps({"keys": keys, "before": before, "after": after}))
