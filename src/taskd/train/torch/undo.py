"""A way back to the beginning of a step, for scripts that talk to other ranks after an update.

Most steps need none: nothing changes before every rank holds its gradient, and after that nobody is needed.
With two optimizers, or a collective after the update, a fault can come when a part of the step is done on
all ranks alike. Then the step is taken back here and computed again.
"""

from collections.abc import Iterator, Mapping
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
        self._had_state: dict[str, frozenset[int]] = {}
        self.holds = False

    @torch.no_grad()
    def keep(self, objects: Mapping[str, Any]) -> None:
        """Copy the state as it is now."""
        self._kept = []
        for tensor in _tensors(objects):
            copy = self._copies.get(id(tensor))
            if copy is None or copy.shape != tensor.shape or copy.dtype != tensor.dtype:
                copy = self._copies[id(tensor)] = torch.empty_like(tensor)
            copy.copy_(tensor)
            self._kept.append((tensor, copy))
        for name, thing in objects.items():
            if _is_plain(thing):
                bare = [{key: group[key] for key in group if key != "params"} for group in thing.param_groups]
                self._groups[name] = deepcopy(bare)
                self._had_state[name] = frozenset(id(parameter) for parameter in thing.state)
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
                for parameter in [each for each in thing.state if id(each) not in self._had_state[name]]:
                    del thing.state[parameter]  # made by the update that is taken back
        self.holds = False


class Gradients:
    """Which gradients there were when a step began.

    A script may clear them at the end of its step. Then a step that is repeated must not find what its
    interrupted backward pass left. A gradient that was there is set to zero: it had been used by an update.
    """

    def __init__(self) -> None:
        """Know of none."""
        self._parameters: list[tuple[torch.Tensor, bool]] = []

    def note(self, objects: Mapping[str, Any]) -> None:
        """Remember which parameters have a gradient."""
        modules = [thing for thing in objects.values() if isinstance(thing, torch.nn.Module)]
        self._parameters = [
            (parameter, parameter.grad is not None) for module in modules for parameter in module.parameters()
        ]

    @torch.no_grad()
    def clear(self) -> None:
        """Bring the gradients to where they were."""
        for parameter, had in self._parameters:
            if not had:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.zero_()


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
