"""A step that is taken back leaves no trace."""

import torch

from taskd.train.torch.exchange import Stateful, digest
from taskd.train.torch.undo import Gradients, Undo


def test_parameters_moments_and_schedules_are_as_they_were() -> None:
    """Also in the first step, when the optimizer has no moments yet."""
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    objects: dict[str, Stateful] = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    undo = Undo()
    for _ in range(3):
        before = digest(objects)
        undo.keep(objects)
        model(torch.ones(4)).sum().backward()
        optimizer.step()
        scheduler.step()
        assert before != digest(objects)
        undo.take_back(objects)
        assert before == digest(objects)
        model(torch.ones(4)).sum().backward()
        optimizer.step()
        scheduler.step()


def test_a_repeated_step_finds_no_gradient_of_the_interrupted_one() -> None:
    """For scripts that clear gradients at the end of a step, by None or by zero."""
    model = torch.nn.Linear(4, 4)
    gradients = Gradients()
    gradients.note({"model": model})
    model(torch.ones(4)).sum().backward()
    gradients.clear()
    assert [None, None] == [parameter.grad for parameter in model.parameters()]

    model(torch.ones(4)).sum().backward()
    model.zero_grad(set_to_none=False)
    gradients.note({"model": model})
    model(torch.ones(4)).sum().backward()
    gradients.clear()
    assert [0.0, 0.0] == [float(p.grad.abs().sum()) for p in model.parameters() if p.grad is not None]
