"""A rank's random state as a few kilobytes.

Dropout, shuffling and augmentation draw from generators whose state belongs to the logical rank: a process
that takes a rank over has to go on where the old one was, to the bit. The state is captured twice in every
step, so it must cost microseconds: it is packed as the raw words that each generator consists of, and where
those can be seen in memory they are packed again only after a change.

Captured are torch's CPU generator, the device generators once CUDA is in use, Python's ``random`` and
NumPy's global generator if the script has loaded it. Generators that a script makes itself are its own to
register.
"""

import _random
import ctypes
import pickle
import random
import struct
import sys
from array import array
from typing import Any

import torch

_MAGIC = b"tdR1"
# magic, then the lengths: torch, python, numpy, cuda
_HEADER = struct.Struct("<4s4I")
_PYTHON = struct.Struct("<I?d")  # version, whether a second gaussian waits, and which
_NUMPY = struct.Struct("<iid")  # position, whether a second gaussian waits, and which
_CUDA = struct.Struct("<3I")  # how many devices, which one was current, length of one state
_NUMPY_WORDS = 624 * 4
_POSITION = struct.Struct("<i")
_PYTHON_BYTES = _POSITION.size + 624 * 4
_IN_MEMORY = (
    sys.implementation.name == "cpython"
    and sys.byteorder == "little"
    and _random.Random.__basicsize__ >= object.__basicsize__ + _PYTHON_BYTES
)


class RandomnessDamaged(ValueError):
    """These bytes are not a captured random state."""


def capture() -> bytes:
    """Take the state of every generator."""
    cpu = tensor_bytes(torch.default_generator.get_state())
    python = _capture_python()
    numpy = _capture_numpy()
    cuda = _capture_cuda()
    parts = (cpu, python, numpy, cuda)
    if parts != _all_before.parts:
        header = _HEADER.pack(_MAGIC, len(cpu), len(python), len(numpy), len(cuda))
        _all_before.parts, _all_before.captured = parts, b"".join((header, *parts))
    return _all_before.captured


def restore(data: bytes) -> None:
    """Put the generators into a captured state."""
    if len(data) < _HEADER.size:
        raise RandomnessDamaged(f"a random state of {len(data)} bytes is too short")
    magic, *lengths = _HEADER.unpack_from(data)
    if magic != _MAGIC or _HEADER.size + sum(lengths) != len(data):
        raise RandomnessDamaged(f"these {len(data)} bytes are not a random state")
    parts: list[bytes] = []
    start = _HEADER.size
    for length in lengths:
        parts.append(data[start : start + length])
        start += length
    cpu, python, numpy, cuda = parts
    torch.set_rng_state(byte_tensor(cpu))
    _restore_python(python)
    if numpy:
        _restore_numpy(numpy)
    if cuda:
        _restore_cuda(cuda)


def tensor_bytes(state: torch.Tensor) -> bytes:
    """Return the bytes of a generator's state."""
    # Three times as fast as going through NumPy, which need not be there.
    return ctypes.string_at(state.data_ptr(), state.numel())


