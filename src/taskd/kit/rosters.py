"""The file in which a node keeps the roster: its proxy writes it, its launcher reads it."""

from pathlib import Path

import msgspec

from taskd.core.succession import Roster
from taskd.kit.jobs import read_as, write_atomic


def read_roster(path: str) -> Roster | None:
    """Read a roster; None if there is none that can be read."""
    return read_as(Path(path), Roster)


def write_roster(path: str, roster: Roster) -> None:
    """Write a roster in one move."""
    place = Path(path)
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomic(place, msgspec.json.encode(roster))
