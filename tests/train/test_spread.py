"""Meshes of a process that is rank 0 of four, though nobody else is there: nothing here asks the others."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from taskd.train.torch.pickling import Placing, Shape, take_out
from taskd.train.torch.spread import Meshes, MeshUnknown, is_spread, layout_of, local_part

dist: Any = torch.distributed


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    yield
    dist.destroy_process_group()


class Holder:
    """An object with spread tensors."""

    def __init__(self, *meshes: DeviceMesh) -> None:
        self.tensors = [DTensor.from_local(torch.rand(2, 3), mesh, [Shard(0)]) for mesh in meshes]

    def state_dict(self) -> dict[str, Any]:
        return {"deep": [{"down": self.tensors}]}


def mesh_of(*ranks: int, name: str = "") -> DeviceMesh:
    return DeviceMesh("cpu", list(ranks), mesh_dim_names=(name,) if name else None)


def of(*ranks: int, name: str = "") -> tuple[Any, ...]:
    """Describe a mesh, here or elsewhere, as it is written down."""
    return "cpu", (len(ranks),), ranks, (name,) if name else ()


def test_the_same_mesh_comes_before_one_that_looks_alike() -> None:
    near, far = mesh_of(0, 1), mesh_of(0, 2)
    meshes = Meshes([Holder(near, far)])

    assert far is meshes.match(of(0, 2))
    assert near is meshes.match(of(0, 1))


def test_a_replica_has_the_mesh_of_its_own_ranks() -> None:
    """One that looks alike, if it is the only one; among several the one whose ranks lie as far apart."""
    near, far, named = mesh_of(0, 1), mesh_of(0, 2), mesh_of(0, 3, name="tp")

    assert named is Meshes([Holder(near, named)]).match(of(1, 2, name="tp"))
    assert near is Meshes([Holder(near, named)]).match(of(1, 3))
    assert far is Meshes([Holder(near, far)]).match(of(1, 3))


def test_a_part_is_not_put_into_a_mesh_that_may_be_another() -> None:
    """Of another shape, another name, or one of several: better an error than a state in disorder."""
    near, far = mesh_of(0, 1), mesh_of(0, 3)
    for wanted in (of(0, 1, 2), of(0, 1, name="tp"), of(1, 3)):
        with pytest.raises(MeshUnknown, match="the registered objects have"):
            Meshes([Holder(near, far)]).match(wanted)
    with pytest.raises(MeshUnknown, match="none"):
        Meshes([]).match(of(0, 1))


def test_an_optimizer_without_a_state_has_the_meshes_of_its_parameters() -> None:
    mesh = mesh_of(0, 1)
    parameter = torch.nn.Parameter(Holder(mesh).tensors[0])

    assert mesh is Meshes([torch.optim.SGD([parameter])]).match(of(0, 1))


def test_objects_are_not_asked_before_a_mesh_is_needed() -> None:
    """A loader that is asked for its state may begin to read."""
    asked = []

    class Touchy:
        def state_dict(self) -> object:
            asked.append(self)
            return {}

    meshes = Meshes([Touchy()])
    assert [] == asked
    with pytest.raises(MeshUnknown):
        meshes.match(of(0, 1))
    assert 1 == len(asked)


def test_a_part_comes_back_as_part_of_the_same_whole() -> None:
    """Uneven parts too: the whole's shape goes with the part, and tied tensors stay one."""
    mesh = mesh_of(0, 1, 2, 3)
    whole = DTensor.from_local(
        *(torch.rand(2, 3), mesh, [Shard(0)]), run_check=False, shape=torch.Size((7, 3)), stride=(3, 1)
    )
    copied = DTensor.from_local(torch.rand(2), mesh, [Replicate()])
    tensors: list[torch.Tensor] = []
    pickled = take_out("it", {"a": whole, "b": (whole, copied)}, tensors, "sent")

    back = Placing(pickled, Meshes([Holder(mesh)]), [Shape.of(each) for each in tensors], tensors).load()

    assert [(2, 3), (2,)] == [tuple(tensor.shape) for tensor in tensors]
    assert back["a"] is back["b"][0]
    assert is_spread(back["a"])
    assert layout_of(whole) == layout_of(back["a"])
    assert layout_of(copied) == layout_of(back["b"][1])
    assert torch.equal(local_part(whole), local_part(back["a"]))
