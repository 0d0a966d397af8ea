"""A step that is taken back leaves no trace."""

import pytest
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


def test_histories_and_counts_of_an_optimizer_are_as_they_were() -> None:
    """Numbers, lists and tensors that an update replaces; nothing is held of those that are gone."""
    model = torch.nn.Linear(4, 4)
    words = torch.nn.Embedding(4, 4, sparse=True)
    lbfgs = torch.optim.LBFGS(model.parameters(), max_iter=2)
    sparse = torch.optim.SparseAdam(words.parameters())
    objects: dict[str, Stateful] = {"model": model, "words": words, "lbfgs": lbfgs, "sparse": sparse}

    def closure() -> float:
        loss = (model(words(torch.tensor([1, 2]))) - 1).square().sum()
        loss.backward()
        return float(loss.detach())

    def update() -> None:
        lbfgs.zero_grad()
        sparse.zero_grad()
        lbfgs.step(closure)
        sparse.step()

    undo = Undo()
    for _ in range(4):
        before = digest(objects)
        undo.keep(objects)
        update()
        assert before != digest(objects)
        undo.take_back(objects)
        assert before == digest(objects)
        update()
    assert len(undo._kept) == len(undo._copies)


@pytest.mark.parametrize("fused", [False, True])
def test_a_repeated_step_unscales_its_own_gradients(fused: bool) -> None:
    """A scaler that had unscaled when the step was interrupted does so again."""
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    objects: dict[str, Stateful] = {"model": model, "optimizer": optimizer, "scaler": scaler}
    interrupts = [True, False]

    def interrupt(*_: object) -> None:
        if interrupts.pop(0):
            raise InterruptedError

    optimizer.register_step_pre_hook(interrupt)
    gradients = Gradients()
    before = model.bias.detach().clone()
    for _ in range(2):
        gradients.note(objects, model.parameters())
        scaler.scale(model(torch.ones(4)).sum()).backward()
        try:
            scaler.step(optimizer)
            scaler.update()
        except InterruptedError:
            gradients.clear()

    assert torch.equal(before - 0.1, model.bias.detach())


def test_a_repeated_step_finds_no_gradient_of_the_interrupted_one() -> None:
    """For scripts that clear gradients at the end of a step, by None or by zero."""
    model = torch.nn.Linear(4, 4)
    gradients = Gradients()
    gradients.note({"model": model}, model.parameters())
    model(torch.ones(4)).sum().backward()
    gradients.clear()
    assert [None, None] == [parameter.grad for parameter in model.parameters()]

    model(torch.ones(4)).sum().backward()
    model.zero_grad(set_to_none=False)
    gradients.note({"model": model}, model.parameters())
    model(torch.ones(4)).sum().backward()
    gradients.clear()
    assert [0.0, 0.0] == [float(p.grad.abs().sum()) for p in model.parameters() if p.grad is not None]
