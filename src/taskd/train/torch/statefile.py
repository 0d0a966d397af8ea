"""A file that holds the state of several objects, written and read at the speed of the disk.

``torch.save`` goes through a zip archive and a checksum in one thread; on a fast disk that is twice the time
of the writing. Here a file is: a fixed start, a head (the states without their tensors, see ``pickling``, and
what is needed to make those), the tensors' bytes one after the other, and a trailer with length and checksum.
The tensors' own memory is what is written. No class of ours is named in a file: it is read by later versions.

The checksum is one of checksums, each of a block of 16 MiB, so that several threads take and compare it:
while the file is written, and again from the file while the disk still works on it.

Nothing here is collective: of a tensor that is spread over ranks the local part is stored, and it comes back
as a part of the tensor that the reader's own objects have. Reading a file runs its pickles, as ``torch.load``
does without ``weights_only``: read only what you would run.
"""

import ctypes
import errno
import functools
import os
import pickle
import struct
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from taskd.train.torch.pickling import ALIGN, Placing, Shape, aligned, buffer_of, bytes_of, take_out
from taskd.train.torch.spread import Meshes
from taskd.train.torch.sums import Threads

BLOCK_BYTES = 16 * 2**20  # a part of the format: another length makes other checksums
READ_BYTES = 2 * 2**20  # stays in a core's cache until its checksum is taken
THREADS = 2
AHEAD = 4  # blocks whose checksum may be outstanding

_MAX_VIEWS = 1000  # the kernel takes 1024 at once
_START = struct.Struct("<8sQII")  # magic, length of the head, its crc32, crc32 of what stands before this
_START_CHECKED = struct.Struct("<8sQI")
_TRAILER = struct.Struct(
    "<8sQII"
)  # magic, length of the file, its checksum, crc32 of what stands before this
_TRAILER_CHECKED = struct.Struct("<8sQI")
_MAGIC = b"taskdST1"
_END_MAGIC = b"taskdEN1"
_ZEROS = bytes(ALIGN)
_WRITE_BACK = 2  # SYNC_FILE_RANGE_WRITE


class FileDamaged(RuntimeError):
    """The file is not what was written."""


class Seal(NamedTuple):
    """What a whole file must measure."""

    length: int
    checksum: int


@dataclass(slots=True)
class _Block:
    """Consecutive bytes of a file, wherever they are in memory, and what keeps that memory."""

    views: list[memoryview] = field(default_factory=list)
    owners: list[object] = field(default_factory=list)
    length: int = 0


class Capture:
    """States that are ready to be written. The tensors are the originals: they must not change before."""

    def __init__(self, states: Mapping[str, object]) -> None:
        """Pickle around the tensors; raises what a state raises that cannot be pickled."""
        tensors: list[torch.Tensor] = []
        pickles = {name: take_out(name, state, tensors, "written") for name, state in states.items()}
        shapes = [Shape.of(tensor) for tensor in tensors]
        kinds = [(str(s.dtype).removeprefix("torch."), s.size, s.stride, s.device) for s in shapes]
        head = pickle.dumps({"states": pickles, "tensors": kinds}, protocol=pickle.HIGHEST_PROTOCOL)
        checked = _START_CHECKED.pack(_MAGIC, len(head), zlib.crc32(head))
        start = checked + struct.pack("<I", zlib.crc32(checked)) + head
        self._start = start.ljust(aligned(len(start)), b"\0")
        self._tensors = tensors
        self._offsets, self._body_bytes = _place(shapes)
        self._copy: torch.Tensor | None = None

    @property
    def length(self) -> int:
        """The bytes that the file will have."""
        return len(self._start) + self._body_bytes + _TRAILER.size

    def copy_tensors(self, memory: torch.Tensor | None) -> torch.Tensor:
        """Copy all tensors, so that the originals may change; returns the memory, to be given again later.

        The first time the kernel has to find the pages, which takes several times as long as the copying.
        """
        devices = {tensor.device for tensor in self._tensors if tensor.device.type != "cpu"}
        if memory is None or memory.numel() < self._body_bytes:
            memory = torch.zeros(self._body_bytes, dtype=torch.uint8, pin_memory=bool(devices))
        with torch.no_grad():
            for tensor, offset in zip(self._tensors, self._offsets, strict=True):
                if tensor.numel():
                    data = bytes_of(tensor)
                    memory[offset : offset + data.numel()].copy_(data, non_blocking=True)
        for device in devices:
            torch.accelerator.synchronize(device)
        self._copy = memory[: self._body_bytes]
        self._tensors = []
        return memory

    def blocks(self) -> Iterator[_Block]:
        """Give all bytes before the trailer, in their order."""
        return _cut(self._pieces())

    def _pieces(self) -> Iterator[tuple[memoryview, object]]:
        yield memoryview(self._start), None
        if self._copy is not None:
            if self._body_bytes:
                yield buffer_of(self._copy), self._copy
            return
        at = 0
        for tensor, offset in zip(self._tensors, self._offsets, strict=True):
            if offset > at:
                yield memoryview(_ZEROS)[: offset - at], None
            at = offset
            if not tensor.numel():
                continue
            data = bytes_of(tensor)
            at += data.numel()
            if data.device.type == "cpu":
                yield buffer_of(data), data
            else:
                for part in data.split(BLOCK_BYTES):
                    here = part.cpu()
                    yield buffer_of(here), here
        if self._body_bytes > at:
            yield memoryview(_ZEROS)[: self._body_bytes - at], None


