"""A training process's place in its job."""

import logging
import os
from collections.abc import Callable, Iterator
from typing import TypeVar

from taskd.worker.client import Worker, WorkerEnv

R = TypeVar("R")

log = logging.getLogger("taskd")


class Job:
    """The job, seen from one rank."""

    def __init__(self, worker: Worker | None) -> None:
        """Take rank and world size from the launcher's environment; a script of its own is a job of one."""
        self._worker = worker
        self.rank = int(os.environ.get("RANK", "0"))
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        self.world_size = int(os.environ.get("WORLD_SIZE", "1"))
        self.restart_count = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))

    @property
    def supervised(self) -> bool:
        """Tell whether an agent of TaskD watches this process."""
        return self._worker is not None

    def steps(self, step: Callable[[int], R], *, until: int, start: int = 0) -> Iterator[tuple[int, R]]:
        """Run ``step(number)`` from ``start`` to ``until`` and yield each number with its result."""
        for number in range(start, until):
            self.begin(number)
            result = step(number)
            self.done(number)
            yield number, result

    def begin(self, step: int) -> None:
        """Say that a step begins, in a loop of the script's own."""
        if self._worker is not None:
            self._worker.begin(step)

    def done(self, step: int) -> None:
        """Say that a step is done, in a loop of the script's own."""
        if self._worker is not None:
            self._worker.done(step)


_joined: Job | None = None


def join() -> Job:
    """Take part in the job. The second call returns the first one's answer."""
    global _joined  # noqa: PLW0603 - a process takes part in one job
    if _joined is not None:
        return _joined
    env = WorkerEnv.read(os.environ)
    worker: Worker | None = None
    if env is not None:
        try:
            worker = Worker(env)
        except OSError as error:
            log.warning("taskd: this process is not watched, its page cannot be mapped: %s", error)
    elif os.environ.get("TORCHELASTIC_RUN_ID"):
        log.warning("taskd: started by torchrun itself, so recovery is off; use taskd run")
    _joined = Job(worker)
    return _joined
