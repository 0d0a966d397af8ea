"""Figure: how long after kill -9 the manager knows that a process is dead.

A job of cheap sleeping ranks loses one of them again and again. The clock starts just before the kill and
ends when the manager has the report: ``started_at`` of its timeline is the moment at which the agent's pidfd
fired, and the detect phase is the way from there to the manager. Each kill restarts the group; the next one
waits for that.
"""

import os
import signal
import time
from pathlib import Path

from jobrun import Contestant, run_taskd
from table import Result, tell

RANKS = 8
SETTLE_S = 0.05
RESTART_S = 30.0


def measure_deaths(*, quick: bool, home: Path) -> Result:
    """Kill one rank after the other."""
    kills = 10 if quick else 100
    result = Result()
    kernel: list[float] = []
    ours: list[float] = []
    with run_taskd(home, "deaths", RANKS, "idle.py") as job:
        for number in range(1, kills + 1):
            in_kernel, on_the_way = _kill_one(job, number)
            kernel.append(in_kernel)
            ours.append(on_the_way)
            if number % 20 == 0:
                tell(f"{number} of {kills} ranks killed")
    total = [a + b for a, b in zip(kernel, ours, strict=True)]
    result.add("death of a process known to the manager", total, median=5, worst=50)
    result.add("  of it: kill to pidfd in the agent (kernel)", kernel)
    result.add("  of it: pidfd to manager (agent, proxy, gRPC)", ours)
    return result


def _kill_one(job: Contestant, number: int) -> tuple[float, float]:
    """Kill a rank of the current attempt; returns milliseconds to the pidfd and from there to the manager."""
    ranks = job.wait_marks(number - 1, "first_line", RESTART_S)
    if number > 1:
        job.wait_recovered(number - 1, RESTART_S)
    time.sleep(SETTLE_S)
    victim = ranks[number % RANKS]
    killed_at = time.monotonic()
    os.kill(victim.pid, signal.SIGKILL)
    time.sleep(SETTLE_S)  # looking must not disturb what is measured
    incident = job.wait_recovered(number, RESTART_S)
    return (incident.started_at - killed_at) * 1000.0, incident.phases_ms["detect"]