def write_file(capture: Capture, name: str, dir_fd: int) -> Seal:
    """Write a new file, have it on the disk, and read it back; returns what it measures.

    Leaves the file behind if that fails: the caller knows better what to do with it.
    """
    space = os.fstatvfs(dir_fd)
    if space.f_blocks and space.f_bavail * space.f_frsize < capture.length:
        raise OSError(errno.ENOSPC, f"no room for {capture.length} bytes")
    fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=dir_fd)
    try:
        with Threads(THREADS, thread_name_prefix="taskd-sums") as pool:
            offset = 0
            sums = _Sums(pool)
            for block in capture.blocks():
                sums.add(functools.partial(_checksum, block))
                _write_all(fd, block.views, offset)
                # Without this the disk would rest until all is in the page cache.
                _start_writing_back(fd, offset, block.length)
                offset += block.length
            seal = Seal(offset + _TRAILER.size, sums.total())
            _write_all(fd, [memoryview(_trailer(seal))], offset)
            flushed = pool.submit(os.fsync, fd)
            check_file(fd, seal)
            flushed.result()
            return seal
    finally:
        os.close(fd)


def read_seal(fd: int) -> Seal:
    """Read what a file says of itself at its end."""
    length = os.fstat(fd).st_size
    raw = os.pread(fd, _TRAILER.size, length - _TRAILER.size) if length >= _TRAILER.size else b""
    if len(raw) == _TRAILER.size:
        seal = Seal(length, _TRAILER.unpack(raw)[2])
        if raw == _trailer(seal):
            return seal
    raise FileDamaged("it has no end, or that of a file of another length")


def check_file(fd: int, seal: Seal) -> None:
    """Read a whole file and compare it with its seal; raises FileDamaged, and loads nothing."""
    _check_length(fd, seal)
    end = seal.length - _TRAILER.size
    with Threads(THREADS, thread_name_prefix="taskd-sums") as pool:
        sums = _Sums(pool)
        for offset in range(0, end, BLOCK_BYTES):
            sums.add(functools.partial(_checksum_of_file, fd, offset, min(offset + BLOCK_BYTES, end)))
        if sums.total() != seal.checksum:
            raise FileDamaged("its checksum is wrong")
    if os.pread(fd, _TRAILER.size, end) != _trailer(seal):
        raise FileDamaged("its end is not the one that was written")


class States:
    """The states that a file holds."""

    def __init__(self, pickles: dict[str, bytes], shapes: list[Shape], tensors: list[torch.Tensor]) -> None:
        self._pickles = pickles
        self._shapes = shapes
        self._tensors = tensors

    @property
    def names(self) -> set[str]:
        """The names under which they were written."""
        return set(self._pickles)

    def load(self, name: str, meshes: Meshes | None = None) -> Any:  # noqa: ANN401 - any state
        """Return one of them, its tensors on the kind of device that they were on.

        Parts of spread tensors become parts in these meshes.
        """
        return Placing(self._pickles[name], meshes or Meshes(()), self._shapes, self._tensors).load()


def read_file(fd: int, seal: Seal) -> States:
    """Read a file into memory, and compare it with its seal on the way."""
    _check_length(fd, seal)
    start, head = _read_head(fd, seal)
    shapes = [
        Shape(getattr(torch, dtype), tuple(size), tuple(stride), device)
        for dtype, size, stride, device in head["tensors"]
    ]
    tensors = [shape.make() for shape in shapes]
    offsets, body_bytes = _place(shapes)
    if start + body_bytes + _TRAILER.size != seal.length:
        raise FileDamaged("its head does not fit its length")

    def pieces() -> Iterator[tuple[memoryview, object]]:
        yield memoryview(bytearray(start)), None
        at = 0
        for tensor, offset in zip(tensors, offsets, strict=True):
            if offset > at:
                yield memoryview(bytearray(offset - at)), None
            at = offset
            if tensor.numel():
                data = bytes_of(tensor)
                yield buffer_of(data), data
                at += data.numel()
        if body_bytes > at:
            yield memoryview(bytearray(body_bytes - at)), None

    with Threads(THREADS, thread_name_prefix="taskd-sums") as pool:
        sums = _Sums(pool)
        at = 0
        for block in _cut(pieces()):
            _read_all(fd, block.views, at)
            sums.add(functools.partial(_checksum, block))
            at += block.length
        if sums.total() != seal.checksum:
            raise FileDamaged("its checksum is wrong")
    return States(head["states"], shapes, tensors)


