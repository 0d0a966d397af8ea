"""Start a job of several processes, look at it, and end all of it, whatever became an orphan.

Launchers start monitors and workers that outlive them when they are killed, so parentage is no way to find
them. Every process of a job carries the job's ledger in its environment, and that is how it is found.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

LEDGER = "BENCH_LEDGER"
END_S = 15.0
_PR_SET_CHILD_SUBREAPER = 36
_own: set[int] = set()


def become_reaper() -> None:
    """Inherit orphans, and end in order when asked to: what was started must not outlive this process."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


@dataclass(slots=True)
class Group:
    """The processes of one job."""

    place: Path
    env: Mapping[str, str]
    started: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    @property
    def ledger(self) -> Path:
        """Return where the ranks write."""
        return self.place / "ledger"

    def start(
        self, words: Sequence[str], extra: Mapping[str, str] | None = None, *, piped: bool = False
    ) -> "subprocess.Popen[bytes]":
        """Start one process of it; its output goes to a file, its input may be a pipe."""
        self.ledger.mkdir(parents=True, exist_ok=True)
        env = {**self.env, **(extra or {}), LEDGER: str(self.ledger)}
        with (self.place / f"out.{len(self.started)}").open("wb") as out:
            process = subprocess.Popen(
                list(words),
                env=env,
                cwd=self.place,
                stdin=subprocess.PIPE if piped else subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        self.started.append(process)
        _own.add(process.pid)
        return process

    def ended(self) -> bool:
        """Tell whether all that was started here has ended; a victim may be one of several."""
        return all(process.poll() is not None for process in self.started)

    def members(self) -> list[int]:
        """Return all live processes of the job, by their environment."""
        return find_marked(f"{LEDGER}={self.ledger}")

    def end(self, *, orderly: bool) -> list[int]:
        """End the job; returns what an orderly end left behind, before that is ended by force."""
        if orderly:
            for process in self.started:
                if process.poll() is None:
                    process.terminate()
            deadline = time.monotonic() + END_S
            while time.monotonic() < deadline and any(each.poll() is None for each in self.started):
                time.sleep(0.02)
            time.sleep(0.3)
        left = self.members()
        deadline = time.monotonic() + END_S
        while (alive := self.members()) and time.monotonic() < deadline:
            for pid in alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for process in self.started:
                process.poll()
            reap()
            time.sleep(0.05)
        for process in self.started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1.0)
            if process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()
        reap()
        return left

    def last_lines(self, count: int = 12) -> str:
        """Return the end of what the processes printed."""
        lines: list[str] = []
        for path in sorted(self.place.glob("out.*")):
            lines += path.read_text(encoding="utf-8", errors="replace").splitlines()[-count:]
        return "\n".join(lines[-2 * count :])


def find_marked(text: str, *, whole: bool = True) -> list[int]:
    """Return the live processes whose environment has this text; not those that only wait to be reaped."""
    wanted = text.encode() + (b"\0" if whole else b"")
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            if wanted in (entry / "environ").read_bytes() and _state(entry) != "Z":
                found.append(int(entry.name))
    return found


def find_marked_below(home: Path) -> list[int]:
    """Return the live processes of any job whose place is below a directory."""
    return find_marked(f"{LEDGER}={home}", whole=False)


def reap() -> None:
    """Take note of orphans that have ended; ``subprocess`` waits for what it has started itself."""
    for pid in own_children():
        if pid not in _own:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def own_children() -> list[int]:
    """Return the direct children of this process."""
    me = os.getpid()
    text = Path(f"/proc/{me}/task/{me}/children").read_text(encoding="ascii")
    return [int(word) for word in text.split()]


def cpu_s(pids: Sequence[int]) -> float:
    """Return the processor time of some processes so far; one that is gone counts nothing."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def _state(entry: Path) -> str:
    return (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
