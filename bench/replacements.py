"""Figure: how soon a replacement process runs the user's first line, from a warm spare and cold.

Two jobs of the same script live side by side, one with spares and one without, and lose a rank in turns. The
clock starts when the agent takes the start order (its ledger notes that) and ends at the very first line of
the script, a stamp; *loaded* is the first line after ``import torch`` and the first optimizer. All ranks
restart, so each kill gives as many samples as there are ranks.
"""

import os
import signal
import time
from collections import defaultdict
from pathlib import Path

from jobrun import BenchError, Contestant, run_taskd
from table import Result, tell

RANKS = 4
READY_S = 120.0
SETTLE_S = 0.3


def measure_replacements(*, quick: bool, home: Path) -> Result:
    """Kill a rank of the warm job and of the cold job in turns."""
    kills = 3 if quick else 10
    result = Result()
    samples: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    fresh = 0
    with (
        run_taskd(home, "warm", RANKS, "loading.py", spares=RANKS) as warm,
        run_taskd(home, "cold", RANKS, "loading.py") as cold,
    ):
        for number in range(1, kills + 1):
            for job in (warm, cold):
                job.wait_marks(number - 1, "loaded", READY_S)
            wait_spares(warm, RANKS)
            for name, job in (("warm", warm), ("cold", cold)):
                for what, values in _kill_one(job, number).items():
                    samples[name, what] += values
            fresh += warm.cold_starts(number + 1)
            tell(f"{number} of {kills} kills each")
    for name in ("warm", "cold"):
        limit = 100.0 if name == "warm" else None
        label = f"warm{f', {fresh} FRESH' if fresh else ''}" if name == "warm" else "cold beside it"
        result.add(f"start order to the user's first line, {label}", samples[name, "first"], median=limit)
        result.add(f"  slowest of {RANKS} ranks, {label}", samples[name, "last"])
        result.add(f"  kill to first line of all ranks, {label}", samples[name, "kill"])
        result.add(f"  start order to torch and optimizer loaded, {label}", samples[name, "loaded"])
    result.note(
        f"{fresh} of {kills * RANKS} replacements of the warm job were fresh processes by the nursery's log"
    )
    if fresh:
        reasons = {line.split(": ")[-1] for line in warm.nursery_log().splitlines() if "fresh" in line}
        result.note(f"why: {'; '.join(sorted(reasons))}")
    return result


def wait_spares(job: Contestant, spares: int) -> None:
    """Wait until the spares are parked again, and a moment for them to come to rest."""
    deadline = time.monotonic() + READY_S
    while job.parked_spares() < spares:
        if time.monotonic() > deadline:
            raise BenchError(f"{job.name}: only {job.parked_spares()} of {spares} spares are there")
        time.sleep(0.05)
    time.sleep(SETTLE_S)


def _kill_one(job: Contestant, number: int) -> dict[str, list[float]]:
    victim = job.marks(number - 1)[number % RANKS]
    killed_at = time.monotonic()
    os.kill(victim.pid, signal.SIGKILL)
    time.sleep(0.2)
    marks = job.wait_marks(number, "loaded", READY_S)
    ordered_at = job.ledger()[f"{number + 1}/start"]
    first = [(each.at["first_line"] - ordered_at) * 1000.0 for each in marks]
    last = max(each.at["first_line"] for each in marks)
    loaded = [(each.at["loaded"] - ordered_at) * 1000.0 for each in marks]
    return {
        "first": first,
        "last": [max(first)],
        "kill": [(last - killed_at) * 1000.0],
        "loaded": loaded,
    }