# --- bytes -------------------------------------------------------------------------------------------------


def _place(shapes: Iterable[Shape]) -> tuple[list[int], int]:
    """Return where each tensor begins after the head, and where the last one ends."""
    offsets: list[int] = []
    at = 0
    for shape in shapes:
        offsets.append(at)
        at = aligned(at + shape.length)
    return offsets, at


def _cut(pieces: Iterable[tuple[memoryview, object]]) -> Iterator[_Block]:
    """Cut consecutive pieces of memory into blocks, all of them full but the last."""
    block = _Block()
    for piece, owner in pieces:
        view = piece.cast("B")
        while len(view):
            part = view[: BLOCK_BYTES - block.length]
            block.views.append(part)
            block.owners.append(owner)
            block.length += len(part)
            view = view[len(part) :]
            if block.length == BLOCK_BYTES:
                yield block
                block = _Block()
    if block.length:
        yield block


class _Sums:
    """The checksums of consecutive blocks, taken by other threads; few at a time, they hold the blocks."""

    def __init__(self, pool: Threads) -> None:
        self._pool = pool
        self._waiting: deque[Future[int]] = deque()
        self._total = 0

    def add(self, work: Callable[[], int]) -> None:
        while len(self._waiting) >= AHEAD:
            self._take()
        self._waiting.append(self._pool.submit(work))

    def total(self) -> int:
        while self._waiting:
            self._take()
        return self._total

    def _take(self) -> None:
        self._total = zlib.crc32(struct.pack("<I", self._waiting.popleft().result()), self._total)


def _checksum(block: _Block) -> int:
    total = 0
    for view in block.views:
        total = zlib.crc32(view, total)
    return total


def _checksum_of_file(fd: int, start: int, end: int) -> int:
    scratch = memoryview(bytearray(min(READ_BYTES, end - start)))
    total = 0
    while start < end:
        count = os.preadv(fd, [scratch[: end - start]], start)
        if not count:
            raise FileDamaged("it became shorter while it was read")
        total = zlib.crc32(scratch[:count], total)
        start += count
    return total


def _trailer(seal: Seal) -> bytes:
    checked = _TRAILER_CHECKED.pack(_END_MAGIC, seal.length, seal.checksum)
    return checked + struct.pack("<I", zlib.crc32(checked))


def _check_length(fd: int, seal: Seal) -> None:
    length = os.fstat(fd).st_size
    if length != seal.length:
        raise FileDamaged(f"it has {length} bytes instead of {seal.length}")


def _read_head(fd: int, seal: Seal) -> tuple[int, dict[str, Any]]:
    """Return where the tensors begin, and the head; its own checksum says whether it may be unpickled."""
    raw = os.pread(fd, _START.size, 0)
    if len(raw) == _START.size:
        magic, length, checksum, own = _START.unpack(raw)
        if magic == _MAGIC and own == zlib.crc32(raw[: _START_CHECKED.size]) and length < seal.length:
            data = bytearray(length)
            _read_all(fd, [memoryview(data)], _START.size)
            if zlib.crc32(data) == checksum:
                head: dict[str, Any] = pickle.loads(data)  # noqa: S301 - the docstring says whose it may be
                return aligned(_START.size + length), head
    raise FileDamaged("its head is damaged")


def _write_all(fd: int, views: list[memoryview], offset: int) -> None:
    _move_all(lambda some, at: os.pwritev(fd, some, at), views, offset)


def _read_all(fd: int, views: list[memoryview], offset: int) -> None:
    _move_all(lambda some, at: os.preadv(fd, some, at), views, offset)


def _move_all(move: Callable[[list[memoryview], int], int], views: list[memoryview], offset: int) -> None:
    """Write or read all of these; the kernel may stop anywhere, and then it is asked again."""
    left = deque(views)
    while left:
        some = [left[index] for index in range(min(len(left), _MAX_VIEWS))]
        count = move(some, offset)
        if not count:
            raise FileDamaged("it became shorter while it was read")
        offset += count
        while left and count >= len(left[0]):
            count -= len(left.popleft())
        if count:
            left[0] = left[0][count:]


@functools.cache
def _sync_file_range() -> Callable[..., int] | None:
    function = getattr(ctypes.CDLL(None, use_errno=True), "sync_file_range", None)
    if function is not None:
        function.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    return function


def _start_writing_back(fd: int, offset: int, length: int) -> None:
    """Ask the kernel to begin; where it cannot be asked, fsync does it all at the end."""
    function = _sync_file_range()
    if function is not None:
        function(fd, offset, length, _WRITE_BACK)
