"""Recovery on a GPU machine: kills, retries, snapshots, NCCL. ``python bench/gpu/recovery.py``.

Four ranks share one device, ten gigabytes of state each, and talk by gloo with CUDA tensors. A rank is killed
when the last step of all is done and it is in the middle of the next one; the clock runs until every rank has
finished a step of the whole world, and one step's time is taken off. The phases are those of the timeline.
Losses and a checksum over all state at the end are compared with a run that nothing happened to.
"""

import argparse
import contextlib
import itertools
import json
import os
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "src")]

from table import Result, print_table, tell  # noqa: E402 - found by the line above

WAIT_S = 180.0
SETTLE_STEPS = 3


class Job:
    """A run of the training script under ``taskd run``."""

    def __init__(self, home: Path, name: str, ranks: int, spares: int, script_args: list[str]) -> None:
        self.ranks = ranks
        self.name = name
        self.out = home / name
        self.out.mkdir()
        self.home = home / f"{name}.taskd"
        path = os.pathsep.join([str(HERE.parents[1] / "src"), os.environ.get("PYTHONPATH", "")])
        self._env = {**os.environ, "TASKD_HOME": str(self.home), "PYTHONPATH": path}
        words = [sys.executable, "-m", "taskd.cli.main", "run", "--job", name, "--manager-port", "0"]
        words += ["--nproc-per-node", str(ranks), "--spares", str(spares)]
        words += [str(HERE / "train.py"), "--out", str(self.out), *script_args]
        self.log = home / f"{name}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                words, env=self._env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def lines(self, rank: int) -> list[dict[str, Any]]:
        """Return what a rank wrote so far."""
        try:
            text = (self.out / f"rank{rank}.jsonl").read_text()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]

    def steps(self, rank: int) -> dict[int, dict[str, Any]]:
        """Return a rank's steps that count; one that counts twice is an error."""
        found: dict[int, dict[str, Any]] = {}
        for line in self.lines(rank):
            if line["what"] == "step":
                assert line["step"] not in found, f"rank {rank} did step {line['step']} twice"
                found[line["step"]] = line
        return found

    def wait_step(self, step: int) -> float:
        """Wait until every rank has done a step or a later one; return when the last one had."""
        return self._wait(lambda: self._reached(step), f"step {step}")

    def wait_next(self, step: int) -> int:
        """Wait until a rank has done a later step than this one; return the number."""
        return int(self._wait(lambda: next((n for n in self.newest() if n > step), None), "another step"))

    def newest(self) -> list[int]:
        """Return the last step of each rank."""
        return [max(self.steps(rank), default=-1) for rank in range(self.ranks)]

    def _reached(self, step: int) -> float | None:
        firsts = [
            min((line["at"] for number, line in self.steps(rank).items() if number >= step), default=None)
            for rank in range(self.ranks)
        ]
        return None if None in firsts else max(at for at in firsts if at is not None)

    def wait_spare(self, spares: int) -> None:
        """Wait until the spares are prepared, as far as their command lines tell."""
        self._wait(lambda: self._prepared() >= spares or None, f"{spares} spares")

    def _prepared(self) -> int:
        ready = 0
        for place in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                words = place.read_bytes().replace(b"\0", b" ").strip()
                ready += words.startswith(b"taskd spare (cuda:0)")
        return ready

    def _wait(self, look: Any, what: str) -> Any:  # noqa: ANN401 - whatever is looked for
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            if (found := look()) is not None:
                return found
            if self.process.poll() is not None:
                break
            time.sleep(0.01)
        tail = self.log.read_text(errors="replace")[-3000:]
        raise RuntimeError(f"{self.name}: did not come: {what} (exit {self.process.poll()})\n{tail}")

    def cli(self, *words: str) -> str:
        """Call another command of TaskD."""
        command = [sys.executable, "-m", "taskd.cli.main", *words]
        done = subprocess.run(command, env=self._env, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)}: {done.stderr[-500:]}")
        return done.stdout

    def timeline(self) -> list[dict[str, Any]]:
        """Return the incidents."""
        found: list[dict[str, Any]] = json.loads(self.cli("timeline", self.name, "--output", "json"))
        return found

    def finish(self) -> None:
        """Wait for the end."""
        code = self.process.wait(WAIT_S)
        assert code == 0, self.log.read_text(errors="replace")[-3000:]

    def summary(self) -> dict[int, tuple[dict[int, str], int]]:
        """Return the losses and the checksum of each rank."""
        ends = [[line for line in self.lines(rank) if line["what"] == "end"] for rank in range(self.ranks)]
        return {
            rank: (
                {number: line["loss"] for number, line in self.steps(rank).items()},
                ends[rank][0]["checksum"],
            )
            for rank in range(self.ranks)
        }


