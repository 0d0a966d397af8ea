"""Control groups: the one list of processes that nobody can leave.

Whatever a node starts (a shim that made itself a daemon, the processes of a pod) stays in the node's
control group, so ending the group ends the node, also when everybody who knew its processes is gone.
Kubelet wants its group to be there in every hierarchy before it starts.

Version 1 has a hierarchy for each controller, version 2 one for all. Tried on version 1.
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

ROOT: Final = Path("/sys/fs/cgroup")
_CONTROLLERS: Final = "cgroup.controllers"  # is there in version 2
_CPUSET: Final = ("cpuset.cpus", "cpuset.mems")


def hierarchies() -> list[Path]:
    """Return the roots of all hierarchies that have controllers."""
    if (ROOT / _CONTROLLERS).exists():
        return [ROOT]
    return [path for path in _roots() if not (path / _CONTROLLERS).exists()]


def _roots() -> list[Path]:
    """The roots of all hierarchies, also of a version 2 without controllers beside those of version 1."""
    if (ROOT / _CONTROLLERS).exists():
        return [ROOT]
    # Some are there twice, by a link.
    return sorted({path.resolve() for path in ROOT.iterdir() if (path / "cgroup.procs").exists()})


def tracking() -> Path:
    """Return the hierarchy by which processes are found again."""
    roots = hierarchies()
    return next((root for root in roots if root.name == "pids"), roots[0])


def make(name: str) -> None:
    """Make a group, and those above it, in every hierarchy."""
    for root in hierarchies():
        place = root
        for part in Path(name).parts:
            if (place / _CONTROLLERS).exists():
                controllers = (place / _CONTROLLERS).read_text().split()
                (place / "cgroup.subtree_control").write_text(" ".join(f"+{each}" for each in controllers))
            above, place = place, place / part
            place.mkdir(exist_ok=True)
            for file in _CPUSET:
                # A new group of version 1 has no processors, and takes no process until it has.
                if (place / file).exists() and not (place / _CONTROLLERS).exists():
                    (place / file).write_text((above / file).read_text())


def weigh(name: str, processes_count: int) -> None:
    """Let a group count as much as so many processes beside it; it counts as one otherwise."""
    for root in hierarchies():
        for file, one in (("cpu.shares", 1024), ("cpu.weight", 100)):
            if (root / name / file).exists():
                (root / name / file).write_text(str(one * processes_count))


def joining(name: str) -> list[str]:
    """Return the beginning of a command line that puts the program into a group."""
    script = 'echo $$ >"$0" && exec "$@"'
    return ["/bin/sh", "-c", script, str(tracking() / name / "cgroup.procs")]


def processes(name: str) -> list[int]:
    """Return the processes of a group and of those below it."""
    return [pid for place in _tree(tracking() / name) for pid in _members(place)]


def find(name: str, pattern: str) -> list[Path]:
    """Return the groups below one whose name matches, as places in the tracking hierarchy."""
    return [place for place in _tree(tracking() / name) if place.match(pattern)]


def end(name: str, *, timeout_s: float = 20) -> None:
    """Kill every process of a group, whoever starts new ones meanwhile; TimeoutError if some do not go."""
    deadline = time.monotonic() + timeout_s
    while pids := processes(name):
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {pids} of the control group {name} do not end")
        time.sleep(0.01)


def remove(name: str, *, timeout_s: float = 10) -> None:
    """Remove a group without processes and all below it, in every hierarchy; runc makes some too."""
    deadline = time.monotonic() + timeout_s
    for root in _roots():
        for place in reversed([*_tree(root / name)]):
            while True:
                try:
                    place.rmdir()
                    break
                except FileNotFoundError:
                    break
                except OSError as error:
                    # The kernel lets go of a group some moments after its last process.
                    if time.monotonic() > deadline:
                        raise TimeoutError(f"the control group {place} stays: {error}") from error
                    time.sleep(0.01)


def exists(name: str) -> bool:
    """Tell whether a group is there in some hierarchy."""
    return any((root / name).exists() for root in _roots())


def _tree(top: Path) -> Iterator[Path]:
    """A group and all below it, the upper ones first."""
    for directory, _, _ in os.walk(top):
        yield Path(directory)


def _members(place: Path) -> list[int]:
    try:
        return [int(line) for line in (place / "cgroup.procs").read_text().split()]
    except OSError:
        # Gone meanwhile.
        return []
