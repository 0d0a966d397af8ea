"""Ballots of the ranks of one machine, in memory that they share.

A collective of gloo's wakes two threads in each process several times, which takes a millisecond of
processor time per rank and step. Processes that share memory need neither: each writes its ballot there and
looks for those of the others, and whoever comes last wakes the rest.

Each rank has two places, for votes with even and with odd numbers: who has seen one vote through may be at
the next while others still read this one, but nobody comes to the one after that before all have done so. A
checksum says whether a ballot is whole: other processors may see its parts in any order.

The bell is a *futex*, a word that one can sleep on in the kernel. It is no more than a hint: should a process
go to sleep in the moment in which the last ballot comes, it looks again after a few milliseconds.

There is a file for each generation, so that a process which was replaced, should it wake up, does not write
into the votes of others.
"""

import ctypes
import errno
import mmap
import os
import struct
import time
import zlib
from collections.abc import Callable
from pathlib import Path

Ballot = tuple[float, float, float]

LOOK_S = 0.01
_FUTEX = {"x86_64": 202, "aarch64": 98}.get(os.uname().machine, 0)
_WAIT, _WAKE, _ALL = 0, 1, (1 << 31) - 1
_CONTENT = struct.Struct("<qq3d")  # generation, step, and what is added up
_CHECK = struct.Struct("<Q")
_ROOM = 64  # a line of the processor's cache, so that nobody's writing disturbs another's reading
_BELL = struct.Struct("<I")


class SharedBallots:
    """The votes of one generation."""

    def __init__(self, path: str, rank: int, world: int, generation: int) -> None:
        """Map the file; whoever comes first makes it. Raises OSError where that cannot be."""
        if not _FUTEX:
            raise OSError(errno.ENOSYS, "no futex is known for this processor")
        self._path = path
        self._rank, self._world, self._generation = rank, world, generation
        size = _ROOM * (1 + 2 * world)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # All pages now: a write to a mapped page that a full file system cannot give ends the process.
            os.posix_fallocate(fd, 0, size)
            found = os.fstat(fd)
            self._map = mmap.mmap(fd, size)
        finally:
            os.close(fd)
        self.identity = found.st_dev, found.st_ino
        self._bell = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self._pause = (ctypes.c_long * 2)(0, int(LOOK_S * 1e9))
        self._syscall = ctypes.CDLL(None, use_errno=True).syscall
        self._syscall.argtypes = [
            *(ctypes.c_long, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32),
            *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32),
        ]
        self._syscall.restype = ctypes.c_long

    def put(self, step: int, ballot: Ballot) -> None:
        """Give this rank's ballot."""
        content = _CONTENT.pack(self._generation, step, *ballot)
        at = self._place(self._rank, step)
        self._map[at : at + _CONTENT.size + _CHECK.size] = content + _CHECK.pack(zlib.crc32(content))

    def count(self, step: int, is_over: Callable[[], bool]) -> Ballot | None:
        """Wait until all have given theirs, and add them up; None if it ``is_over`` before."""
        missing = [rank for rank in range(self._world) if rank != self._rank]
        found = [self._read(self._rank, step) or (0.0, 0.0, 0.0)]
        while True:
            (rung,) = _BELL.unpack_from(self._map)
            waiting: list[int] = []
            for rank in missing:
                ballot = self._read(rank, step)
                if ballot is None:
                    waiting.append(rank)
                else:
                    found.append(ballot)
            missing = waiting
            if not missing:
                if rung != _number(step):
                    _BELL.pack_into(self._map, 0, _number(step))
                    self.wake()
                return (
                    sum(each[0] for each in found),
                    sum(each[1] for each in found),
                    sum(each[2] for each in found),
                )
            if is_over():
                return None
            if self._call(_WAIT, rung, ctypes.addressof(self._pause)) and ctypes.get_errno() == errno.ENOSYS:
                time.sleep(LOOK_S / 10)  # a sandbox that has none

    def wake(self) -> None:
        """Let all who wait look once more."""
        self._call(_WAKE, _ALL, 0)

    def remove(self) -> None:
        """No vote comes any more. Others may still have the memory; the name goes."""
        Path(self._path).unlink(missing_ok=True)

    def _read(self, rank: int, step: int) -> Ballot | None:
        at = self._place(rank, step)
        data = self._map[at : at + _CONTENT.size + _CHECK.size]
        generation, its_step, *ballot = _CONTENT.unpack_from(data)
        if (generation, its_step) != (self._generation, step):
            return None
        whole = _CHECK.unpack_from(data, _CONTENT.size)[0] == zlib.crc32(data[: _CONTENT.size])
        return (ballot[0], ballot[1], ballot[2]) if whole else None

    @staticmethod
    def _place(rank: int, step: int) -> int:
        return _ROOM * (1 + 2 * rank + step % 2)

    def _call(self, operation: int, value: int, pause: int) -> int:
        return int(self._syscall(_FUTEX, self._bell, operation, value, pause, 0, 0))


def _number(step: int) -> int:
    return (step + 1) & 0xFFFFFFFF
