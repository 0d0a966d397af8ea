"""Ballots of the ranks of one machine, in memory that they share.

A collective of gloo's wakes two threads in each process several times, which takes a millisecond of
processor time per rank and step. Processes that share memory need neither: each writes its ballot there and
looks for those of the others, and whoever comes last wakes the rest.

Votes are numbered from when the ranks met: steps may be of any number, in any order. Each rank has two
places, for even and for odd votes: who has seen one through may be at the next while others still read this
one, but nobody comes to the one after that before all have done so. A checksum says whether a ballot is
whole: other processors may see its parts in any order.

The bell is a *futex*, a word that one can sleep on in the kernel. It is no more than a hint: should a process
go to sleep in the moment in which the last ballot comes, it looks again after a few milliseconds. A broken
connection would say that a process has ended; here its number is kept, and looked for now and then.

There is a file for each generation, so that a process which was replaced, should it wake up, does not write
into the votes of others.
"""

import contextlib
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

LOOK_S, ALIVE_S = 0.01, 1.0
_FUTEX = {"x86_64": 202, "aarch64": 98}.get(os.uname().machine, 0)
_WAIT, _WAKE, _ALL = 0, 1, (1 << 31) - 1
_CONTENT = struct.Struct("<qq3d")  # generation, number of the vote, and what is added up
_CHECK = struct.Struct("<Q")
_BYTES = _CONTENT.size + _CHECK.size
_ROOM = 64  # a line of the processor's cache, so that nobody's writing disturbs another's reading
_BELL = struct.Struct("<I")
_PID = struct.Struct("<q")
_AGAIN = (errno.EAGAIN, errno.ETIMEDOUT, errno.EINTR)


class VoterGone(RuntimeError):
    """A process that has not voted yet has ended."""

    def __init__(self, rank: int, pid: int) -> None:
        super().__init__(f"rank {rank} (pid {pid}) has ended before its vote: connection closed by peer")


class SharedBallots:
    """The votes of one generation."""

    def __init__(self, path: str, rank: int, world: int, generation: int) -> None:
        """Map the file; whoever comes first makes it. Raises OSError where that cannot be."""
        if not _FUTEX:
            raise OSError(errno.ENOSYS, "no futex is known for this processor")
        self._path = path
        self._rank, self._world, self._generation = rank, world, generation
        size = _ROOM * (1 + 3 * world)
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
        self._mine, self._given = b"", (0.0, 0.0, 0.0)
        self._pause = (ctypes.c_long * 2)(0, int(LOOK_S * 1e9))
        self._syscall = ctypes.CDLL(None, use_errno=True).syscall
        self._syscall.argtypes = [
            *(ctypes.c_long, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32),
            *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32),
        ]
        self._syscall.restype = ctypes.c_long
        _PID.pack_into(self._map, self._pid_place(rank), os.getpid())

    def put(self, number: int, ballot: Ballot) -> None:
        """Give this rank's ballot in a vote."""
        content = _CONTENT.pack(self._generation, number, *ballot)
        at = self._place(self._rank, number)
        self._mine, self._given = content + _CHECK.pack(zlib.crc32(content)), ballot
        self._map[at : at + _BYTES] = self._mine

    def count(self, number: int, is_over: Callable[[], bool]) -> Ballot | None:
        """Wait until all have given theirs, and add them up; None if it ``is_over`` before.

        Raises VoterGone where somebody cannot come any more.
        """
        missing = list(range(self._world))
        found: list[Ballot] = []
        look_at = time.monotonic() + ALIVE_S
        while True:
            (rung,) = _BELL.unpack_from(self._map)
            waiting: list[int] = []
            for rank in missing:
                ballot = self._read(rank, number)
                if ballot is None:
                    waiting.append(rank)
                else:
                    found.append(ballot)
            missing = waiting
            if not missing:
                if rung != number & 0xFFFFFFFF:
                    _BELL.pack_into(self._map, 0, number & 0xFFFFFFFF)
                    self.wake()
                first, second, third = map(sum, zip(*found, strict=True))
                return first, second, third
            if is_over():
                return None
            if time.monotonic() >= look_at:
                look_at = time.monotonic() + ALIVE_S
                self._see_alive(missing)
            if self._call(_WAIT, rung, ctypes.addressof(self._pause)) and ctypes.get_errno() not in _AGAIN:
                time.sleep(LOOK_S / 10)  # a sandbox that has none

    def wake(self) -> None:
        """Let all who wait look once more."""
        self._call(_WAKE, _ALL, 0)

    def remove(self) -> None:
        """No vote comes any more. Others may still have the memory; the name goes."""
        with contextlib.suppress(OSError):
            Path(self._path).unlink()

    def _see_alive(self, ranks: list[int]) -> None:
        for rank in ranks:
            (pid,) = _PID.unpack_from(self._map, self._pid_place(rank))
            if pid and not Path(f"/proc/{pid}").exists():
                raise VoterGone(rank, pid)

    def _read(self, rank: int, number: int) -> Ballot | None:
        at = self._place(rank, number)
        data = self._map[at : at + _BYTES]
        if data == self._mine:  # as nearly always: all say the same
            return self._given
        generation, its_number, *ballot = _CONTENT.unpack_from(data)
        if (generation, its_number) != (self._generation, number):
            return None
        whole = _CHECK.unpack_from(data, _CONTENT.size)[0] == zlib.crc32(data[: _CONTENT.size])
        return (ballot[0], ballot[1], ballot[2]) if whole else None

    @staticmethod
    def _place(rank: int, number: int) -> int:
        return _ROOM * (1 + 3 * rank + number % 2)

    @staticmethod
    def _pid_place(rank: int) -> int:
        return _ROOM * (3 + 3 * rank)

    def _call(self, operation: int, value: int, pause: int) -> int:
        return int(self._syscall(_FUTEX, self._bell, operation, value, pause, 0, 0))
