# ruff: noqa: E402
"""A rank that only sleeps. Its first line is what is measured."""

import time

first_line = time.monotonic()

import os
from pathlib import Path

marks = Path(os.environ["BENCH_MARKS"]) / f"{os.environ['RANK']}.{os.environ['TORCHELASTIC_RESTART_COUNT']}"
marks.write_text(f"pid {os.getpid()}\nfirst_line {first_line}\n", encoding="ascii")
while True:
    time.sleep(60)
