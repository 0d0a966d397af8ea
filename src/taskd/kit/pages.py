"""The workers' pages in shared memory, as mapped files. The layout is in ``core.heartbeat``."""

import contextlib
import mmap
import os
import time
from pathlib import Path

from taskd.core import heartbeat
from taskd.core.heartbeat import BeatState, BeatView
from taskd.core.testimony import Place


class Page:
    """One mapped page. The agent makes and reads it, the worker writes it."""

    def __init__(self, path: str, *, create_generation: int | None = None) -> None:
        """Map the page; with a generation, make it first (in one move, so that nobody maps half of it)."""
        if create_generation is not None:
            draft = f"{path}.new"
            data = b"".join(
                field.to_bytes(8, "little", signed=True) for field in heartbeat.blank(create_generation)
            )
            Path(draft).write_bytes(data)
            Path(draft).replace(path)
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._path = path
        self._begun_ns = 0
        try:
            self._inode = os.fstat(fd).st_ino
            self._map = mmap.mmap(fd, heartbeat.SIZE_BYTES)
        finally:
            os.close(fd)
        self._fields = memoryview(self._map).cast("q")

    def read(self) -> BeatView | None:
        """Read the page; None if it is not one."""
        return heartbeat.parse_page(self._fields.tolist())

    def join(self) -> None:
        """Say that the worker has joined."""
        fields = self._fields
        fields[heartbeat.F_PID] = os.getpid()
        fields[heartbeat.F_CHANGED_NS] = fields[heartbeat.F_MOVED_NS] = time.monotonic_ns()
        fields[heartbeat.F_STATE] = BeatState.JOINED

    def done(self, step: int) -> None:
        """Say that a step is done."""
        fields = self._fields
        now = time.monotonic_ns()
        fields[heartbeat.F_TOOK_NS] = now - self._begun_ns if self._begun_ns else 0
        fields[heartbeat.F_CHANGED_NS] = fields[heartbeat.F_MOVED_NS] = now
        fields[heartbeat.F_STEPS_DONE] += 1
        fields[heartbeat.F_STEP] = step
        fields[heartbeat.F_PLACE] = Place.BETWEEN

    def begin(self, step: int) -> None:
        """Say that a step begins."""
        fields = self._fields
        fields[heartbeat.F_MOVED_NS] = self._begun_ns = time.monotonic_ns()
        fields[heartbeat.F_BEGUN] = step
        fields[heartbeat.F_PLACE] = Place.IN_STEP

    def pause(self) -> None:
        """Say that the worker lives and is in no step: it comes together with the others."""
        self._fields[heartbeat.F_PLACE] = Place.BETWEEN
        self._fields[heartbeat.F_MOVED_NS] = time.monotonic_ns()

    def ready(self) -> None:
        """Say that the worker keeps its state and can be recovered from memory."""
        self._fields[heartbeat.F_STATE] = BeatState.READY
        self.pause()

    def let_go(self) -> None:
        """Say that the worker has heard the farewell to all ranks."""
        self._fields[heartbeat.F_STATE] = BeatState.LET_GO

    def voted(self, step: int) -> None:
        """Say that the worker holds the whole gradient of a step."""
        self._fields[heartbeat.F_VOTED] = step
        self._fields[heartbeat.F_PLACE] = Place.VOTED
        self._fields[heartbeat.F_MOVED_NS] = time.monotonic_ns()

    def ask(self) -> int:
        """Ask the worker, from the agent, where it is; returns the question's number."""
        self._fields[heartbeat.F_ASKED] += 1
        return self._fields[heartbeat.F_ASKED]

    def asked(self) -> int:
        """Return the number of the agent's question if it has no answer yet, else 0."""
        number = self._fields[heartbeat.F_ASKED]
        return number if number != self._fields[heartbeat.F_ANSWERED] else 0

    def answered(self, number: int) -> None:
        """Say that the answer to a question lies beside the page."""
        self._fields[heartbeat.F_ANSWERED] = number

    def is_current(self) -> bool:
        """Tell whether this is still the rank's page: a replacement gets another one under the same name."""
        try:
            return Path(self._path).stat().st_ino == self._inode
        except FileNotFoundError:
            return True  # the node's memory is being cleared away; the agent ends its processes itself

    def raise_generation(
        self, generation: int, leader: int, *, gentle: bool = False, leaving: bool = False
    ) -> None:
        """Tell the worker, from the agent, that a generation was raised over it."""
        self._fields[heartbeat.F_GENTLE] = 2 * generation + leaving if gentle else 0
        self._fields[heartbeat.F_LEADER] = leader
        self._fields[heartbeat.F_WANTED] = generation

    def wanted(self) -> tuple[int, int, bool, bool]:
        """Return the generation the worker should be at, its leader, whether gently, and whether to leave."""
        generation, leader = self._fields[heartbeat.F_WANTED], self._fields[heartbeat.F_LEADER]
        gentle, leaving = divmod(self._fields[heartbeat.F_GENTLE], 2)
        return generation, leader, gentle == generation, gentle == generation and bool(leaving)

    def close(self) -> None:
        """Unmap."""
        self._fields.release()
        with contextlib.suppress(BufferError):
            self._map.close()
