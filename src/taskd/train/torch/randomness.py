"""A rank's random state as a few kilobytes.

Dropout, shuffling and augmentation draw from generators whose state belongs to the logical rank: a process
that takes a rank over has to go on where the old one was, to the bit. The state is captured at every commit,
so it must cost microseconds: it is packed as the raw words that each generator consists of.

Captured are torch's CPU generator, the device generators once CUDA is in use, Python's ``random`` and
NumPy's global generator if the script has loaded it. Generators that a script makes itself are its own to
register.
"""

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


class RandomnessDamaged(ValueError):
    """These bytes are not a captured random state."""


def capture() -> bytes:
    """Take the state of every generator."""
    cpu = tensor_bytes(torch.get_rng_state())
    python = _capture_python()
    numpy = _capture_numpy()
    cuda = _capture_cuda()
    header = _HEADER.pack(_MAGIC, len(cpu), len(python), len(numpy), len(cuda))
    return b"".join((header, cpu, python, numpy, cuda))


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
    version, words, gauss = random.getstate()
    return _PYTHON.pack(version, gauss is not None, gauss or 0.0) + array("I", words).tobytes()


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
        if type(generator).__name__ != "MT19937":
            return b""
        return ctypes.string_at(generator.ctypes.state_address, _NUMPY_WORDS + _POSITION.size)
    except AttributeError:  # before 1.24
        return b""


class _Before:
    """What was captured last, and the memory it was made of."""

    memory = b""
    captured = b""


_numpy_before = _Before()


def _restore_numpy(data: bytes) -> None:
    import numpy.random

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
