"""The files that snapshots are kept in: their header, their lock, and what is read of them.

See ``snapshots`` for the layout and for why there are two.
"""

import contextlib
import ctypes
import fcntl
import logging
import mmap
import os
import struct
import weakref
import zlib
from pathlib import Path
from typing import NamedTuple

import torch

from taskd.train.torch.pinned import Pin

DATA = 4096
MAGIC = 0x7461736B64533031
# mark (the version's number, 0: not valid), magic, number, step, bytes of the tensors, bytes of the head,
# number of checksums, crc32 of all from the magic on, of the head and of the checksums
HEADER = struct.Struct("<8q")
MARK = struct.Struct("<q")
_POPULATE_WRITE = 23  # linux/mman.h; Python has no name for it yet
BUFFERS = (0, 1)

log = logging.getLogger("taskd")


class SnapshotDamaged(RuntimeError):
    """A snapshot is not there or not whole; nothing was loaded."""

    def __init__(self, path: str, step: int, what: str) -> None:
        super().__init__(f"the snapshot of step {step} in {path} cannot be used: {what}; nothing was loaded")


class SnapshotTaken(RuntimeError):
    """Another process writes this rank's snapshots now."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} is another process's now")


class Header(NamedTuple):
    """What stands at the beginning of a file; see ``HEADER``."""

    mark: int
    magic: int
    number: int
    step: int
    data_bytes: int
    head_bytes: int
    sums: int
    crc: int

    @property
    def used(self) -> int:
        """How much of the file it is about."""
        return DATA + self.data_bytes + self.head_bytes + 4 * self.sums

    @property
    def whole(self) -> bool:
        """Tell whether the file is marked valid; the checksums are another matter."""
        return self.magic == MAGIC and 0 < self.mark == self.number and min(self[4:7]) >= 0


class Buffer:
    """A file of shared memory, mapped to be written."""

    def __init__(self, path: str, fd: int) -> None:
        self.fd = fd
        self._path = path
        self.size = os.fstat(fd).st_size
        self._inode = os.fstat(fd).st_ino
        # Opened again: a mapping keeps its file open and so locked, also in processes that the script forks.
        again = os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
        try:
            self._map = mmap.mmap(again, self.size)
        finally:
            os.close(again)
        with contextlib.suppress(OSError, ValueError):
            self._map.madvise(_POPULATE_WRITE)  # else each page costs an interruption at its first byte
        self.bytes = torch.frombuffer(self._map, dtype=torch.uint8)
        self.address: int = self.bytes.data_ptr()
        self.pin = Pin(self.address, self.size)
        _open_buffers.add(self)

    @classmethod
    def open(cls, path: str, need_bytes: int) -> "Buffer":
        """Use the file that is there, if it is large enough and nobody else's, or else a new one."""
        size = -(-need_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        with contextlib.suppress(FileNotFoundError):
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            if lock(fd) and os.fstat(fd).st_size >= size:
                return cls(path, fd)
            os.close(fd)
            # Away first: there may not be room for a third one.
            Path(path).unlink()
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            lock(fd)
            os.posix_fallocate(fd, 0, size)
            return cls(path, fd)
        except OSError:
            Path(path).unlink(missing_ok=True)
            os.close(fd)
            raise

    def write(self, at: int, data: bytes) -> None:
        """Put bytes somewhere."""
        self._map[at : at + len(data)] = data

    def set_mark(self, number: int) -> None:
        """Say that the file is valid, or with 0 that it is not."""
        MARK.pack_into(self._map, 0, number)

    def check_mine(self) -> None:
        """Raise SnapshotTaken if another process has put its file in the place of this one."""
        try:
            mine = Path(self._path).stat().st_ino == self._inode
        except FileNotFoundError:
            mine = False
        if not mine:
            raise SnapshotTaken(self._path)

    def close(self) -> None:
        """Unpin, unmap and unlock; the file stays."""
        self.pin.release()
        _open_buffers.discard(self)
        del self.bytes
        with contextlib.suppress(BufferError):
            self._map.close()
        os.close(self.fd)


_open_buffers: weakref.WeakSet[Buffer] = weakref.WeakSet()


def _unlock_in_child() -> None:
    """Let a forked process (a data loader's) not keep the lock of its parent, which may be killed."""
    for buffer in list(_open_buffers):
        os.close(buffer.fd)
    _open_buffers.clear()


os.register_at_fork(after_in_child=_unlock_in_child)


def file_of(path: str, index: int) -> str:
    """Name one of the two files."""
    return f"{path}.{index}"


def lock(fd: int) -> bool:
    """Lock a file for as long as this process has it open; False if it is another's."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def take_over(path: str) -> None:
    """Copy what a living process may still write to, so that it writes where nobody looks."""
    for index in BUFFERS:
        file = Path(file_of(path, index))
        try:
            fd = os.open(file, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            if not lock(fd):
                draft = file.with_name(f"{file.name}.{os.getpid()}.new")
                _copy_file(fd, draft)
                draft.replace(file)
        except OSError as error:
            log.warning("taskd: %s belongs to a living process and cannot be copied: %s", file, error)
        finally:
            os.close(fd)


def _copy_file(fd: int, draft: Path) -> None:
    """Copy a file; the copy is marked valid only if the original was."""
    size = os.fstat(fd).st_size
    copy = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(copy, 0, size)
        at = 0
        while at < size:
            at += os.pwrite(copy, os.pread(fd, 2**24, at), at)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    finally:
        os.close(copy)


def headers(path: str) -> list[tuple[int, Header]]:
    """Return the marked buffers, the newest first."""
    found: list[tuple[int, Header]] = []
    for index in BUFFERS:
        try:
            with open(file_of(path, index), "rb", buffering=0) as file:  # noqa: PTH123 - asked for each step
                raw = file.read(HEADER.size)
                size = os.fstat(file.fileno()).st_size
        except FileNotFoundError:
            continue
        if len(raw) < HEADER.size:
            continue
        header = Header(*HEADER.unpack(raw))
        if header.whole and header.used <= size:
            found.append((index, header))
    return sorted(found, key=lambda item: item[1].number, reverse=True)


def map_version(path: str, step: int) -> tuple[Header, torch.Tensor]:
    """Map the newest version of a step, to be read."""
    found = headers(path)
    for index, header in found:
        if header.step == step:
            with open(file_of(path, index), "r+b", buffering=0) as file:  # noqa: PTH123 - mmap wants the file
                # A private mapping: whoever gets the tensor cannot damage the snapshot with it.
                mapped = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE)
            return header, torch.frombuffer(mapped, dtype=torch.uint8)
    raise SnapshotDamaged(path, step, f"there are those of {[header.step for _, header in found]}")


def view_of(data: torch.Tensor | bytes | bytearray | memoryview) -> memoryview:
    """Look at bytes, wherever they are, without a copy."""
    if isinstance(data, torch.Tensor):
        data = data.contiguous()
        # The array keeps the tensor: it goes when the view does.
        array = (ctypes.c_ubyte * data.numel()).from_address(data.data_ptr())
        array.tensor = data  # type: ignore[attr-defined]
        return memoryview(array).cast("B")
    return memoryview(data).cast("B")


def head_crc(fields: tuple[int, ...], head: bytes, seals: list[int]) -> int:
    """Return the checksum of everything but the tensors."""
    crc = zlib.crc32(struct.pack(f"<{len(fields)}q", *fields))
    return zlib.crc32(struct.pack(f"<{len(seals)}I", *seals), zlib.crc32(head, crc))


def read_head(path: str, header: Header, view: memoryview) -> tuple[bytes, list[int]]:
    """Return the head and the checksums of the tensors, if they are what was written."""
    at = DATA + header.data_bytes
    if header.used > len(view):
        raise SnapshotDamaged(path, header.step, "the file is too short")
    raw = bytes(view[at : at + header.head_bytes])
    seals = list(struct.unpack_from(f"<{header.sums}I", view, at + header.head_bytes))
    if header.crc != head_crc(header[1:7], raw, seals):
        raise SnapshotDamaged(path, header.step, "the head is damaged")
    return raw, seals
