"""What the kernel tells a process of its children.

All of it is asked without waiting, and for all children at once: those too that were adopted and are known to
nobody.
"""

# Pathlib is start-up time of every worker.
# ruff: noqa: PTH123, PTH208

import os


def next_dead() -> int | None:
    """Return a child that has ended, without taking its number from it yet."""
    try:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return None if found is None else found.si_pid


def next_stop() -> tuple[int, bool] | None:
    """Return a child that was stopped (True) or continued (False) by a signal; None if there is no more."""
    try:
        found = os.waitid(os.P_ALL, 0, os.WSTOPPED | os.WCONTINUED | os.WNOHANG)
    except ChildProcessError:
        return None
    return None if found is None else (found.si_pid, found.si_code == os.CLD_STOPPED)


def is_child(pid: int) -> bool:
    """Tell whether a number is a child's: one that was not waited for, so that it cannot be another's."""
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def children() -> list[int]:
    """Return the processes whose parent is this one. /proc's own list is an option of the kernel."""
    me = str(os.getpid()).encode()
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as stat:
                    fields = stat.read().rpartition(b")")[2].split()
            except OSError:
                continue
            if fields[1] == me:
                found.append(int(name))
    return found
