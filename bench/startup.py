"""Figures: what TaskD adds to the start of a training process, and to that of a command.

A job of one rank measures ``import taskd.train`` and ``join()`` and kills itself; its replacement is a fresh
interpreter and measures again. Two such jobs run one after the other, without torch and with torch imported
before. The command line is timed from outside, in turns with an interpreter that does nothing.
"""

import subprocess
import sys
import time
from pathlib import Path

from jobrun import run_taskd, taskd_command
from table import Result

READY_S = 180.0


def measure_startup(*, quick: bool, home: Path) -> Result:
    """Measure joining, then the command line."""
    count = 5 if quick else 15
    result = Result()
    for torch in (False, True):
        words = [str(count), *(["torch"] if torch else [])]
        name = "joining-torch" if torch else "joining"
        with run_taskd(home, name, 1, "joining.py", words) as job:
            job.process.wait(READY_S)
            samples = [marks.at for attempt in range(count) for marks in job.marks(attempt)]
        label = "torch imported before" if torch else "bare interpreter"
        both = [(at["joined"] - at["before"]) * 1000.0 for at in samples]
        result.add(f"import taskd.train and join(), {label}", both, median=100)
        result.add(f"  of it: join(), {label}", [(at["joined"] - at["imported"]) * 1000.0 for at in samples])
        used = [(at["cpu_joined"] - at["cpu_before"]) * 1000.0 for at in samples]
        result.add(f"  of it: processor time, {label}", used)
        plain = [(at["before"] - at["first_line"]) * 1000.0 for at in samples]
        result.add(f"  beside it: the process before that, {label}", plain)
    command: list[float] = []
    nothing: list[float] = []
    for _ in range(count):
        command.append(_time([*taskd_command(), "--help"]))
        nothing.append(_time([sys.executable, "-c", "pass"]))
    result.add("taskd --help", command, median=300)
    result.add("  beside it: python -c pass", nothing)
    return result


def _time(words: list[str]) -> float:
    began = time.monotonic()
    subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)
    return (time.monotonic() - began) * 1000.0
