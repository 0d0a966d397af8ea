"""What has to be written into the cluster for one job, in order, each until it is done or hopeless.

The API server may be slow or away, and none of this may hold up an order to the manager. What is overtaken
by something newer of the same sort (an older reset-config) is left out.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import assert_never

import structlog

from taskd.core.plane.jobs import JobView
from taskd.core.plane.resetconfig import ResetKind, render
from taskd.core.plane.state import Ask, RecordIncident, SetAnnotation, SetLabel, WriteReset
from taskd.plane.surroundings import ConfigMaps, Hands

RESET_CONFIG = "reset-config-"
TRY_LIMIT_S = 10.0
PAUSES_S = (0.2, 0.5, 1.0, 2.0, 5.0, 5.0)

Chore = WriteReset | Ask | SetLabel | SetAnnotation | RecordIncident

log = structlog.get_logger("taskd.plane")


class Chores:
    """The queue of one job. It has a task only while there is something in it."""

    def __init__(self, config_maps: ConfigMaps, hands: Hands) -> None:
        """Make an empty queue."""
        self._config_maps = config_maps
        self._hands = hands
        self._queue: deque[tuple[JobView, Chore]] = deque()
        self._task: asyncio.Task[None] | None = None

    def add(self, job: JobView, chore: Chore) -> None:
        """Have something done after what is in the queue."""
        if isinstance(chore, WriteReset) and chore.content.kind is not ResetKind.RESTART_ALL:
            older = [each for each in self._queue if _overtaken(each[1])]
            for each in older:
                self._queue.remove(each)
        self._queue.append((job, chore))
        if self._task is None:
            self._task = asyncio.ensure_future(self._work())

    async def close(self) -> None:
        """Stop; what is not done is asked for again by the next plane."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def idle(self) -> None:
        """Wait until all is done."""
        while self._task is not None:
            await asyncio.wait({self._task})

    async def _work(self) -> None:
        try:
            while self._queue:
                job, chore = self._queue.popleft()
                await insist(partial(self._do, job, chore), type(chore).__name__, job.job_id)
        finally:
            self._task = None

    async def _do(self, job: JobView, chore: Chore) -> None:
        match chore:
            case WriteReset():
                await self._write_reset(job, chore)
            case Ask():
                await self._hands.ask(job, chore)
            case SetLabel():
                await self._hands.set_label(job, chore)
            case SetAnnotation():
                await self._hands.set_annotation(job, chore)
            case RecordIncident():
                await self._hands.record(job, chore)
            case _:
                assert_never(chore)

    async def _write_reset(self, job: JobView, chore: WriteReset) -> None:
        name = f"{RESET_CONFIG}{job.name}"
        before = await self._config_maps.read(job.namespace, name) or {}
        data = render(chore.content, before, int(time.time()))
        if isinstance(data, str):
            log.warning("reset_config_left", job=job.job_id, why=data)
            return
        await self._config_maps.write(job, name, data)
        if chore.hurry:
            await self._hands.hurry(job)


def _overtaken(chore: Chore) -> bool:
    return isinstance(chore, WriteReset) and chore.content.kind is not ResetKind.RESTART_ALL


async def insist(work: Callable[[], Awaitable[None]], what: str, job_id: str) -> None:
    """Do something until it succeeds, with pauses; give up after the last of them, and say so."""
    for pause_s in (*PAUSES_S, None):
        try:
            async with asyncio.timeout(TRY_LIMIT_S):
                await work()
        except Exception as error:  # noqa: BLE001 - whatever the cluster answers, the job goes on
            log.warning("not_done", what=what, job=job_id, why=f"{type(error).__name__}: {error}")
        else:
            return
        if pause_s is None:
            log.error("given_up", what=what, job=job_id)
            return
        await asyncio.sleep(pause_s)
