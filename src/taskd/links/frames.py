"""Frames on a unix socket: four bytes of length, then the message.

The reader here serves the worker, which lives in somebody else's process and may have neither an event loop
nor a thread there; the one for asyncio is in ``local``.
"""

import socket
import struct

HEADER = struct.Struct(">I")
MAX_FRAME_BYTES = 8 * 1024 * 1024


class FrameError(ConnectionError):
    """The other side sent something that cannot be a frame."""


def frame(data: bytes) -> bytes:
    """Put the length in front."""
    return HEADER.pack(len(data)) + data


class BlockingFrames:
    """Frames over a socket without an event loop; ``poll`` never waits."""

    def __init__(self, sock: socket.socket) -> None:
        """Take over a connected socket."""
        self._sock = sock
        self._buffer = bytearray()

    def send(self, data: bytes, timeout_s: float) -> None:
        """Send one frame; raises OSError if that is not possible in time."""
        self._sock.settimeout(timeout_s)
        self._sock.sendall(frame(data))

    def poll(self) -> list[bytes]:
        """Return the frames that have arrived; raises ConnectionError when the other side is gone."""
        self._sock.setblocking(False)
        while True:
            try:
                chunk = self._sock.recv(65536)
            except BlockingIOError:
                break
            if not chunk:
                raise ConnectionResetError("the proxy closed the connection")
            self._buffer += chunk
        return self._complete()

    def _complete(self) -> list[bytes]:
        frames: list[bytes] = []
        while len(self._buffer) >= HEADER.size:
            (size,) = HEADER.unpack_from(self._buffer)
            if size > MAX_FRAME_BYTES:
                raise FrameError(f"a frame of {size} bytes is larger than {MAX_FRAME_BYTES}")
            end = HEADER.size + size
            if len(self._buffer) < end:
                break
            frames.append(bytes(self._buffer[HEADER.size : end]))
            del self._buffer[:end]
        return frames

    def close(self) -> None:
        """Close the socket."""
        self._sock.close()
