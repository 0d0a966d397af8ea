"""Let several jobs that are all there take turns, a block of steps each, without polling.

The driver holds a lock on one file per block, and gives it up when the block may begin. A rank that waits
costs nothing meanwhile, so the jobs whose turn it is not are as good as absent.
"""

import fcntl
import os
from pathlib import Path

SIZE = int(os.environ.get("BENCH_BLOCK", "0"))


def wait_turn(step: int) -> None:
    """Wait until the block that begins with this step may run; does nothing in the middle of one."""
    if SIZE == 0 or step % SIZE:
        return
    gate = Path(os.environ["BENCH_GATES"]) / str(step // SIZE)
    if gate.exists():  # behind the last one a job runs freely, until it is ended
        with gate.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
