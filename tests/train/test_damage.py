"""A memory error on purpose changes what it says, and nothing else."""

import pytest
import torch

from taskd.train.torch.damage import damage, overwrite


def make_state(*, stepped: bool) -> dict[str, object]:
    """A module and its optimizer, before or after the first step."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    if stepped:
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
    return {"model": model, "optimizer": optimizer}


def test_a_parameter_and_a_tensor_of_the_optimizer_are_overwritten() -> None:
    """They are named, they differ in every byte, and the random generators are untouched."""
    state = make_state(stepped=True)
    model, optimizer = state["model"], state["optimizer"]
    assert isinstance(model, torch.nn.Module)
    assert isinstance(optimizer, torch.optim.Optimizer)
    first, second = list(model.parameters())[:2]
    kept = optimizer.state[first]["exp_avg"]
    before = [tensor.detach().clone() for tensor in (first, second, kept)]
    generator = torch.get_rng_state()

    assert "parameter model.0.weight and state optimizer.exp_avg overwritten" == damage(state)

    assert not torch.eq(before[0].view(torch.uint8), first.detach().view(torch.uint8)).any()
    assert torch.equal(before[1], second)
    assert not torch.eq(before[2].view(torch.uint8), kept.view(torch.uint8)).any()
    assert torch.equal(generator, torch.get_rng_state())


def test_before_the_first_step_there_is_only_the_parameter() -> None:
    """An optimizer has no state yet."""
    assert "parameter model.0.weight overwritten" == damage(make_state(stepped=False))


def test_nothing_registered_is_nothing_to_overwrite() -> None:
    """It is said, not passed over."""
    assert "there was nothing to overwrite" == damage({})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_any_type_of_numbers(dtype: torch.dtype) -> None:
    """Bits are bits; also where a tensor is not laid out in one piece."""
    for tensor in (torch.ones(8, 8, dtype=dtype), torch.ones(8, 8, dtype=dtype)[:, ::2]):
        before = tensor.clone()
        overwrite(tensor)
        bits, bits_before = tensor.contiguous().view(torch.uint8), before.contiguous().view(torch.uint8)
        assert not torch.eq(bits_before, bits).any()
        assert not torch.equal(before, tensor)
