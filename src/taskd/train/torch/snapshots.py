"""A rank's registered state in the node's shared memory, where it outlives the process.

A rank whose state nobody else has (plain FSDP, a pipeline stage without a replica) leaves a copy there after
each step, and the process that takes the rank over goes on from it. For all others it is a second source.

The copy is made beside the training: ``take`` notes which tensors there are and returns, a thread copies
them (a device: a stream of its own, into pinned memory), and ``wait`` stands before the next update, which
is the first thing that may change them. What a forward pass changes is copied by ``take`` itself.

There are two buffers, each a file of its own (``<path>.0`` and ``<path>.1``), so that one that has become too
small is replaced without touching the other. They are written in turn, and a buffer is written only when the
other one is whole: its mark is taken away first and set last, with checksums of all bytes, so a process
that is killed at any byte leaves a whole version. Of all sizes known before, pages are allocated at once:
a full file system is then an error and not a signal. It ends the snapshots, never the training. Nor does
the training wait while gigabytes are allocated (and pinned), which takes seconds at its first steps: those
have no snapshot.

A file is locked while its writer lives. Who takes a rank over writes on in the files of a dead process; those
of one that lives (it was stopped, and somebody may continue it) are copied, and it writes where nobody looks.

Layout: 64 bytes of header, the tensors from 4096 on, each at a multiple of 64; then the head (the pickles
and what is needed to make the tensors) and the checksums.
"""

import atexit
import ctypes
import logging
import os
import pickle
import queue
import struct
import threading
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import is_not
from pathlib import Path
from typing import Any, NamedTuple

import torch

from taskd.train.torch import sums
from taskd.train.torch.exchange import Stateful, StateMismatch
from taskd.train.torch.pickling import Placing, aligned, bytes_of
from taskd.train.torch.pinned import DeviceCopies
from taskd.train.torch.snapfile import (
    BUFFERS,
    DATA,
    HEADER,
    MAGIC,
    MARK,
    Buffer,
    Header,
    SnapshotDamaged,
    SnapshotTaken,
    file_of,
    head_crc,
    headers,
    map_version,
    read_head,
    take_over,
    view_of,
)
from taskd.train.torch.spread import Meshes
from taskd.train.torch.states import Dissector, Outline, Part, put_back

__all__ = [
    "Snapshot",
    "SnapshotDamaged",
    "SnapshotTaken",
    "export",
    "import_bytes",
    "load",
    "read",
    "remove",
    "verify",
    "versions",
]

WAIT_LIMIT_S = 60.0
PATIENCE_BYTES = 256 * 2**20  # larger files take longer to allocate than a training should stand still
RETRY_S = 60.0  # after a failure: allocating gigabytes in vain is not for every step

log = logging.getLogger("taskd")


