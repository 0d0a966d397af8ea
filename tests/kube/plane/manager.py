"""A job's manager as the plane knows it: listens to the signals and reports what a test says."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from pathlib import Path

from taskd.core.liaison import Signal
from taskd.links.plane import PlaneAddress, PlaneError, PlaneLink, connect_plane

PATIENCE_S = 30.0
KEEP_ALIVE = "keep-alive"


def find_port(log: Path) -> int:
    """Return the port that the newest plane of a controller serves."""
    found = re.findall(r'"port": (\d+), "secure": (?:true|false), "event": "serving"', log.read_text())
    return int(found[-1]) if found else 0


class PlayedManager:
    """One connection to the plane."""

    def __init__(self, link: PlaneLink) -> None:
        self.link = link
        self._signals: asyncio.Queue[Signal] = asyncio.Queue()

    async def listen(self) -> None:
        async for signal in self.link.signals():
            if signal.kind != KEEP_ALIVE:
                self._signals.put_nowait(signal)

    async def hears(self, kind: str) -> Signal:
        """Wait for the next signal, which is to be of that kind."""
        async with asyncio.timeout(PATIENCE_S):
            signal = await self._signals.get()
        assert kind == signal.kind, signal
        return signal


@contextlib.asynccontextmanager
async def managing(log: Path, job_id: str) -> AsyncIterator[PlayedManager]:
    """Subscribe for a job at the plane whose controller writes that log."""
    async with asyncio.timeout(PATIENCE_S):
        while not (port := find_port(log)):
            await asyncio.sleep(0.05)
    async with connect_plane(PlaneAddress(f"127.0.0.1:{port}", job_id), PATIENCE_S) as link:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    await link.begin()
                    break
                except PlaneError:  # the directory may be a moment behind the API server
                    await asyncio.sleep(0.1)
        manager = PlayedManager(link)
        listening = asyncio.ensure_future(manager.listen())
        try:
            yield manager
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
