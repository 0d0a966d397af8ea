"""The nursery: the parent of all training processes of a node.

Somebody must be the parent: to learn exit codes, and to leave nothing behind whoever is killed. The agent is
not fit for it, since it may be replaced and does much else; so a small process stands between, which knows
nothing but processes. It must answer at once while workers run, so it neither imports the training framework
(the warm process beside it does) nor waits for anything without a bound.

Who dies, and what follows:

* the agent, in any way: its socket closes, or its pidfd fires; the nursery kills everything and ends; the
  launcher likewise, where it sent the nursery ahead, with the warm-up that it is to begin at once;
* the nursery: the kernel kills each worker (PR_SET_PDEATHSIG), and the agent kills what else is in its group;
* the warm process: workers and parked spares go on, they are the nursery's children; it is started again;
* a worker: what is left of its process group is killed before its number can be used again.

Orphans below the nursery become its children, so that those too which left their group are found at the end.
"""

# Pathlib is start-up time of every worker.

import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import cast

from taskd.agent import kin, newborn, program, zygote
from taskd.agent.nursery_wire import (
    Frames,
    Message,
    WorkerLaunch,
    differs_at_start,
    encode,
    pack_launch,
    parse_launch,
)
from taskd.core.programs import ProgramKind

FORK_S = 2.0
WARM_S = 300.0
GIVE_S = 2.0
START_S = 5.0
REFILL_DELAY_S = 0.3
CLOSE_S = 5.0
FIRST_BACK_OFF_S = 0.5
LAST_BACK_OFF_S = 30.0
MAX_WARM_FAILURES = 3
TICK_S = 5.0
_CHUNK = 1 << 16


class _Spare:
    """A process that is prepared, or is being made, and waits for its launch at the other end of a socket."""

    def __init__(self, sock: socket.socket, *, fresh: bool, deadline: float) -> None:
        self.sock = sock
        self.fresh = fresh
        self.deadline = deadline
        self.pid = 0
        self.frames = Frames()
        self.order: tuple[int, WorkerLaunch] | None = None


class _Warmth:
    """What is known of the warm process."""

    def __init__(self) -> None:
        self.pid = 0
        self.sock: socket.socket | None = None
        self.frames = Frames()
        self.forks = False
        self.unsafe = False
        self.failures = 0
        self.back_off_s = FIRST_BACK_OFF_S
        self.start_at: float | None = None
        self.deadline = float("inf")


