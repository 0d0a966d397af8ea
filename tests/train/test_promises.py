"""What a script leaves out is said before its first step."""

import torch

from taskd.train.torch.promises import find_broken_promises


def test_a_script_that_registers_what_it_trains_hears_nothing() -> None:
    """The usual one: a module, its optimizer, a scheduler."""
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)

    objects = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    assert [] == find_broken_promises(objects, [model])


def test_what_is_trained_and_not_registered_is_named() -> None:
    """A wrapped module, an optimizer's parameters, the optimizer itself."""
    model, other = torch.nn.Linear(2, 2), torch.nn.Linear(3, 3)
    optimizer = torch.optim.SGD([*model.parameters(), *other.parameters()], lr=0.1)

    (wrapped,) = find_broken_promises({}, [model])
    assert "2 parameters of a wrapped module are not registered" in wrapped
    (strangers,) = find_broken_promises({"model": model, "optimizer": optimizer}, [model])
    assert "updates 2 parameters of modules that are not registered" in strangers
    (fresh,) = find_broken_promises({"model": model}, [model])
    assert "no optimizer is registered" in fresh
