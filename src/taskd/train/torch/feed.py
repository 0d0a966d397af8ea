"""The batches of a run, in an order that a replaced rank can find its place in.

Survivors keep the batch of an interrupted step. A replacement has a fresh loader and moves it to the right
place: by the loader's own state where it has one, else by passing over what was used already.
"""

from collections.abc import Iterable, Iterator
from typing import Any


class Feed:
    """Batches by step, from any iterable; a new pass begins when one is used up."""

    def __init__(self, data: Iterable[Any] | None) -> None:
        """Take a loader, or nothing for a script that makes its own batches."""
        self._data = data
        self._batches: Iterator[Any] | None = None
        self._pass = 0
        self._kept: dict[int, Any] = {}

    @property
    def present(self) -> bool:
        """Tell whether there are batches at all."""
        return self._data is not None

    def batch(self, step: int) -> Any:  # noqa: ANN401 - whatever the user's loader yields
        """Return the batch of a step; the same one again if the step, or the one before it, is repeated."""
        if step not in self._kept:
            self._kept[step] = self._next()
            for old in [each for each in self._kept if each < step - 1]:
                del self._kept[old]
        return self._kept[step]

    def skip(self, count: int) -> None:
        """Pass over batches that the predecessor of this rank has used."""
        for _ in range(count):
            self._next()

    def _next(self) -> Any:  # noqa: ANN401
        if self._data is None:
            return None
        for _ in range(2):
            if self._batches is None:
                self._begin_pass()
            try:
                return next(self._batches or iter(()))
            except StopIteration:
                self._batches = None
                self._pass += 1
        raise ValueError("the data loader gave no batch at all; check its length and its sampler")

    def _begin_pass(self) -> None:
        sampler = getattr(self._data, "sampler", None)
        if self._pass and sampler is not None and hasattr(sampler, "set_epoch"):
            sampler.set_epoch(self._pass)
        self._batches = iter(self._data or ())
