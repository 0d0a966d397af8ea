"""The way back from the middle of a step to its beginning.

Three parts, by what a script may have changed until then: small things (``begun``), which are kept in every
step; gradients (``undo.Gradients``), of which it is enough to know where there were any; parameters and
optimizer states (``undo.Undo``), a copy of the whole state, which only some scripts need. Those are the ones
that need other ranks after an update, and those whose steps change parameters before it: a momentum encoder
that follows at the top of the step. Whether a script is of the second kind is seen in its first steps.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from typing import Any

import torch

from taskd.train.torch.begun import Begun
from taskd.train.torch.fingerprints import local, print_of
from taskd.train.torch.members import parameters_of
from taskd.train.torch.undo import Gradients, Undo

LOOKS = 2  # steps of a process in which parameters are compared


class WayBack:
    """One rank's way back."""

    def __init__(self) -> None:
        """Know of no step."""
        self._undo, self._gradients, self._begun = Undo(), Gradients(), Begun()
        self._looks = LOOKS
        self._first: list[torch.Tensor] = []
        self._print = 0
        self.early = False  # does a step change parameters before its update?

    def begin(self, objects: Mapping[str, Any], modules: list[torch.nn.Module], wrappers: list[Any]) -> None:
        """A step begins."""
        self._undo.holds = False
        parameters = parameters_of(modules)
        self._gradients.note(objects, parameters)
        self._begun.keep(objects, parameters, [*modules, *wrappers])
        if self.early:
            self._undo.keep(objects)
        elif self._looks and not self._first:
            self._look(modules, parameters)

    def before_update(self, objects: Mapping[str, Any], *, careful: bool) -> None:
        """The first update is about to be made; a ``careful`` script needs others once more after it."""
        if self._first:
            first, self._first = self._first, []
            self.early |= print_of(map(local, first)) != self._print
        if careful and not self._undo.holds:
            self._undo.keep(objects)

    def commit(self) -> None:
        """The step counts."""
        self._undo.holds = False

    def end(self, *, whole: bool) -> None:
        """The step's function is over: it came to its end, or it did not although the step counts."""
        self._begun.over() if whole else self._begun.abandon()

    def take_back(self, objects: Mapping[str, Any]) -> bool:
        """Bring parameters and optimizer states back; False if there is nothing to do it with."""
        if not self._undo.holds:
            return False
        self._undo.take_back(objects)
        return True

    def repeat(self, objects: Mapping[str, Any]) -> None:
        """Bring all the rest back."""
        self._begun.take_back(objects)
        self._gradients.clear()

    def as_begun(self) -> AbstractContextManager[None]:
        """Build wrappers in this block."""
        return self._begun.as_begun()

    def _look(self, modules: list[torch.nn.Module], parameters: list[torch.Tensor]) -> None:
        self._looks -= 1
        if any(_is_sharded(module) for module in modules):
            return  # what is gathered for a pass has no memory before and after it
        with suppress(Exception):  # of kinds that have no bytes: not yet initialized, quantized
            self._print = print_of(map(local, parameters))
            self._first = parameters


def _is_sharded(module: torch.nn.Module) -> bool:
    return any(kind.__name__ == "FSDPModule" for kind in type(module).__mro__)
