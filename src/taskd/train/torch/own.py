"""What belongs to one rank alone, and no replica has: random generators, buffers, its place in the data.

So may be any small thing that a script has registered: a hidden state that is carried from step to step, a
generator with a seed of the rank's own.

Buffers are in a module's state and yet not the same everywhere: batch norm's averages are those of the rank's
own batches until the next forward pass copies rank 0's over them. So they are kept with the random state, at
the start of each step and again at its vote, and a repeated step begins with them as they were.
"""

import ctypes
import pickle
import struct
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from taskd.train.torch import randomness, smallstates
from taskd.train.torch.members import buffers_of, modules_in
from taskd.train.torch.spread import local_part

LENGTH = struct.Struct("<4Q")
MAX_BUFFERS_BYTES = 4 * 1024 * 1024


class OwnState:
    """Captures and restores it as bytes."""

    def __init__(self) -> None:
        """Know of nothing that cannot be kept."""
        self._unkept: set[str] = set()
        self._parts: list[bytes] = []
        self._captured = b""

    def capture(
        self,
        objects: Mapping[str, Any],
        place: bytes = b"",
        modules: Iterable[torch.nn.Module] | None = None,
    ) -> bytes:
        """Return the rank's own state as it is now, with its place in the data.

        ``modules`` are all that the objects have now, for whoever knows them.
        """
        rng = randomness.capture()
        parts = [_raw(buffer) for buffer in self._buffers(objects, modules)]
        states = self._states(objects)
        all_parts = [rng, *parts, states, place]
        # Where nothing has changed it is the very same bytes, which then need not be written again.
        if all_parts != self._parts:
            head = LENGTH.pack(len(rng), sum(map(len, parts)), len(states), len(place))
            self._parts, self._captured = all_parts, b"".join([head, *all_parts])
        return self._captured

    @staticmethod
    def place_in(data: bytes) -> bytes:
        """Return the place in the data that was captured."""
        return _parts_of(data)[3]

    @staticmethod
    def drew(before: bytes, after: bytes) -> bool:
        """Tell whether random numbers were drawn between two captures, of which the first may be none."""
        return bool(before) and _random_of(before) != _random_of(after)

    @staticmethod
    def has_drawn(before: bytes) -> bool:
        """Tell whether random numbers were drawn since a capture."""
        return _random_of(before) != randomness.capture()

    def changes(self, objects: Mapping[str, Any], before: bytes, after: bytes) -> tuple[bool, int]:
        """Tell whether random numbers were drawn between two captures, and a number for what else differs.

        The number is 0 if nothing does, and the same on ranks where the same has become of the same things.
        """
        rng, buffers, states, _ = _parts_of(before)
        rng_after, buffers_after, states_after, _ = _parts_of(after)
        changed: list[bytes] = []
        at = 0
        for buffer in self._buffers(objects) if buffers != buffers_after else ():
            span = slice(at, at + buffer.nbytes)
            at = span.stop
            if buffers[span] != buffers_after[span]:
                changed.append(buffers_after[span])
        if states != states_after:
            known = _states_in(states)
            changed += [state for name, state in _states_in(states_after).items() if state != known.get(name)]
        return rng != rng_after, zlib.crc32(b"".join(changed)) if changed else 0

    def restore(self, objects: Mapping[str, Any], data: bytes, like: bytes = b"") -> None:
        """Put it back, but for what is the same in ``like``, another one's own state of the same moment."""
        rng, kept, states, _ = _parts_of(data)
        _, others, states_there, _ = _parts_of(like) if like else (b"", b"", b"", b"")
        randomness.restore(rng)
        elsewhere = _states_in(states_there)
        for name, state in _states_in(states).items():
            if name in objects and state != elsewhere.get(name):
                smallstates.write(objects[name], smallstates.unpacked(state))
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

    def _states(self, objects: Mapping[str, Any]) -> bytes:
        """Return the states of small things that may be other ones on each rank."""
        found: dict[str, bytes] = {}
        for name, thing in objects.items():
            if name in self._unkept or not smallstates.may_differ(thing):
                continue
            try:
                found[name] = smallstates.packed(smallstates.read(thing))
            except Exception:  # noqa: BLE001 - too large, or of a kind that has no pickle
                self._unkept.add(name)
        return pickle.dumps(found, protocol=pickle.HIGHEST_PROTOCOL) if found else b""

    @staticmethod
    def _buffers(
        objects: Mapping[str, Any], modules: Iterable[torch.nn.Module] | None = None
    ) -> list[torch.Tensor]:
        """Return the buffers if they are small enough to be kept each step; large ones are tables."""
        found = buffers_of(modules_in(objects) if modules is None else modules)
        if not found:
            return []
        buffers = [local_part(buffer) for buffer in found]
        # One that was expanded is in fewer places than it has elements; nobody can write into it.
        buffers = [buffer for buffer in buffers if not _is_expanded(buffer)]
        if sum(buffer.nbytes for buffer in buffers) > MAX_BUFFERS_BYTES:
            return []
        return buffers


def without_states(data: bytes) -> bytes:
    """Return what was captured without the states of registered things, which may have grown."""
    rng, buffers, _, place = _parts_of(data)
    return LENGTH.pack(len(rng), len(buffers), 0, len(place)) + rng + buffers + place


def _is_expanded(tensor: torch.Tensor) -> bool:
    return any(
        not stride and extent > 1 for stride, extent in zip(tensor.stride(), tensor.size(), strict=True)
    )


def _random_of(data: bytes) -> bytes:
    return data[LENGTH.size : LENGTH.size + LENGTH.unpack_from(data)[0]]


def _parts_of(data: bytes) -> tuple[bytes, ...]:
    """Return random state, buffers, states and place."""
    parts: list[bytes] = []
    at = LENGTH.size
    for length in LENGTH.unpack_from(data):
        parts.append(data[at : at + length])
        at += length
    return tuple(parts)


def _states_in(part: bytes) -> dict[str, bytes]:
    found: dict[str, bytes] = pickle.loads(part) if part else {}  # noqa: S301 - written by a rank of this job
    return found


def _raw(tensor: torch.Tensor) -> bytes:
    """Copy a tensor's bytes out, without NumPy: torch does not bring it."""
    flat = tensor.detach().cpu().contiguous().view(-1)
    return ctypes.string_at(flat.data_ptr(), flat.nbytes) if flat.nbytes else b""
