"""A role's process, started, watched and replaced by the launcher.

A role is replaced when it dies and when it stops beating: a stopped or hung process is as useless as a dead
one. It cannot outlive the launcher: the kernel ends it with its parent, and its lifeline ends.
"""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping

import msgspec

from taskd.kit.lifeline import FD_VARIABLE, parse_note
from taskd.kit.roles import CONFIG_VARIABLE
from taskd.launcher.forerunner import Forerunner

SILENT_S = 6.0
START_S = 60.0
# A role that ends by itself right after its start, again and again, has a reason that will not go away.
QUICK_S, MOST_QUICK_ENDS = 10.0, 5
FIRST_DELAY_S, LAST_DELAY_S, CALM_S = 0.0, 5.0, 30.0


class RoleProcess:
    """One role of the job on this machine."""

    def __init__(
        self,
        name: str,
        module: str,
        make_config: Callable[[], object],
        on_note: Callable[[str, Mapping[str, object]], None],
        forerunner: Forerunner | None = None,
    ) -> None:
        """Describe the role; ``run`` starts it and keeps it."""
        self.name = name
        self._module = module
        self._make_config = make_config
        self._on_note = on_note
        self._forerunner = forerunner
        self._process: subprocess.Popen[bytes] | None = None
        self._sock: socket.socket | None = None
        self._last_beat = 0.0
        self.finished = asyncio.Event()
        self.starts = 0
        self._quick_ends = 0

    @property
    def pid(self) -> int:
        """Return the role's process, 0 if there is none."""
        return self._process.pid if self._process is not None else 0

    @property
    def alive(self) -> bool:
        """Tell whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def tell(self, **note: object) -> None:
        """Say something to the role."""
        if self._sock is not None:
            with contextlib.suppress(OSError):
                self._sock.send(msgspec.json.encode(note) + b"\n")

    async def run(self) -> None:
        """Keep the role alive until ``finished`` is set."""
        delay_s = FIRST_DELAY_S
        while not self.finished.is_set():
            born = time.monotonic()
            code = await self._live()
            if self.finished.is_set():
                return
            lived = time.monotonic() - born
            delay_s = FIRST_DELAY_S if lived > CALM_S else min(max(delay_s * 2, 0.05), LAST_DELAY_S)
            self._quick_ends = self._quick_ends + 1 if code >= 0 and lived < QUICK_S else 0
            if self._quick_ends >= MOST_QUICK_ENDS:
                self._on_note(self.name, {"gave_up": code})
                return
            self._on_note(self.name, {"died": code, "lived_s": lived, "pid": self.pid})
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay_s):
                    await self.finished.wait()

    async def _live(self) -> int:
        """Start the role and stay until it has ended."""
        mine, theirs = socket.socketpair()
        ahead, self._forerunner = self._forerunner, None
        try:
            env = {
                **os.environ,
                **(ahead.env if ahead is not None else {}),
                CONFIG_VARIABLE: msgspec.json.encode(self._make_config()).decode(),
                FD_VARIABLE: str(theirs.fileno()),
                "TASKD_PARENT_PID": str(os.getpid()),
            }
            self._process = subprocess.Popen(
                [sys.executable, "-m", self._module],
                env=env,
                pass_fds=[theirs.fileno(), *(ahead.fds if ahead is not None else ())],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        finally:
            theirs.close()
            if ahead is not None:
                ahead.let_go()
        self.starts += 1
        mine.setblocking(False)
        self._sock = mine
        self._last_beat = time.monotonic() + START_S - SILENT_S
        reader = asyncio.ensure_future(self._listen(mine))
        watcher = asyncio.ensure_future(self._watch_silence())
        try:
            return await self._wait_for_end()
        finally:
            for task in (reader, watcher):
                task.cancel()
            await asyncio.gather(reader, watcher, return_exceptions=True)
            self._read_rest(mine)
            self._sock = None
            mine.close()

    async def _wait_for_end(self) -> int:
        process = self._process
        if process is None:
            return 0
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        pidfd = os.pidfd_open(process.pid)

        def readable() -> None:
            loop.remove_reader(pidfd)
            if not ended.done():
                ended.set_result(None)

        loop.add_reader(pidfd, readable)
        try:
            await ended
        finally:
            loop.remove_reader(pidfd)
            os.close(pidfd)
        return process.wait()

    async def _listen(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        pending = b""
        while True:
            data = await loop.sock_recv(sock, 65536)
            if not data:
                return
            self._last_beat = max(self._last_beat, time.monotonic())
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                self._hear(line)

    def _read_rest(self, sock: socket.socket) -> None:
        """Take what the role said just before it ended."""
        data = b""
        with contextlib.suppress(OSError):
            while chunk := sock.recv(65536):
                data += chunk
        for line in data.split(b"\n"):
            self._hear(line)

    def _hear(self, line: bytes) -> None:
        note = parse_note(line)
        if note and "beat" not in note:
            self._on_note(self.name, note)
        elif note:
            self._last_beat = time.monotonic()

    async def _watch_silence(self) -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(1.0)
            now = time.monotonic()
            if now - last > SILENT_S / 2:
                # It was this process that did not run.
                self._last_beat = max(self._last_beat, now)
            last = now
            if now - self._last_beat > SILENT_S and self._process is not None:
                self._on_note(self.name, {"silent": now - self._last_beat})
                self._process.kill()
                return

    def kill(self) -> None:
        """End the role at once."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
