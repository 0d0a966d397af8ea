"""Run a script as several ranks, each a process of its own.

Ranks are forked from one process that has imported torch, as TaskD's own are: an import takes longer than
most of these scripts, and so does torch's way out of an interpreter.
"""

import atexit
import json
import multiprocessing
import os
import runpy
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["torch._dynamo", "torch.distributed", "torch.nn.parallel"])


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
    outputs = {rank: tmp_path / f"rank{rank}.out" for rank in range(size)}
    command = [str(HERE / script), *args]
    ranks = [
        _processes.Process(target=_be_rank, args=(command, {**env, "RANK": str(rank)}, str(outputs[rank])))
        for rank in range(size)
    ]
    try:
        for process in ranks:
            process.start()
        end = time.monotonic() + limit_s
        results = {}
        for rank in range(size) if wait_for is None else wait_for:
            ranks[rank].join(max(0.1, end - time.monotonic()))
            text = outputs[rank].read_text()
            assert 0 == ranks[rank].exitcode, f"rank {rank}: {ranks[rank].exitcode}\n{text}"
            results[rank] = json.loads(text.splitlines()[-1])
        return results
    finally:
        for process in ranks:
            if process.pid is not None:
                process.kill()
                process.join()
            process.close()


def _be_rank(command: list[str], env: dict[str, str], output: str) -> None:
    """Become the script; its last lines reach the file before the process ends, whatever it does."""
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = command
    sys.path.insert(0, str(HERE))
    import torch

    torch.set_num_threads(1)
    torch.default_generator.seed()
    runpy.run_path(command[0], run_name="__main__")
    atexit._run_exitfuncs()
    sys.stdout.flush()
