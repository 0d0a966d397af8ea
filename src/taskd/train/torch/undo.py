"""A way back to the beginning of a step, for scripts that talk to other ranks after an update.

Most steps need none: nothing changes before every rank holds its gradient, and after that nobody is needed.
With two optimizers, or a collective after the update, a fault can come when a part of the step is done on
all ranks alike. Then the step is taken back here and computed again.
"""

from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from typing import Any

import torch

from taskd.train.torch.zero import ShardedOptimizer


class Undo:
    """A copy of the registered state. Its memory is used again from step to step."""

    def __init__(self) -> None:
        """Hold nothing yet."""
        self._copies: dict[int, torch.Tensor] = {}
        self._kept: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._groups: dict[str, Any] = {}
        self._others: dict[str, Any] = {}
        self._states: dict[str, list[tuple[torch.Tensor, dict[str, Any]]]] = {}
        self.holds = False

    @torch.no_grad()
    def keep(self, objects: Mapping[str, Any]) -> None:
        """Copy the state as it is now."""
        before, self._copies, self._kept = self._copies, {}, []
        for tensor in _tensors(objects):
            copy = before.get(id(tensor))
            if copy is None or copy.shape != tensor.shape or copy.dtype != tensor.dtype:
                copy = torch.empty_like(tensor)
            copy.copy_(tensor)
            self._copies[id(tensor)] = copy
            self._kept.append((tensor, copy))
        for name, thing in objects.items():
            if _is_plain(thing):
                bare = [{key: group[key] for key in group if key != "params"} for group in thing.param_groups]
                self._groups[name] = deepcopy(bare)
                self._states[name] = [(owner, _frozen(state)) for owner, state in thing.state.items()]
            elif not isinstance(thing, torch.nn.Module):
                self._others[name] = deepcopy(thing.state_dict())
        self.holds = True

    @torch.no_grad()
    def take_back(self, objects: Mapping[str, Any]) -> None:
        """Put everything back as it was."""
        for tensor, copy in self._kept:
            tensor.copy_(copy)
        for name, thing in objects.items():
            if name in self._others:
                thing.load_state_dict(self._others[name])
        for name, thing in objects.items():
            if name in self._groups:
                for group, before in zip(thing.param_groups, self._groups[name], strict=True):
                    group.update(deepcopy(before))
                # What the update made goes, and where it put other tensors or numbers the old ones come back.
                thing.state.clear()
                thing.state.update(self._states[name])
        self.holds = False


class Gradients:
    """Which gradients there were when a step began.

    A script may clear them at the end of its step. Then a step that is repeated must not find what its
    interrupted backward pass left. A gradient that was there is set to zero: it had been used by an update.

    A scaler notes between backward pass and update what it did to the gradients, and a fused optimizer gets
    the scale from it. Both would count for the repeated step's gradients, which are others.
    """

    def __init__(self) -> None:
        """Know of none."""
        self._parameters: list[tuple[torch.Tensor, bool]] = []
        self._scalers: list[Any] = []
        self._bare: list[tuple[torch.optim.Optimizer, str]] = []

    def note(self, objects: Mapping[str, Any], parameters: Iterable[torch.Tensor]) -> None:
        """Remember which parameters have a gradient."""
        self._parameters = [(each, each.grad is not None) for each in parameters]
        self._scalers = [thing for thing in objects.values() if isinstance(thing, torch.amp.GradScaler)]
        optimizers = [thing for thing in objects.values() if isinstance(thing, torch.optim.Optimizer)]
        self._bare = [
            (each, name)
            for each in (optimizers if self._scalers else ())
            for name in ("grad_scale", "found_inf")
            if not hasattr(each, name)
        ]

    @torch.no_grad()
    def clear(self) -> None:
        """Bring the gradients to where they were."""
        for parameter, had in self._parameters:
            if not had:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.zero_()
        for scaler in self._scalers:
            scaler._per_optimizer_states.clear()  # noqa: SLF001 - as its update() does, which changes the scale too
        for optimizer, name in self._bare:
            vars(optimizer).pop(name, None)


def _frozen(state: dict[str, Any]) -> dict[str, Any]:
    """Copy what is no tensor (a count, a history); the tensors themselves are kept with their values."""
    return {
        key: value if isinstance(value, torch.Tensor) else deepcopy(value) for key, value in state.items()
    }


def _is_plain(thing: object) -> bool:
    """Tell whether an optimizer's state is where torch has it; that of a share is in its own state_dict."""
    return isinstance(thing, torch.optim.Optimizer) and not isinstance(thing, ShardedOptimizer)


def _tensors(objects: Mapping[str, Any]) -> Iterator[torch.Tensor]:
    """Return the tensors that an update changes in place; buffers are kept with the rank's own state."""
    for thing in objects.values():
        if isinstance(thing, torch.nn.Module):
            yield from thing.parameters()
        elif _is_plain(thing):
            for state in thing.state.values():
                yield from (value for value in state.values() if isinstance(value, torch.Tensor))
