"""Ranks that train over gloo, undisturbed or with their wrapper built again in the middle."""

import contextlib
import hashlib
import json
import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from taskd.train.torch.wrapping import Handle, bucket_layout, building

dist: Any = torch.distributed  # its stores are exported, but not for the type checker
STEPS, CHANGE = 6, 3


def make() -> nn.Sequential:
    """About 1.6 million parameters: at least four buckets of one megabyte."""
    torch.manual_seed(1)
    layers: list[nn.Module] = []
    for _ in range(10):
        layers += [nn.Linear(400, 400), nn.Tanh(), nn.Dropout(0.1)]
    return nn.Sequential(*layers, nn.Linear(400, 5))


def parameter_hash(net: nn.Module) -> str:
    total = hashlib.sha256()
    for parameter in net.parameters():
        total.update(parameter.detach().numpy().tobytes())
    return total.hexdigest()


def train(rank: int, *, ours: bool, again: bool, **options: Any) -> tuple[str, list[Any]]:
    net = make()
    handle = Handle()
    if ours:
        with building(sync=True):
            handle.set(DistributedDataParallel(net, bucket_cap_mb=1, **options))
    else:
        handle.set(DistributedDataParallel(net, bucket_cap_mb=1, **options))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    layouts = []
    for step in range(STEPS):
        if again and step == CHANGE:
            handle.clear()
            if ours:
                with building(sync=False):
                    handle.set(DistributedDataParallel(net, bucket_cap_mb=1, **options))
            else:
                handle.set(DistributedDataParallel(net, bucket_cap_mb=1, **options))
        torch.manual_seed(1000 * step + rank)
        optimizer.zero_grad()
        handle(torch.randn(8, 400)).square().mean().backward()
        optimizer.step()
        layouts.append(bucket_layout(handle))  # type: ignore[arg-type]
    result = parameter_hash(net)
    handle.clear()
    return result, layouts


def broadcasts(rank: int, *, sync: bool) -> bool:
    """Tell whether construction takes rank 0's state to the others."""
    net = nn.Linear(4, 4)
    nn.init.constant_(net.weight, float(rank))
    with building(sync=sync):
        DistributedDataParallel(net)
    return bool((net.weight == 0).all())


def hooked(rank: int) -> bool:
    """A comm hook is taken by what was built."""
    with building(sync=True):
        ddp = DistributedDataParallel(nn.Linear(4, 4))
    ddp.register_comm_hook(
        None,
        lambda _, bucket: (
            dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0])
        ),
    )
    ddp(torch.full((1, 4), float(rank))).sum().backward()
    grad = ddp.module.weight.grad
    return bool((grad == sum(range(dist.get_world_size()))).all())


def after_a_failed_backward() -> bool:
    """A wrapper that stopped in the middle does not disturb the next one, though somebody holds it."""
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    with building(sync=True):
        handle = Handle(DistributedDataParallel(net))
    old = handle.module, handle.reducer  # kept alive

    def fail(grad: Any) -> Any:
        raise RuntimeError("a fault")

    out = net[0](torch.ones(1, 4))
    handle(torch.ones(1, 4))  # prepares for a backward pass
    failing = out.clone()
    failing.register_hook(fail)
    with contextlib.suppress(RuntimeError):
        net[1](failing).sum().backward()
    handle.clear()
    net.zero_grad()
    with building(sync=False):
        handle.set(DistributedDataParallel(net))
    handle(torch.ones(1, 4)).sum().backward()
    del old
    return all(parameter.grad is not None for parameter in net.parameters())


if __name__ == "__main__":
    torch.set_num_threads(1)
    me, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.FileStore(os.environ["STORE"], -1)
    dist.init_process_group("gloo", store=store, rank=me, world_size=size, timeout=timedelta(seconds=30))
    answer: dict[str, Any] = {}
    for name, ours, options in (
        ("fixed", True, {}),
        ("torch", False, {}),
        ("views", True, {"gradient_as_bucket_view": True}),
        ("static", True, {"static_graph": True}),
        ("unused", True, {"find_unused_parameters": True}),
    ):
        whole, layouts = train(me, ours=ours, again=False, **options)
        broken, layouts_again = train(me, ours=ours, again=True, **options)
        answer[name] = {
            "whole": whole,
            "again": broken,
            "buckets": len(layouts[0]),
            "constant": all(layout == layouts[0] for layout in layouts + layouts_again),
            "last": layouts[-1],
        }
    answer["broadcast"] = [broadcasts(me, sync=True), broadcasts(me, sync=False)]
    answer["hooked"] = hooked(me)
    answer["failed"] = after_a_failed_backward()
    dist.destroy_process_group()
    print(json.dumps(answer))
