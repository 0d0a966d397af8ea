"""Keeps knocking at nodes that are missed. What follows from the answers is decided in ``core.reach``."""

import asyncio
import time
from collections.abc import Callable, Collection
from typing import Protocol

from taskd.core.reach import CUT, Door, Patience, is_due, is_missed, judge
from taskd.links.knock import knock

LOOK_S = 0.1


class GiveUp(Protocol):
    """Counts a node as lost; ``cut`` where its machine does not answer."""

    def __call__(self, node: str, why: str, *, cut: bool) -> None:
        """Do so."""


class Doors:
    """The doors of all nodes whose launcher holds one open."""

    def __init__(
        self,
        patience: Patience,
        connected: Callable[[], Collection[str]],
        may_spare: Callable[[Collection[str]], bool],
        give_up: "GiveUp",
    ) -> None:
        """Watch, and have a node given up that is gone or out of reach.

        ``may_spare`` says whether these nodes can be missed: where too many are, the fault is here.
        """
        self._patience = patience
        self._connected = connected
        self._may_spare = may_spare
        self._give_up = give_up
        self._doors: dict[str, Door] = {}
        self._addresses: dict[str, str] = {}
        self._knocks: set[asyncio.Future[None]] = set()

    def open(self, node: str, address: str) -> None:
        """A node came, and its launcher holds this door."""
        if self._addresses.get(node) != address:
            self._doors.pop(node, None)
        self._addresses[node] = address
        self.hear(node, time.monotonic())

    def hear(self, node: str, now: float) -> None:
        """Something came from a node."""
        if node in self._addresses:
            self._doors[node] = self._doors.get(node, Door(now)).hear(now)

    async def run(self) -> None:
        """Watch until cancelled."""
        if self._patience.limit_s <= 0:
            return
        last = time.monotonic()
        while True:
            await asyncio.sleep(LOOK_S)
            now = time.monotonic()
            if now - last > self._patience.stall_s:
                self._doors = {node: door.forget(now) for node, door in self._doors.items()}
            last = now
            self._look(now)

    def _look(self, now: float) -> None:
        there = self._connected()
        patience = self._patience
        for node, door in list(self._doors.items()):
            connected = node in there
            why = judge(door, now, patience, connected=connected)
            cut = why.startswith(CUT)
            if why and (not cut or self._may_spare(self._missed(now))):
                del self._doors[node]  # until it is heard again
                self._give_up(node, why, cut=cut)
            elif is_due(door, now, patience, connected=connected):
                self._doors[node] = door.knock(now)
                task = asyncio.ensure_future(self._knock(node, self._addresses[node], now))
                self._knocks.add(task)
                task.add_done_callback(self._knocks.discard)

    def _missed(self, now: float) -> set[str]:
        return {node for node, door in self._doors.items() if is_missed(door, now, self._patience)}

    async def _knock(self, node: str, address: str, begun: float) -> None:
        found = await knock(address, self._patience.answer_s)
        door = self._doors.get(node)
        if door is not None and self._addresses.get(node) == address:
            self._doors[node] = door.answer(found, begun)
