"""A rank's number: the same for the same tensors, another one for any other bit."""

import torch

from taskd.train.torch.fingerprints import fingerprint


def make(seed: int) -> dict[str, object]:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(33, 7), torch.nn.Linear(7, 3))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 33)).sum().backward()
    optimizer.step()
    return {"model": model, "optimizer": optimizer}


def test_replicas_have_the_same_number() -> None:
    assert fingerprint(make(1)) == fingerprint(make(1))
    assert fingerprint(make(1)) != fingerprint(make(2))


def test_one_bit_of_any_tensor_changes_it() -> None:
    """Also in the last bytes, which are no whole word, and in the optimizer's state."""
    objects = make(1)
    model, optimizer = objects["model"], objects["optimizer"]
    assert isinstance(model, torch.nn.Module)
    assert isinstance(optimizer, torch.optim.Optimizer)
    before = fingerprint(objects)
    tensors = [*model.parameters()]
    tensors += [each for state in optimizer.state.values() for each in state.values()]
    assert 4 + 3 * 4 == len(tensors)
    for tensor in tensors:
        bits = tensor.detach().view(-1).view(torch.uint8)
        bits[-1] ^= 1
        assert before != fingerprint(objects)
        bits[-1] ^= 1
    assert before == fingerprint(objects)


def test_nothing_has_a_number_too() -> None:
    assert 0 == fingerprint({})