class _Span(NamedTuple):
    """Bytes that have one checksum."""

    owner: str
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where each tensor goes. Kept from step to step: it is the same while the tensors are."""

    parts: list[Part]
    spans: list[_Span]
    copies: list[tuple[int, int, int]]  # of the host's tensors: from address, bytes, to offset
    devices: list[tuple[torch.Tensor, int]]  # their bytes, to offset; the last spans are theirs, one each
    data_bytes: int
    pickled: bytes  # shapes and offsets of all tensors by part, and the spans


@dataclass(eq=False, slots=True)
class _Job:
    """A version that is being written."""

    step: int
    layout: _Layout
    head: bytes
    devices: DeviceCopies
    copied: threading.Event = field(default_factory=threading.Event)
    settled: threading.Event = field(default_factory=threading.Event)
    begun: bool = False
    abandoned: bool = False

    @property
    def need_bytes(self) -> int:
        return DATA + self.layout.data_bytes + len(self.head) + 4 * len(self.layout.spans)


class Snapshot:
    """One rank's snapshots. One process writes them; any may read them, with the functions below."""

    def __init__(self, path: str | os.PathLike[str], *, create: bool) -> None:
        """Write snapshots under this path; with ``create`` take them over, or begin where there are none."""
        self._path = os.fspath(path)
        found = headers(self._path)
        if not create and not found:
            raise FileNotFoundError(f"there are no snapshots in {self._path}")
        self._buffers: dict[int, Buffer] = {}
        self._number = max((header.number for _, header in found), default=0)
        self._newest = found[0][0] if found else None
        if create:
            take_over(self._path)
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._job: _Job | None = None  # that nobody has waited for yet
        self._last: _Job | None = None
        self._dissector = Dissector()
        self._layout = _EMPTY
        self._lock = threading.Lock()
        self._sizes: dict[int, int] = {}  # of the buffers that are allocated, and pinned if they have to be
        self._warned = False
        self._off_until = 0.0

    @property
    def path(self) -> str:
        """Where they are."""
        return self._path

    def take(self, step: int, objects: Mapping[str, Stateful], *, extra: bytes = b"") -> None:
        """Begin to copy the objects' states. They may change again after ``wait``.

        Buffers of modules, and whatever is not a tensor, may change at once. A failure is a warning.
        """
        self.wait()
        self._last = None
        if self._off_until and time.monotonic() < self._off_until:
            return
        try:
            job = self._prepare(step, objects, extra)
        except Exception as error:  # noqa: BLE001 - whatever a state_dict raises: no reason to end a training
            self._failed(step, error)
            return
        if self._thread is None:
            self._start()
        self._job = self._last = job
        self._jobs.put(job)

    def wait(self, limit_s: float = WAIT_LIMIT_S) -> bool:
        """Return when the state may change again; False if the last copy was given up for it.

        With a device the stream that is current here waits for the copies, and the caller does not.
        """
        job, self._job = self._job, None
        if job is None:
            return True
        if job.need_bytes > PATIENCE_BYTES and self._give_up_unless_begun(job):
            return False
        if not job.copied.wait(limit_s):
            # It will never be marked: what it reads from now on is no single step's.
            job.abandoned = True
            self._failed(job.step, TimeoutError(f"the copy was not done after {limit_s:g} s"))
            return False
        job.devices.order_after()
        return not job.abandoned

    def _give_up_unless_begun(self, job: _Job) -> bool:
        with self._lock:
            if not job.begun and not self._fits(job):
                job.abandoned = True
            return job.abandoned

    def _fits(self, job: _Job) -> bool:
        """Tell whether the buffers are there already, so that it is soon this one's turn."""
        return len(self._sizes) == len(BUFFERS) and min(self._sizes.values()) >= job.need_bytes

    def settle(self, limit_s: float = WAIT_LIMIT_S) -> bool:
        """Return when what was taken last can be read; False if it cannot, or not within the limit."""
        job = self._last
        return job is not None and job.settled.wait(limit_s) and not job.abandoned

    def is_settled(self) -> bool:
        """Tell whether nothing is being copied any more."""
        return self._last is None or self._last.settled.is_set()

    def discard(self, step: int) -> None:
        """Give up a snapshot of this process's that was finished from a state which cannot be believed."""
        self.wait()
        self.settle()
        for index, header in headers(self._path):
            if header.step == step and index in self._buffers:
                self._buffers[index].set_mark(0)
                self._newest = 1 - index  # the next one takes its place, and the one before stays

    def close(self) -> None:
        """Finish what is under way and unmap; the files stay."""
        self.wait()
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join(WAIT_LIMIT_S)
            self._thread = None
        for buffer in self._buffers.values():
            buffer.close()
        self._buffers.clear()

    # --- the thread --------------------------------------------------------------------------------------

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._serve, name="taskd-snapshot", daemon=True)
        self._thread.start()
        # A thread inside torch when the interpreter goes away ends the process with an error.
        here = weakref.ref(self)
        atexit.register(lambda: snapshot.close() if (snapshot := here()) is not None else None)

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                if not job.abandoned:
                    self._write(job)
            except Exception as error:  # noqa: BLE001 - the training goes on without snapshots
                job.abandoned = True
                self._failed(job.step, error)
            finally:
                job.copied.set()
                job.settled.set()
            del job  # or its tensors live until the next one

    def _write(self, job: _Job) -> None:
        index = 1 - self._newest if self._newest is not None else 0
        buffer = self._buffer(index, job.need_bytes)
        layout = job.layout
        if layout.devices:
            buffer.pin.hold()
        with self._lock:
            self._sizes[index] = buffer.size
            job.begun = not job.abandoned
        if not job.begun:
            return
        buffer.check_mine()
        buffer.set_mark(0)
        base = buffer.address + DATA
        if layout.devices:
            job.devices.begin(
                (data, buffer.bytes[DATA + at : DATA + at + len(data)]) for data, at in layout.devices
            )
        for address, length, at in layout.copies:
            ctypes.memmove(base + at, address, length)  # without the interpreter's lock
        job.copied.set()
        on_host = layout.spans[: len(layout.spans) - len(layout.devices)]
        # From the buffer: the training goes on, and may change what was copied.
        seals = [
            sums.checksum(buffer.bytes[DATA + start : DATA + start + length]) for _, start, length in on_host
        ]
        seals += job.devices.finish()
        number = self._number + 1
        fields = (MAGIC, number, job.step, layout.data_bytes, len(job.head), len(seals))
        at = DATA + layout.data_bytes
        buffer.write(at, job.head)
        buffer.write(at + len(job.head), struct.pack(f"<{len(seals)}I", *seals))
        buffer.write(0, HEADER.pack(0, *fields, head_crc(fields, job.head, seals)))
        buffer.check_mine()
        if job.abandoned:
            return
        buffer.set_mark(number)
        self._number, self._newest = number, index

    def _prepare(self, step: int, objects: Mapping[str, Stateful], extra: bytes) -> _Job:
        parts = self._dissector.take_apart(objects)
        with_tensors = [part for part in parts if part.tensors]
        layout = self._layout
        if len(layout.parts) != len(with_tensors) or any(map(is_not, layout.parts, with_tensors)):
            layout = self._layout = _lay_out(with_tensors)
        states = [(part.outline.owner, part.outline.pickled, bool(part.tensors)) for part in parts]
        head = pickle.dumps((layout.pickled, states, extra), protocol=pickle.HIGHEST_PROTOCOL)
        return _Job(step, layout, head, DeviceCopies([data for data, _ in layout.devices]))

    def _buffer(self, index: int, need_bytes: int) -> "Buffer":
        """Return a buffer that is large enough. Its old content is not kept: it is about to be written."""
        buffer = self._buffers.get(index)
        if buffer is not None and buffer.size >= need_bytes:
            return buffer
        if buffer is not None:
            buffer.check_mine()
            with self._lock:
                self._sizes.pop(index, None)
            del self._buffers[index]
            buffer.close()
        buffer = Buffer.open(file_of(self._path, index), need_bytes)
        self._buffers[index] = buffer
        return buffer

    def _failed(self, step: int, error: Exception) -> None:
        self._off_until = time.monotonic() + RETRY_S
        if not self._warned:
            self._warned = True
            log.warning("taskd: no snapshot of step %d, and maybe of later ones: %s", step, error)


