"""The batches of a run, in an order that a replaced rank can find its place in.

Survivors keep the batch of an interrupted step. A replacement has a fresh loader and moves it to the right
place: by the loader's own state where it has one (torchdata's StatefulDataLoader), else by passing over what
was used already, without reading it where the loader draws its indices apart from its data.
"""

import contextlib
import pickle
from collections.abc import Iterable, Iterator
from typing import Any

KEPT_BATCHES = 2  # a job may have to go one step back


class Feed:
    """Batches by step, from any iterable; a new pass begins when one is used up."""

    def __init__(self, data: Iterable[Any] | None) -> None:
        """Take a loader, or nothing for a script that makes its own batches."""
        self._data = data
        self._batches: Iterator[Any] | None = None
        self._pass = 0
        self._kept: dict[int, Any] = {}
        self._stateful = hasattr(data, "state_dict") and hasattr(data, "load_state_dict")

    @property
    def present(self) -> bool:
        """Tell whether there are batches at all."""
        return self._data is not None

    def batch(self, step: int) -> Any:  # noqa: ANN401 - whatever the user's loader yields
        """Return the batch of a step; the same one again if the step, or the one before it, is repeated."""
        if step not in self._kept:
            self._kept[step] = self._next()
            for old in [each for each in self._kept if each <= step - KEPT_BATCHES]:
                del self._kept[old]
        return self._kept[step]

    def place(self) -> bytes:
        """Return the loader's place now; empty where it has no state of its own."""
        if not self._stateful:
            return b""
        state = getattr(self._data, "state_dict")()  # noqa: B009 - any loader that has one
        return pickle.dumps((self._pass, state), protocol=pickle.HIGHEST_PROTOCOL)

    def go_to(self, place: bytes, passed: int) -> None:
        """Go to where the predecessor of this rank was; ``passed`` is how many batches that were used."""
        if self._stateful and place:
            self._pass, state = pickle.loads(place)  # noqa: S301 - written by this very rank
            getattr(self._data, "load_state_dict")(state)  # noqa: B009 - as above
            self._batches = None
            return
        for _ in range(passed):
            self._pass_over()

    def _pass_over(self) -> None:
        """Use a batch up. A loader over a data set with indices need not read what nobody looks at."""
        if self._batches is None:
            self._begin_pass()
        next_index = getattr(self._batches, "_next_index", None)
        by_index = hasattr(getattr(self._data, "dataset", None), "__getitem__")
        if next_index is not None and by_index and getattr(self._data, "num_workers", 1) == 0:
            with contextlib.suppress(StopIteration):
                next_index()
                return
            self._batches = None
            self._pass += 1
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
