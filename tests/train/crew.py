"""Run a script as several ranks, each a process of its own."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def run_crew(
    script: str,
    size: int,
    tmp_path: Path,
    *args: str,
    wait_for: Sequence[int] | None = None,
    limit_s: float = 60,
) -> dict[int, Any]:
    """Start the ranks and return what each printed last, as JSON.

    Those that are not waited for are killed at the end.
    """
    env = dict(os.environ, WORLD_SIZE=str(size), STORE=str(tmp_path / "store"), OMP_NUM_THREADS="1")
    ranks: dict[int, subprocess.Popen[str]] = {}
    outputs = {rank: tmp_path / f"rank{rank}.out" for rank in range(size)}
    try:
        for rank in range(size):
            with outputs[rank].open("w") as out:
                command = [sys.executable, str(HERE / script), *args]
                ranks[rank] = subprocess.Popen(
                    command, env={**env, "RANK": str(rank)}, stdout=out, stderr=out, text=True
                )
        end = time.monotonic() + limit_s
        results = {}
        for rank in range(size) if wait_for is None else wait_for:
            code = ranks[rank].wait(max(0.1, end - time.monotonic()))
            text = outputs[rank].read_text()
            assert 0 == code, f"rank {rank}:\n{text}"
            results[rank] = json.loads(text.splitlines()[-1])
        return results
    finally:
        for process in ranks.values():
            process.kill()
        for process in ranks.values():
            process.wait()