# --- reading -----------------------------------------------------------------------------------------------


def versions(path: str | os.PathLike[str]) -> list[int]:
    """Return the steps that there are snapshots of, the newest first. Their content is not looked at."""
    return [header.step for _, header in headers(os.fspath(path))]


def load(path: str | os.PathLike[str], step: int, objects: Mapping[str, Stateful]) -> bytes:
    """Load a snapshot into these objects and return its ``extra``.

    Raises SnapshotDamaged or StateMismatch before anything is loaded.
    """
    name = os.fspath(path)
    outlines, places, extra, data = _verify(name, *map_version(name, step))
    owners = {outline.owner for outline in outlines}
    if owners != objects.keys():
        raise StateMismatch(sorted(owners), sorted(objects))

    def fill(number: int, tensor: torch.Tensor) -> None:
        target = bytes_of(tensor)
        start = DATA + places[number]
        target.copy_(data[start : start + target.numel()])

    put_back(objects, outlines, fill)
    return extra


def read(path: str | os.PathLike[str], step: int, meshes: Meshes) -> dict[str, Any]:
    """Return the states in a snapshot, of whatever rank; parts of spread tensors are joined to these meshes.

    Raises SnapshotDamaged.
    """
    name = os.fspath(path)
    outlines, places, _, data = _verify(name, *map_version(name, step))
    states: dict[str, Any] = {}
    starts = iter(places)
    for outline in outlines:
        tensors = [shape.make() for shape in outline.shapes]
        for tensor in tensors:
            target, start = bytes_of(tensor), DATA + next(starts)
            target.copy_(data[start : start + target.numel()])
        loaded = Placing(outline.pickled, meshes, outline.shapes, tensors).load()
        if outline.owner in states:
            states[outline.owner].update(loaded)
        else:
            states[outline.owner] = loaded
    return states


def verify(path: str | os.PathLike[str], step: int) -> None:
    """Raise SnapshotDamaged if this snapshot is not whole."""
    name = os.fspath(path)
    _verify(name, *map_version(name, step))


def export(path: str | os.PathLike[str], step: int) -> torch.Tensor:
    """Return a snapshot as a byte tensor, to be sent elsewhere. It is the shared memory itself: no copy."""
    header, data = map_version(os.fspath(path), step)
    return data[: header.used]


