"""A job's machine with the liaison of a real manager; what its ranks do is said by a test."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace

import structlog

from taskd.core.jobstate import Consult, Event, Job, NodeAnnounced, RecordIncident, Ticked
from taskd.core.messages import (
    Announce,
    Beat,
    Prepared,
    Progress,
    Report,
    Saved,
    Standing,
    Trouble,
    WorkerOrder,
    WorkersStopped,
    WorkerState,
    WorkerView,
)
from taskd.core.podplace import standby_node
from taskd.links.plane import PlaneAddress
from taskd.manager.liaison import Liaison
from tests.core.scenes import KILLED, Scene
from tests.core.test_recovery_machine import NODES, keeping_with

JOB = "job-0001"
PATIENCE_S = 10.0
TICK_S = 0.02
NEW_PID = 77


class PlayedManager:
    """Three ranks, each on a node of its own, which keep their state."""

    def __init__(self, port: int, *strategies: str) -> None:
        self.scene: Scene = keeping_with(*strategies)
        self.scene.now = time.monotonic()
        self.orders: list[WorkerOrder] = []
        self.ended: list[str] = []
        self._hurt: set[int] = set()
        self._step = 5
        place = PlaneAddress(f"127.0.0.1:{port}", JOB)
        self.liaison = Liaison(place, self, structlog.get_logger())

    @property
    def job(self) -> Job:
        return self.scene.job

    @job.setter
    def job(self, job: Job) -> None:
        self.scene.job = job

    def apply(self, event: Event) -> None:
        self._carry_out(self.scene.step(event))

    def _carry_out(self, effects: tuple[object, ...]) -> None:
        for effect in effects:
            if isinstance(effect, Consult):
                self.liaison.consult(effect)
            elif isinstance(effect, RecordIncident):
                self.liaison.recorded(effect.incident)

    def request_stop(self, why: str, code: int, *, save: bool = False) -> None:
        self.ended.append(f"{why} ({code}{', saved' if save else ''})")

    async def order_workers(self, order: WorkerOrder, nodes: list[str]) -> dict[int, str]:
        self.orders.append(order)
        return dict.fromkeys(order.ranks, "ok")

    # ------------------------------------------------------------------------------------ the ranks

    def _report(self, node: str, report: Report | Beat | Progress | Saved | Standing | Trouble) -> None:
        self.scene.now = max(self.scene.now, time.monotonic())
        self._carry_out(self.scene.report(node, report))

    def trouble(self, node: str, kind: str) -> None:
        generation, rank = self.job.generation, self.scene.rank(node)
        self._hurt |= {rank} if kind == "uce" else set()
        self._report(node, Trouble(generation, rank, 5, "it broke", "", kind))

    def killed(self, node: str) -> None:
        self._hurt.add(self.scene.rank(node))
        self.scene.now = max(self.scene.now, time.monotonic())
        self._carry_out(self.scene.exited(node, KILLED, step=self._step - 1))

    def stand_by(self, name: str) -> None:
        """A pod that stands by announces itself."""
        node = standby_node(name)
        message = Announce(node, -1, "10.0.0.1", "host", 1, "boot", 1, 29500, spare=True)
        self.apply(NodeAnnounced(self.scene.at(), self.scene.now, f"{node}a", message))

    def come_through(self) -> None:
        """Let all ranks stand, and do their next step; those that were hurt have no state of their own."""
        for node in NODES:
            rank = self.scene.rank(node)
            store = "store" if rank == 0 else ""
            has_state = rank not in self._hurt
            self._report(node, Standing(self.job.generation, rank, has_state, self._step, False, store))
        self._go_on(NODES)
        self._hurt.clear()

    def save(self) -> None:
        """Let all ranks stand, and write what they have."""
        generation = self.job.generation
        for node in NODES:
            self._report(node, Standing(generation, self.scene.rank(node), True, self._step))
        for node in NODES:
            self._report(node, Saved(generation, self.scene.rank(node), True, "/d/step"))

    def move(self, rank: int) -> None:
        """Play a hot switch that was asked for to its end: the new rank stands, then the old ones."""
        switch, plan = self.job.switch, self.job.plan
        assert switch is not None
        assert plan is not None
        generation = self.job.generation + 1
        new = next(key for key in self.job.nodes if plan.place_of(key) is None)
        view = WorkerView(rank, 0, NEW_PID, WorkerState.RUNNING)
        self._report(new, Prepared(generation, (view,)))
        self._report(new, Standing(generation, rank, False, 0, pid=NEW_PID, birth=generation))
        for node in NODES:
            own, leaving = self.scene.rank(node), self.scene.rank(node) == rank
            store = "store" if own == 0 else ""
            stands = Standing(generation, own, True, self._step, store=store, pid=own + 10, birth=1)
            self._report(node, replace(stands, leaving=True, own=b"own") if leaving else stands)
        self._report(str(rank), WorkersStopped(generation, 29501))
        members = [place.node for place in self.job.plan.places] if self.job.plan else []
        self._go_on(members)

    def _go_on(self, nodes: Sequence[str]) -> None:
        for step in (self._step, self._step + 1):
            for node in nodes:
                done = Progress(
                    self.job.generation, self.scene.rank(node), joined=True, step=step, ready=True
                )
                self._report(node, done)
        self._step += 2

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not holds():
                await asyncio.sleep(0.01)

    async def tick(self) -> None:
        """Let the machine see the time."""
        while True:
            await asyncio.sleep(TICK_S)
            self.apply(Ticked(time.monotonic(), time.time()))


@contextlib.asynccontextmanager
async def working(port: int, *strategies: str) -> AsyncIterator[PlayedManager]:
    """A manager that keeps in touch meanwhile, and looks at its clock."""
    manager = PlayedManager(port, *strategies)
    tasks = [asyncio.ensure_future(manager.liaison.run()), asyncio.ensure_future(manager.tick())]
    try:
        yield manager
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def managed(port: int, *strategies: str) -> AsyncIterator[PlayedManager]:
    """The same, once it is in touch; nothing ends the job."""
    async with working(port, *strategies) as manager:
        await manager.until(lambda: manager.job.plane_limit_s > 0)
        yield manager
    assert [] == manager.ended
