"""Start jobs for a measurement, see their processes from outside, and leave nothing behind.

A script under test tells what it did in small files, one per rank and attempt, below a directory of its own:
each line is a name and the monotonic clock, which all processes of a machine share. So the clock that a kill
is stamped with, the manager's timeline and the lines of the scripts can be compared directly.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from taskd.core.launch import LOCAL_HOST
from taskd.core.status import IncidentStatus

SCRIPTS = Path(__file__).resolve().parent / "scripts"
MARKS_VARIABLE = "BENCH_MARKS"
END_S = 10.0


class BenchError(RuntimeError):
    """Something did not come about in time, so there is nothing to measure."""


@dataclass(frozen=True, slots=True)
class Marks:
    """What one rank wrote in one attempt: its process and when it was where."""

    rank: int
    attempt: int
    pid: int
    at: dict[str, float]


@dataclass(slots=True)
class Contestant:
    """A job that runs, under TaskD or under torchrun."""

    process: "subprocess.Popen[bytes]"
    ranks: int
    marks_dir: Path
    home: Path
    name: str
    output: Path

    def marks(self, attempt: int) -> list[Marks]:
        """Return what the ranks wrote in an attempt so far."""
        found = [read_marks(path) for path in sorted(self.marks_dir.glob(f"*.{attempt}"))]
        return [marks for marks in found if marks is not None]

    def wait_marks(self, attempt: int, name: str, timeout_s: float) -> list[Marks]:
        """Wait until every rank of an attempt has written a line, and return the lines."""

        def there() -> list[Marks]:
            marks = [each for each in self.marks(attempt) if name in each.at]
            return marks if len(marks) == self.ranks else []

        return self.wait_for(there, f"every rank wrote {name!r} in attempt {attempt}", timeout_s)

    def wait_for(self, look: Callable[[], list[Marks]], what: str, timeout_s: float) -> list[Marks]:
        """Look until there is something; the job must live meanwhile."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if found := look():
                return found
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        raise BenchError(f"{self.name}: not in {timeout_s:g} s: {what}\n{self._last_lines()}")

    def timeline(self) -> dict[int, IncidentStatus]:
        """Return TaskD's incidents as far as they are written, by their number."""
        incidents: dict[int, IncidentStatus] = {}
        for path in self.home.glob(f"jobs/{self.name}/timeline.jsonl"):
            for line in path.read_bytes().splitlines():
                with contextlib.suppress(msgspec.MsgspecError):
                    incident = msgspec.json.decode(line, type=IncidentStatus)
                    incidents[incident.number] = incident
        return incidents

    def wait_recovered(self, number: int, timeout_s: float) -> IncidentStatus:
        """Wait until TaskD has written the end of an incident."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            incident = self.timeline().get(number)
            if incident is not None and incident.outcome == "recovered":
                return incident
            time.sleep(0.02)
        raise BenchError(
            f"{self.name}: incident {number} is not closed after {timeout_s:g} s\n{self._last_lines()}"
        )

    def ledger(self) -> dict[str, float]:
        """Return when the agent took each order, on the monotonic clock."""
        path = self.home / "jobs" / self.name / "ledger" / "0.jsonl"
        shift = time.monotonic() - time.time()
        lines = [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]
        return {line["order"]: line["stamp"] + shift for line in lines}

    def nursery_log(self) -> str:
        """Return what the nursery logged: whether it is warm, and why a process came from elsewhere."""
        path = self.home / "jobs" / self.name / "logs" / "roles" / "agent-0.log.nursery"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def cold_starts(self, generation: int) -> int:
        """Count the processes of a generation that were not warm, by the nursery's log."""
        return sum(
            f"g{generation}/r" in line and "fresh one is started" in line
            for line in self.nursery_log().splitlines()
        )

    def parked_spares(self) -> int:
        """Count the processes that wait below the warm one, by what the kernel knows of them."""
        warm = [
            line.split("warm process ")[1] for line in self.nursery_log().splitlines() if "'warm'" in line
        ]
        if not warm:
            return 0
        pid = warm[-1].split(":", 1)[0]
        nursery = self.nursery_log().split("nursery ", 1)[1].split(":", 1)[0]
        running = {
            marks.pid for path in self.marks_dir.glob("*.*") if (marks := read_marks(path)) is not None
        }
        below = children(int(pid)) | children(int(nursery))
        return len(below - running - {int(pid)})

    def _last_lines(self) -> str:
        return "\n".join(self.output.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])