class NurseryServer:
    """Serves one agent until it hangs up."""

    def __init__(self, agent: socket.socket, warm: str = "") -> None:
        self._agent = agent
        self._parent = os.getppid()
        self._sent_ahead = bool(warm)
        self._inbox = Frames()
        self._outbox: list[tuple[bytes, list[int]]] = []
        self._selector = selectors.DefaultSelector()
        self._workers: set[int] = set()
        self._spares: list[_Spare] = []
        self._warmth = _Warmth()
        self._warm = warm
        self._wanted = 0
        self._refill_at = 0.0
        self._log_fd = os.open(os.devnull, os.O_WRONLY)
        self._notes_fd, self._poured = -1, 0
        if warm:
            # What is said before the agent names the log; the warm process goes on writing here.
            self._log_fd = self._notes_fd = os.memfd_create("taskd-nursery")
            self._warmth.start_at = 0.0
        self._running = True
        self._told: Message = {}

    def run(self) -> None:
        """Serve until the agent is gone, then leave nothing behind."""
        newborn.become_subreaper()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # Whoever stops the whole group means the agent, which stops the workers in good order.
            signal.signal(number, signal.SIG_IGN)
        self._watch_children()
        self._agent.setblocking(False)
        self._selector.register(self._agent, selectors.EVENT_READ, self._on_agent)
        self._watch_life(self._parent)
        if os.getppid() != self._parent:
            self._running = False
        self._tend(time.monotonic())
        while self._running:
            for key, _ in self._selector.select(self._next_wait(time.monotonic())):
                ready: Callable[[], None] = key.data
                ready()
                if not self._running:
                    break
            self._reap()
            self._note_stops()
            self._tend(time.monotonic())
        self._kill_all()

    # --- the agent -------------------------------------------------------------------------------------

    def _on_agent(self) -> None:
        self._flush()
        try:
            data = self._agent.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._running = False
            return
        for message in self._inbox.feed(data):
            self._obey(message)

    def _obey(self, message: Message) -> None:
        match message["type"]:
            case "setup":
                self._set_up(message)
            case "spawn":
                launch = parse_launch(cast("Message", message["launch"]))
                self._spawn(int(str(message["order"])), launch)
            case other:
                self._log(f"unknown message {other!r}")

    def _set_up(self, message: Message) -> None:
        if log_file := str(message["log_file"]):
            try:
                opened = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            except OSError:
                opened = -1  # A log that cannot be written is no reason to run nothing.
            if opened >= 0:
                if self._notes_fd < 0:
                    os.close(self._log_fd)
                self._log_fd = opened
        if self._sent_ahead:
            self._watch_life(int(str(message["agent"])))
        self._wanted = int(str(message["spares"]))
        self._send({"type": "serving"})
        if self._warm != message["warm"]:
            self._warm = str(message["warm"])
            self._warmth.start_at = time.monotonic()

    def _send(self, message: Message, fds: list[int] | None = None) -> None:
        self._outbox.append((encode(message), fds or []))
        self._flush()

    def _flush(self) -> None:
        """Send what the agent takes now. Never wait for it: a stopped agent must not stop the nursery."""
        while self._outbox:
            data, fds = self._outbox[0]
            try:
                sent = socket.send_fds(self._agent, [data], fds)
            except BlockingIOError:
                break
            except OSError:
                self._running = False
                sent = len(data)
            for fd in fds:
                os.close(fd)
            if sent == len(data):
                self._outbox.pop(0)
            else:
                self._outbox[0] = (data[sent:], [])
        if not self._running:
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._outbox else 0)
        self._selector.modify(self._agent, events, self._on_agent)

    # --- making workers --------------------------------------------------------------------------------

    def _spawn(self, order: int, launch: WorkerLaunch) -> None:
        self._refill_at = time.monotonic() + REFILL_DELAY_S
        if not self._warm or launch.program.kind is ProgramKind.COMMAND:
            self._spawn_cold(order, launch)
            return
        if name := differs_at_start(os.environ, launch.env):
            self._log(f"{launch.key}: {name} differs from the warm process, so a fresh one is started")
            self._spawn_cold(order, launch)
            return
        for spare in [spare for spare in self._spares if spare.pid and spare.order is None]:
            if self._give(spare, order, launch, "spare"):
                return
        coming = next((s for s in self._spares if not s.pid and not s.fresh and s.order is None), None)
        coming = coming or self._request_fork(time.monotonic())
        if coming is None:
            self._spawn_cold(order, launch)
        else:
            coming.order = (order, launch)

    def _spawn_cold(self, order: int, launch: WorkerLaunch) -> None:
        try:
            pid = self._fork_and_exec(lambda: _exec_worker(launch))
        except OSError as error:
            self._send({"type": "refused", "order": order, "why": str(error)})
            return
        self._settle(order, pid, "exec")

    def _give(self, spare: _Spare, order: int, launch: WorkerLaunch, source: str) -> bool:
        self._forget(spare)
        try:
            spare.sock.settimeout(GIVE_S)
            spare.sock.sendall(encode(pack_launch(launch)))
        except OSError as error:
            # It may have read half of it: make sure that it never runs.
            self._log(f"spare {spare.pid} did not take {launch.key}: {error}")
            self._kill_group(spare.pid)
            spare.sock.close()
            return False
        spare.sock.close()
        self._tell_warmth()  # First, so that whoever hears of the worker knows that the spare is taken.
        self._settle(order, spare.pid, source)
        return True

    def _settle(self, order: int, pid: int, source: str) -> None:
        """Tell the agent of a worker, with a pidfd: opened here, where the number cannot be reused yet."""
        self._workers.add(pid)
        try:
            fds = [os.pidfd_open(pid)]
        except (OSError, AttributeError):
            fds = []
        self._send({"type": "spawned", "order": order, "pid": pid, "source": source, "fds": len(fds)}, fds)

    def _fork_and_exec(self, execute: Callable[[], None]) -> int:
        """Fork a child that calls ``execute``; return when it has its own session and guard."""
        nursery = os.getpid()
        ready, done = os.pipe()
        try:
            pid = os.fork()
            if pid == 0:
                try:
                    newborn.reset_signals()
                    os.setsid()
                    if newborn.die_with(nursery):
                        os.write(done, b".")
                        execute()
                except BaseException as error:  # noqa: BLE001 - nothing may get back into the nursery's loop.
                    newborn.refuse(f"cannot start a process: {error}", newborn.CANNOT_ENTER)
                finally:
                    os._exit(newborn.CANNOT_ENTER)
        finally:
            os.close(done)
            # One byte, or the end of the pipe if the child died first; either way it is soon.
            with selectors.SelectSelector() as waiter:
                waiter.register(ready, selectors.EVENT_READ)
                waiter.select(START_S)
            os.close(ready)
        return pid

    # --- spares and the warm process -------------------------------------------------------------------

    def _request_fork(self, now: float) -> _Spare | None:
        warmth = self._warmth
        if not warmth.forks or warmth.sock is None:
            return None
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(warmth.sock, [b"f"], [theirs.fileno()])
            except OSError as error:
                ours.close()
                self._log(f"the warm process does not take requests: {error}")
                return None
        return self._expect(_Spare(ours, fresh=False, deadline=now + FORK_S))

    def _start_fresh_spare(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._fork_and_exec(lambda: self._exec_prepared(zygote.SPARE, theirs))
        self._expect(_Spare(ours, fresh=True, deadline=float("inf")))

    def _expect(self, spare: _Spare) -> _Spare:
        self._spares.append(spare)
        self._selector.register(spare.sock, selectors.EVENT_READ, lambda: self._on_spare(spare))
        return spare

    def _on_spare(self, spare: _Spare) -> None:
        if spare not in self._spares:
            return  # Given away earlier in the same round.
        try:
            messages = spare.frames.feed(data := spare.sock.recv(_CHUNK))
        except OSError:
            data, messages = b"", []
        if not data:
            self._drop(spare, "ended while parked")
        for message in messages:
            if message["type"] != "parked":
                self._log(f"a spare could not warm up: {message.get('why')}")
                continue
            spare.pid = int(str(message["pid"]))
            if spare.order is not None:
                order, launch = spare.order
                if not self._give(spare, order, launch, "fork"):
                    self._spawn_cold(order, launch)
        self._tell_warmth()

    def _drop(self, spare: _Spare, why: str) -> None:
        self._forget(spare)
        spare.sock.close()  # One that is still on its way ends itself when it finds nobody here.
        self._log(f"spare {spare.pid or '(unborn)'} {why}")
        self._refill_at = max(self._refill_at, time.monotonic() + REFILL_DELAY_S)
        if spare.fresh and not spare.pid:
            self._refill_at = time.monotonic() + LAST_BACK_OFF_S
        if spare.order is not None:
            self._spawn_cold(*spare.order)

    def _forget(self, spare: _Spare) -> None:
        self._spares.remove(spare)
        self._selector.unregister(spare.sock)

    def _start_warm_process(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            pid = self._fork_and_exec(lambda: self._exec_prepared(zygote.FORK, theirs))
        warmth = self._warmth
        warmth.pid, warmth.sock, warmth.frames, warmth.start_at = pid, ours, Frames(), None
        warmth.deadline = time.monotonic() + WARM_S
        self._selector.register(ours, selectors.EVENT_READ, self._on_warm_process)

    def _exec_prepared(self, role: str, sock: socket.socket) -> None:
        for fd in (sock.fileno(), self._log_fd):
            os.set_inheritable(fd, True)
        words = zygote.command_line(role, sock.fileno(), self._log_fd, os.getppid(), self._warm)
        os.execve(words[0], words, os.environ)

    def _on_warm_process(self) -> None:
        warmth = self._warmth
        if warmth.sock is None:
            return
        try:
            messages = warmth.frames.feed(data := warmth.sock.recv(_CHUNK))
        except OSError:
            data, messages = b"", []
        for message in messages:
            self._pour_notes()
            self._log(f"warm process {warmth.pid}: {message}")
            warmth.deadline = float("inf")
            if message["type"] == "cold":
                warmth.failures += 1
            elif message["threads"] == 1:
                warmth.forks, warmth.failures, warmth.back_off_s = True, 0, FIRST_BACK_OFF_S
            else:
                warmth.unsafe = True
                data = b""
        if not data:
            self._lose_warm_process()
        self._tell_warmth()

    def _lose_warm_process(self) -> None:
        warmth = self._warmth
        if warmth.sock is None:
            return
        self._pour_notes()
        self._selector.unregister(warmth.sock)
        warmth.sock.close()
        warmth.sock, warmth.forks, warmth.deadline = None, False, float("inf")
        if warmth.pid:
            self._kill_group(warmth.pid)
        for spare in [spare for spare in self._spares if not spare.pid and not spare.fresh]:
            self._drop(spare, "was lost with the warm process")
        if warmth.unsafe or warmth.failures >= MAX_WARM_FAILURES:
            return
        warmth.start_at = time.monotonic() + warmth.back_off_s
        warmth.back_off_s = min(2 * warmth.back_off_s, LAST_BACK_OFF_S)

    def _tell_warmth(self) -> None:
        parked = sum(1 for spare in self._spares if spare.pid)
        warmth = self._warmth
        failed = warmth.failures >= MAX_WARM_FAILURES
        told: Message = {
            "type": "warmth",
            "warm": warmth.forks or (warmth.unsafe and parked > 0),
            "parked": parked,
            "hopeless": failed or (warmth.unsafe and not self._wanted),
            "zygote": warmth.pid,
        }
        if told != self._told:
            self._told = told
            self._send(told)

    # --- time ------------------------------------------------------------------------------------------

    def _next_wait(self, now: float) -> float:
        due = [now + TICK_S, self._warmth.deadline]
        due += [spare.deadline for spare in self._spares if not spare.pid]
        if self._warmth.start_at is not None:
            due.append(self._warmth.start_at)
        if self._lacks_spares():
            due.append(self._refill_at)
        return max(0.0, min(due) - now)

    def _tend(self, now: float) -> None:
        """Do what is due: give up late forks, start the warm process again, make the next spare."""
        for spare in [spare for spare in self._spares if not spare.pid and spare.deadline <= now]:
            self._drop(spare, "did not come in time")
        if self._warmth.deadline <= now:
            self._log(f"the warm process was not ready within {WARM_S:g} s")
            self._warmth.failures += 1
            self._lose_warm_process()
        try:
            if self._warmth.start_at is not None and self._warmth.start_at <= now:
                self._start_warm_process()
            if self._lacks_spares() and self._refill_at <= now:
                # One at a time and not at once: a worker that was just replaced needs the cores more.
                if self._warmth.unsafe:
                    self._start_fresh_spare()
                else:
                    self._request_fork(now)
        except OSError as error:
            self._log(f"cannot prepare processes: {error}")
            self._refill_at = now + LAST_BACK_OFF_S
            if self._warmth.start_at is not None:
                self._warmth.start_at = now + LAST_BACK_OFF_S

    def _lacks_spares(self) -> bool:
        able = self._warmth.forks or self._warmth.unsafe
        return able and len(self._spares) < self._wanted and all(spare.pid for spare in self._spares)

    # --- death -----------------------------------------------------------------------------------------

    def _watch_children(self) -> None:
        """Have the selector wake up for every child: also for those that were adopted, known to nobody."""
        reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._selector.register(reader, selectors.EVENT_READ, lambda: _discard(reader))

    def _watch_life(self, pid: int) -> None:
        """Notice the agent's death even if something it forked still holds its end of the socket."""
        try:
            fd = os.pidfd_open(pid)
        except (OSError, AttributeError):
            return
        self._selector.register(fd, selectors.EVENT_READ, self._on_agent_death)

    def _on_agent_death(self) -> None:
        self._running = False

    def _reap(self) -> None:
        while (pid := kin.next_dead()) is not None:
            if pid in self._workers:
                # Before the wait: until then the number, and the group of that number, are taken.
                self._kill_group(pid)
            _, status = os.waitpid(pid, 0)
            self._note_death(pid, status)

    def _note_death(self, pid: int, status: int) -> None:
        if pid in self._workers:
            self._workers.discard(pid)
            code = os.waitstatus_to_exitcode(status)
            self._send({"type": "exited", "pid": pid, "code": code})
        elif pid == self._warmth.pid:
            self._log(f"warm process {pid} ended with {os.waitstatus_to_exitcode(status)}")
            self._warmth.pid = 0
            self._lose_warm_process()
            self._tell_warmth()
        else:
            for spare in [spare for spare in self._spares if spare.pid == pid]:
                self._drop(spare, "ended while parked")
                self._tell_warmth()

    def _note_stops(self) -> None:
        """Tell of workers that a signal stopped or continued: the kernel does, the moment it happens."""
        while (found := kin.next_stop()) is not None:
            pid, stopped = found
            if pid in self._workers:
                at = time.monotonic() if stopped else 0.0
                self._send({"type": "stopped", "pid": pid, "at": at})
            elif stopped and any(spare.pid == pid for spare in self._spares):
                # It would take a launch and never run it.
                self._log(f"spare {pid} was stopped by a signal; it is replaced")
                self._kill_group(pid)

    def _kill_group(self, pid: int) -> None:
        """Kill a child and its group; nothing if it was waited for, since the number may be another's now."""
        if not kin.is_child(pid):
            return
        for kill in (os.killpg, os.kill):
            try:
                kill(pid, signal.SIGKILL)
            except OSError:
                continue  # No group (any more), or a member of another user.

    def _kill_all(self) -> None:
        """Kill everything below this process, whatever group it hides in, until nothing is left."""
        deadline = time.monotonic() + CLOSE_S
        for spare in self._spares:
            spare.order = None  # Nothing is started any more.
        for pid in self._workers:
            self._kill_group(pid)
        while time.monotonic() < deadline:
            children = kin.children()
            for pid in children:
                self._kill_group(pid)
            self._reap()
            if not children and not kin.children():
                break
            time.sleep(0.001)  # Their own children become ours when they are gone: look again.
        else:
            self._log(f"could not end {kin.children()} within {CLOSE_S:g} s")
        self._agent.settimeout(1.0)
        for data, fds in self._outbox:
            try:
                socket.send_fds(self._agent, [data], fds)
            except OSError:
                return

    def _pour_notes(self) -> None:
        """Copy to the log what a warm process that was earlier than the log has written since."""
        if self._notes_fd < 0 or self._notes_fd == self._log_fd:
            return
        size = os.fstat(self._notes_fd).st_size
        os.write(self._log_fd, os.pread(self._notes_fd, size - self._poured, self._poured))
        self._poured = size

    def _log(self, text: str) -> None:
        line = f"{time.strftime('%Y-%m-%dT%H:%M:%S')} nursery {os.getpid()}: {text}\n"
        os.write(self._log_fd, line.encode(errors="backslashreplace"))


def main() -> None:
    """Serve the agent whose socket was inherited under the number on the command line.

    A warm-up named behind it begins at once.
    """
    number, *warm = sys.argv[1:]
    agent = socket.socket(fileno=int(number))
    agent.set_inheritable(False)  # It was, to get here; no worker may hold it.
    NurseryServer(agent, *warm).run()


def _exec_worker(launch: WorkerLaunch) -> None:
    """Become a cold worker. In the child, after the fork."""
    what = launch.program
    newborn.enter(launch)
    try:
        if what.kind is ProgramKind.COMMAND:
            os.execvpe(what.target, [what.target, *what.args], launch.env)
        words = program.command_line(what.kind.value, what.target, what.args, launch.error_file)
        os.execve(words[0], words, launch.env)
    except FileNotFoundError as error:
        newborn.refuse(f"cannot start {what.target}: {error}", newborn.NOT_FOUND)
    except OSError as error:
        newborn.refuse(f"cannot start {what.target}: {error}", newborn.CANNOT_ENTER)


def _discard(fd: int) -> None:
    os.read(fd, _CHUNK)


if __name__ == "__main__":
    main()