def byte_tensor(data: bytes) -> torch.Tensor:
    """Make a generator's state of its bytes."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _capture_python() -> bytes:
    memory, waiting = _python_memory()
    if memory and memory == _python_before.memory and waiting is None:
        return _python_before.captured
    version, words, gauss = random.getstate()
    packed = array("I", words).tobytes()
    captured = _PYTHON.pack(version, gauss is not None, gauss or 0.0) + packed
    unchanging = gauss is None and memory == packed[-_POSITION.size :] + packed[: -_POSITION.size]
    _python_before.memory, _python_before.captured = (memory, captured) if unchanging else (b"", b"")
    return captured


def _python_memory() -> tuple[bytes, object]:
    """Return position and words where CPython has them, and the gaussian that waits.

    Asking for them makes six hundred numbers each time. That they are there is believed only where they are
    the ones that were asked for.
    """
    generator: Any = getattr(random.getstate, "__self__", None)
    if not isinstance(generator, random.Random) or not _IN_MEMORY:
        return b"", None
    memory = ctypes.string_at(id(generator) + object.__basicsize__, _PYTHON_BYTES)
    return memory, vars(generator).get("gauss_next")


def _restore_python(data: bytes) -> None:
    version, waits, gauss = _PYTHON.unpack_from(data)
    words = array("I")
    words.frombytes(data[_PYTHON.size :])
    random.setstate((version, tuple(words), gauss if waits else None))


def _capture_numpy() -> bytes:
    # Loading it here would cost a script that does not use it a tenth of a second.
    numpy_random: Any = sys.modules.get("numpy.random")
    if numpy_random is None:
        return b""
    memory = _numpy_memory(numpy_random)
    if memory and memory == _numpy_before.memory:
        return _numpy_before.captured
    state = numpy_random.get_state(legacy=False)
    if state["bit_generator"] != "MT19937":  # set_bit_generator: rare, so it may cost more
        return pickle.dumps(state)
    inner = state["state"]
    words: bytes = inner["key"].tobytes()
    captured = _NUMPY.pack(inner["pos"], state["has_gauss"], state["gauss"]) + words
    # A gaussian that waits is elsewhere, and is taken without a trace here.
    unchanging = not state["has_gauss"] and memory == words + _POSITION.pack(inner["pos"])
    _numpy_before.memory, _numpy_before.captured = (memory, captured) if unchanging else (b"", b"")
    return captured


def _numpy_memory(numpy_random: Any) -> bytes:  # noqa: ANN401 - a module
    """Return the words and the position where NumPy has them: asking for them takes as long as a vote."""
    try:
        generator = numpy_random.get_bit_generator()
        if generator is not _numpy_before.generator:
            if type(generator).__name__ != "MT19937":
                return b""
            _numpy_before.generator, _numpy_before.address = generator, generator.ctypes.state_address
        return ctypes.string_at(_numpy_before.address, _NUMPY_WORDS + _POSITION.size)
    except AttributeError:  # before 1.24
        return b""


class _Before:
    """What was captured last of a generator, and the memory that it was made of."""

    memory = b""
    captured = b""
    generator: object = None
    address = 0


class _AllBefore:
    """What was captured last of all generators."""

    parts: tuple[bytes, ...] = ()
    captured = b""


_numpy_before, _python_before, _all_before = _Before(), _Before(), _AllBefore()


def _restore_numpy(data: bytes) -> None:
    import numpy.random

    _numpy_before.memory = b""  # a gaussian may wait now, with the same words
    if len(data) == _NUMPY.size + _NUMPY_WORDS:
        position, waits, gauss = _NUMPY.unpack_from(data)
        key = numpy.frombuffer(data, dtype=numpy.uint32, offset=_NUMPY.size).copy()
        numpy.random.set_state(("MT19937", key, position, waits, gauss))  # noqa: NPY002 - the script's own
    else:
        numpy.random.set_state(pickle.loads(data))  # noqa: NPY002, S301 - written by this very rank


def _capture_cuda() -> bytes:
    if not torch.cuda.is_initialized():
        return b""
    states = [tensor_bytes(state) for state in torch.cuda.get_rng_state_all()]
    return _CUDA.pack(len(states), torch.cuda.current_device(), len(states[0])) + b"".join(states)


def _restore_cuda(data: bytes) -> None:
    """Restore by index, but the state of the rank's own device to the one that it has now."""
    count, current, length = _CUDA.unpack_from(data)
    states = [
        byte_tensor(data[start : start + length])
        for start in range(_CUDA.size, _CUDA.size + count * length, length)
    ]
    for index, state in enumerate(states[: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(state, index)
    torch.cuda.set_rng_state(states[current], torch.cuda.current_device())
