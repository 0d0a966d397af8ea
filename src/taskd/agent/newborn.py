"""What a process does between being forked and being a training process.

Two kinds of parents make workers: the nursery, which forks and executes a fresh interpreter, and the warm
process, which forks itself. Both must give the worker the same session, signals, streams, directory and
tie to the nursery's life, so the steps are here, once.
"""

# Pathlib is start-up time of every worker.
# ruff: noqa: PTH123

import ctypes
import io
import os
import signal
import sys
import time

from taskd.agent.nursery_wire import WorkerLaunch

CANNOT_ENTER = 126
NOT_FOUND = 127

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_ADOPTION_POLL_S = 0.0002
# Fields 48 and 49 of /proc/self/stat, counted from the state, which follows the name in brackets.
_ARG_START = 45
_ARG_END = 46
_SHORTEST = 2
_STDERR = 2

_libc = ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    """Make every orphan below this process its child, so that nobody below can get out of sight."""
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot become the reaper of orphaned processes")


def die_with(parent: int) -> bool:
    """Ask the kernel to kill this process when its parent dies; False if the parent is gone already.

    The kernel sends the signal when the *present* parent dies, so this must come after an adoption.
    """
    if _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        return False
    return os.getppid() == parent


def await_adoption(former: int, parent: int, limit_s: float) -> bool:
    """Wait until the former parent has ended and the given one has adopted this process."""
    deadline = time.monotonic() + limit_s
    while os.getppid() == former and time.monotonic() < deadline:
        time.sleep(_ADOPTION_POLL_S)  # The kernel offers no event for this; it takes well under 10 ms.
    return os.getppid() == parent


def reset_signals() -> None:
    """Give every signal its default action and block none: an exec passes on what is ignored."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        try:
            signal.signal(number, signal.SIG_DFL)
        except (OSError, ValueError):
            continue  # SIGKILL, SIGSTOP and those that libc keeps for itself.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def enter(launch: WorkerLaunch) -> None:
    """Take the working directory and the output files of a launch."""
    for fd, path in ((1, launch.stdout), (2, launch.stderr)):
        if path:
            opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.dup2(opened, fd)
            os.close(opened)
    os.chdir(launch.cwd)


def refuse(what: str, code: int) -> None:
    """End this process with a sentence on its stderr, without running anything that it inherited."""
    os.write(2, f"taskd: {what}\n".encode(errors="surrogateescape"))
    os._exit(code)


def renew_streams() -> None:
    """Replace Python's standard streams by what ``python -u`` makes of the present file descriptors."""
    sys.stdin = sys.__stdin__ = _text_stream(0, "<stdin>", sys.__stdin__)  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = _text_stream(1, "<stdout>", sys.__stdout__)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _text_stream(2, "<stderr>", sys.__stderr__)  # type: ignore[misc]


def rename(words: list[str]) -> None:
    """Show another command line in ``ps``, so that people find a forked worker by its script's name.

    Written over the arguments that the kernel laid down at exec. With no zero at their very end the kernel
    shows one string up to the first zero: the manner in which servers have always done this.
    """
    with open("/proc/self/stat", "rb") as stat:
        fields = stat.read().rpartition(b")")[2].split()
    start, end = int(fields[_ARG_START]), int(fields[_ARG_END])
    room = end - start
    if start == 0 or room < _SHORTEST:
        return
    text = " ".join(words).encode(errors="surrogateescape").replace(b"\0", b" ")[: room - 2]
    ctypes.memmove(start, text.ljust(room - 1, b"\0") + b" ", room)


def _text_stream(fd: int, name: str, former: io.TextIOWrapper | None) -> io.TextIOWrapper:
    reads = fd == 0
    raw = io.FileIO(fd, "rb" if reads else "wb", closefd=False)
    raw.name = name
    return io.TextIOWrapper(
        io.BufferedReader(raw) if reads else raw,
        encoding=former.encoding if former else "utf-8",
        errors=former.errors if former else "backslashreplace" if fd == _STDERR else "strict",
        newline="\n",
        line_buffering=raw.isatty(),
        write_through=True,
    )
