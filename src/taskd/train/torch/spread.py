"""Tensors that are spread over a mesh of ranks (``DTensor``): a rank's part of one, and what it is part of.

A state goes to another rank, into shared memory or onto a disk. Each time only this rank's part of a spread
tensor goes: asking for all of it is collective, and the others may be gone or busy. What it is part of goes
beside it, as plain values. A mesh does not: it is made of process groups. So a part becomes part of a mesh
that the objects have which it is loaded into, unlike in torch's own loading of distributed states, where all
ranks take part.
"""

import sys
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch


class MeshUnknown(RuntimeError):
    """A part of a spread tensor has no place among the objects that it is loaded into."""


class Layout(NamedTuple):
    """What a part is part of. Written down as a plain tuple: files outlive the names of classes."""

    placements: tuple[Any, ...]
    size: tuple[int, ...]
    stride: tuple[int, ...]
    mesh: tuple[Any, ...]  # kind of device, shape, ranks, names of its dimensions


def spread_type() -> Any:  # noqa: ANN401 - DTensor, or nothing at all
    """Return the class of spread tensors, for ``isinstance``."""
    # Nothing can be one before the module is loaded, and loading it takes a tenth of a second.
    module = sys.modules.get("torch.distributed.tensor")
    return () if module is None else module.DTensor


def is_spread(value: object) -> bool:
    """Tell whether this is a tensor that is spread over a mesh."""
    return isinstance(value, spread_type())


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """Return the memory that this rank has of a tensor, without its history."""
    own: Any = tensor.detach()
    if is_spread(own):
        own = own.to_local()
        # It may be the promise of a collective's result.
        own = own.wait() if hasattr(own, "wait") else own
    found: torch.Tensor = own
    return found


def layout_of(tensor: Any) -> Layout:  # noqa: ANN401 - a DTensor
    """Say what this rank's part of a spread tensor is part of."""
    mesh = _describe(tensor.device_mesh)
    return Layout(tuple(tensor.placements), tuple(tensor.size()), tuple(tensor.stride()), mesh)


class Meshes:
    """The meshes that the tensors of some objects are spread over, looked for when the first is needed."""

    def __init__(self, objects: Iterable[object]) -> None:
        self._objects = list(objects)
        self._found: dict[tuple[Any, ...], Any] | None = None

    def join(self, part: torch.Tensor, layout: Layout) -> torch.Tensor:
        """Return the spread tensor that has this part here; no other rank is asked."""
        from torch.distributed.tensor import DTensor

        made: torch.Tensor = DTensor.from_local(
            *(part, self.match(layout.mesh), layout.placements),
            run_check=False,
            shape=torch.Size(layout.size),
            stride=layout.stride,
        )
        return made.detach()

    def match(self, wanted: tuple[Any, ...]) -> Any:  # noqa: ANN401 - a DeviceMesh
        """Return the mesh here for what lay on the wanted one; raises MeshUnknown.

        The same one, if the part was this rank's own: ranks have their numbers also on another node. What
        comes from a replica may lie on a submesh of other ranks, those of its own group. Then it is the only
        one that looks alike, or among several the only one whose ranks have the same distances.
        """
        if self._found is None:
            self._found = _find(self._objects)
        if wanted in self._found:
            return self._found[wanted]
        alike = [mesh for mesh in self._found if _look(mesh) == _look(wanted)]
        if len(alike) > 1:
            alike = [mesh for mesh in alike if _distances(mesh) == _distances(wanted)]
        if len(alike) == 1:
            return self._found[alike[0]]
        have = ", ".join(sorted(map(str, self._found))) or "none"
        raise MeshUnknown(f"a tensor was spread over the mesh {wanted}; the registered objects have: {have}")


def _describe(mesh: Any) -> tuple[Any, ...]:  # noqa: ANN401 - a DeviceMesh, whose module may not be loaded
    ranks = mesh.mesh
    return (
        mesh.device_type,
        tuple(ranks.shape),
        tuple(ranks.flatten().tolist()),
        tuple(mesh.mesh_dim_names or ()),
    )


def _look(mesh: tuple[Any, ...]) -> tuple[Any, ...]:
    kind, shape, _, names = mesh
    return kind, shape, names


def _distances(mesh: tuple[Any, ...]) -> list[int]:
    ranks = mesh[2]
    return [rank - ranks[0] for rank in ranks]


def _find(objects: Iterable[object]) -> dict[tuple[Any, ...], Any]:
    kind = spread_type()
    found: dict[tuple[Any, ...], Any] = {}

    def look(value: object) -> None:
        if isinstance(value, kind):
            mesh = value.device_mesh
            found.setdefault(_describe(mesh), mesh)
        elif isinstance(value, Mapping):
            for item in value.values():
                look(item)
        elif isinstance(value, (list, tuple)):
            for item in value:
                look(item)

    for thing in objects:
        # An optimizer's state is empty before its first step, but it has the parameters.
        look(getattr(thing, "param_groups", None))
        look(thing.state_dict() if hasattr(thing, "state_dict") else None)
    return found
