"""The tensors of registered modules, in the order in which torch has them."""

import torch
from torch import nn

from taskd.train.torch.members import buffers_of, modules_in, parameters_in


def test_the_walk_finds_what_torch_finds() -> None:
    """In the same order: nested, shared, tied and missing ones."""
    shared = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 3))
    model = nn.Module()
    model.first = nn.ModuleList([nn.Linear(2, 3, bias=False), shared, nn.ModuleDict({"again": shared})])
    model.register_buffer("table", torch.zeros(2))
    model.second = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2))
    model.second[1].weight = nn.Parameter(torch.zeros(2, 3))
    model.tied = nn.Linear(3, 2)
    model.tied.weight = model.second[1].weight
    model.register_buffer("none", None)
    model.register_module("nobody", None)
    optimizer = torch.optim.SGD(model.parameters())
    objects = {"optimizer": optimizer, "model": model}

    assert [id(each) for each in model.parameters()] == [id(each) for each in parameters_in(objects)]
    assert [id(each) for each in model.buffers()] == [id(each) for each in buffers_of(modules_in(objects))]


def test_a_module_that_is_registered_twice_counts_once() -> None:
    """As a part of another one, or under two names."""
    head = nn.Linear(2, 2)
    body = nn.Sequential(nn.Linear(2, 2), head)

    assert [id(each) for each in body.parameters()] == [
        id(each) for each in parameters_in({"body": body, "head": head, "same": body})
    ]
