"""The agent's side of the nursery: start, signal and watch training processes from an event loop.

Recovery begins when a death is noticed, so the agent does not wait to be told: it holds a pidfd of every
worker, which becomes readable the moment the process is gone, wherever its parent is. Only the exit status
has to come from the parent, a few hundred microseconds later, and is waited for with a bound.

Every child is reported exactly once, also when the nursery itself is killed: then nobody knows a status any
more, the agent kills what is left of each process group and reports signal 9.
"""

import asyncio
import contextlib
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass

from taskd.agent.nursery_wire import Frames, Message, WorkerLaunch, encode, pack_launch
from taskd.agent.surroundings import NURSERY_VARIABLE, start_nursery
from taskd.core.exits import Exit

__all__ = [
    "Child",
    "ChildExit",
    "Nursery",
    "NurseryLostError",
    "Sent",
    "SpawnError",
    "WorkerLaunch",
    "take_sent",
]

SPAWN_S = 15.0
STATUS_S = 2.0
CLOSE_S = 3.0
_CHUNK = 1 << 16
_MAX_FDS = 64


class SpawnError(RuntimeError):
    """A process could not be started: the system had no room for it."""


class NurseryLostError(RuntimeError):
    """The nursery process is gone; its workers are, too. Make a new one."""

    def __init__(self) -> None:
        super().__init__("the nursery process is gone; start a new one")


@dataclass(frozen=True, slots=True)
class Child:
    """A worker that was started. ``source`` is "spare", "fork" or "exec"."""

    key: str
    pid: int
    source: str


@dataclass(frozen=True, slots=True)
class ChildExit:
    """A worker that ended. ``noticed_at`` is the monotonic time at which its pidfd fired here."""

    key: str
    pid: int
    exit: Exit
    noticed_at: float


@dataclass(frozen=True, slots=True)
class Sent:
    """A nursery that somebody started for this agent: the socket to it, and its process."""

    fd: int
    pid: int


def take_sent(env: MutableMapping[str, str]) -> Sent | None:
    """Take from the environment which nursery was sent ahead, so that no child sees it."""
    fd, _, pid = env.pop(NURSERY_VARIABLE, "").partition(",")
    if not (fd.isdigit() and pid.isdigit()):
        return None
    os.set_inheritable(int(fd), False)
    return Sent(int(fd), int(pid))


