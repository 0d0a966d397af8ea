# ruff: noqa: E402
"""A rank that loads torch and an optimizer, then sleeps. Its first line is what is measured."""

import time

first_line = time.monotonic()

import os
from pathlib import Path

import torch

torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])
loaded = time.monotonic()
marks = Path(os.environ["BENCH_MARKS"]) / f"{os.environ['RANK']}.{os.environ['TORCHELASTIC_RESTART_COUNT']}"
draft = marks.with_name(f"draft-{marks.name}")
draft.write_text(f"pid {os.getpid()}\nfirst_line {first_line}\nloaded {loaded}\n", encoding="ascii")
draft.rename(marks)
while True:
    time.sleep(60)