@contextlib.contextmanager
def running(home: Path, name: str, options: argparse.Namespace, steps: int) -> Iterator[Job]:
    """Run a job, and end it whatever happens."""
    words = ["--steps", str(steps), "--state-gb", str(options.state_gb), "--device", options.device]
    words += ["--width", str(options.width), "--work", str(options.work), "--least-s", str(options.least_s)]
    job = Job(home, name, options.ranks, options.spares, words)
    try:
        yield job
    finally:
        if job.process.poll() is None:
            job.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                job.process.wait(20)
        if job.process.poll() is None:
            os.killpg(job.process.pid, signal.SIGKILL)
            job.process.wait()


def step_time(job: Job, upto: int) -> float:
    """Return the usual time of a step, of those before a fault."""
    at = [line["at"] for number, line in sorted(job.steps(0).items()) if 1 <= number <= upto]
    return statistics.median(b - a for a, b in itertools.pairwise(at))


def kill(job: Job, rank: int, usual: float, result: Result) -> tuple[float, int]:
    """Kill a rank in the middle of a step; return when, and the first step that counts after it.

    Nobody can be told of the death before the kernel has cleared away what the process had on the device.
    """
    last = max(job.steps(rank))
    pid = job.steps(rank)[last]["pid"]
    job.wait_next(last)
    time.sleep(usual / 2)
    pidfd = os.pidfd_open(pid)
    begun = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    select.select([pidfd], [], [], WAIT_S)
    result.note(f"rank {rank} was gone {1000 * (time.monotonic() - begun):.0f} ms after the signal")
    os.close(pidfd)
    done = [
        number for each in range(job.ranks) for number, line in job.steps(each).items() if line["at"] < begun
    ]
    return begun, max(done) + 1


def let_fail(job: Job, rank: int) -> tuple[float, int]:
    """Let a step of a rank fail; return when the step before it was done by all, and the step."""
    step = max(job.steps(rank)) + 4
    job.cli("inject", "raise", job.name, "--rank", str(rank), "--at-step", str(step))
    return job.wait_step(step - 1), step


def measure_faults(home: Path, options: argparse.Namespace, result: Result) -> None:
    """Kill ranks and let one fail, in one run; compare it with an undisturbed one."""
    faults = [("kill", rank % options.ranks) for rank in range(1, options.kills + 1)]
    faults += [("raise", 1)] * options.raises
    steps = SETTLE_STEPS + int((len(faults) + 1) * options.refill_s / options.least_s)
    with running(home, "calm", options, steps) as calm:
        calm.finish()
    expected = calm.summary()
    tell(f"the undisturbed run of {steps} steps is done")
    times: dict[str, list[float]] = {"kill": [], "raise": []}
    with running(home, "faults", options, steps) as job:
        job.wait_step(SETTLE_STEPS)
        usual = step_time(job, SETTLE_STEPS)
        try:
            for kind, rank in faults:
                if options.spares and options.device == "cuda":
                    job.wait_spare(options.spares)
                begun, step = kill(job, rank, usual, result) if kind == "kill" else let_fail(job, rank)
                taken = job.wait_step(step) - begun - usual
                times[kind].append(1000 * taken)
                tell(f"{kind} of rank {rank} at step {step}: {1000 * taken:.0f} ms beyond the step itself")
                if kind == "kill":
                    result.note(describe_newcomer(job, rank, begun))
                job.wait_step(step + SETTLE_STEPS)
        except RuntimeError as error:
            result.note(f"FAILED before the last fault: {error}")
        job.finish()
    for incident in job.timeline():
        parts = ", ".join(f"{name} {ms:.0f}" for name, ms in incident["phases_ms"].items())
        total = sum(incident["phases_ms"].values())
        result.note(f"{incident['what']} ({incident['strategy']}): {parts}; together {total:.0f} ms")
    found = job.summary()
    limit = 1000.0 if options.device == "cuda" else None
    result.add(f"kill -9 of a rank, {options.state_gb:g} GB each, less one step", times["kill"], median=limit)
    result.add("retry after an exception, less one step", times["raise"], median=1500.0 * usual)
    result.note(f"a step takes {1000 * usual:.0f} ms, {steps} steps")
    for rank in range(options.ranks):
        missing = expected[rank][0].keys() - found[rank][0].keys()
        same = all(expected[rank][0][step] == loss for step, loss in found[rank][0].items())
        equal = same and expected[rank][1] == found[rank][1]
        result.note(
            f"rank {rank}: {'EQUAL to the bit' if equal else 'NOT EQUAL'}, {len(missing)} lines missing"
        )