class _Stepchild:
    """A process that somebody else waits for, as far as a nursery's own process is needed here."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._pidfd = os.pidfd_open(pid)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def wait(self, timeout: float) -> None:
        if not select.select([self._pidfd], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(["nursery"], timeout)
        os.close(self._pidfd)


class _Entry:
    """What the agent holds of one living worker."""

    def __init__(self, key: str, pid: int, pidfd: int) -> None:
        self.key = key
        self.pid = pid
        self.pidfd = pidfd
        self.noticed_at = 0.0
        self.exit: Exit | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.held = True
        self.stopped_at: float | None = None


class Nursery:
    """One nursery process and the workers in it. All calls belong to the loop that ``start`` ran in.

    ``env`` is the environment of the nursery and of the warm process. A launch whose variables of the kind
    that is read once at start (PYTHON*, LD_*, OMP_*, TORCH_* …) differ from it gets a fresh process.
    ``warm`` names a function, ``module:name``, that loads what workers need; ``spares`` processes are kept
    parked behind it. ``sent`` is a nursery process that runs already, warming up, and is taken over.

    ``on_exit`` is called in the loop, once per child, and never before the call of ``spawn`` that made the
    child has returned to a caller that awaits it directly.
    """

    def __init__(
        self,
        *,
        env: Mapping[str, str],
        on_exit: Callable[[ChildExit], None],
        warm: str = "",
        spares: int = 0,
        log_file: str = "",
        start_deadline_s: float = 60.0,
        sent: Sent | None = None,
    ) -> None:
        self.alive = False
        self.pid = 0
        self.zygote_pid = 0
        self.on_lost: Callable[[], None] | None = None
        self.on_stop: Callable[[], None] | None = None
        self._env = dict(env)
        self._on_exit = on_exit
        self._setup: Message = {"type": "setup", "warm": warm, "spares": spares, "log_file": log_file}
        self._setup["agent"] = os.getpid()
        self._sent = sent
        self._process: subprocess.Popen[bytes] | _Stepchild
        self._spares = spares
        self._start_deadline_s = start_deadline_s
        self._entries: dict[int, _Entry] = {}
        self._orders: dict[int, tuple[str, asyncio.Future[Child]]] = {}
        self._last_order = 0
        self._frames = Frames()
        self._fds: list[int] = []
        self._pidfd = -1
        self._closing = False

    # --- life of the nursery ---------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the nursery process; returns when it serves requests, whether or not it is warm yet."""
        self._loop = asyncio.get_running_loop()
        self._sending = asyncio.Lock()
        self._serving, self._ended, self._changed = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._warm, self._parked, self._hopeless = False, 0, False
        if not self._take_over():
            self._process, self._sock = start_nursery(self._env)
        self._sock.setblocking(False)
        self.pid, self.alive = self._process.pid, True
        self._loop.add_reader(self._sock, self._on_readable)
        try:
            self._pidfd = os.pidfd_open(self.pid)
            self._loop.add_reader(self._pidfd, self._on_nursery_death)
        except (OSError, AttributeError):
            self._pidfd = -1  # An old kernel: the end of the socket says it as well.
        try:
            async with asyncio.timeout(self._start_deadline_s):
                await self._send(self._setup)
                await self._serving.wait()
        except (TimeoutError, OSError):
            await self.close()
            raise
        if not self.alive:
            raise NurseryLostError

    def _take_over(self) -> bool:
        """Make the nursery that was sent ahead this one; False if there is none, or it is gone already."""
        sent, self._sent = self._sent, None
        if sent is None:
            return False
        sock = socket.socket(fileno=sent.fd)
        try:
            self._process = _Stepchild(sent.pid)
        except (OSError, AttributeError):
            sock.close()  # Whatever is at the other end ends with this.
            return False
        self._sock = sock
        return True

    async def close(self) -> None:
        """Kill every worker with what it left behind, end the nursery, close every file descriptor."""
        if self._closing or not self.pid:
            return
        self._closing = True
        if self.alive:
            try:
                # The nursery sees the end, kills and reaps everything, and reports it while we still read.
                self._sock.shutdown(socket.SHUT_WR)
                async with asyncio.timeout(CLOSE_S):
                    await self._ended.wait()
            except (TimeoutError, OSError):
                self._process.kill()
            self._detach()
        for entry in list(self._entries.values()):
            self._kill_group(entry.pid, signal.SIGKILL)
            entry.held = False
            self._settle(entry, Exit(signal=signal.SIGKILL))

    def _on_nursery_death(self) -> None:
        self._on_readable()  # What it said before it died is still worth hearing.
        self._lose()

    def _lose(self) -> None:
        if not self.alive:
            return
        if self._closing:
            self._ended.set()
            return
        self._detach()
        for entry in list(self._entries.values()):
            self._kill_group(entry.pid, signal.SIGKILL)
            if entry.pidfd < 0 or entry.noticed_at:
                self._settle(entry, Exit(signal=signal.SIGKILL))
            else:  # Report it when it is gone, which is a moment later.
                entry.timer = self._loop.call_later(
                    STATUS_S, self._settle, entry, Exit(signal=signal.SIGKILL)
                )
        self._tell_lost()

    def _tell_lost(self) -> None:
        if not self.alive and not self._entries and not self._closing and self.on_lost is not None:
            on_lost, self.on_lost = self.on_lost, None
            self._loop.call_soon(on_lost)

    def _detach(self) -> None:
        """Let go of the nursery process: it has ended, or is about to by SIGKILL."""
        self.alive = False
        self._loop.remove_reader(self._sock)
        self._sock.close()
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()
        try:
            self._process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=1.0)
        for _, waiter in self._orders.values():
            if not waiter.done():
                waiter.set_exception(NurseryLostError())
        self._orders.clear()
        self._serving.set()
        self._ended.set()
        self._changed.set()

    # --- workers ---------------------------------------------------------------------------------------

    async def spawn(self, launch: WorkerLaunch) -> Child:
        """Start one worker; returns when its process exists."""
        (child,) = await self.spawn_all([launch])
        return child

    async def spawn_all(self, launches: Sequence[WorkerLaunch]) -> list[Child]:
        """Start workers at the same time; returns them in the same order.

        All or none: if one cannot be started, those that were are killed before the error is raised.
        """
        if not self.alive or self._closing:
            raise NurseryLostError
        if not launches:
            return []
        waiters: dict[int, asyncio.Future[Child]] = {}
        data = bytearray()
        for launch in launches:
            self._last_order += 1
            waiters[self._last_order] = self._loop.create_future()
            self._orders[self._last_order] = (launch.key, waiters[self._last_order])
            data += encode({"type": "spawn", "order": self._last_order, "launch": pack_launch(launch)})
        try:
            async with asyncio.timeout(SPAWN_S):
                await self._send_bytes(bytes(data))
                await asyncio.wait(waiters.values())
            children = [waiter.result() for waiter in waiters.values()]
        except BaseException:
            self._abandon(waiters)
            raise
        for child in children:
            self._loop.call_soon(self._release, child.pid)
        return children

    def signal(self, pid: int, sig: int) -> None:
        """Send a signal to a worker and all of its process group; one that is gone is no error."""
        if pid in self._entries:
            self._kill_group(pid, sig)

    def stopped_at(self, pid: int) -> float | None:
        """Return since when a worker is stopped by a signal, None if it may run."""
        entry = self._entries.get(pid)
        return None if entry is None else entry.stopped_at

    async def warm_ready(self, timeout_s: float, *, parked: bool = True) -> bool:
        """Wait until workers come warm, and all spares are ``parked``; False if not in time."""
        spares = self._spares if parked else 0
        try:
            async with asyncio.timeout(timeout_s):
                while not (self._warm and self._parked >= spares):
                    if not self.alive or self._hopeless:
                        return False
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def _abandon(self, waiters: Mapping[int, asyncio.Future[Child]]) -> None:
        """Make sure that nothing runs of a call that failed."""
        for order, waiter in waiters.items():
            self._orders.pop(order, None)  # One that comes later finds nobody and is killed then.
            if not waiter.done():
                waiter.cancel()
            elif not waiter.cancelled() and waiter.exception() is None:
                pid = waiter.result().pid
                self._kill_group(pid, signal.SIGKILL)
                self._loop.call_soon(self._release, pid)

    def _kill_group(self, pid: int, sig: int) -> None:
        # Gone; or it has become another user's, whom the agent may not signal.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, sig)

    # --- what the nursery says -------------------------------------------------------------------------

    async def _send(self, message: Message) -> None:
        await self._send_bytes(encode(message))

    async def _send_bytes(self, data: bytes) -> None:
        async with self._sending:
            if not self.alive:
                raise NurseryLostError
            try:
                await self._loop.sock_sendall(self._sock, data)
            except (BrokenPipeError, ConnectionResetError):
                raise NurseryLostError from None

    def _on_readable(self) -> None:
        while self.alive:
            try:
                data, fds, _, _ = socket.recv_fds(self._sock, _CHUNK, _MAX_FDS)
            except BlockingIOError:
                return
            except OSError:
                data, fds = b"", []
            self._fds += fds
            for message in self._frames.feed(data):
                self._hear(message)
            if not data:
                self._lose()
                return

    def _hear(self, message: Message) -> None:
        match message["type"]:
            case "serving":
                self._serving.set()
            case "spawned":
                self._on_spawned(message)
            case "refused":
                _, waiter = self._orders.pop(int(str(message["order"])), ("", None))
                if waiter is not None and not waiter.done():
                    waiter.set_exception(SpawnError(f"cannot start a process: {message['why']}"))
            case "exited":
                entry = self._entries.get(int(str(message["pid"])))
                code = int(str(message["code"]))
                if entry is not None:
                    self._settle(entry, Exit(code=code) if code >= 0 else Exit(signal=-code))
            case "stopped":
                entry = self._entries.get(int(str(message["pid"])))
                if entry is not None:
                    entry.stopped_at = float(str(message["at"])) or None
                if self.on_stop is not None:
                    self.on_stop()
            case "warmth":
                self._warm, self._hopeless = bool(message["warm"]), bool(message["hopeless"])
                self._parked, self.zygote_pid = int(str(message["parked"])), int(str(message["zygote"]))
                self._changed.set()
            case _:
                pass  # Agent and nursery are of one release: there is nothing else.

    def _on_spawned(self, message: Message) -> None:
        pid = int(str(message["pid"]))
        # Descriptors travel beside the bytes and arrive in order with the messages that they belong to.
        pidfd = self._fds.pop(0) if message["fds"] else -1
        key, waiter = self._orders.pop(int(str(message["order"])), ("", None))
        if waiter is None or waiter.done():
            self._kill_group(pid, signal.SIGKILL)
            if pidfd >= 0:
                os.close(pidfd)
            return
        entry = self._entries[pid] = _Entry(key, pid, pidfd)
        if pidfd >= 0:
            self._loop.add_reader(pidfd, self._on_child_death, entry)
        waiter.set_result(Child(key, pid, str(message["source"])))

    # --- the end of a worker ---------------------------------------------------------------------------

    def _on_child_death(self, entry: _Entry) -> None:
        self._note(entry)
        if not self.alive:
            self._settle(entry, Exit(signal=signal.SIGKILL))
        else:
            entry.timer = self._loop.call_later(STATUS_S, self._settle, entry, Exit())

    def _note(self, entry: _Entry) -> None:
        if not entry.noticed_at:
            entry.noticed_at = time.monotonic()
        if entry.pidfd >= 0:
            self._loop.remove_reader(entry.pidfd)
            os.close(entry.pidfd)
            entry.pidfd = -1

    def _settle(self, entry: _Entry, how: Exit) -> None:
        """Note how a worker ended, and report it unless its spawn has yet to return."""
        self._note(entry)
        if entry.timer is not None:
            entry.timer.cancel()
            entry.timer = None
        if entry.exit is None:
            entry.exit = how
        if not entry.held and self._entries.pop(entry.pid, None) is entry:
            self._on_exit(ChildExit(entry.key, entry.pid, entry.exit, entry.noticed_at))
            self._tell_lost()

    def _release(self, pid: int) -> None:
        entry = self._entries.get(pid)
        if entry is not None:
            entry.held = False
            if entry.exit is not None:
                self._settle(entry, entry.exit)
