"""The socket pair between the launcher and a role that it started.

It carries three things: signs of life (a role that stops beating is replaced), notes for the person at the
console, and the end of the launcher: when it dies, however it dies, the role reads the end of the stream.
"""

import asyncio
import os
import socket
from collections.abc import Callable, Mapping

import msgspec

FD_VARIABLE = "TASKD_LIFELINE_FD"
BEAT_S = 1.0

_encode = msgspec.json.Encoder().encode


class Lifeline:
    """The role's end. Without a launcher (a manager.py of the user's) it does nothing."""

    def __init__(self) -> None:
        """Take the descriptor from the environment, so that no child inherits it."""
        self._sock: socket.socket | None = None
        fd = os.environ.pop(FD_VARIABLE, "")
        if fd.isdigit():
            self._sock = socket.socket(fileno=int(fd))
            self._sock.setblocking(False)
            os.set_inheritable(self._sock.fileno(), False)

    @property
    def attached(self) -> bool:
        """Tell whether a launcher is at the other end."""
        return self._sock is not None

    def say(self, **note: object) -> None:
        """Tell the launcher something; dropped if it does not read."""
        if self._sock is None:
            return
        try:
            self._sock.send(_encode(note) + b"\n")
        except (BlockingIOError, OSError):
            return

    def watch(
        self, on_end: Callable[[], None], on_note: Callable[[Mapping[str, object]], None] | None = None
    ) -> None:
        """Call back when the launcher is gone, and when it says something."""
        if self._sock is None:
            return
        loop = asyncio.get_running_loop()
        sock = self._sock
        pending = bytearray()

        def readable() -> None:
            try:
                data = sock.recv(4096)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                loop.remove_reader(sock.fileno())
                on_end()
                return
            pending.extend(data)
            *lines, rest = bytes(pending).split(b"\n")
            pending[:] = rest
            for line in lines:
                if on_note is not None:
                    on_note(parse_note(line))

        loop.add_reader(sock.fileno(), readable)

    async def beat(self) -> None:
        """Send signs of life for ever."""
        while True:
            self.say(beat=1)
            await asyncio.sleep(BEAT_S)


def parse_note(line: bytes) -> Mapping[str, object]:
    """Read a note of a role; an unreadable one is empty."""
    try:
        note = msgspec.json.decode(line)
    except msgspec.MsgspecError:
        return {}
    return note if isinstance(note, dict) else {}
