import random

import pytest
import torch
from torch import nn

from taskd.train.torch.own import OwnState, without_states


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


def test_what_has_not_changed_is_the_same_bytes() -> None:
    module, own = Counting(), OwnState()
    first = own.capture({"it": module}, b"7")
    assert own.capture({"it": module}, b"7") is first

    assert first != own.capture({"it": module}, b"8")
    change(module)
    changed = own.capture({"it": module}, b"7")
    torch.rand(1)
    drawn = own.capture({"it": module}, b"7")
    assert 3 == len({first, changed, drawn})


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


class Hidden:
    """Is another one on each rank."""

    def __init__(self, value: float) -> None:
        self.value = torch.full((2, 2), value, dtype=torch.bfloat16)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the state."""
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Take it."""
        self.value = state["value"]


@pytest.mark.parametrize(("elsewhere", "expected"), [(1.0, 9.0), (2.0, 1.0)])
def test_a_registered_thing_is_the_ranks_own_where_it_differed(elsewhere: float, expected: float) -> None:
    """One that was the same on the other rank came with its newer state."""
    own, mine = OwnState(), Hidden(1.0)
    kept, like = own.capture({"it": mine}), own.capture({"it": Hidden(elsewhere)})
    mine.value = torch.full((2, 2), 9.0, dtype=torch.bfloat16)

    own.restore({"it": mine}, kept, like)

    assert torch.equal(torch.full((2, 2), expected, dtype=torch.bfloat16), mine.value)


def test_what_has_grown_too_large_for_a_buddy_is_left_out_and_all_else_is_not() -> None:
    own, mine = OwnState(), Hidden(1.0)
    kept = own.capture({"it": mine}, b"page 7")
    drawn = torch.rand(1).item()
    mine.value = torch.zeros(1)
    own.restore({"it": mine}, without_states(kept))

    assert (drawn, [0.0], b"page 7") == (
        torch.rand(1).item(),
        mine.value.tolist(),
        own.place_in(without_states(kept)),
    )
