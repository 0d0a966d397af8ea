# ruff: noqa: E402
"""Measures what TaskD adds to a process, then dies: the next attempt is a new interpreter."""

import time

first_line = time.monotonic()

import os
import signal
import sys
from pathlib import Path

if "torch" in sys.argv:
    import torch  # noqa: F401 - a training process has it already
before, cpu_before = time.monotonic(), time.process_time()
import taskd.train

imported = time.monotonic()
job = taskd.train.join()
joined, cpu_joined = time.monotonic(), time.process_time()
assert job.supervised, "no agent of TaskD started this process, so join() had nothing to do"
lines = {"first_line": first_line, "before": before, "imported": imported, "joined": joined}
lines |= {"cpu_before": cpu_before, "cpu_joined": cpu_joined}
marks = Path(os.environ["BENCH_MARKS"]) / f"{os.environ['RANK']}.{os.environ['TORCHELASTIC_RESTART_COUNT']}"
draft = marks.with_name(f"draft-{marks.name}")
text = "".join(f"{name} {at}\n" for name, at in lines.items())
draft.write_text(f"pid {os.getpid()}\n{text}", encoding="ascii")
draft.rename(marks)
if int(os.environ["TORCHELASTIC_RESTART_COUNT"]) < int(sys.argv[1]) - 1:
    os.kill(os.getpid(), signal.SIGKILL)
