"""Run real jobs and look at them from outside, as a user would."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil

PATIENCE_S = 60.0


def eventually(ask: Callable[[], Any], what: str, limit_s: float = PATIENCE_S) -> Any:
    """Ask until the answer is true; fail with what was waited for."""
    deadline = time.monotonic() + limit_s
    while True:
        answer = ask()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"waited {limit_s:g} s for {what}"
        time.sleep(0.02)


def wake(frozen: Iterable[psutil.Process]) -> None:
    """Let stopped processes go on. The first to wake may end others before their turn comes."""
    for process in frozen:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()


class RunningJob:
    """One ``taskd run`` in a home of its own."""

    def __init__(
        self, home: Path, *args: str, env: dict[str, str] | None = None, cwd: Path | None = None
    ) -> None:
        self.home = home
        self.env = {**os.environ, "TASKD_HOME": str(home / "taskd"), **(env or {})}
        self.env.pop("TASKD_ROLE_CONFIG", None)
        self._out = (home / "out.txt").open("wb")
        self._err = (home / "err.txt").open("wb")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "taskd.cli.main", "run", "--job", "job", *args],
            cwd=cwd or home,
            env=self.env,
            stdout=self._out,
            stderr=self._err,
        )

    @property
    def out(self) -> str:
        return (self.home / "out.txt").read_text(errors="replace")

    @property
    def err(self) -> str:
        return (self.home / "err.txt").read_text(errors="replace")

    @property
    def directory(self) -> Path:
        return self.home / "taskd" / "jobs" / "job"

    def cli(self, *args: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Call another command of TaskD for this job."""
        done = subprocess.run(
            [sys.executable, "-m", "taskd.cli.main", *args],
            env=self.env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert not check or done.returncode == 0, f"{args}: {done.returncode}\n{done.stderr}\n{self.err}"
        return done

    def saved_status(self) -> dict[str, Any]:
        """Return the status that the manager last wrote (at most a second old)."""
        try:
            status: dict[str, Any] = json.loads((self.directory / "status.json").read_text())
        except (OSError, ValueError):
            return {}
        return status

    def status(self) -> dict[str, Any]:
        """Ask the manager."""
        done = self.cli("status", "job", "--output", "json", check=False)
        if done.returncode:
            return {}
        status: dict[str, Any] = json.loads(done.stdout)
        return status

    def timeline(self) -> list[dict[str, Any]]:
        timeline: list[dict[str, Any]] = json.loads(self.cli("timeline", "job", "--output", "json").stdout)
        return timeline

    def ledger(self) -> list[dict[str, Any]]:
        """Return every order that an agent carried out, all nodes together."""
        lines: list[dict[str, Any]] = []
        for file in sorted((self.directory / "ledger").glob("*.jsonl")):
            lines += [json.loads(line) for line in file.read_text().splitlines()]
        return lines

    def pids(self) -> dict[int, int]:
        """Return the processes of the ranks once all are alive."""
        status = eventually(lambda: self._all_alive(self.saved_status()), "all ranks alive")
        return {rank["rank"]: rank["pid"] for rank in status["ranks"]}

    @staticmethod
    def _all_alive(status: dict[str, Any]) -> dict[str, Any] | None:
        ranks = status.get("ranks", [])
        alive = [rank for rank in ranks if rank["state"] in ("running", "joined")]
        if status.get("phase") != "running" or len(alive) < max(status["world_size"], 1):
            return None
        return status

    def at_step(self, step: int) -> dict[str, Any]:
        """Wait until every rank has done a step."""

        def reached() -> dict[str, Any] | None:
            status = self.saved_status()
            ranks = status.get("ranks", [])
            done = bool(ranks) and all(rank["step"] >= step for rank in ranks)
            return status if done else None

        result: dict[str, Any] = eventually(reached, f"step {step}")
        return result

    def past_generation(self, generation: int) -> None:
        """Wait until the job is at a later generation."""
        eventually(lambda: self.saved_status().get("generation", 0) > generation, "the next generation")

    def wait(self, limit_s: float = PATIENCE_S) -> int:
        """Wait for the end; returns the exit code."""
        try:
            return self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the job did not end in {limit_s:g} s\n{self.err}\n{self.out}") from None

    def family(self) -> list[psutil.Process]:
        """Return the launcher and everything below it."""
        with contextlib.suppress(psutil.NoSuchProcess):
            launcher = psutil.Process(self.process.pid)
            return [launcher, *launcher.children(recursive=True)]
        return []

    def close(self) -> None:
        family = self.family()
        killed = self.process.poll() is None or self.process.returncode == -signal.SIGKILL
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        if killed:
            # A launcher that was killed leaves its directories to the next one; here there is none.
            with contextlib.suppress(OSError, ValueError, KeyError):
                for path in job_files(self):
                    shutil.rmtree(path, ignore_errors=True)
        self._out.close()
        self._err.close()


def job_files(job: RunningJob) -> list[str]:
    """Return what a job has in shared memory and in the temporary directory."""
    scratch = json.loads((job.directory / "job.json").read_text())["scratch"]
    places = [Path("/dev/shm"), Path(tempfile.gettempdir())]
    return [str(path) for place in places for path in place.glob(f"taskd-job-*-{scratch}*")]


@contextlib.contextmanager
def running(home: Path, *args: str, env: dict[str, str] | None = None) -> Iterator[RunningJob]:
    """Run a job, and afterwards see that nothing of it is left."""
    job = RunningJob(home, *args, env=env)
    try:
        yield job
    finally:
        family = job.family()
        job.close()
        gone, alive = psutil.wait_procs([process for process in family if process.is_running()], timeout=10)
        assert not alive, f"left behind: {alive}; gone: {len(gone)}"
