"""A job that runs while it is measured: wait for it, break it at a chosen moment, and see what that cost."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from recovery import ledgers
from recovery.contestants import JOB
from recovery.ledgers import Records
from recovery.processes import Group

START_S = 120.0
RECOVER_S = 120.0
SETTLE_S = 1.0


class NotMeasured(RuntimeError):
    """Something did not come about in time; ``last`` is what the job printed last."""

    def __init__(self, what: str, last: str = "") -> None:
        super().__init__(what)
        self.last = last


@dataclass(frozen=True, slots=True)
class Fault:
    """What one fault cost. All times in seconds; ``down`` is less one step."""

    at: float
    back: float
    step: float
    recomputed: int
    rank: int = -1

    @property
    def whole(self) -> float:
        """Return the time from the fault to the next step of the full world."""
        return self.back - self.at

    @property
    def down(self) -> float:
        """Return the same, less one step."""
        return self.whole - self.step


@dataclass(slots=True)
class Run:
    """A job that runs."""

    name: str
    group: Group

    def read(self) -> Records:
        """Read the ledger as it is now."""
        return ledgers.read(self.group.ledger)

    def wait(
        self, what: str, done: Callable[[Records], bool], limit_s: float, poll_s: float = 0.1
    ) -> Records:
        """Wait until the ledger shows something; the job must live meanwhile."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            records = self.read()
            if done(records):
                return records
            if self.group.ended():
                break
            time.sleep(poll_s)
        raise NotMeasured(f"{self.name}: not in {limit_s:g} s: {what}", self.group.last_lines())

    def wait_steps(self, count: int, after: float = 0.0) -> Records:
        """Wait until the full world has done some steps after a moment."""
        return self.wait(f"{count} steps", lambda seen: len(seen.full_steps(after)) >= count, START_S)

    def break_it(self, deed: Callable[[Records], None], share: float, rank: int = -1) -> Fault:
        """Do something at a given share of a step, and wait until the full world steps again."""
        records = self.read()
        step_s = records.step_s(time.monotonic())
        seen = max(records.full_steps(0.0))
        records = self.wait("a step", lambda now: max(now.full_steps(0.0)) > seen, RECOVER_S, poll_s=0.004)
        last = max(records.full_steps(0.0).values())
        time.sleep(max(0.0, last + share * step_s - time.monotonic()))
        at = time.monotonic()
        deed(records)
        # Looking at the files must not disturb what is measured, least of all the fast ones.
        time.sleep(0.3)
        records = self.wait(
            "the full world again", lambda now: now.next_full(at) is not None, RECOVER_S, poll_s=0.1
        )
        back = records.next_full(at)
        if back is None:
            raise NotMeasured(self.name)
        return Fault(at, back, step_s, records.recomputed(at), rank)

    def kill(self, rank: int, share: float, sign: signal.Signals = signal.SIGKILL) -> Fault:
        """Send a signal to a rank from outside."""
        return self.break_it(lambda records: os.kill(records.pid_of(rank), sign), share, rank)

    # --- TaskD's own tools -------------------------------------------------------------------------------

    def ask(self, *words: str, limit_s: float = 30.0) -> "subprocess.CompletedProcess[str]":
        """Call another command of TaskD for this job."""
        return subprocess.run(
            [sys.executable, "-m", "taskd.cli.main", *words],
            env={**os.environ, "TASKD_HOME": str(self.group.place / "home")},
            capture_output=True,
            text=True,
            check=False,
            timeout=limit_s,
        )

    def timeline(self) -> list[dict[str, object]]:
        """Return the incidents as ``taskd timeline -o json`` tells them."""
        answer = self.ask("timeline", JOB, "--output", "json")
        try:
            incidents: list[dict[str, object]] = json.loads(answer.stdout)
        except ValueError as error:
            raise NotMeasured(f"{self.name}: no timeline: {answer.stderr}") from error
        return incidents

    def status(self) -> dict[str, object]:
        """Return what ``taskd status -o json`` tells."""
        answer = self.ask("status", JOB, "--output", "json")
        try:
            status: dict[str, object] = json.loads(answer.stdout)
        except ValueError as error:
            raise NotMeasured(f"{self.name}: no status: {answer.stderr}") from error
        return status

    def wait_spares(self, count: int, limit_s: float = 60.0) -> None:
        """Wait until the warm spares are parked again, and come to rest."""
        deadline = time.monotonic() + limit_s
        while sum(_title(pid).startswith("taskd spare") for pid in self.group.members()) < count:
            if time.monotonic() > deadline:
                raise NotMeasured(f"{self.name}: {count} spares were not parked in {limit_s:g} s")
            time.sleep(0.1)
        time.sleep(SETTLE_S)


@contextlib.contextmanager
def running(name: str, group: Group, start: Callable[[Group], None], leaks: list[str]) -> Iterator[Run]:
    """Run a job until the block ends; an end in order that leaves processes is noted in ``leaks``."""
    orderly = name.startswith("taskd")
    try:
        start(group)
        yield Run(name, group)
    finally:
        left = group.end(orderly=orderly)
        if orderly and left:
            leaks.append(f"{name} left {len(left)} processes: {', '.join(map(_title, left)) or left}")


def new_group(home: Path, name: str, env: dict[str, str]) -> Group:
    """Make the place of a job."""
    place = home / name
    place.mkdir(parents=True)
    return Group(place, env)


def shares(count: int) -> list[float]:
    """Return moments within a step, evenly spread, so that faults strike everywhere and alike for all."""
    return [(number + 0.5) / count for number in range(count)]


def _title(pid: int) -> str:
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ""
    return raw.replace(b"\0", b" ").decode(errors="replace").strip()[:80]
