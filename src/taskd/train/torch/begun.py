"""What a step began with, of all that its function may change before the vote.

A step that is repeated has to find everything as it was. Parameters and optimizer states do not change before
the vote (``undo`` has those of scripts where they do), buffers and random numbers are the rank's own
(``own``). The rest is here: schedules, counters, generators and whatever else small was registered, the
optimizers' settings, and the modes of modules. Of these nobody says when a script changes them: a schedule
may be turned in a step that makes no update, tokens are counted where the batch is read, and whoever trains
two networks in turn takes the gradients of one away while the other is trained.

All of it is copied when a step begins, so it must cost microseconds: what is large is left out.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import torch

from taskd.train.torch import smallstates
from taskd.train.torch.wrapping import HandleEmpty


class Begun:
    """The settings, modes and small states with which a step began."""

    def __init__(self) -> None:
        """Know of no step."""
        self._states: dict[str, Any] = {}
        self._settings: dict[str, list[dict[str, Any]]] = {}
        self._modes = _Modes()
        self._unkept: set[str] = set()
        self._within = False

    def keep(
        self,
        objects: Mapping[str, Any],
        parameters: Iterable[torch.Tensor],
        modules: Iterable[torch.nn.Module],
    ) -> None:
        """A step begins. Of wrappers, which are built again, it is what the script holds that counts."""
        self._modes = _Modes(parameters, modules)
        self._states, self._settings = {}, {}
        for name, thing in objects.items():
            if isinstance(thing, torch.optim.Optimizer):
                self._settings[name] = _settings(thing)
            elif smallstates.is_small_kind(thing) and name not in self._unkept:
                try:
                    self._states[name] = smallstates.copied(smallstates.read(thing))
                except Exception:  # noqa: BLE001 - too large, or its state is not to be had now
                    self._unkept.add(name)
        self._within = True

    def over(self) -> None:
        """The step counts; what its function has changed stays."""
        self._within = False

    def abandon(self) -> None:
        """The step counts, but its function did not come to its end: what it switched is switched back."""
        self._modes.restore()
        self._within = False

    def take_back(self, objects: Mapping[str, Any]) -> None:
        """Put everything back, for the same step again. What was not changed is not touched."""
        self._modes.restore()
        for name, state in self._states.items():
            smallstates.write(objects[name], smallstates.copied(state))
        for name, kept in self._settings.items():
            for group, settings in zip(objects[name].param_groups, kept, strict=False):
                _set_back(group, settings)
        self._within = False

    @contextmanager
    def as_begun(self) -> Iterator[None]:
        """Wrappers built in this block see the modes of the step's beginning, as those before did."""
        if not self._within:
            yield
            return
        now = self._modes.again()
        self._modes.restore()
        try:
            yield
        finally:
            now.restore()


class _Modes:
    """Which parameters want gradients, and which modules are in training."""

    def __init__(
        self, parameters: Iterable[torch.Tensor] = (), modules: Iterable[torch.nn.Module] = ()
    ) -> None:
        self._wanting = [(each, each.requires_grad) for each in parameters]
        self._training = [(each, each.training) for each in modules]

    def again(self) -> "_Modes":
        return _Modes((each for each, _ in self._wanting), (each for each, _ in self._training))

    def restore(self) -> None:
        for parameter, wants in self._wanting:
            if parameter.requires_grad != wants:
                parameter.requires_grad_(wants)
        for module, training in self._training:
            with suppress(HandleEmpty):  # it could not be built again
                if module.training != training:
                    module.training = training


def _settings(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Return its groups without their parameters; there may be one for each."""
    return [
        {
            key: value.detach().clone() if isinstance(value, torch.Tensor) else value
            for key, value in group.items()
            if key != "params"
        }
        for group in optimizer.param_groups
    ]


@torch.no_grad()
def _set_back(group: dict[str, Any], settings: dict[str, Any]) -> None:
    for key, value in settings.items():
        if not isinstance(value, torch.Tensor):
            group[key] = value
        elif isinstance(group[key], torch.Tensor):
            group[key].copy_(value)  # a rate that is a tensor may be held elsewhere too
        else:
            group[key] = value.clone()
