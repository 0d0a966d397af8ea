"""Reads the reset-config that is mounted into the manager's pod, whenever it changes.

A ConfigMap in a pod is a link that the kubelet turns to another directory, so what is watched is the file
behind the link, by its marks, once a second. It is read whole or not at all: what cannot be understood is
told once and changes nothing.
"""

import asyncio
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

from taskd.core.acjob.names import RESET_PATH
from taskd.core.faults.reading import Refused
from taskd.core.faults.texts.reset import CHECK_CODE, RESET_JSON, RESTART_TYPE, Reset, read_reset
from taskd.core.jobstate import Event, ResetRead
from taskd.kit.logs import Log

LOOK_EVERY_S: Final = 1.0
MOST_BYTES: Final = 1 << 20
DIRECTORY: Final = "TASKD_RESET_CONFIG"


class Hands(Protocol):
    """What this needs of a manager."""

    def apply(self, event: Event) -> None:
        """Feed an event into the job's machine."""
        ...


def reset_directory(environ: Mapping[str, str]) -> Path | None:
    """Where the reset-config is mounted; None outside of a pod that has one."""
    given = environ.get(DIRECTORY, "")
    place = Path(given or RESET_PATH)
    return place if given or (environ.get("MINDX_TASK_ID") and place.is_dir()) else None


class ResetWatch:
    """Follows one directory; ``run`` until cancelled."""

    def __init__(self, place: Path, hands: Hands, log: Log) -> None:
        """Know where to look; ``look`` does it once."""
        self._place = place
        self._hands = hands
        self._log = log
        self._marks: tuple[int, ...] = ()
        self._told = ""
        self._last: Reset | None = None

    async def run(self) -> None:
        """Look again and again."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_EVERY_S)

    def look(self) -> None:
        """Read the file if it is another one than last time."""
        try:
            status = (self._place / RESET_JSON).stat()
            marks = (status.st_ino, status.st_mtime_ns, status.st_size)
            if marks == self._marks:
                return
            data = {
                name: (self._place / name).read_bytes()[: MOST_BYTES + 1].decode()
                for name in (RESET_JSON, CHECK_CODE, RESTART_TYPE)
                if (self._place / name).exists()
            }
        except (OSError, UnicodeDecodeError) as error:
            self._complain(str(error))
            return
        self._marks = marks
        found = read_reset(data) if max(map(len, data.values())) <= MOST_BYTES else Refused("it is too large")
        if isinstance(found, Refused):
            self._complain(found.reason)
            return
        self._told = ""
        if found != self._last:
            self._last = found
            self._log.info("reset_config", content=data[RESET_JSON])
            self._hands.apply(ResetRead(time.monotonic(), time.time(), found))

    def _complain(self, why: str) -> None:
        if why != self._told:
            self._log.warning("reset_config_unreadable", place=os.fspath(self._place), why=why)
            self._told = why