def import_bytes(path: str | os.PathLike[str], data: torch.Tensor | bytes | bytearray | memoryview) -> int:
    """Store what ``export`` gave elsewhere under a path here; return its step.

    It takes the place of the older one of the two. Raises SnapshotDamaged if the head is not whole; the
    tensors' checksums are looked at when it is loaded.
    """
    name = os.fspath(path)
    view = view_of(data)
    if len(view) < HEADER.size:
        raise SnapshotDamaged(name, -1, f"{len(view)} bytes are no snapshot")
    header = Header(*HEADER.unpack_from(view))
    if not header.whole or header.used != len(view):
        raise SnapshotDamaged(name, header.step, "these bytes are no snapshot")
    read_head(name, header, view)
    found = headers(name)
    same = [index for index, other in found if other.step == header.step]
    index = same[0] if same else 1 - found[0][0] if found else 0
    buffer = Buffer.open(file_of(name, index), header.used)
    try:
        buffer.set_mark(0)
        # Through the file: the pages of a fresh mapping would be touched one by one.
        at = MARK.size
        while at < len(view):
            at += os.pwrite(buffer.fd, view[at : at + 2**30], at)
        # Its own number: what arrives later is newer, whatever the number was where it was made.
        number = max((other.number for _, other in found), default=0) + 1
        fields = (MAGIC, number, *header[3:7])
        raw_head, seals = read_head(name, header, view)
        buffer.write(0, HEADER.pack(0, *fields, head_crc(fields, raw_head, seals)))
        buffer.set_mark(number)
    finally:
        buffer.close()
    return header.step


def forget(path: str | os.PathLike[str], step: int) -> None:
    """Delete the snapshot of one step: it was found damaged, and nobody should be promised it again."""
    name = os.fspath(path)
    for index, header in headers(name):
        if header.step == step:
            Path(file_of(name, index)).unlink(missing_ok=True)


def remove(path: str | os.PathLike[str]) -> None:
    """Delete the snapshots under a path."""
    for index in BUFFERS:
        Path(file_of(os.fspath(path), index)).unlink(missing_ok=True)


_EMPTY = _Layout([], [], [], [], 0, b"")


def _lay_out(parts: list[Part]) -> _Layout:
    """Give each tensor its place: the host's first, which share a checksum by part, then the devices'."""
    spans: list[_Span] = []
    copies: list[tuple[int, int, int]] = []
    devices: list[tuple[torch.Tensor, int]] = []
    device_spans: list[_Span] = []
    places: list[list[int]] = [[0] * len(part.tensors) for part in parts]
    at = 0
    for on_host in (True, False):
        for part, offsets in zip(parts, places, strict=True):
            owner, start = part.outline.owner, at
            for number, tensor in enumerate(part.tensors):
                if (tensor.device.type == "cpu") is not on_host:
                    continue
                length = tensor.nbytes
                offsets[number] = at
                if on_host and length:
                    copies.append((tensor.data_ptr(), length, at))
                elif length:
                    devices.append((bytes_of(tensor), at))
                    device_spans.append(_Span(owner, at, length))
                at += aligned(length)
            if on_host and at > start:
                spans.append(_Span(owner, start, at - start))
    spans += device_spans
    shapes = [part.outline.shapes for part in parts]
    pickled = pickle.dumps((shapes, places, spans), protocol=pickle.HIGHEST_PROTOCOL)
    return _Layout(parts, spans, copies, devices, at, pickled)


def _verify(
    path: str, header: Header, data: torch.Tensor
) -> tuple[list[Outline], list[int], bytes, torch.Tensor]:
    """Return the outlines of all states, the places of all tensors and the extra bytes, if all is whole."""
    raw, seals = read_head(path, header, view_of(data))
    # Written by a rank of this job, in a place that is its own; the checksum was right.
    layout, states, extra = pickle.loads(raw)  # noqa: S301 - see above
    shapes, places, spans = pickle.loads(layout) if layout else ([], [], [])  # noqa: S301 - as above
    for (owner, start, length), expected in zip(spans, seals, strict=True):
        if sums.checksum_quickly(data[DATA + start : DATA + start + length]) != expected:
            raise SnapshotDamaged(path, header.step, f"the state of {owner!r} is damaged")
    by_part = iter(shapes)
    outlines = [Outline(owner, pickled, next(by_part) if has else []) for owner, pickled, has in states]
    return outlines, [place for part in places for place in part], extra, data
