"""Whose cluster it is, and what is left of one whose owner is gone.

The owner of a cluster holds a lock, which ends with it, and writes into a state file what it has started:
process ids with their start times, since an id alone may be somebody else's by now. Whoever gets the lock may
clear everything that carries the cluster's names. The kernel does most of it, see `node`: what remains are
processes of containers, control groups, links of this machine and directories.
"""

import fcntl
import json
import os
import shutil
import signal
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, Self

from taskd.testing.cluster import cgroups, network
from taskd.testing.cluster.layout import FOR_PEOPLE, FOR_TESTS, Layout
from taskd.testing.kube.binaries import Unavailable
from taskd.testing.kube.processes import clear_left_over

_STATE: Final = "state.json"
_LOCK: Final = "lock"
_START_FIELD: Final = 19  # of /proc/PID/stat, counted after the name


class Busy(Unavailable):
    """Somebody has this cluster; the text is one line that says who."""


@dataclass(frozen=True)
class Identity:
    """A process that cannot be taken for another one."""

    pid: int
    start: int
    """When it began, in ticks since the machine did."""

    @classmethod
    def of(cls, pid: int) -> Self | None:
        """Return who has this process id now."""
        try:
            text = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return None
        return cls(pid, int(text.rpartition(")")[2].split()[_START_FIELD]))

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return Identity.of(self.pid) == self

    def send(self, how: signal.Signals) -> None:
        """Send it a signal, if it still runs."""
        if self.alive:
            with suppress(ProcessLookupError):
                os.kill(self.pid, how)


@dataclass
class State:
    """What the owner of a cluster says about it."""

    owner: Identity
    boot: str
    directory: str
    kubeconfig: str = ""
    ready: bool = False
    programs: dict[str, Identity] = field(default_factory=dict)

    def write(self, layout: Layout) -> None:
        """Write it, whole or not at all."""
        new = layout.place / f".{_STATE}"
        new.write_text(json.dumps(asdict(self), indent=1))
        new.rename(layout.place / _STATE)

    @classmethod
    def read(cls, layout: Layout) -> Self | None:
        """Read it; None where there is none, or none of this boot."""
        try:
            raw = json.loads((layout.place / _STATE).read_text())
            state = cls(
                owner=Identity(**raw["owner"]),
                boot=raw["boot"],
                directory=raw["directory"],
                kubeconfig=raw["kubeconfig"],
                ready=raw["ready"],
                programs={name: Identity(**each) for name, each in raw["programs"].items()},
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        return state if state.boot == boot() else None


class Claim:
    """The right to one cluster number: held until `release`, or until the process ends."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._lock = _acquire(layout)

    def release(self) -> None:
        """Give it back, and remove the place of lock and state."""
        if self._lock >= 0:
            shutil.rmtree(self.layout.place, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


def claim(number: int | None) -> Claim:
    """Claim this number, or for None any of those that tests may take; `Busy` if somebody has it."""
    if number is not None:
        return Claim(Layout(number))
    for each in FOR_TESTS:
        with suppress(Busy):
            return Claim(Layout(each))
    raise Busy(f"all clusters of this machine that tests may take ({[*FOR_TESTS]}) are in use")


def clear(layout: Layout) -> None:
    """Remove everything that a former owner left. Only for whoever has the claim."""
    state = State.read(layout)
    if state is not None:
        for program in state.programs.values():
            program.send(signal.SIGKILL)
    cgroups.end(layout.cgroup)
    network.remove(layout)
    cgroups.remove(layout.cgroup)
    for directory in directories(layout, state):
        remove_directory(directory)
    clear_left_over()


def down(layout: Layout, *, patience_s: float = 30) -> bool:
    """End a cluster, whoever has it, and clear what is left; False if there was nothing.

    Its owner is asked first, and killed after `patience_s`.
    """
    found = layout.place.exists() or bool(traces(layout))
    deadline = time.monotonic() + patience_s
    asked = False
    while True:
        try:
            mine = Claim(layout)
            break
        except Busy:
            state = State.read(layout)
            late = time.monotonic() > deadline
            if late and state is None:
                raise
            if state is not None and (late or not asked):
                state.owner.send(signal.SIGKILL if late else signal.SIGTERM)
                asked = True
            time.sleep(0.05)
    try:
        clear(layout)
    finally:
        mine.release()
    return found


def traces(layout: Layout) -> list[str]:
    """Return what is there of a cluster, each thing in words."""
    state = State.read(layout)
    found = [f"directory {layout.place}"] if layout.place.exists() else []
    if state is not None:
        found += [f"process {name} {each.pid}" for name, each in state.programs.items() if each.alive]
    found += [f"process {pid}" for pid in cgroups.processes(layout.cgroup)]
    found += [f"link {name}" for name in network.links(layout)]
    if cgroups.exists(layout.cgroup):
        found.append(f"control group {layout.cgroup}")
    found += [f"directory {directory}" for directory in directories(layout, state)]
    return found


def directories(layout: Layout, state: State | None = None) -> list[Path]:
    """Return the working directories of a cluster's nodes."""
    found = {*Path(tempfile.gettempdir()).glob(f"{layout.directory_prefix}*")}
    if state is not None and Path(state.directory).exists():
        found.add(Path(state.directory))
    return sorted(found)


def remove_directory(directory: Path) -> None:
    """Remove a directory, but nothing that is mounted in it: that could be anybody's files."""
    mounted = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    inside = [place for place in mounted if Path(place).is_relative_to(directory)]
    if inside:
        raise RuntimeError(f"{directory} is not removed: {', '.join(inside)} is mounted there")
    shutil.rmtree(directory, ignore_errors=True)


def boot() -> str:
    """Return what tells one run of this machine from the next."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _acquire(layout: Layout) -> int:
    path = layout.place / _LOCK
    while True:
        layout.place.mkdir(mode=0o700, exist_ok=True)
        try:
            lock = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        except FileNotFoundError:
            # Whoever had it has just removed the place.
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise Busy(_who(layout)) from None
        # It may have been removed between our opening it and our locking it.
        if path.exists() and path.stat().st_ino == os.fstat(lock).st_ino:
            return lock
        os.close(lock)


def _who(layout: Layout) -> str:
    state = State.read(layout)
    if state is None:
        return f"cluster {layout.number} is being started by somebody else"
    what = "is up" if state.ready else "is being started"
    ending = (
        "make cluster-down"
        if layout.number == FOR_PEOPLE
        else f"python -m taskd.testing.cluster down {layout.number}"
    )
    return f"cluster {layout.number} {what}, owned by process {state.owner.pid}; `{ending}` ends it"
