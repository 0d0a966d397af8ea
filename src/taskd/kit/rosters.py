"""The file in which a node keeps the roster: its proxy writes it, its launcher reads it."""

import os
from pathlib import Path

import msgspec

from taskd.core.succession import Roster


def read_roster(path: str) -> Roster | None:
    """Read a roster; None if there is none that can be read."""
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=Roster)
    except (OSError, msgspec.MsgspecError):
        return None


def write_roster(path: str, roster: Roster) -> None:
    """Write a roster in one move."""
    draft = Path(f"{path}.{os.getpid()}")
    draft.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft.write_bytes(msgspec.json.encode(roster))
    draft.replace(path)
