"""Figure: a full restart of a four-rank training job, from warm spares against torchrun's restart.

The same script runs under both, in turns. Rank 1 is killed from outside, after enough steps that both are at
rest and TaskD's spares are parked. The clock runs from the kill to the first step that all ranks of the next
attempt have completed. The script's own stamps and TaskD's timeline tell where the time went.
"""

import os
import signal
import statistics
import time
from collections import defaultdict
from contextlib import AbstractContextManager
from pathlib import Path

from jobrun import Contestant, run_taskd, run_torchrun
from replacements import wait_spares
from table import Result, tell

RANKS = 4
SCRIPT = "train_ddp.py"
VICTIM = 1
READY_S = 180.0
STAGES = ("first_line", "imported", "group", "built", "first_step")
LIMIT = 0.25


def measure_restarts(*, quick: bool, home: Path) -> Result:
    """Restart both in turns and compare."""
    rounds, kills = (1, 2) if quick else (3, 2)
    result = Result()
    stages: dict[str, defaultdict[str, list[float]]] = {
        "taskd": defaultdict(list),
        "torchrun": defaultdict(list),
    }
    phases: defaultdict[str, list[float]] = defaultdict(list)
    fresh = 0
    for number in range(1, rounds + 1):
        for name in ("taskd", "torchrun"):
            label = f"{name}-{number}"
            args = ["--checkpoint", str(home / f"{label}.pt")]
            with _run(home, name, label, args) as job:
                for kill in range(1, kills + 1):
                    for stage, value in _kill_one(job, kill, warm=name == "taskd").items():
                        stages[name][stage].append(value)
                if name == "taskd":
                    fresh += sum(job.cold_starts(kill + 1) for kill in range(1, kills + 1))
                    for kill in range(1, kills + 1):
                        for phase, value in job.wait_recovered(kill, READY_S).phases_ms.items():
                            phases[phase].append(value)
            tell(
                f"round {number} of {rounds}: {name} restarts in {_list(stages[name]['first_step'][-kills:])}"
            )
    ours, theirs = stages["taskd"]["first_step"], stages["torchrun"]["first_step"]
    ratio = statistics.median(ours) / statistics.median(theirs)
    result.add("full restart from warm spares / torchrun's, ratio of medians", [ratio], "", median=LIMIT)
    result.add(f"  TaskD: kill to the first step of all {RANKS} ranks", ours)
    result.add(f"  torchrun: kill to the first step of all {RANKS} ranks", theirs)
    for name, times in stages.items():
        parts = ", ".join(f"{stage} {statistics.median(times[stage]):.0f}" for stage in STAGES)
        result.note(f"{name}, last rank at each stage, median ms after the kill: {parts}")
    parts = ", ".join(f"{phase} {statistics.median(values):.1f}" for phase, values in phases.items())
    result.note(f"TaskD's timeline, median ms per phase: {parts}")
    total = rounds * kills * RANKS
    result.note(f"{total - fresh} of {total} new processes came from the warm process, {fresh} were fresh")
    return result


def _run(home: Path, name: str, label: str, args: list[str]) -> AbstractContextManager[Contestant]:
    if name == "torchrun":
        return run_torchrun(home, label, RANKS, SCRIPT, args)
    return run_taskd(home, label, RANKS, SCRIPT, args, spares=RANKS)


def _kill_one(job: Contestant, number: int, *, warm: bool) -> dict[str, float]:
    """Kill a rank of the current attempt; returns how many ms later the last rank was at each stage."""
    ranks = job.wait_marks(number - 1, "steps-40", READY_S)
    if warm:
        wait_spares(job, RANKS)
    victim = next(marks for marks in ranks if marks.rank == VICTIM)
    killed_at = time.monotonic()
    os.kill(victim.pid, signal.SIGKILL)
    marks = job.wait_marks(number, "first_step", READY_S)
    return {stage: (max(each.at[stage] for each in marks) - killed_at) * 1000.0 for stage in STAGES}


def _list(values: list[float]) -> str:
    return ", ".join(f"{value:.0f}" for value in values) + " ms"
