"""Watch a four-process training run lose a process to kill -9 and go on.

Starts ``demo/train.py`` under ``taskd run``, kills one rank from outside in the middle, and shows what was
replaced. It fails unless the run went on from its last checkpoint or later and reached its final step.
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
        after = wait_for_new_processes(home, run, before)
        show("after", after)
        code = run.wait(LIMIT_S)
    finally:
        if run.poll() is None:
            run.terminate()
            run.wait(LIMIT_S)
    print(ask(home, "timeline", "demo"), flush=True)
    return judge(log.read_text(errors="replace"), checkpoint, code)


def wait_for_new_processes(
    home: Path, run: "subprocess.Popen[bytes]", before: dict[int, tuple[int, int]]
) -> dict[int, tuple[int, int]]:
    """Wait until the ranks run again, in other processes, and have done a step."""
    deadline = time.monotonic() + LIMIT_S
    old = {pid for pid, _ in before.values()}
    while time.monotonic() < deadline and run.poll() is None:
        ranks = read_ranks(home)
        if len(ranks) == len(before) and all(pid not in old and step >= 0 for pid, step in ranks.values()):
            return ranks
        time.sleep(0.1)
    sys.exit("demo: the ranks did not come back")


def judge(log: str, checkpoint: int, code: int) -> int:
    """Decide from the run's own output whether the promise was kept."""
    starts = [int(step) for step in re.findall(r"starts at step (\d+)", log)]
    resumed = [step for step in starts if step > 0]
    finals = len(re.findall(rf"step {STEPS - 1} loss", log))
    print("\n".join(line for line in log.splitlines() if line.startswith("taskd:")), flush=True)
    if code == 0 and resumed and min(resumed) > checkpoint and finals == 4:  # noqa: PLR2004 - four ranks
        say(f"all four ranks went on at step {min(resumed)} and finished step {STEPS - 1}")
        return 0
    say(f"FAILED: exit code {code}, resumed at {resumed}, {finals} of 4 ranks at the last step\n{log}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
