"""A step that is repeated finds all small things as the first attempt did."""

from collections import Counter, OrderedDict, deque
from typing import Any

import pytest
import torch
from torch import nn

from taskd.train.torch import smallstates
from taskd.train.torch.begun import Begun
from taskd.train.torch.members import modules_in, parameters_of
from taskd.train.torch.wrapping import Handle


class Tally:
    """Counts what it has seen, in a number, a list and a tensor."""

    def __init__(self, room: int = 3) -> None:
        self.tokens = 0
        self.history: list[float] = []
        self.sums = torch.zeros(room)
        self.loads = 0

    def count(self) -> None:
        """See something."""
        self.tokens += 7
        self.history.append(0.5)
        self.sums += 1

    def state_dict(self) -> dict[str, Any]:
        """Return the state itself, not a copy."""
        return {"tokens": self.tokens, "history": self.history, "sums": self.sums}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take it, not a copy of it."""
        self.tokens, self.history, self.sums = state["tokens"], state["history"], state["sums"]
        self.loads += 1


class Loader(Tally):
    """Is in the midst of a pass."""

    def __iter__(self) -> Any:
        return self


def begin(begun: Begun, objects: dict[str, Any], *wrappers: Any) -> None:
    modules = modules_in(objects)
    begun.keep(objects, parameters_of(modules), [*modules, *wrappers])


def test_schedules_counters_and_settings_are_as_they_were_however_often_it_is_repeated() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    counter, begun = Tally(), Begun()
    objects = {"m": model, "o": optimizer, "s": scheduler, "scaler": scaler, "c": counter}
    optimizer.step()
    scaler.scale(torch.ones(()))
    counter.count()
    for _ in range(3):
        begin(begun, objects)
        counter.count()
        scheduler.step()
        scaler.update(2.0)
        optimizer.param_groups[0]["momentum"] = 0.9
        begun.take_back(objects)

        assert (7, [0.5], [1.0] * 3) == (counter.tokens, counter.history, counter.sums.tolist())
        assert (1.0, 0, [1.0]) == (
            optimizer.param_groups[0]["lr"],
            optimizer.param_groups[0]["momentum"],
            scheduler.get_last_lr(),
        )
        assert 8.0 == scaler.get_scale()


def test_rates_that_are_tensors_stay_the_same_tensors_also_in_many_groups() -> None:
    model = nn.Linear(2, 2)
    rate = torch.tensor(1.0)
    groups: list[dict[str, Any]] = [{"params": [nn.Parameter(torch.ones(1))]} for _ in range(1000)]
    optimizer = torch.optim.Adam([{"params": model.parameters(), "lr": rate}, *groups], lr=0.5)
    begun = Begun()
    begin(begun, {"optimizer": optimizer})
    rate.fill_(7.0)
    optimizer.param_groups[-1]["lr"] = 3.0
    begun.take_back({"optimizer": optimizer})

    assert (1.0, 0.5) == (rate.item(), optimizer.param_groups[-1]["lr"])
    assert rate is optimizer.param_groups[0]["lr"]


def test_what_was_not_changed_is_not_touched_and_neither_is_a_loader() -> None:
    """Loading a state may cost something, and ends the pass of a loader."""
    quiet, loader, begun = Tally(), Loader(), Begun()
    objects: dict[str, Any] = {"quiet": quiet, "loader": loader}
    begin(begun, objects)
    loader.count()
    begun.take_back(objects)

    assert (0, 0, 7) == (quiet.loads, loader.loads, loader.tokens)


def test_what_is_large_is_left_out_and_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smallstates, "MAX_BYTES", 10_000)
    large, small, begun = Tally(5000), Tally(), Begun()
    objects: dict[str, Any] = {"large": large, "small": small}
    for _ in range(2):
        begin(begun, objects)
        large.count()
        small.count()
        begun.take_back(objects)

    assert (14, 0) == (large.tokens, small.tokens)


def test_a_state_of_any_kind_is_copied_in_its_kind() -> None:
    """Schedules have counters and functions in theirs, and people have arrays, queues and orders."""
    state = {
        "milestones": Counter([1, 1, 5]),
        "order": OrderedDict(a=torch.ones(2)),
        "queue": deque([1, 2], maxlen=2),
        "how": min,
        "pair": (1, [2.0]),
    }
    copies = [smallstates.copied(state), smallstates.unpacked(smallstates.packed(state))]
    for copied in copies:
        assert [type(value) for value in state.values()] == [type(value) for value in copied.values()]
        assert torch.equal(torch.ones(2), copied["order"]["a"])
        assert ({1: 2, 5: 1}, deque([1, 2]), (1, [2.0])) == (
            copied["milestones"],
            copied["queue"],
            copied["pair"],
        )
    assert not smallstates.same(state, copies[0])  # queues may be anything
    del state["queue"], state["how"], copies[0]["queue"], copies[0]["how"]
    assert smallstates.same(state, copies[0])


def test_a_history_that_grows_is_left_out_in_time() -> None:
    growing, begun = Tally(), Begun()
    growing.history = [0.0] * 100_000
    begin(begun, {"growing": growing})
    growing.count()
    begun.take_back({"growing": growing})
    assert 7 == growing.tokens


def test_a_network_that_was_switched_off_for_a_while_is_on_again() -> None:
    """Also while wrappers are built in the midst of the step, which then goes on as it was."""
    model, begun = nn.Sequential(nn.Linear(2, 2), nn.Dropout()), Begun()
    handle = Handle(nn.Sequential(model))
    begin(begun, {"model": model}, handle)
    model.requires_grad_(requires_grad=False)
    handle.eval()
    with begun.as_begun():
        assert all(parameter.requires_grad for parameter in model.parameters())
        assert model[1].training
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert not model[1].training

    begun.take_back({"model": model})

    assert all(parameter.requires_grad for parameter in model.parameters())
    assert (True, True) == (model[1].training, handle.training)


def test_between_two_steps_modes_are_the_scripts_own() -> None:
    model, begun = nn.Linear(2, 2), Begun()
    begin(begun, {"model": model})
    begun.over()
    model.requires_grad_(requires_grad=False)
    with begun.as_begun():
        assert not model.weight.requires_grad
