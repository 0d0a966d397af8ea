"""What the kernel says of a process that cannot speak for itself: a stopped one, or a locked one.

Each line is of one thread: its name, its state, what it sleeps in, and the system call that it is in, as
far as this user may read them.
"""

import contextlib
import time
from collections.abc import Collection
from pathlib import Path

MAX_THREADS = 64
_STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "in the kernel, cannot be interrupted",
    "T": "stopped by a signal",
    "t": "stopped by a debugger",
    "Z": "ended",
}


def describe_process(pid: int) -> str:
    """Describe the threads of a process; empty if there is none."""
    task = Path(f"/proc/{pid}/task")
    try:
        threads = sorted(int(entry.name) for entry in task.iterdir())
    except OSError:
        return ""
    # The first thread is the one that trains, nearly always.
    return "".join(_describe_thread(task / str(thread)) for thread in threads[:MAX_THREADS])


def is_asleep(thread: int) -> bool:
    """Tell whether a thread of this process waits for something other than the processor."""
    return _letter(_read(Path(f"/proc/self/task/{thread}/stat"))) == "S"


def _letter(stat: str) -> str:
    fields = stat.rpartition(")")[2].split()
    return fields[0] if fields else "?"


def _describe_thread(place: Path) -> str:
    stat = _read(place / "stat")
    name, letter = stat.partition("(")[2].rpartition(")")[0], _letter(stat)
    parts = [f"thread {place.name} ({name}): {_STATES.get(letter, letter)}"]
    if wchan := _read(place / "wchan"):
        parts.append(f"in {wchan}")
    if syscall := _read(place / "syscall"):
        parts.append(f"system call {syscall}")
    return ", ".join(parts) + "\n" if stat else ""


def _read(path: Path) -> str:
    try:
        text = path.read_text("utf-8", errors="replace").strip()
    except OSError:
        return ""
    return "" if text == "0" else text


def name_thread(name: str) -> None:
    """Let the kernel, and so whoever looks at the process from outside, know this thread by its name."""
    with contextlib.suppress(OSError):
        Path("/proc/thread-self/comm").write_text(name[:15], "utf-8")


class Threads:
    """Threads of this process by their names, and for how long they have done nothing."""

    def __init__(self, workers: Collection[str], poller: str) -> None:
        """Workers sleep until there is something to do; a poller also looks around now and then."""
        self._workers = workers
        self._poller = poller
        self._seen: dict[str, str] = {}
        self._since = 0.0

    def forget(self) -> None:
        """Begin anew."""
        self._seen = {}

    def quiet_for(self) -> float:
        """Look at them; seconds since when all workers slept and none has used the processor.

        Zero at the first look, where there is none of either kind, and where a poller does not sleep now.
        """
        now = time.monotonic()
        workers: dict[str, str] = {}
        pollers = []
        for place in Path("/proc/self/task").iterdir():
            stat = _read(place / "stat")
            name, letter = stat.partition("(")[2].rpartition(")")[0], _letter(stat)
            if name == self._poller:
                pollers.append(letter)
            elif name in self._workers:
                workers[place.name] = letter + _read(place / "schedstat").partition(" ")[0]
        if not workers or workers != self._seen or any(not each.startswith("S") for each in workers.values()):
            self._seen, self._since = workers, now
        return now - self._since if set(pollers) == {"S"} else 0.0
