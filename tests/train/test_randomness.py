import random
from statistics import median
from time import perf_counter_ns
from typing import Any

import numpy as np
import pytest
import torch

from taskd.train.torch.randomness import RandomnessDamaged, capture, restore


def draw() -> tuple[object, ...]:
    return (
        torch.rand(7).tolist(),
        torch.randperm(50).tolist(),
        [random.random() for _ in range(5)],
        random.gauss(0, 1),
        random.getrandbits(100),
        np.random.rand(5).tolist(),  # noqa: NPY002 - the global generator is what scripts use
        np.random.randn(3).tolist(),  # noqa: NPY002 - as above
    )


def test_every_generator_goes_on_where_it_was() -> None:
    """Also with a second gaussian waiting in Python's and in NumPy's."""
    draw()
    random.gauss(0, 1)
    np.random.randn()  # noqa: NPY002 - as above
    state = capture()
    first = draw()
    draw()
    restore(state)

    assert first == draw()


def test_a_restored_state_is_captured_again_as_the_same_bytes() -> None:
    state = capture()
    draw()
    restore(state)

    assert state == capture()


def test_dropout_repeats() -> None:
    layer = torch.nn.Dropout(0.5)
    state = capture()
    first = layer(torch.ones(1000))
    restore(state)

    assert torch.equal(first, layer(torch.ones(1000)))


def test_another_bit_generator_of_numpy_is_kept() -> None:
    numpy_random: Any = np.random  # these two are not in its types
    before = numpy_random.get_bit_generator()
    numpy_random.set_bit_generator(np.random.PCG64(3))
    try:
        state = capture()
        first = draw()
        restore(state)
        assert first == draw()
    finally:
        numpy_random.set_bit_generator(before)


def test_a_capture_fits_a_slot() -> None:
    assert len(capture()) < 16_384


@pytest.mark.parametrize("data", [b"", b"short", b"\0" * 9000, b"tdR1" + b"\1" * 9000])
def test_other_bytes_are_refused(data: bytes) -> None:
    state = capture()

    with pytest.raises(RandomnessDamaged):
        restore(data)
    assert state == capture()


def test_a_capture_costs_microseconds() -> None:
    """60 are promised without NumPy; the limit here leaves room for a busy machine."""
    times = []
    for _ in range(300):
        begin = perf_counter_ns()
        capture()
        times.append(perf_counter_ns() - begin)

    assert median(times) < 250_000


def test_numpy_is_asked_again_whenever_something_was_drawn() -> None:
    """Also when a gaussian that waits is taken, which leaves the words as they were."""
    numpy_random: Any = np.random
    numpy_random.seed(5)
    for draw in (
        numpy_random.rand,
        lambda: None,
        numpy_random.randn,
        numpy_random.randn,
        lambda: numpy_random.randint(3),
        lambda: numpy_random.set_state(("MT19937", np.arange(624, dtype=np.uint32), 3)),
        lambda: numpy_random.shuffle(list(range(9))),
    ):
        draw()
        captured = [capture(), capture()]
        assert captured[0] == captured[1]
        wanted = numpy_random.randn(3).tolist()
        numpy_random.rand(1000)
        restore(captured[0])
        assert wanted == numpy_random.randn(3).tolist()
        restore(captured[0])


def test_a_waiting_gaussian_that_was_brought_back_is_captured() -> None:
    """NumPy's words are the same with it and without it."""
    np.random.seed(3)  # noqa: NPY002 - the global generator is what is captured
    np.random.normal()  # noqa: NPY002 - as above; now a second one waits
    waits = capture()
    np.random.normal()  # noqa: NPY002 - as above
    capture()
    restore(waits)
    assert waits == capture()


def test_pythons_generator_is_asked_again_whenever_something_was_drawn() -> None:
    random.seed(5)
    captured = [capture()]
    for draw in (random.random, lambda: random.gauss(0.0, 1.0), lambda: random.gauss(0.0, 1.0)):
        draw()
        captured.append(capture())
    assert 4 == len(set(captured))
    for state in captured:
        restore(state)
        assert state == capture()
