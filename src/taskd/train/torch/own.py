"""What belongs to one rank alone, and no replica has: random generators, buffers, its place in the data.

Buffers are in a module's state and yet not the same everywhere: batch norm's averages are those of the rank's
own batches until the next forward pass copies rank 0's over them. So they are kept with the random state, at
the start of each step and again at its vote, and a repeated step begins with them as they were.
"""

import ctypes
import struct
from collections.abc import Mapping
from typing import Any

import torch

from taskd.train.torch import randomness
from taskd.train.torch.members import buffers_in
from taskd.train.torch.spread import local_part

LENGTH = struct.Struct("<3Q")
MAX_BUFFERS_BYTES = 4 * 1024 * 1024


class OwnState:
    """Captures and restores it as bytes."""

    def capture(self, objects: Mapping[str, Any], place: bytes = b"") -> bytes:
        """Return the rank's own state as it is now, with its place in the data."""
        rng = randomness.capture()
        buffers = self._buffers(objects)
        parts = [_raw(buffer) for buffer in buffers]
        head = LENGTH.pack(len(rng), sum(map(len, parts)), len(place))
        return b"".join([head, rng, *parts, place])

    @staticmethod
    def place_in(data: bytes) -> bytes:
        """Return the place in the data that was captured."""
        length = LENGTH.unpack_from(data)[2]
        return data[len(data) - length :]

    def restore(self, objects: Mapping[str, Any], data: bytes, like: bytes = b"") -> None:
        """Put it back, but for buffers that are the same in ``like``, another one's own state."""
        rng_length, _, _ = LENGTH.unpack_from(data)
        randomness.restore(data[LENGTH.size : LENGTH.size + rng_length])
        kept, others = _buffers_in(data), _buffers_in(like) if like else b""
        buffers = self._buffers(objects)
        if sum(buffer.nbytes for buffer in buffers) != len(kept):
            return
        at = 0
        with torch.no_grad():
            for buffer in buffers:
                upto = at + buffer.nbytes
                raw = bytearray(kept[at:upto])
                same = len(others) == len(kept) and raw == others[at:upto]
                at = upto
                if raw and not same:
                    buffer.copy_(
                        torch.frombuffer(raw, dtype=torch.uint8).view(buffer.dtype).view(buffer.shape)
                    )

    @staticmethod
    def _buffers(objects: Mapping[str, Any]) -> list[torch.Tensor]:
        """Return the buffers if they are small enough to be kept each step; large ones are tables."""
        buffers = [local_part(buffer) for buffer in buffers_in(objects)]
        # One that was expanded is in fewer places than it has elements; nobody can write into it.
        buffers = [buffer for buffer in buffers if not _is_expanded(buffer)]
        if sum(buffer.nbytes for buffer in buffers) > MAX_BUFFERS_BYTES:
            return []
        return buffers


def _is_expanded(tensor: torch.Tensor) -> bool:
    return any(
        not stride and extent > 1 for stride, extent in zip(tensor.stride(), tensor.size(), strict=True)
    )


def _buffers_in(data: bytes) -> bytes:
    rng_length, length, _ = LENGTH.unpack_from(data)
    start = LENGTH.size + rng_length
    return data[start : start + length]


def _raw(tensor: torch.Tensor) -> bytes:
    """Copy a tensor's bytes out, without NumPy: torch does not bring it."""
    flat = tensor.detach().cpu().contiguous().view(-1)
    return ctypes.string_at(flat.data_ptr(), flat.nbytes) if flat.nbytes else b""
