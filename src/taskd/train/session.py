"""A training process's place in its job.

``join`` is cheap and knows nothing of a framework. What needs PyTorch is loaded when a script wraps a module
or registers state, and by then the script has loaded PyTorch itself.
"""

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from taskd.worker.client import Worker, WorkerEnv

if TYPE_CHECKING:
    from taskd.train.torch.engine import Engine
    from taskd.train.torch.groups import Groups

log = logging.getLogger("taskd")


class Job:
    """The job, seen from one rank."""

    def __init__(self, worker: Worker | None) -> None:
        """Take rank and world size from the launcher's environment; a script of its own is a job of one."""
        self._worker = worker
        self._engine: Engine | None = None
        self._unkept: set[str] = set()
        self.rank = int(os.environ.get("RANK", "0"))
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        self.world_size = int(os.environ.get("WORLD_SIZE", "1"))
        self.restart_count = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))

    @property
    def supervised(self) -> bool:
        """Tell whether an agent of TaskD watches this process."""
        return self._worker is not None

    @property
    def device(self) -> Any:  # noqa: ANN401 - a torch.device
        """Return the device of this rank: its accelerator by local rank, or the CPU where there is none."""
        from taskd.train.torch.plain import own_device

        return own_device(self.local_rank)

    @property
    def replaying(self) -> bool:
        """Tell whether this step is computed again because a fault interrupted it."""
        return self._engine is not None and self._engine.replaying

    def wrap(self, builder: Callable[[], Any]) -> Any:  # noqa: ANN401 - whatever the builder makes
        """Build a wrapper such as DDP now, and again after a change of membership; the handle stays valid."""
        engine = self._recovery()
        if engine is not None:
            return engine.wrap(builder)
        from taskd.train.torch.plain import wrap_without_recovery

        return wrap_without_recovery(builder, self.world_size)

    def register(self, **objects: Any) -> None:  # noqa: ANN401 - anything with state_dict and load_state_dict
        """Keep the state of these objects, so that a replaced rank can have it."""
        engine = self._recovery()
        if engine is not None:
            engine.register(objects)

    def checkpoint(self, directory: str | os.PathLike[str], *, every: int, keep: int = 2) -> None:
        """Write the registered state to a directory every so many steps, and go on from there next time.

        Written in the background, visible only when whole, and compared with its checksums when read.
        """
        engine = self._recovery()
        if engine is None:
            self._without("so job.checkpoint writes nothing; start the script with taskd run")
            return
        engine.saver.want(directory, every, keep)

    def steps(
        self,
        step: Callable[..., Any],
        *,
        until: int,
        data: Iterable[Any] | None = None,
        start: int = 0,
    ) -> Iterator[tuple[int, Any]]:
        """Run ``step(number)`` or ``step(number, batch)``; yield each number that counts, with its result."""
        if self._engine is not None:
            yield from self._engine.steps(step, until, data, start)
            return
        batches = _endless(data) if data is not None else None
        for number in range(start, until):
            self.begin(number)
            result = step(number) if batches is None else step(number, next(batches))
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

    def _recovery(self) -> "Engine | None":
        """Return the engine of recovery from memory, or None where it cannot work; says why once."""
        if self._worker is None:
            return None
        if self._engine is not None:
            if not self._engine.groups.foreign:
                return self._engine
            self._engine = None
        if "TASKD_SLOT" not in os.environ:
            self._without("this agent keeps no slot for it")
            return None
        from taskd.train.torch.engine import Engine
        from taskd.train.torch.plain import has_own_group

        if has_own_group():
            self._without("the script made a process group of its own world; leave that to taskd.train")
            return None
        self._engine = Engine(self._worker, self.rank, self.world_size)
        return self._engine

    def _groups(self) -> "Groups | None":
        """Return what makes the process groups of this process, or None where torch does it alone."""
        engine = self._recovery()
        return None if engine is None else engine.groups

    def _without(self, why: str) -> None:
        if why not in self._unkept:
            self._unkept.add(why)
            log.warning("taskd: recovery from memory is off: %s", why)


def _endless(data: Iterable[Any]) -> Iterator[Any]:
    while True:
        empty = True
        for batch in data:
            empty = False
            yield batch
        if empty:
            raise ValueError("the data loader gave no batch at all; check its length and its sampler")


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
    elif os.environ.get("TORCHELASTIC_RUN_ID") and os.environ.get("RANK", "0") == "0":
        log.warning("taskd: started by torchrun itself, so recovery is off; use taskd run")
    _joined = Job(worker)
    if worker is not None:
        from taskd.train.torch.hooks import hook_groups

        hook_groups(_joined._groups)  # noqa: SLF001 - of this module
    return _joined
