"""Which part of the state a rank has: who can take it over, and how parts travel.

Two ranks are replicas if what they have registered has the same structure and is the same part of the same
whole. Nothing says so in one place; it follows from how the script spreads its work:

- a DDP makes the ranks of its group replicas of each other, and of nobody else (two stages of a pipeline may
  well have equal shapes);
- a DTensor says where a rank is in its mesh; ranks that differ only along dimensions where it is replicated
  have the same part;
- a sharded optimizer of our own says it itself (``taskd_shard``).

A script that uses none of these may still have replicas, which then have equal contents.

A part of a DTensor travels as the plain tensor that it is, with the layout beside it; the receiver puts it
into its own mesh. No rank but these two takes part, unlike in torch's own loading of distributed states.
"""
# ruff: noqa: SLF001 - a parameter that DDP took from a DTensor has its layout in a private attribute

import hashlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class NoPlaceForPart(RuntimeError):
    """A part of a DTensor arrived that belongs to no mesh of this rank's."""

    def __init__(self, part: "Part") -> None:
        super().__init__(f"no registered tensor here lies on a mesh of {part.mesh}, where a part came from")


@dataclass(frozen=True, slots=True)
class Part:
    """A rank's part of a DTensor on its way to another rank."""

    local: torch.Tensor
    placements: tuple[Any, ...]
    mesh: tuple[Any, ...]
    shape: tuple[int, ...]
    stride: tuple[int, ...]


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
    return tensor._spec if _is_dtensor(tensor) else getattr(tensor, "_st_info", None)  # type: ignore[attr-defined]


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
    from taskd.train.torch.exchange import digest

    modules = {name: thing for name, thing in objects.items() if isinstance(thing, nn.Module)}
    return digest(modules)


# --- parts -------------------------------------------------------------------------------------------------


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """Return the memory that a rank has of a tensor."""
    if not _is_dtensor(tensor):
        return tensor
    local: torch.Tensor = tensor.to_local()  # type: ignore[attr-defined]
    # It may be the promise of a collective's result.
    return local.wait() if hasattr(local, "wait") else local


def as_parts(state: Any) -> Any:  # noqa: ANN401 - any state
    """Return a state with each DTensor replaced by this rank's part; the state itself is left alone."""
    if isinstance(state, torch.Tensor):
        return _part(state) if _is_dtensor(state) else state
    return _mapped(state, as_parts)


def from_parts(state: Any, objects: Mapping[str, Any]) -> Any:  # noqa: ANN401 - any state
    """Return a state with each part in the mesh that the registered objects have for it here."""
    meshes: dict[tuple[Any, ...], Any] | None = None

    def whole(value: Any) -> Any:  # noqa: ANN401 - any part of a state
        nonlocal meshes
        if not isinstance(value, Part):
            return _mapped(value, whole)
        if meshes is None:
            meshes = _meshes(objects)
        if value.mesh not in meshes:
            raise NoPlaceForPart(value)
        from torch.distributed.tensor import DTensor

        mesh = meshes[value.mesh]
        made = DTensor.from_local(
            *(value.local, mesh, value.placements),
            run_check=False,
            shape=torch.Size(value.shape),
            stride=value.stride,
        )
        return made.detach()

    return whole(state)


def _is_dtensor(value: object) -> bool:
    # Not imported for its own sake: a script that shards nothing does not have it loaded.
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def _part(tensor: Any) -> Part:  # noqa: ANN401 - a DTensor
    mesh = _name_of(tensor.device_mesh)
    return Part(
        local_part(tensor).detach(), tensor.placements, mesh, tuple(tensor.shape), tuple(tensor.stride())
    )


def _name_of(mesh: Any) -> tuple[Any, ...]:  # noqa: ANN401 - a DeviceMesh
    # Not its ranks: those of a submesh differ from one replica to the other.
    return tuple(mesh.mesh.shape), mesh.mesh_dim_names or ()


def _meshes(objects: Mapping[str, Any]) -> dict[tuple[Any, ...], Any]:
    found: dict[tuple[Any, ...], Any] = {}
    for thing in objects.values():
        for _, tensor in _tensors_of(thing):
            if _is_dtensor(tensor):
                mesh = tensor.device_mesh  # type: ignore[attr-defined]
                found.setdefault(_name_of(mesh), mesh)
    return found


def _mapped(state: Any, function: Any) -> Any:  # noqa: ANN401 - any state
    """Apply a function to the values of plain containers; of others the same object comes back."""
    if type(state) in {list, tuple}:
        return type(state)(function(value) for value in state)
    if isinstance(state, dict):
        changed = {key: function(value) for key, value in state.items()}
        if all(changed[key] is value for key, value in state.items()):
            return state
        if type(state) is dict:
            return changed
        # A module's state dict has its metadata as an attribute.
        copy: Any = state.copy()
        copy.update(changed)
        if hasattr(state, "_metadata"):
            copy._metadata = state._metadata
        return copy
    return state