def read_marks(path: Path) -> Marks | None:
    """Read the file of one rank and attempt; None if it is not complete enough to tell."""
    try:
        lines = [line.split() for line in path.read_text(encoding="ascii").splitlines()]
        rank, attempt = (int(part) for part in path.name.split("."))
        return Marks(rank, attempt, int(lines[0][1]), {name: float(at) for name, at in lines[1:]})
    except (OSError, ValueError, IndexError):
        return None


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.socket() as sock:
        sock.bind((LOCAL_HOST, 0))
        port: int = sock.getsockname()[1]
        return port


def children(pid: int) -> set[int]:
    """Return the children of a process."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    except OSError:
        return set()
    return {int(word) for word in text.split()}


@contextlib.contextmanager
def run_taskd(
    home: Path,
    name: str,
    ranks: int,
    script: str,
    args: Sequence[str] = (),
    *,
    spares: int = 0,
) -> Iterator[Contestant]:
    """Run a script under ``taskd run`` until the block ends."""
    words = [
        *taskd_command(),
        "run",
        "--job",
        name,
        "--nproc-per-node",
        str(ranks),
        "--spares",
        str(spares),
        "--manager-port",
        str(free_port()),
    ]
    with _run(home, name, ranks, [*words, str(SCRIPTS / script), *args], {}) as job:
        yield job


@contextlib.contextmanager
def run_torchrun(
    home: Path, name: str, ranks: int, script: str, args: Sequence[str] = ()
) -> Iterator[Contestant]:
    """Run a script under ``torchrun`` until the block ends.

    Its restart over gloo reads addresses of the dead attempt unless the ranks have a store of their own.
    """
    words = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        str(ranks),
        "--max-restarts=3",
    ]
    words += [
        "--log-dir",
        str(home / f"{name}.logs"),
        "--master-port",
        "0",
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        "127.0.0.1:0",
    ]
    extra = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
    with _run(home, name, ranks, [*words, str(SCRIPTS / script), *args], extra) as job:
        yield job


def taskd_command() -> list[str]:
    """Return the command of this environment, wherever PATH points."""
    return [str(Path(sys.executable).with_name("taskd"))]


@contextlib.contextmanager
def _run(home: Path, name: str, ranks: int, words: list[str], extra: dict[str, str]) -> Iterator[Contestant]:
    marks_dir = home / "marks" / name
    marks_dir.mkdir(parents=True)
    output = home / f"{name}.out"
    env = {**os.environ, **extra, "TASKD_HOME": str(home), MARKS_VARIABLE: str(marks_dir)}
    with output.open("wb") as out:
        process = subprocess.Popen(
            words, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
    job = Contestant(process, ranks, marks_dir, home, name, output)
    try:
        yield job
    finally:
        _end(job)


def _end(job: Contestant) -> None:
    """End the launcher in order, then by force, then whatever ranks it may have left."""
    if job.process.poll() is None:
        job.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            job.process.wait(END_S)
        if job.process.poll() is None:
            job.process.kill()
            job.process.wait()
    for path in job.marks_dir.glob("*.*"):
        marks = read_marks(path)
        if marks is not None and _is_ours(marks.pid, job):
            with contextlib.suppress(ProcessLookupError):
                os.kill(marks.pid, signal.SIGKILL)


def _is_ours(pid: int, job: Contestant) -> bool:
    """Tell whether a process id still belongs to this job: numbers are used again."""
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return str(job.marks_dir).encode() in environ
