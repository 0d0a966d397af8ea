"""Which part of the state a rank has, and so who can take it over.

Two ranks are replicas if what they have registered has the same structure and is the same part of the same
whole. Nothing says so in one place; it follows from how the script spreads its work:

- a DDP makes the ranks of its group replicas of each other, and of nobody else (two stages of a pipeline may
  well have equal shapes);
- a DTensor says where a rank is in its mesh; ranks that differ only along dimensions where it is replicated
  have the same part;
- a sharded optimizer of our own says it itself (``taskd_shard``).

A script that uses none of these may still have replicas, which then have equal contents.
"""
# ruff: noqa: SLF001 - a parameter that DDP took from a DTensor has its layout in a private attribute

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from taskd.train.torch.exchange import digest
from taskd.train.torch.spread import is_spread, local_part


def shard_key(objects: Mapping[str, Any], wraps: Iterable[object]) -> str:
    """Return a short string that is equal on two ranks if and only if one can have the other's state."""
    replicated = sorted(_replica_groups([*wraps, *objects.values()]))
    facts: list[object] = ["groups", *replicated]
    laid_out = False
    for name in sorted(objects):
        thing = objects[name]
        facts.append((name, type(thing).__qualname__, str(getattr(thing, "taskd_shard", ""))))
        for label, tensor in _tensors_of(thing):
            facts.append((label, str(tensor.dtype), tuple(local_part(tensor).shape)))
            layout = _layout(tensor)
            if layout is not None:
                laid_out = True
                facts.append(_position(layout, with_ranks=not replicated))
    kind = "ddp" if replicated else "mesh"
    if not replicated and not laid_out:
        kind = "content"
        facts.append(_contents(objects))
    return f"{kind}-{hashlib.sha256(repr(facts).encode()).hexdigest()[:16]}"


def _replica_groups(things: Iterable[object]) -> Iterator[tuple[int, ...]]:
    """Yield the ranks of each DDP's group."""
    seen: set[int] = set()
    for thing in things:
        for module in thing.modules() if isinstance(thing, nn.Module) else ():
            if isinstance(module, DistributedDataParallel) and id(module) not in seen:
                seen.add(id(module))
                yield tuple(dist.get_process_group_ranks(module.process_group))


def _tensors_of(thing: object) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield what has the same shape before the first step as after it; an optimizer's own state has not."""
    if isinstance(thing, nn.Module):
        yield from thing.named_parameters()
        yield from thing.named_buffers()
    elif isinstance(thing, torch.optim.Optimizer):
        for number, group in enumerate(thing.param_groups):
            for place, parameter in enumerate(group["params"]):
                yield f"{number}.{place}", parameter


def _layout(tensor: torch.Tensor) -> Any:  # noqa: ANN401 - a DTensorSpec, or None
    return tensor._spec if is_spread(tensor) else getattr(tensor, "_st_info", None)  # type: ignore[attr-defined]


def _position(layout: Any, *, with_ranks: bool) -> tuple[object, ...]:  # noqa: ANN401 - a DTensorSpec
    """Say which part of the whole this is: not where along dimensions in which all have the same."""
    mesh = layout.mesh
    coordinate = mesh.get_coordinate() or ()
    where = tuple(
        (dimension, repr(placement), coordinate[dimension])
        for dimension, placement in enumerate(layout.placements)
        if not placement.is_replicate()
    )
    ranks = tuple(mesh.mesh.flatten().tolist()) if with_ranks else ()
    return tuple(mesh.mesh.shape), ranks, where


def _contents(objects: Mapping[str, Any]) -> str:
    modules = {name: thing for name, thing in objects.items() if isinstance(thing, nn.Module)}
    return digest(modules)
