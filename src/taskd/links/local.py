"""The link inside a container: a unix socket between the proxy and its agent and workers."""

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path

from taskd.links.frames import HEADER, MAX_FRAME_BYTES, FrameError, frame

WRITE_LIMIT_BYTES = 4 * 1024 * 1024


async def read_frame(reader: asyncio.StreamReader) -> bytes | None:
    """Read one frame; None when the other side closed."""
    try:
        header = await reader.readexactly(HEADER.size)
        (size,) = HEADER.unpack(header)
        if size > MAX_FRAME_BYTES:
            raise FrameError(f"a frame of {size} bytes is larger than {MAX_FRAME_BYTES}")
        return await reader.readexactly(size)
    except (asyncio.IncompleteReadError, ConnectionResetError, BrokenPipeError):
        return None


class LocalLink:
    """One connection, seen from either end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take over a connected stream."""
        self._reader = reader
        self._writer = writer

    async def receive(self) -> bytes | None:
        """Return the next message; None when the other side is gone."""
        return await read_frame(self._reader)

    def send(self, data: bytes) -> bool:
        """Queue a message; False if the link is closed or the other side has stopped reading."""
        transport = self._writer.transport
        if transport.is_closing() or transport.get_write_buffer_size() > WRITE_LIMIT_BYTES:
            return False
        self._writer.write(frame(data))
        return True

    @property
    def peer_pid(self) -> int:
        """Return the process at the other end, as the kernel knows it."""
        sock = self._writer.get_extra_info("socket")
        raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid: int = struct.unpack("3i", raw)[0]
        return pid

    async def close(self) -> None:
        """Close after what was queued is out, but do not wait long for it."""
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(1.0):
                await self._writer.drain()
        self._writer.close()


async def connect_local(path: str, timeout_s: float) -> LocalLink:
    """Connect to a proxy's socket."""
    async with asyncio.timeout(timeout_s):
        reader, writer = await asyncio.open_unix_connection(path)
    return LocalLink(reader, writer)


async def serve_local(path: str, serve: Callable[[LocalLink], Awaitable[None]]) -> asyncio.Server:
    """Listen at a path; a socket file that a dead predecessor left is removed first."""
    socket_file = Path(path)
    socket_file.parent.mkdir(parents=True, exist_ok=True)
    socket_file.unlink(missing_ok=True)

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(LocalLink(reader, writer))
        finally:
            writer.close()

    return await asyncio.start_unix_server(accept, sock=_bind(path))


def _bind(path: str) -> socket.socket:
    """Make a socket that only its owner can reach.

    The mask is the whole process's, so nobody else may run while it is another one: whoever bound a second
    socket meanwhile would put the wrong mask back.
    """
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o077)
    try:
        bound.bind(path)
    except OSError:
        bound.close()
        raise
    finally:
        os.umask(before)
    return bound
