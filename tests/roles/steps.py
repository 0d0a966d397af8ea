"""A job without torch: it joins, counts steps in a file per rank, and goes on where it was."""

import os
import sys
import time
from pathlib import Path

from taskd import train

job = train.join()
until, pause_s = int(sys.argv[1]), float(sys.argv[2])
memory = Path(f"done-{job.rank}.txt")
start = len(memory.read_text().splitlines()) if memory.exists() else 0


def step(number: int) -> int:
    """Wait a little and note the step."""
    time.sleep(pause_s)
    with memory.open("a") as file:
        file.write(f"{number} {os.getpid()}\n")
    return number


for number, _ in job.steps(step, until=until, start=start):
    if number % 10 == 0:
        print(f"rank {job.rank} step {number}", flush=True)
