"""A rank's small per-step state in shared memory, readable after its death.

What belongs to one rank alone (its random state, its place in the data) has no replica on another rank, so
it is left in the node's shared memory at every commit, where the process that takes the rank over finds it.

The writer can be killed between any two bytes, and a job may have to go one step back. So there are four
buffers, written in turn: three are whole whatever happens to the fourth, and they reach over two steps. A
buffer's mark is taken away first and set last, and a checksum over everything says whether to believe it. A
reader goes through the file, not through a mapping: a mapping of a file that somebody shortened ends the
process.

A payload that does not fit makes a larger file that takes the path's place in one move, with the entries
carried over. So does ``create=True``, by which a process takes a rank over: it finds what the old one left,
and the old one, should it wake up, writes into a file that nobody can see any more.

Beside the entries there is one number: how many steps the rank's script was told of. A rank may be the only
one that has seen a vote through; when it dies then, the others compute the step again, and whoever takes the
rank over must not tell the script of it a second time.
"""

import contextlib
import mmap
import os
import struct
import zlib
from pathlib import Path
from typing import NamedTuple

DEFAULT_BYTES = 65536
KEPT = 4

# mark (the entry's number, 0: not valid), step, kind, length of the payload, crc32 of all this and of it
_HEADER = struct.Struct("<qqqqq")
_CHECKED = struct.Struct("<qqqq")
_MARK = struct.Struct("<q")
_TOLD = struct.Struct("<qq")  # the number and its complement, behind the first header
_ROOM = 64  # what a header takes, so that payloads are aligned


class SlotTaken(RuntimeError):
    """Another process has taken this rank's slot over."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} is another process's now")


class Entry(NamedTuple):
    """What was written."""

    step: int
    kind: int
    payload: bytes


class Slot:
    """One rank's file. One process writes it; any may read it."""

    def __init__(
        self, path: str | os.PathLike[str], size_bytes: int = DEFAULT_BYTES, *, create: bool
    ) -> None:
        """Map the file; with ``create`` take it over, or make one where there is none.

        ``size_bytes`` is the room for one payload. Without ``create`` the file keeps the size it has, unless
        somebody cut it to nothing.
        """
        self._path = os.fspath(path)
        self._summed, self._sum = b"", zlib.crc32(b"")
        if create or Path(self._path).stat().st_size < KEPT * _ROOM:
            left = _parse(_read(self._path))
            self._replace_file(max([size_bytes, *(len(entry.payload) for _, entry in left)]), left)
        self._map, self._inode = _map_file(self._path)
        self._written: list[bytes | None] = [None] * KEPT
        entries = _parse(self._map[:])
        self._number = entries[0][0] if entries else 0

    @property
    def room_bytes(self) -> int:
        """The longest payload that fits without a larger file."""
        return len(self._map) // KEPT - _ROOM

    def write(self, step: int, kind: int, payload: bytes) -> None:
        """Write an entry over the oldest one."""
        if len(payload) > self.room_bytes:
            self._grow(len(payload))
        number = self._number + 1
        part = number % KEPT
        start = part * (len(self._map) // KEPT)
        # A step that draws no random numbers ends with what it began with, in the same bytes.
        if payload is not self._summed:
            self._summed, self._sum = payload, zlib.crc32(payload)
        checksum = _checksum_of(number, step, kind, len(payload), self._sum)
        _MARK.pack_into(self._map, start, 0)
        if payload is not self._written[part]:
            self._map[start + _ROOM : start + _ROOM + len(payload)] = self._written[part] = payload
        _HEADER.pack_into(self._map, start, 0, step, kind, len(payload), checksum)
        _MARK.pack_into(self._map, start, number)
        self._number = number

    def tell(self, steps: int) -> None:
        """Keep how many steps the script was told of."""
        _TOLD.pack_into(self._map, _HEADER.size, steps, ~steps)

    def read(self) -> list[Entry]:
        """Return the whole entries, the newest first; those that are torn or damaged are left out."""
        return read_entries(self._path)

    def close(self) -> None:
        """Unmap; the file stays."""
        with contextlib.suppress(BufferError):
            self._map.close()

    def _grow(self, need_bytes: int) -> None:
        """Move to a larger file. Killed in between, the old file still holds the last entries."""
        try:
            mine = Path(self._path).stat().st_ino == self._inode
        except FileNotFoundError:
            mine = False
        if not mine:
            raise SlotTaken(self._path)
        self._replace_file(2 * need_bytes, _parse(self._map[:]))
        self._map.close()
        self._map, self._inode = _map_file(self._path)
        self._written = [None] * KEPT

    def _replace_file(self, room_bytes: int, entries: list[tuple[int, Entry]]) -> None:
        part = _ROOM + (room_bytes + 7) // 8 * 8
        told = read_told(self._path)
        draft = f"{self._path}.{os.getpid()}.new"
        fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            # All pages now: a write to a mapped page that a full file system cannot give ends the process.
            os.posix_fallocate(fd, 0, KEPT * part)
            for number, entry in entries:
                header = _HEADER.pack(number, *entry[:2], len(entry.payload), _checksum(number, entry))
                os.pwrite(fd, header.ljust(_ROOM, b"\0") + entry.payload, number % KEPT * part)
            os.pwrite(fd, _TOLD.pack(told, ~told), _HEADER.size)
            Path(draft).replace(self._path)
        except OSError:
            Path(draft).unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)


def read_entries(path: str | os.PathLike[str]) -> list[Entry]:
    """Return the whole entries of a slot, the newest first; none if there is no such file."""
    return [entry for _, entry in _parse(_read(path))]


def read_told(path: str | os.PathLike[str]) -> int:
    """Return how many steps a rank's script was told of, as far as is known."""
    data = _read(path)[_HEADER.size : _HEADER.size + _TOLD.size]
    steps, check = _TOLD.unpack(data) if len(data) == _TOLD.size else (0, 0)
    return int(steps) if steps == ~check else 0


def _read(path: str | os.PathLike[str]) -> bytes:
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        return b""


def _checksum(number: int, entry: Entry) -> int:
    return _checksum_of(number, entry.step, entry.kind, len(entry.payload), zlib.crc32(entry.payload))


def _checksum_of(number: int, step: int, kind: int, length: int, payload_sum: int) -> int:
    return zlib.crc32(_CHECKED.pack(number, step, kind, length), payload_sum)


def _parse(data: bytes) -> list[tuple[int, Entry]]:
    part = len(data) // KEPT
    found: list[tuple[int, Entry]] = []
    if part < _ROOM:
        return found
    for start in range(0, KEPT * part, part):
        number, step, kind, length, checksum = _HEADER.unpack_from(data, start)
        if number <= 0 or not 0 <= length <= part - _ROOM:
            continue
        entry = Entry(step, kind, data[start + _ROOM : start + _ROOM + length])
        if checksum == _checksum(number, entry) and start == number % KEPT * part:
            found.append((number, entry))
    return sorted(found, key=lambda numbered: numbered[0], reverse=True)


def _map_file(path: str) -> tuple[mmap.mmap, int]:
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        return mmap.mmap(fd, 0), os.fstat(fd).st_ino
    finally:
        os.close(fd)
