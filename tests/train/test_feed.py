"""A replaced rank finds its place in the data."""

import itertools
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, Sampler
from torch.utils.data.distributed import DistributedSampler

from taskd.train.torch.feed import SAMPLER_BYTES, Feed


class Numbers(Dataset[int]):
    """Counts how often it is read."""

    def __init__(self) -> None:
        self.reads = 0

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        self.reads += 1
        return index


def loader(data: Numbers | None = None) -> DataLoader[int]:
    numbers = data or Numbers()
    sampler: DistributedSampler[int] = DistributedSampler(numbers, 1, 0, shuffle=True, seed=3)
    return DataLoader(numbers, batch_size=3, sampler=sampler)


class Stream(IterableDataset[int]):
    """Does not know how long it is."""

    def __iter__(self) -> Any:
        yield from range(7)


def test_a_stream_without_a_length_is_read_and_passed_over() -> None:
    data: DataLoader[int] = DataLoader(Stream(), batch_size=3)
    feed, later = Feed(data), Feed(DataLoader(Stream(), batch_size=3))
    drawn = [feed.batch(step).tolist() for step in range(4)]
    assert [[0, 1, 2], [3, 4, 5], [6], [0, 1, 2]] == drawn

    later.go_to(feed.place(), 4, 0)

    assert feed.batch(4).tolist() == later.batch(4).tolist()


class Stateful:
    """A loader with a state, as torchdata's has."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Any:
        while self.at < 6:
            self.at += 1
            yield self.at
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def drawn(feed: Feed, steps: range) -> list[Any]:
    return [value.tolist() if isinstance(value, torch.Tensor) else value for value in map(feed.batch, steps)]


@pytest.mark.parametrize("passed", [0, 1, 3, 4, 5, 9])
def test_a_fresh_loader_goes_on_where_the_old_one_was(passed: int) -> None:
    """Over the end of a pass too, with the sampler's epoch; and what is passed over is not read."""
    expected = drawn(Feed(loader()), range(14))[passed:]
    data = Numbers()
    feed = Feed(loader(data))
    feed.go_to(b"", passed, 0)

    assert data.reads <= 3 * (passed // 4)
    assert expected == drawn(feed, range(passed, 14))


@pytest.mark.parametrize("passed", [1, 5, 6, 7, 11])
def test_a_loader_with_a_state_is_put_where_the_old_one_was(passed: int) -> None:
    """By its state before the batch of a step is drawn."""
    old = Feed(Stateful())
    values = drawn(old, range(passed))
    before = old.place()
    values += drawn(old, range(passed, passed + 1))
    after = old.place()

    for place, step in ((before, passed), (after, passed + 1)):
        feed = Feed(Stateful())
        feed.go_to(place, step, 0)
        assert (values[passed:] if step == passed else []) == drawn(feed, range(step, passed + 1))


class Positioned(DistributedSampler[int]):
    """A sampler with a position, as torchdata's StatefulDistributedSampler; counts what it has given."""

    def __init__(self, data: Numbers) -> None:
        super().__init__(data, 1, 0, shuffle=True, seed=3)
        self.at, self.given, self.first = 0, 0, 0

    def __iter__(self) -> Iterator[int]:
        self.at, self.first = self.first, 0
        for index in itertools.islice(super().__iter__(), self.at, None):
            self.at += 1
            self.given += 1
            yield index

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.first = state["at"]


class Shuffling(Positioned):
    """Takes its order from everybody's generator, and says nothing of that in its state."""

    def __iter__(self) -> Iterator[int]:
        self.at, self.first = self.first, 0
        for index in torch.randperm(10).tolist()[self.at :]:
            self.at += 1
            self.given += 1
            yield index


class Lengthy(Positioned):
    """Has a whole order in its state."""

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "order": bytes(SAMPLER_BYTES)}


class Mute(Positioned):
    """Cannot say where it is without being told something."""

    def state_dict(self, consumed: int = -1) -> dict[str, Any]:
        if consumed < 0:
            raise ValueError("how many were consumed?")
        return {"at": consumed}


class Batches(Sampler[list[int]]):
    """Chooses whole batches, and has a position."""

    def __init__(self, data: Numbers) -> None:
        self._inner = Positioned(data)
        self.at, self.first, self.given = 0, 0, 0

    def __iter__(self) -> Iterator[list[int]]:
        self.at, self.first = self.first, 0
        for batch in itertools.islice(BatchSampler(self._inner, 3, drop_last=False), self.at, None):
            self.at += 1
            self.given += 3
            yield batch

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.first = state["at"]


def positioned(
    kind: type[Positioned | Batches] = Positioned, workers: int = 0
) -> tuple[DataLoader[int], Any]:
    """A loader, and its sampler."""
    data = Numbers()
    sampler = kind(data)
    if isinstance(sampler, Batches):
        return DataLoader(data, batch_sampler=sampler, num_workers=workers), sampler
    return DataLoader(data, batch_size=3, sampler=sampler, num_workers=workers), sampler


