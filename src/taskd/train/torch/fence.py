"""Wake a training thread that is stuck in a gloo collective.

When a peer stops answering without closing its connections (it hangs, or its node lost power), gloo waits
for the group's timeout, and none of torch's own calls (``abort``, ``shutdown``, ``destroy_process_group``)
wakes it. Shutting the group's connections down from another thread does, within milliseconds: the blocked
call fails as if the peer had gone.

So the fence has to know which connections belong to a group. Nothing in torch says so; the sockets that a
process has before and after the group is made do. They are kept by inode, because a descriptor's number is
given to the next file as soon as it is free. What must never be shut down:

- a listener: gloo's accept thread takes that as a broken invariant and ends the process;
- a connection of a later generation: the cut for an old one may come late, when the new group stands;
- anything that was there before, and anything that is not TCP: the links to TaskD, the user's own.

Only the receiving side is shut, and the connection is kept open until all ranks are out of their collectives
(``release``). The reason is a flaw in gloo: when a peer says that it is ready, gloo's own thread writes what
was waiting for that, and if this write fails because the connection is closed, whoever waits for the send is
forgotten and nothing can wake it. So a write has to succeed while anybody may still be inside. The end of
what comes in is enough to wake everybody. A connection that is not released for a second is shut both ways.

No lock is held while a group is being made, since that is where a thread waits for a peer that died
meanwhile, and then the cut has to reach it.
"""

import contextlib
import os
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import torch.distributed as dist

HOLD_S = 1.0

_TCP_SYN_SENT = 2  # linux/tcp_states.h; the first byte of TCP_INFO


class Interrupted(RuntimeError):
    """The generation whose group was being made has been cut."""

    def __init__(self, generation: int, cut: int) -> None:
        super().__init__(f"the group of generation {generation} was cut (up to {cut}); wait for a new one")


@dataclass(eq=False)
class _Recording:
    """A group that is being made."""

    generation: int
    before: frozenset[int] = field(repr=False)


class SocketFence:
    """The connections of each generation's groups, and the knife.

    ``recording`` and ``sever`` are used by the thread that trains, ``cut`` by any other one.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Know of no connection yet."""
        self._clock = clock
        self._lock = threading.Lock()
        self._owned: dict[int, set[int]] = {}
        self._open: list[_Recording] = []
        self._cut_up_to: int | None = None
        self._held: dict[int, tuple[socket.socket, float]] = {}

    @contextmanager
    def recording(self, generation: int) -> Iterator[None]:
        """Remember the sockets that appear meanwhile as this generation's; use it around each group's making.

        Raises Interrupted at its begin or at its end if the generation has been cut. An error of the block
        that the cut caused becomes the cause of that.
        """
        with self._lock:
            self._refuse_if_cut(generation)
            now = _Recording(generation, frozenset(_sockets()))
            self._open.append(now)
        try:
            yield
        except Exception as error:
            self._finish(now)
            self._refuse_if_cut(generation, error)
            raise
        except BaseException:
            self._finish(now)
            raise
        self._finish(now)
        self._refuse_if_cut(generation)

    def cut(self, generation: int) -> int:
        """Shut down all connections up to this generation; return how many were not cut before.

        It may be called again: gloo opens new connections for a while when one fails during its making.
        """
        with self._lock:
            if self._cut_up_to is None or generation > self._cut_up_to:
                self._cut_up_to = generation
            now = _sockets()
            doomed: set[int] = set()
            spared: set[int] = set()
            for owner, inodes in self._owned.items():
                (doomed if owner <= generation else spared).update(inodes)
            for recording in self._open:
                appeared = now.keys() - recording.before
                (doomed if recording.generation <= generation else spared).update(appeared)
            doomed = now.keys() & (doomed - spared)
            count = 0
            for inode in doomed - self._held.keys():
                kept = _hold(now[inode], inode, socket.SHUT_RD)
                if kept is not None:
                    self._held[inode] = kept, self._clock()
                    count += 1
            late = self._clock() - HOLD_S
            for kept, since in self._held.values():
                if since <= late:
                    with contextlib.suppress(OSError):  # the peer was faster
                        kept.shutdown(socket.SHUT_RDWR)
            return count

    def release(self) -> None:
        """Close what was cut: every rank is out of its collectives."""
        with self._lock:
            for kept, _ in self._held.values():
                kept.close()
            self._held.clear()

    def sever(self, generation: int) -> int:
        """Shut this generation's connections down as a broken network would; return how many there were.

        Nothing is marked as cut: as far as the job knows, the generation goes on.
        """
        with self._lock:
            now = _sockets()
            owned = self._owned.get(generation, set())
            severed = [_hold(now[inode], inode, socket.SHUT_RDWR) for inode in now.keys() & owned]
            for connection in severed:
                if connection is not None:
                    connection.close()
            return len(severed) - severed.count(None)

    def forget(self, generation: int) -> None:
        """Drop what is known of the groups up to this generation, which have been destroyed."""
        with self._lock:
            for owner in [owner for owner in self._owned if owner <= generation]:
                del self._owned[owner]

    def _finish(self, recording: _Recording) -> None:
        with self._lock:
            self._open.remove(recording)
            appeared = _sockets().keys() - recording.before
            for owner, inodes in self._owned.items():
                # The kernel may give a closed socket's inode to a new one: it is the newest owner's.
                if owner < recording.generation:
                    inodes.difference_update(appeared)
                else:
                    appeared -= inodes
            self._owned.setdefault(recording.generation, set()).update(appeared)

    def _refuse_if_cut(self, generation: int, cause: Exception | None = None) -> None:
        cut = self._cut_up_to
        if cut is not None and generation <= cut:
            raise Interrupted(generation, cut) from cause


