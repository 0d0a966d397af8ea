import random

import torch
from torch import nn

from taskd.train.torch.own import OwnState


class Counting(nn.Module):
    """Has buffers of several kinds, one of which nobody can write into."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3, dtype=torch.bfloat16))
        self.register_buffer("seen", torch.tensor(0))
        self.register_buffer("mask", torch.zeros(2, 2, dtype=torch.bool))
        self.register_buffer("turned", torch.rand(2, 3).t())
        self.register_buffer("wide", torch.ones(1, 1).expand(4, 4), persistent=False)
        self.register_buffer("nothing", torch.empty(0))


def values(module: nn.Module) -> list[object]:
    return [buffer.tolist() for buffer in module.buffers()]


def change(module: Counting) -> None:
    module.get_buffer("mask").logical_not_()
    for name in ("mean", "seen", "turned"):
        module.get_buffer(name).add_(1)


def test_buffers_and_random_numbers_are_as_they_were() -> None:
    module, own = Counting(), OwnState()
    before, kept = values(module), own.capture({"it": module}, b"page 7")
    drawn = random.random(), torch.rand(1).item()
    change(module)
    assert before != values(module)

    own.restore({"it": module}, kept)

    assert before == values(module)
    assert drawn == (random.random(), torch.rand(1).item())
    assert b"page 7" == own.place_in(kept)


def test_what_was_the_same_elsewhere_stays_as_it_was_received() -> None:
    """A buffer that differs between ranks is the rank's own; one that does not came with the newer state."""
    mine, theirs, own = Counting(), Counting(), OwnState()
    theirs.load_state_dict({**mine.state_dict(), "mean": torch.tensor([1.0, 2, 3])})
    kept, like = own.capture({"it": mine}), own.capture({"it": theirs})
    mean = mine.get_buffer("mean").clone()
    change(mine)

    own.restore({"it": mine}, kept, like)

    assert torch.equal(mean, mine.get_buffer("mean"))
    assert 1 == mine.get_buffer("seen").item()
