"""Takes snapshots of a state in which every byte follows from the step, until it is killed.

``snapshot_writer.py PATH full`` lets the kernel refuse larger files after the first one.
"""

import logging
import resource
import sys
from typing import Any

import torch

from taskd.train.torch import snapshots
from taskd.train.torch.snapshots import Snapshot


class Filled:
    """Such a state, of different length at each step."""

    def __init__(self, step: int = 0) -> None:
        self.state: dict[str, Any] = {}
        self.fill(step)

    def fill(self, step: int) -> None:
        sizes = (300_000 + step % 7 * 1000, 17, 70_001)
        self.state = {str(size): torch.full((size,), step % 120, dtype=torch.int8) for size in sizes}
        self.state["step"] = step

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


def write(path: str) -> None:
    state, snapshot = Filled(), Snapshot(path, create=True)
    step = 0
    while True:
        state.fill(step)
        snapshot.take(step, {"state": state})
        snapshot.wait()
        if step == 1:
            snapshot.settle()
            print("begun", flush=True)
        step += 1


def fill_up(path: str) -> None:
    logging.basicConfig(format="%(message)s")
    snapshots.RETRY_S = 0.0
    state, snapshot = Filled(), Snapshot(path, create=True)
    snapshot.take(0, {"state": state})
    assert snapshot.settle()
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    for step in (1, 2, 3):
        snapshot.take(step, {"state": state})
        snapshot.wait()
    print(snapshots.versions(path))


if __name__ == "__main__":
    torch.set_num_threads(1)
    (fill_up if sys.argv[2:] else write)(sys.argv[1])
