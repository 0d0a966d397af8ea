"""A replaced rank finds its place in the data."""

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torch.utils.data.distributed import DistributedSampler

from taskd.train.torch.feed import Feed


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