def describe_newcomer(job: Job, rank: int, begun: float) -> str:
    """Say when the replacement was where, counted from the kill."""
    lines = [line for line in job.lines(rank) if line["at"] > begun]
    first = next(line for line in lines if line["what"] == "first line")
    marks = [("first line", first["started"])]
    marks += [(line["what"], line["at"]) for line in lines if line["what"] in {"built", "registered"}]
    marks.append(("first step", next(line["at"] for line in lines if line["what"] == "step")))
    text = ", ".join(f"{name} {1000 * (at - begun):.0f}" for name, at in marks)
    return f"rank {rank}'s replacement, ms from the kill: {text}"


def run_part(script: str, *words: str) -> dict[str, Any]:
    """Run another script of this folder and return its line."""
    path = os.pathsep.join([str(HERE.parents[1] / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(HERE / script), *words],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{script}: {done.returncode}\n{done.stdout[-1000:]}\n{done.stderr[-3000:]}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def measure_snapshots(options: argparse.Namespace, result: Result) -> None:
    """Let the snapshot script measure, and judge what it says."""
    words = ["--state-gb", str(options.state_gb), "--device", options.device]
    words += ["--blocks", str(options.blocks), "--step-s", str(options.step_s)]
    words += ["--size", "8192" if options.device == "cuda" else "512"]
    found = run_part("snapshot.py", *words)
    assert found["equal"], "what was loaded is not what was taken"
    result.add(f"snapshot of {found['gb']:.1f} GB each step", [found["cost_percent"]], "%", worst=1.0)
    result.add("  bare against bare in the same blocks", [found["bare_differs_percent"]], "%", worst=0.5)
    result.note(json.dumps({name: round(value, 4) for name, value in found.items()}))


def main() -> None:
    """Measure what was asked for, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", default=["faults", "snapshots", "nccl"])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--state-gb", type=float, default=10.0)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--work", type=int, default=4)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--spares", type=int, default=1)
    parser.add_argument("--kills", type=int, default=4)
    parser.add_argument("--raises", type=int, default=2)
    parser.add_argument("--least-s", type=float, default=0.5, help="a step takes at least so long")
    parser.add_argument("--refill-s", type=float, default=12.0, help="time between two faults")
    parser.add_argument("--blocks", type=int, default=6)
    parser.add_argument("--step-s", type=float, default=1.0)
    options = parser.parse_args()
    sections: list[tuple[str, Result]] = []
    with tempfile.TemporaryDirectory(prefix="taskd-gpu-") as folder:
        for part in options.parts:
            result = Result()
            sections.append((part, result))
            try:
                if part == "faults":
                    measure_faults(Path(folder), options, result)
                elif part == "snapshots":
                    measure_snapshots(options, result)
                else:
                    found = run_part("nccl.py")
                    result.add("NCCL: interrupt (world of one)", found["interrupt_ms"])
                    result.add("NCCL: made again and first all-reduce", found["first_ms"][1:])
            except Exception as error:  # noqa: BLE001 - the other parts are worth their figures
                result.note(f"FAILED: {type(error).__name__}: {error}")
    print_table(sections)


if __name__ == "__main__":
    main()
