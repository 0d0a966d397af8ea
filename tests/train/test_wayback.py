"""A script whose steps change parameters before their update has a way back from its second step on."""

from typing import Any

import pytest
import torch
from torch import nn

from taskd.train.torch.exchange import digest
from taskd.train.torch.members import modules_in
from taskd.train.torch.wayback import WayBack


def follow(encoder: nn.Module, model: nn.Module) -> None:
    """Move an encoder towards another one, behind the back of autograd and of version counters."""
    for mine, theirs in zip(encoder.parameters(), model.parameters(), strict=True):
        mine.data.mul_(0.9).add_(0.1 * theirs.data)


@pytest.mark.parametrize("follows", [True, False])
def test_a_momentum_encoder_is_noticed_and_brought_back(follows: bool) -> None:
    model, encoder = nn.Linear(2, 2), nn.Linear(2, 2).requires_grad_(requires_grad=False)
    optimizer = torch.optim.Adam(model.parameters())
    objects: dict[str, Any] = {"model": model, "encoder": encoder, "optimizer": optimizer}
    way = WayBack()

    def attempt() -> None:
        way.begin(objects, modules_in(objects), [])
        if follows:
            follow(encoder, model)
        model(torch.ones(2)).sum().backward()
        way.before_update(objects, careful=False)

    attempt()
    optimizer.step()
    way.commit()
    assert follows == way.early
    before = digest(objects)
    attempt()
    assert follows == (before != digest(objects))

    assert follows == way.take_back(objects)
    way.repeat(objects)
    assert before == digest(objects)
