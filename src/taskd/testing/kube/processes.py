"""Programs that end with us, whatever happens to us.

A test process may be killed at any moment, and what it started must not outlive it: an API server that is
left over holds a port and 300 MB. Two things see to that. The kernel ends each program when the thread
that started it ends (``PR_SET_PDEATHSIG``); since that is the *thread*, not the process, one thread that
lives as long as the process starts them all. And every working directory is locked by its owner, so that
the next start finds and removes what a killed one could not.
"""

import fcntl
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from typing import Final

# Run by a bare interpreter in the new process: ask to be killed with the parent (PR_SET_PDEATHSIG is 1,
# SIGKILL is 9), make sure that the parent did not end before we could ask, and become the program. (A
# preexec_fn would do the same by running Python code in a fork of a threaded process.)
_BECOME: Final = """
import ctypes, os, sys
if ctypes.CDLL(None).prctl(1, 9, 0, 0, 0) != 0 or os.getppid() != int(sys.argv[1]):
    os._exit(127)
os.execv(sys.argv[2], sys.argv[2:])
"""

# Below the range from which the kernel takes ports for outgoing connections, so that nobody takes the port
# of a server while it is down on purpose.
_PORTS: Final = (20_000, 32_000)

_PREFIX: Final = "taskd-kube-"
_OWNER: Final = "owner"

# The locks on our own working directories, held until they are removed or we end.
_locks: dict[Path, int] = {}


class ProgramFailed(RuntimeError):
    """A program ended, or did not become ready in time. Says how, with the end of its log."""


class _Starter(threading.Thread):
    """The one thread that starts programs; it ends with the process."""

    def __init__(self) -> None:
        super().__init__(name="taskd-kube-starter", daemon=True)
        self._orders: SimpleQueue[
            tuple[list[str], dict[str, str], Path, Path, Future[subprocess.Popen[bytes]]]
        ] = SimpleQueue()
        self.pid = os.getpid()

    def run(self) -> None:
        while True:
            command, environment, log, cwd, answer = self._orders.get()
            try:
                with log.open("ab") as out:
                    answer.set_result(
                        subprocess.Popen(
                            [sys.executable, "-I", "-S", "-c", _BECOME, str(os.getpid()), *command],
                            env=environment,
                            cwd=cwd,
                            stdin=subprocess.DEVNULL,
                            stdout=out,
                            stderr=subprocess.STDOUT,
                            # Ctrl-C is for the tests, which then end their programs in order.
                            start_new_session=True,
                        )
                    )
            except OSError as error:
                answer.set_exception(error)

    def start_program(
        self, command: list[str], environment: dict[str, str], log: Path, cwd: Path
    ) -> subprocess.Popen[bytes]:
        answer: Future[subprocess.Popen[bytes]] = Future()
        self._orders.put((command, environment, log, cwd, answer))
        return answer.result(timeout=30)


_starter: _Starter | None = None
_starter_lock = threading.Lock()


def _the_starter() -> _Starter:
    global _starter  # noqa: PLW0603 - one per process; a forked child needs its own
    with _starter_lock:
        if _starter is None or _starter.pid != os.getpid():
            _starter = _Starter()
            _starter.start()
        return _starter


class Program:
    """One program with its command line; it can be started, killed, paused and started again."""

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        log: Path,
        name: str | None = None,
        environment: Mapping[str, str] | None = None,
        stop_signal: signal.Signals = signal.SIGTERM,
    ) -> None:
        self.command = [str(part) for part in command]
        self.name = name or Path(self.command[0]).name
        self.log = log
        self._environment = {"PATH": os.defpath, "HOME": str(log.parent), **(environment or {})}
        self._stop_signal = stop_signal
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process id while it runs."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    @property
    def running(self) -> bool:
        """Whether it runs (a paused one does)."""
        return self.pid is not None

    def start(self) -> None:
        """Start it, unless it runs. Does not wait until it is ready."""
        if not self.running:
            # Nothing of a developer's environment (proxies, KUBECONFIG) comes along.
            self._process = _the_starter().start_program(
                self.command, self._environment, self.log, self.log.parent
            )

    def kill(self) -> None:
        """End it without a word, as a crash does (SIGKILL), and wait until it is gone."""
        self._end(signal.SIGKILL, patience_s=0)

    def stop(self, *, patience_s: float = 5) -> None:
        """Ask it to end; after ``patience_s`` it is killed."""
        self._end(self._stop_signal, patience_s=patience_s)

    def pause(self) -> None:
        """Freeze it (SIGSTOP): connections stay open and nobody answers."""
        self._require().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on after `pause`."""
        self._require().send_signal(signal.SIGCONT)

    def check(self) -> None:
        """Raise `ProgramFailed` if it has ended."""
        if self._process is None:
            raise ProgramFailed(f"{self.name} was not started")
        code = self._process.poll()
        if code is not None:
            raise ProgramFailed(f"{self.name} ended with {code}; the end of its log:\n{self.tail()}")

    def tail(self, lines: int = 15) -> str:
        """Return the end of its log."""
        try:
            text = self.log.read_text(errors="replace")
        except FileNotFoundError:
            return "(no log)"
        return "\n".join(text.splitlines()[-lines:])

    def _require(self) -> subprocess.Popen[bytes]:
        self.check()
        assert self._process is not None  # noqa: S101 - check() has just said so
        return self._process

    def _end(self, how: signal.Signals, *, patience_s: float) -> None:
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.send_signal(how)
        # A paused program gets its signal only when it goes on. (SIGKILL does not wait for that.)
        process.send_signal(signal.SIGCONT)
        try:
            process.wait(patience_s or 10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


def free_port() -> int:
    """Return a loopback port that nobody uses now."""
    for _ in range(200):
        port = random.SystemRandom().randrange(*_PORTS)  # tests of one seed must not meet at one port
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise ProgramFailed(f"no free loopback port between {_PORTS[0]} and {_PORTS[1]}")


def working_directory(parent: Path | None = None) -> Path:
    """Make a private working directory, and remove those whose owner is gone."""
    parent = parent or Path(tempfile.gettempdir())
    clear_left_over(parent)
    directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    # Locked before it has its name, so that nobody finds it unlocked.
    new = directory / ".owner"
    lock = os.open(new, os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.write(lock, f"{os.getpid()}\n".encode())
    new.rename(directory / _OWNER)
    _locks[directory] = lock
    return directory


def remove_directory(directory: Path) -> None:
    """Remove a working directory of our own."""
    shutil.rmtree(directory, ignore_errors=True)
    lock = _locks.pop(directory, None)
    if lock is not None:
        os.close(lock)


def clear_left_over(parent: Path | None = None) -> None:
    """Remove working directories of processes that were killed. Their programs the kernel has ended.

    A living owner holds a lock, which ends with it; a process id could be anybody's by now, or that of
    another container that shares the directory.
    """
    for directory in (parent or Path(tempfile.gettempdir())).glob(f"{_PREFIX}*"):
        try:
            lock = os.open(directory / _OWNER, os.O_RDWR)
        except OSError:
            # Just being made, or somebody else's.
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(directory, ignore_errors=True)
        except BlockingIOError:
            continue
        finally:
            os.close(lock)
