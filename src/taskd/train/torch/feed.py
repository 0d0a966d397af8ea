"""The batches of a run, in an order that a replaced rank can find its place in.

Survivors keep the batch of an interrupted step. A replacement has a fresh loader and moves it to the right
place: by the loader's own state where it has one (torchdata's StatefulDataLoader), else by passing over what
was used already, without reading it where the loader draws its indices apart from its data.

A pass over the data begins with random numbers: the order of a shuffle, the seed of the workers. So the
random state with which the current pass began is part of the place.
"""

import contextlib
import pickle
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch.utils.data import IterableDataset

from taskd.train.torch import randomness

KEPT_BATCHES = 2  # a job may have to go one step back


class _Pass(NamedTuple):
    """A pass over the data: the step of its first batch, and the random state that it began with."""

    number: int
    first: int
    random: bytes
    generators: list[bytes]


class Feed:
    """Batches by step, from any iterable; a new pass begins when one is used up."""

    def __init__(self, data: Iterable[Any] | None, kept: dict[int, Any] | None = None) -> None:
        """Take a loader, or nothing for a script that makes its own batches; and the last batches before."""
        self._data = data
        self._batches: Iterator[Any] | None = None
        self._pass = 0
        self._passes: list[_Pass] = []
        self._kept: dict[int, Any] = kept or {}
        self._stateful = hasattr(data, "state_dict") and hasattr(data, "load_state_dict")
        # Of data with indices one pass leaves nothing for the next one but in generators.
        source = getattr(data, "dataset", None)
        # Streams have the method too, from the class that they share with data sets; it is of no use there.
        self._indexed = hasattr(source, "__getitem__") and not isinstance(source, IterableDataset)

    @property
    def present(self) -> bool:
        """Tell whether there are batches at all."""
        return self._data is not None

    def batch(self, step: int) -> Any:  # noqa: ANN401 - whatever the user's loader yields
        """Return the batch of a step; the same one again if the step, or the one before it, is repeated."""
        if step not in self._kept:
            self._kept[step] = self._next(step)
            for old in [each for each in self._kept if each <= step - KEPT_BATCHES]:
                del self._kept[old]
            if len(self._passes) > 1 and self._passes[1].first <= step - KEPT_BATCHES:
                del self._passes[0]
        return self._kept[step]

    def kept_before(self, step: int) -> dict[int, Any]:
        """Return the last batches before a step, for the loop that begins with it."""
        return {each: batch for each, batch in self._kept.items() if each < step}

    def place(self) -> bytes:
        """Return the loader's place now; empty where nothing was drawn yet and there is nothing to keep."""
        if self._stateful:
            state = getattr(self._data, "state_dict")()  # noqa: B009 - any loader that has one
            return pickle.dumps((self._pass, state), protocol=pickle.HIGHEST_PROTOCOL)
        generators = self._capture_generators()
        if not self._passes and not generators:
            return b""
        passes = [tuple(each) for each in self._passes]
        return pickle.dumps((passes, generators), protocol=pickle.HIGHEST_PROTOCOL)

    def go_to(self, place: bytes, step: int, start: int) -> None:
        """Go to where the predecessor of this rank was before a step, in a loop that began with ``start``."""
        if self._stateful and place:
            self._pass, state = pickle.loads(place)  # noqa: S301 - written by this very rank
            getattr(self._data, "load_state_dict")(state)  # noqa: B009 - as above
            self._batches = None
            return
        passes, generators = pickle.loads(place) if place else ([], [])  # noqa: S301 - as above
        for each in (_Pass(*fields) for fields in reversed(passes)):
            self._pass, start = each.number, min(each.first, step)
            if each.first < step:
                randomness.restore(each.random)
                self._restore_generators(each.generators)
                break
        for passed in range(start, step):
            self._pass_over(passed)
        self._restore_generators(generators)

    def _pass_over(self, step: int) -> None:
        """Use a batch up. A loader over a data set with indices need not read what nobody looks at."""
        if self._batches is None:
            self._begin_pass(step)
        next_index = getattr(self._batches, "_next_index", None)
        if next_index is not None and self._indexed and getattr(self._data, "num_workers", 1) == 0:
            with contextlib.suppress(StopIteration):
                next_index()
                return
            self._batches = None
            self._pass += 1
        self._next(step)

    def _next(self, step: int) -> Any:  # noqa: ANN401
        if self._data is None:
            return None
        for _ in range(2):
            if self._batches is None:
                self._begin_pass(step)
            try:
                return next(self._batches if self._batches is not None else iter(()))
            except StopIteration:
                self._batches = None
                self._pass += 1
        raise ValueError("the data loader gave no batch at all; check its length and its sampler")

    def _begin_pass(self, step: int) -> None:
        begun = _Pass(self._pass, step, randomness.capture(), self._capture_generators())
        if self._indexed:
            self._passes = [*self._passes[-1:], begun]
        elif not self._passes:
            self._passes = [begun]  # whoever comes later makes all passes again
        sampler = getattr(self._data, "sampler", None)
        if self._pass and sampler is not None and hasattr(sampler, "set_epoch"):
            sampler.set_epoch(self._pass)
        # Not its truth: a loader over a stream has no length, and says so by an error.
        self._batches = iter(self._data) if self._data is not None else iter(())

    def _generators(self) -> list[torch.Generator]:
        """Return the generators that the loader was given."""
        sampler = getattr(self._data, "sampler", None)
        holders = (self._data, sampler, getattr(getattr(self._data, "batch_sampler", None), "sampler", None))
        found = [getattr(holder, "generator", None) for holder in holders]
        return list({id(each): each for each in found if isinstance(each, torch.Generator)}.values())

    def _capture_generators(self) -> list[bytes]:
        return [randomness.tensor_bytes(each.get_state()) for each in self._generators()]

    def _restore_generators(self, states: list[bytes]) -> None:
        for generator, state in zip(self._generators(), states, strict=False):
            generator.set_state(randomness.byte_tensor(state))