def destroy_groups() -> None:
    """Destroy all process groups, without the deadlock that ``destroy_process_group`` alone may end in.

    A group's destructor waits for gloo's threads with the interpreter locked (torch 2.6), and such a thread
    may need the interpreter just then, to drop the tensor of the last call. The destructor of the backend
    inside does unlock it. So the backends are kept until the groups are gone, and go last.
    """
    if not dist.is_initialized():
        return
    backends = _backends()
    try:
        dist.destroy_process_group()
    finally:
        backends.clear()


def count_collectives() -> dict[str, int]:
    """Return how many collectives this rank has begun in each group: who has begun fewer holds others up.

    Called from another thread than the one that trains, and only while no group is being taken down.
    """
    counts: dict[str, int] = {}
    for group in list(dist.distributed_c10d._world.pg_map):  # noqa: SLF001 - there is no public list of groups
        with contextlib.suppress(RuntimeError):
            count = cast("Any", group)._get_sequence_number_for_group()  # noqa: SLF001 - as above
            counts[group.group_name] = int(count)
    return counts


def _backends() -> list[object]:
    # A function of its own: a group in a local variable of the caller would outlive the backends.
    found: list[object] = []
    for group in dist.distributed_c10d._world.pg_map:  # noqa: SLF001 - there is no public list of groups
        for device in group._device_types:  # noqa: SLF001 - as above
            with contextlib.suppress(RuntimeError):
                found.append(group._get_backend(device))  # noqa: SLF001 - as above
    return found


def _sockets() -> dict[int, int]:
    """Return this process's sockets: inode -> descriptor."""
    found: dict[int, int] = {}
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - paths would double the time of a cut
        fd = int(name)
        try:
            status = os.fstat(fd)
        except OSError:  # closed meanwhile, or the listing's own
            continue
        if stat.S_ISSOCK(status.st_mode):
            found[status.st_ino] = fd
    return found


def _hold(fd: int, inode: int, how: int) -> socket.socket | None:
    """Shut a connection down, if that is what the descriptor (still) is, and return a hold on it."""
    try:
        held = socket.socket(fileno=os.dup(fd))
    except OSError:
        return None
    # From here on the descriptor cannot be given to another file under our feet.
    try:
        if os.fstat(held.fileno()).st_ino == inode and _is_connection(held):
            held.shutdown(how)
            return held
    except OSError:  # the peer was faster
        pass
    held.close()
    return None


def _is_connection(sock: socket.socket) -> bool:
    """Tell whether this is a TCP connection, made or about to be made; never a listener."""
    if sock.family not in {socket.AF_INET, socket.AF_INET6} or sock.type != socket.SOCK_STREAM:
        return False
    if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return False
    try:
        sock.getpeername()
    except OSError:
        # A node that is gone does not even refuse: the kernel would try for minutes.
        state: int = struct.unpack("B", sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1))[0]
        return state == _TCP_SYN_SENT
    return True
