"""A manager with real streams: whom it gives up, and how soon. Agents and their launchers are played.

Each node is a real proxy and a real line of an agent, and the door that its launcher would hold open.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from taskd.agent.uplink import Uplink
from taskd.core.launch import JobOptions
from taskd.core.messages import (
    Announce,
    Beat,
    NodePhase,
    Order,
    Start,
    WorkersStarted,
    WorkerState,
    WorkerView,
)
from taskd.core.succession import Candidate, Roster, Term, pace_of
from taskd.kit.lifeline import Lifeline
from taskd.kit.logs import Log, open_log
from taskd.manager.config import ManagerConfig, Succession
from taskd.manager.server import Manager
from taskd.proxy.config import ProxyConfig
from taskd.proxy.relay import Proxy
from tests.manager.test_reaching import crowd, door

REACH_S = 1.5
JOB = "job"


class PlayedNode:
    """One node: its processes are words."""

    def __init__(self, home: Path, key: str, port: int, log: Log, *, spare: bool = False) -> None:
        self.key, self.spare = key, spare
        self.phase, self.generation = NodePhase.IDLE, 0
        self.speaks = True
        self.door, self.address = door(0)
        candidate = Candidate(key, f"127.0.0.1:{port}", self.address, time.time())
        socket_path = str(home / f"{key}.sock")
        self.proxy = Proxy(
            ProxyConfig(
                JOB,
                key,
                f"127.0.0.1:{port}",
                socket_path,
                term=Term(1, "0"),
                standby=candidate,
                roster_file=str(home / f"roster-{key}.json"),  # at the steady pace: it does not come anew
            ),
            log,
            Lifeline(),
        )
        self.uplink = Uplink(
            job=JOB,
            node=key,
            socket=socket_path,
            log=log,
            announce=self.announce,
            generation=lambda: self.generation,
            on_order=self.obey,
        )

    def announce(self) -> Announce:
        wants = -1 if self.spare else int(self.key)
        where = ("127.0.0.1", "host", 1, "boot", 1, 29500)
        return Announce(self.key, wants, *where, self.phase, self.generation, spare=self.spare)

    def obey(self, order: Order) -> None:
        if isinstance(order, Start):
            place = order.plan.place_of(self.key)
            assert place is not None
            self.phase, self.generation = NodePhase.RUNNING, order.plan.generation
            view = WorkerView(place.first_rank, 0, 10 + place.first_rank, WorkerState.RUNNING)
            self.uplink.tell(WorkersStarted(self.generation, (view,)))

    async def live(self) -> None:
        """Beat as an agent does, for as long as it speaks."""
        tasks = [asyncio.ensure_future(self.proxy.run()), asyncio.ensure_future(self.uplink.keep())]
        try:
            while self.speaks:
                await asyncio.sleep(0.3)
                self.uplink.resend_due(time.monotonic())
                self.uplink.beat(Beat(self.generation, {}))
            await asyncio.Event().wait()  # the streams stay open: a cut line ends none of them
        finally:
            links = (self.uplink._link, self.proxy._agent)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for link in links:
                if link is not None:
                    await link.close()

    def fall_silent(self) -> None:
        """Say nothing any more, neither as an agent nor as a proxy."""
        self.speaks = False
        self.proxy._say_kept = lambda: None  # type: ignore[method-assign]


@contextlib.asynccontextmanager
async def managed(home: Path, count: int) -> AsyncIterator[tuple[Manager, list[PlayedNode]]]:
    """A manager with so many nodes, all of whose ranks run."""
    log = open_log("")
    me = Candidate("0", "127.0.0.1:1", "127.0.0.1:2", time.time())
    options = JobOptions(min_nodes=count, max_nodes=count)
    config = ManagerConfig(
        JOB,
        options,
        port=0,
        reach_s=REACH_S,
        pace=pace_of(REACH_S),
        succession=Succession("0", Term(1, "0"), Roster(Term(1, "0"), 0, (me,), "run")),
    )
    manager = Manager(config, log, Lifeline())
    work: list[asyncio.Future[Any]] = [asyncio.ensure_future(manager.run())]
    nodes: list[PlayedNode] = []
    try:
        await _until(lambda: manager.port > 0, "a port")
        nodes = [PlayedNode(home, str(key), manager.port, log) for key in range(count)]
        work += [asyncio.ensure_future(node.live()) for node in nodes]
        await _until(lambda: manager.job.phase.value == "running", "all ranks")
        await asyncio.sleep(1.5)  # doors are tried, the roster is settled
        yield manager, nodes
    finally:
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)
        for node in nodes:
            node.door.close()


async def _until(look: Callable[[], bool], what: str, limit_s: float = 20.0) -> float:
    began = time.monotonic()
    while not look():
        assert time.monotonic() - began < limit_s, what
        await asyncio.sleep(0.02)
    return time.monotonic() - began


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKD_HOME", str(tmp_path / "home"))


async def test_a_node_behind_a_cut_line_is_given_up_in_time(tmp_path: Path) -> None:
    """Its stream still stands, as far as this side knows; its kernel does not answer any more."""
    async with managed(tmp_path, 3) as (manager, nodes):
        callers = crowd(nodes[2].address)
        nodes[2].fall_silent()
        took_s = await _until(lambda: bool(manager.job.nodes["2"].lost), "its loss")
        for each in callers:
            each.close()
        assert "it is out of reach" in manager.job.nodes["2"].lost
        assert took_s < 2 * REACH_S
        assert not manager.job.nodes["1"].lost


async def test_a_node_that_is_only_silent_is_not_given_up(tmp_path: Path) -> None:
    """Nobody speaks for it; its door opens."""
    async with managed(tmp_path, 3) as (manager, nodes):
        nodes[2].door.listen(64)
        nodes[2].fall_silent()
        await asyncio.sleep(3 * REACH_S)
        assert [] == [node.key for node in manager.job.nodes.values() if node.lost]
