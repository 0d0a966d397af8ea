"""Watch a four-process training run lose a process to kill -9 and go on.

Starts ``demo/train.py`` under ``taskd run``, kills one rank from outside in the middle, and shows what was
replaced. It fails unless the run went on from its last checkpoint or later and reached its final step; on a
machine that is not overloaded it goes on from the very step that was interrupted.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STEPS, EVERY, KILL_AFTER = 60, 10, 34
LIMIT_S = 180.0
LINE = r"rank (\d+) pid (\d+) step (\d+) loss"


def say(text: str) -> None:
    """Tell the person what happens."""
    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    print(f"\033[1;36mdemo:\033[0m {text}" if colour else f"demo: {text}", flush=True)


def ask(home: Path, *command: str) -> str:
    """Call another command of TaskD."""
    done = subprocess.run(
        [sys.executable, "-m", "taskd.cli.main", *command],
        env={**os.environ, "TASKD_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout


def read_ranks(home: Path) -> dict[int, tuple[int, int]]:
    """Return process id and step of each rank, as ``taskd status`` tells them."""
    try:
        status = json.loads(ask(home, "status", "demo", "--output", "json"))
    except ValueError:
        return {}
    return {rank["rank"]: (rank["pid"], rank["step"]) for rank in status["ranks"]}


def show(title: str, ranks: dict[int, tuple[int, int]]) -> None:
    """Print one line per rank."""
    say(title)
    for rank, (pid, step) in sorted(ranks.items()):
        print(f"        rank {rank}   pid {pid:<8} step {step}", flush=True)


def wait_for_step(home: Path, run: "subprocess.Popen[bytes]", step: int) -> dict[int, tuple[int, int]]:
    """Wait until every rank has done a step."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline and run.poll() is None:
        ranks = read_ranks(home)
        if len(ranks) == 4 and min(at for _, at in ranks.values()) >= step:  # noqa: PLR2004 - four ranks
            return ranks
        time.sleep(0.1)
    sys.exit(f"demo: the run did not come to step {step}")


def main() -> int:
    """Run the demo; 0 if all of it came true."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", type=int, default=1, help="the rank that is killed")
    parser.add_argument("--spares", type=int, default=4, help="warm processes that wait for a fault")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="taskd-demo-") as name:
        return run_demo(Path(name), args.rank, args.spares)


def run_demo(place: Path, victim: int, spares: int) -> int:
    """Start, kill, watch, judge."""
    home, log = place / "home", place / "run.log"
    command = [sys.executable, "-m", "taskd.cli.main", "run", "--job", "demo", "--nproc-per-node", "4"]
    command += ["--spares", str(spares), str(Path(__file__).with_name("train.py"))]
    command += [
        "--steps",
        str(STEPS),
        "--every",
        str(EVERY),
        "--checkpoint",
        str(place / "last.pt"),
        "--pause",
        "0.15",
    ]
    say(f"taskd run --nproc-per-node 4 --spares {spares} demo/train.py   (DDP over gloo, {STEPS} steps)")
    with log.open("wb") as file:
        run = subprocess.Popen(command, stdout=file, stderr=file, env={**os.environ, "TASKD_HOME": str(home)})
    try:
        before = wait_for_step(home, run, KILL_AFTER)
        show("before", before)
        reached = min(at for _, at in before.values())
        checkpoint = max(step for step in range(EVERY - 1, STEPS, EVERY) if step <= reached)
        say(f"kill -9 {before[victim][0]}   (rank {victim}; the last checkpoint is of step {checkpoint})")
        os.kill(before[victim][0], signal.SIGKILL)
        after = wait_for_replacement(home, run, before, victim)
        show("after", after)
        code = run.wait(LIMIT_S)
    finally:
        if run.poll() is None:
            run.terminate()
            run.wait(LIMIT_S)
    print(ask(home, "timeline", "demo"), flush=True)
    return judge(log.read_text(errors="replace"), victim, checkpoint, before, code)


def wait_for_replacement(
    home: Path, run: "subprocess.Popen[bytes]", before: dict[int, tuple[int, int]], victim: int
) -> dict[int, tuple[int, int]]:
    """Wait until the killed rank has another process and has done a step in it."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline and run.poll() is None:
        ranks = read_ranks(home)
        pid, step = ranks.get(victim, (0, -1))
        if len(ranks) == len(before) and pid not in (0, before[victim][0]) and step >= 0:
            return ranks
        time.sleep(0.1)
    sys.exit("demo: the rank did not come back")


def judge(log: str, victim: int, checkpoint: int, before: dict[int, tuple[int, int]], code: int) -> int:
    """Decide from the run's own output whether the promise was kept."""
    print("\n".join(line for line in log.splitlines() if line.startswith("taskd:")), flush=True)
    told = [(int(rank), int(pid), int(step)) for rank, pid, step in re.findall(LINE, log)]
    old = before[victim][0]
    resumed = [step for rank, pid, step in told if rank == victim and pid != old]
    finals = {rank for rank, _, step in told if step == STEPS - 1}
    if code != 0 or not resumed or min(resumed) <= checkpoint or finals != set(before):
        say(f"FAILED: exit code {code}, resumed at {resumed[:1]}, ranks at the last step: {finals}\n{log}")
        return 1
    kept = [rank for rank in before if rank != victim and len({pid for r, pid, _ in told if r == rank}) == 1]
    say(f"rank {victim} went on at step {min(resumed)} in another process, and all finished step {STEPS - 1}")
    names = ", ".join(map(str, kept)) or "none: it was a restart from the checkpoint"
    say(f"ranks that kept their processes: {names}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
