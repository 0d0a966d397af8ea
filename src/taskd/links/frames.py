"""Frames on a unix socket: four bytes of length, then the message.

The reader here serves the worker, which lives in somebody else's process and may have neither an event loop
nor a thread there; the one for asyncio is in ``local``.
"""

import select
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
    """Frames over a socket without an event loop. One thread may read while another one sends."""

    def __init__(self, sock: socket.socket, send_limit_s: float) -> None:
        """Take over a connected socket."""
        sock.settimeout(send_limit_s)
        self._sock = sock
        self._poller = select.poll()
        self._poller.register(sock, select.POLLIN)
        self._buffer = bytearray()

    def send(self, data: bytes) -> None:
        """Send one frame; raises OSError if that is not possible in time."""
        self._sock.sendall(frame(data))

    def poll(self, wait_s: float = 0.0) -> list[bytes]:
        """Return the frames that have arrived; raises ConnectionError when the other side is gone."""
        while self._poller.poll(wait_s * 1000.0):
            wait_s = 0.0
            chunk = self._sock.recv(65536)
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