def replace(kind: type[Positioned | Batches], steps: int, *, workers: int = 0, wanted: int = -1) -> int:
    """Let another process go on before a step (where the old one was, unless told); see that it does.

    Returns how many indices its sampler had to give for that.
    """
    torch.manual_seed(7)
    old = Feed(positioned(kind, workers)[0])
    drawn(old, range(steps))
    place, state = old.place(), torch.get_rng_state()
    wanted = steps if wanted < 0 else wanted
    expected = drawn(old, range(wanted, 14))
    torch.manual_seed(100)
    data, sampler = positioned(kind, workers)
    feed = Feed(data)
    feed.go_to(place, wanted, 0)
    given = int(sampler.given)
    torch.set_rng_state(state)

    assert expected == drawn(feed, range(wanted, 14))
    return given


@pytest.mark.parametrize("steps", [0, 1, 3, 4, 5, 8, 9])
@pytest.mark.parametrize("kind", [Positioned, Batches])
def test_a_sampler_with_a_position_is_put_where_the_old_one_was(
    kind: type[Positioned | Batches], steps: int
) -> None:
    """By its state, also over the end of a pass: nothing is passed over."""
    assert 0 == replace(kind, steps)


def test_a_replacement_of_a_replacement_finds_its_place_too() -> None:
    """What it says of its place before it has drawn anything is as good."""
    old = Feed(positioned()[0])
    expected = drawn(old, range(6))[5:]
    old = Feed(positioned()[0])
    drawn(old, range(5))
    second, third = Feed(positioned()[0]), Feed(positioned()[0])
    second.go_to(old.place(), 5, 0)
    third.go_to(second.place(), 5, 0)

    assert expected == drawn(third, range(5, 6))


@pytest.mark.parametrize("kind", [Shuffling, Lengthy, Mute])
def test_a_sampler_whose_state_is_not_enough_is_passed_over(kind: type[Positioned]) -> None:
    """Its order comes from elsewhere, its state is too long for every step, or it has none to give."""
    assert 3 == replace(kind, 5)


def test_a_sampler_that_is_ahead_of_the_batches_is_passed_over() -> None:
    """Workers fetch batches before they are wanted."""
    assert 0 < replace(Positioned, 5, workers=1)


def test_a_sampler_is_not_put_to_another_step_than_its_own() -> None:
    """All may have to go one step back from where the place was noted."""
    assert 3 == replace(Positioned, 6, wanted=5)


def test_a_place_that_was_noted_without_a_sampler_is_found() -> None:
    """In a dump of an earlier version."""
    old = Feed(positioned()[0])
    drawn(old, range(5))
    place = pickle.dumps(pickle.loads(old.place())[:2])  # noqa: S301 - our own
    feed = Feed(positioned()[0])
    feed.go_to(place, 5, 0)

    assert drawn(old, range(5, 9)) == drawn(feed, range(5, 9))


def shuffled(generator: torch.Generator | None) -> DataLoader[int]:
    return DataLoader(Numbers(), batch_size=3, shuffle=True, generator=generator)


@pytest.mark.parametrize("steps", [0, 1, 3, 4, 5, 9])
@pytest.mark.parametrize("given", [False, True])
def test_a_shuffled_order_is_found_again(steps: int, given: bool) -> None:
    """It comes from the state of a generator at the start of a pass, which training has changed since."""

    def generator() -> torch.Generator | None:
        return torch.Generator().manual_seed(8) if given else None

    torch.manual_seed(7)
    old = Feed(shuffled(generator()))
    for step in range(steps):
        drawn(old, range(step, step + 1))
        torch.rand(3)  # as dropout does
    place, state = old.place(), torch.get_rng_state()
    expected = drawn(old, range(steps, 14))

    torch.manual_seed(100)
    new = Feed(shuffled(generator()))
    new.go_to(place, steps, 0)
    torch.set_rng_state(state)
    assert expected == drawn(new, range(steps, 14))


def test_a_loop_that_follows_can_give_the_last_batch_of_the_one_before() -> None:
    """All may have to go one step back just after a loop has begun."""
    old = Feed(loader())
    values = drawn(old, range(4))

    feed = Feed(loader(), old.kept_before(4))
    drawn(feed, range(4, 5))
    assert values[3:] == drawn(feed, range(3, 4))


def test_the_last_two_batches_can_be_had_again() -> None:
    """A step that is repeated, or one step back, gets what it had."""
    feed = Feed(Stateful())
    values = drawn(feed, range(4))

    assert values[2:] == drawn(feed, range(2, 4))
    assert drawn(Feed(Stateful()), range(6))[4:] == drawn(feed, range(4, 6))


def test_an_empty_loader_is_an_error_that_says_so() -> None:
    """Instead of a loop that never ends."""
    with pytest.raises(ValueError, match="no batch at all"):
        Feed([]).batch(0)
