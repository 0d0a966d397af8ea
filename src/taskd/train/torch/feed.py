"""The batches of a run, in an order that a replaced rank can find its place in.

Survivors keep the batch of an interrupted step. A replacement has a fresh loader and moves it to the right
place: by the loader's own state where it has one (torchdata's StatefulDataLoader), by its sampler's where
that has one (torchdata's StatefulDistributedSampler), else by passing over what was used already, without
reading it where the loader draws its indices apart from its data.

A sampler is asked only if it is where the batches are, and its state is all that its order depends on. With
workers it is ahead of the batches, by as many as are prefetched. One that draws from a generator, its own or
everybody's, would go on with other numbers; it is passed over, as is one whose state is a whole order, which
would be written down in every step.

A pass over the data begins with random numbers: the order of a shuffle, the seed of the workers. So the
random state with which the current pass began is part of the place.
"""

import contextlib
import logging
import pickle
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from taskd.train.torch import randomness

log = logging.getLogger("taskd")

KEPT_BATCHES = 2  # a job may have to go one step back
SAMPLER_BYTES = 65536  # of a sampler's state; a position has some dozens


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
        self._upcoming = -1  # the step of the next batch to be drawn
        self._stateful = _has_state(data)
        self._sampler = None if self._stateful else _find_sampler(data)
        self._noted: tuple[int, bytes] | None = None  # the sampler's state, and the step that it is before
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
            self._upcoming = step + 1
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
        place = passes, generators, self._sampler_place()
        return pickle.dumps(place, protocol=pickle.HIGHEST_PROTOCOL)

    def go_to(self, place: bytes, step: int, start: int) -> None:
        """Go to where the predecessor of this rank was before a step, in a loop that began with ``start``."""
        if self._stateful and place:
            self._pass, state = pickle.loads(place)  # noqa: S301 - written by this very rank
            getattr(self._data, "load_state_dict")(state)  # noqa: B009 - as above
            self._batches = None
            return
        found, generators, *more = pickle.loads(place) if place else ([], [])  # noqa: S301 - as above
        sampler = more[0] if more else None  # an older dump has none
        passes = [_Pass(*fields) for fields in found]
        for each in reversed(passes):
            self._pass, start = each.number, min(each.first, step)
            if each.first < step:
                randomness.restore(each.random)
                self._restore_generators(each.generators)
                break
        # Both are of one moment, so the sampler was in the pass that was found, or another step is wanted.
        if self._sampler is not None and sampler is not None and sampler[0] == step:
            self._passes, self._noted = passes, sampler
            self._put_sampler(sampler[1])
        else:
            for passed in range(start, step):
                self._pass_over(passed)
        self._upcoming = step
        self._restore_generators(generators)

    def _sampler_place(self) -> tuple[int, bytes] | None:
        """Return the sampler's state with the step that it is before; None where it is not to be asked.

        Once a step: one that was just put to its place need not know of it before it is drawn from.
        """
        if self._sampler is None or self._batches is None:
            return None
        if self._noted is not None and self._noted[0] == self._upcoming:
            return self._noted
        try:
            state = pickle.dumps(self._sampler.state_dict(), protocol=pickle.HIGHEST_PROTOCOL)
        except Exception as error:  # noqa: BLE001 - whatever the script's sampler raises: it can be done without
            log.warning("taskd: the sampler's state is not used, its batches are passed over: %r", error)
            state = None
        if state is None or len(state) > SAMPLER_BYTES:
            self._sampler = None
            return None
        self._noted = self._upcoming, state
        return self._noted

    def _put_sampler(self, state: bytes) -> None:
        """Go on in the middle of a pass: the sampler's next round begins where its state says."""
        self._set_epoch()
        if self._sampler is not None:
            self._sampler.load_state_dict(pickle.loads(state))  # noqa: S301 - as above
        self._iterate()

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
        self._set_epoch()
        self._iterate()

    def _set_epoch(self) -> None:
        sampler = getattr(self._data, "sampler", None)
        if self._pass and sampler is not None and hasattr(sampler, "set_epoch"):
            sampler.set_epoch(self._pass)

    def _iterate(self) -> None:
        # Not its truth: a loader over a stream has no length, and says so by an error.
        self._batches = iter(self._data) if self._data is not None else iter(())
        if self._sampler is not None:
            indices = getattr(self._batches, "_sampler_iter", None)
            if indices is None:
                self._sampler = None
            else:
                setattr(self._batches, "_sampler_iter", self._watched(indices))  # noqa: B010 - torch's own

    def _watched(self, indices: Iterator[Any]) -> Iterator[Any]:
        """See by the first draw of a pass whether a sampler uses everybody's random numbers."""
        before = randomness.capture()
        first = next(indices, None)
        if randomness.capture() != before:
            self._sampler = None
        if first is not None:
            yield first
            yield from indices

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


def _has_state(thing: object) -> bool:
    return hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")


def _find_sampler(data: object) -> Any:  # noqa: ANN401 - any object with a state
    """Return what chooses a loader's batches, if it has a state that says where it is; else None."""
    if not isinstance(data, DataLoader) or data.num_workers or isinstance(data.dataset, IterableDataset):
        return None
    chooser = data.batch_sampler if data.batch_sampler is not None else data.sampler
    if type(chooser) is BatchSampler:  # which takes as many indices as it gives, and no more
        chooser = chooser.sampler
    own = isinstance(getattr(chooser, "generator", None), torch.Generator)
    return chooser if _has_state(chooser) and not own else None
