"""Parts of the manager that look at one thing each, beside its clock and its streams.

A defect that one of them meets must not end the job's brain, and must not go unnoticed either: it is logged
with its stack, and the part begins again.
"""

import asyncio
from typing import Protocol

from taskd.kit.logs import Log

PAUSE_S = 1.0


class Part(Protocol):
    """Something that works until it is cancelled, or has nothing to do and returns."""

    async def run(self) -> None:
        """Work."""


async def keep_running(part: Part, log: Log) -> None:
    """Run a part, again whenever it fails."""
    while True:
        try:
            await part.run()
        except Exception as error:
            log.exception("part_failed", part=type(part).__name__, error=repr(error))
            await asyncio.sleep(PAUSE_S)
        else:
            return
