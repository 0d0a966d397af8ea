"""Shows the ranks' log files on the launcher's own streams while they grow.

Workers write to files, not to pipes: a file cannot fill up and stop a rank when the launcher is slow, and it
survives the launcher. What people see on the terminal is therefore a copy, made here. A copy may be late,
so a terminal that nobody reads (Ctrl-S, a full pipe) holds back the copying only: one thread does the
writing, and while it has enough to do no more is read; the rest waits in the files.

Files are polled, with one ``stat`` each. inotify would save that, but is missing on network file systems,
where logs often are.
"""

# One stat per file and poll, and a Path costs more than the call.
# ruff: noqa: PTH116, PTH123

import asyncio
import os
import queue
import threading
import time
from typing import IO, Literal

Stream = Literal["stdout", "stderr"]

BUSY_POLL_S = 0.01
IDLE_POLL_S = 0.1
QUIET_POLL_S = 0.25
QUIET_AFTER_S = 30.0
PARTIAL_S = 0.5
DRAIN_S = 5.0
_CHUNK = 1 << 18
_MAX_WAITING = 16


class _File:
    """How far one file has been copied, and the start of a line whose end has not been written yet."""

    def __init__(self, path: str, stream: Stream, prefix: bytes) -> None:
        self.path = path
        self.stream = stream
        self.prefix = prefix
        self.inode = 0
        self.offset = 0
        self.partial = b""
        self.partial_since = 0.0
        self.mid_line = False
        self.done = False


class Console:
    """Copies followed files to two binary streams. ``run`` is to be a task of the owner's."""

    def __init__(self, out: IO[bytes], err: IO[bytes]) -> None:
        self._sinks: dict[Stream, IO[bytes]] = {"stdout": out, "stderr": err}
        self._files: dict[str, _File] = {}
        self._left: dict[str, _File] = {}
        self._mid_line: dict[Stream, _File | None] = {"stdout": None, "stderr": None}
        self._waiting: queue.Queue[tuple[Stream, bytes] | None] = queue.Queue()
        self._writer: threading.Thread | None = None

    def follow(self, path: str, *, stream: Stream, prefix: str = "") -> None:
        """Copy a file from now on; it need not exist yet. One that was followed before goes on from there."""
        file = _File(path, stream, prefix.encode())
        if (former := self._files.get(path) or self._left.pop(path, None)) is not None:
            file.inode, file.offset = former.inode, former.offset
        self._files[path] = file

    def unfollow(self, path: str) -> None:
        """Copy what the file holds now, then leave it alone: its rank is done."""
        if (file := self._files.get(path)) is not None:
            file.done = True

    async def run(self) -> None:
        """Copy until cancelled."""
        last_growth = time.monotonic()
        while True:
            now = time.monotonic()
            most = self._copy(now)
            if most:
                last_growth = now
            if most >= _CHUNK:
                pause_s = BUSY_POLL_S  # there is more
            else:
                pause_s = IDLE_POLL_S if now - last_growth < QUIET_AFTER_S else QUIET_POLL_S
            await asyncio.sleep(pause_s)

    async def drain(self, limit_s: float = DRAIN_S) -> bool:
        """Copy all there is, unfinished lines too; False if the terminal did not take it in time."""
        deadline = time.monotonic() + limit_s
        while (now := time.monotonic()) < deadline:
            if not self._copy(now) and self._has_room():
                break
            await asyncio.sleep(BUSY_POLL_S / 10)
        for file in self._files.values():
            self._flush_partial(file)
        while self._waiting.unfinished_tasks and time.monotonic() < deadline:
            await asyncio.sleep(BUSY_POLL_S / 10)
        return not self._waiting.unfinished_tasks

    # --- reading ---------------------------------------------------------------------------------------

    def _copy(self, now: float) -> int:
        """Take one chunk of each file that has grown; return the size of the largest."""
        most = 0
        for file in list(self._files.values()):
            data = _read_on(file) if self._has_room() else b""
            if data:
                most = max(most, len(data))
                self._take(file, data, now)
            elif self._has_room():
                if file.partial and now - file.partial_since >= PARTIAL_S:
                    self._flush_partial(file)
                if file.done:
                    self._flush_partial(file)
                    self._left[file.path] = self._files.pop(file.path)
        return most

    def _take(self, file: _File, data: bytes, now: float) -> None:
        whole, newline, rest = (file.partial + data).rpartition(b"\n")
        if not file.partial or newline:
            file.partial_since = now
        file.partial = rest
        if newline:
            self._write(file, whole + newline)
        if len(file.partial) >= _CHUNK:
            self._flush_partial(file)

    def _flush_partial(self, file: _File) -> None:
        if file.partial:
            data, file.partial = file.partial, b""
            self._write(file, data)

    # --- writing ---------------------------------------------------------------------------------------

    def _has_room(self) -> bool:
        return self._waiting.unfinished_tasks < _MAX_WAITING

    def _write(self, file: _File, data: bytes) -> None:
        text = data
        if file.prefix:
            text = data[:-1].replace(b"\n", b"\n" + file.prefix) + data[-1:]
            if not file.mid_line:
                text = file.prefix + text
            other = self._mid_line[file.stream]
            if other is not None and other is not file:
                # Another rank's line is still open: a prefix in the middle of it would help nobody.
                text = b"\n" + text
                other.mid_line = False
        file.mid_line = not data.endswith(b"\n")
        self._mid_line[file.stream] = file if file.mid_line else None
        if self._writer is None:
            self._writer = threading.Thread(target=self._write_on, name="taskd-console", daemon=True)
            self._writer.start()
        self._waiting.put((file.stream, text))

    def _write_on(self) -> None:
        while (item := self._waiting.get()) is not None:
            stream, data = item
            try:
                _write_all(self._sinks[stream], data)
            except (OSError, ValueError):
                pass  # The terminal is gone; the files have everything.
            finally:
                self._waiting.task_done()


def _write_all(sink: IO[bytes], data: bytes) -> None:
    """Write everything, also where somebody has made the terminal non-blocking for all who share it."""
    rest = memoryview(data)
    while rest:
        try:
            written = sink.write(rest)
        except BlockingIOError as full:
            written = full.characters_written
        if not written:  # None, from an unbuffered stream, says the same.
            time.sleep(BUSY_POLL_S)
        rest = rest[written or 0 :]
    while True:
        try:
            sink.flush()
        except BlockingIOError:
            time.sleep(BUSY_POLL_S)
        else:
            return


def _read_on(file: _File) -> bytes:
    try:
        found = os.stat(file.path)
        if found.st_ino != file.inode or found.st_size < file.offset:
            file.inode, file.offset = found.st_ino, 0  # Another file by now, or one that was cut.
        if found.st_size == file.offset:
            return b""
        with open(file.path, "rb") as source:
            source.seek(file.offset)
            data = source.read(_CHUNK)
    except OSError:
        return b""  # Not there yet, or not any more.
    file.offset += len(data)
    return data
