from typing import Any

import pytest
import torch
from torch import nn

from taskd.train.torch.pickling import Placing, Shape, bytes_of, take_out
from taskd.train.torch.spread import Meshes


def there_and_back(state: object) -> tuple[Any, list[torch.Tensor]]:
    """Take the tensors out, move their bytes alone, and put them back; returns also what was taken out."""
    tensors: list[torch.Tensor] = []
    pickled = take_out("it", state, tensors, "sent")
    shapes = [Shape.of(tensor) for tensor in tensors]
    moved = [shape.make() for shape in shapes]
    for shape, copy, tensor in zip(shapes, moved, tensors, strict=True):
        assert shape.length == bytes_of(tensor).numel()
        bytes_of(copy).copy_(bytes_of(tensor))
    return Placing(pickled, Meshes(()), shapes, moved).load(), tensors


BASE = torch.rand(6, 8)
ODD = {
    "transposed": BASE.t(),
    "sliced": BASE[::2, 1:5],
    "expanded": BASE[:1].expand(4, 8),
    "scalar": torch.tensor(3),
    "nothing": torch.empty(0, 7),
    "bool": BASE > 0.5,
    "bf16": BASE.bfloat16(),
    "complex": torch.complex(BASE, BASE),
    "conjugated": torch.complex(BASE, BASE).conj(),
    "parameter": nn.Parameter(BASE.clone()),
    "sparse": torch.eye(4).to_sparse(),
}


@pytest.mark.parametrize("name", ODD)
def test_a_tensor_comes_back_to_the_bit(name: str) -> None:
    """Whatever its type and strides, and by its bytes alone unless they do not say all about it."""
    tensor = ODD[name]
    back, _ = there_and_back({name: tensor})

    assert (tensor.dtype, tensor.shape, tensor.layout) == (
        back[name].dtype,
        back[name].shape,
        back[name].layout,
    )
    assert torch.equal(tensor.to_dense(), back[name].to_dense())


def test_nothing_is_copied_that_is_dense_and_nothing_taken_twice() -> None:
    """Tied tensors are tied again; those that overlap in another way have memory of their own."""
    tied = torch.rand(3, 3)
    state = {"a": tied, "b": [tied, nn.Parameter(tied)], "row": tied[0], "turned": tied.t()}

    back, tensors = there_and_back(state)

    assert [tied.data_ptr()] * 3 == [tensor.data_ptr() for tensor in tensors]
    assert [(3, 3), (3,), (3, 3)] == [tuple(tensor.shape) for tensor in tensors]
    assert back["a"] is back["b"][0] is back["b"][1]
    assert torch.equal(tied[0], back["row"])
    assert back["row"].data_ptr() != back["a"].data_ptr()


def test_a_module_keeps_what_its_state_says_of_itself() -> None:
    """Loading looks at the versions in it."""
    state = nn.BatchNorm1d(3).state_dict()

    assert vars(state)["_metadata"] == vars(there_and_back(state)[0])["_metadata"]


def test_a_state_that_cannot_be_taken_is_named() -> None:
    with pytest.raises(Exception, match=r"pickle|lambda") as caught:
        take_out("loader", {"f": lambda: 1}, [], "sent to another rank")

    assert "the state of 'loader' cannot be sent to another rank" == caught.value.__notes__[0]
