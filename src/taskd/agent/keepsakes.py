"""What an agent gives away of its node's memory: the notes of a rank that comes up on another node.

The agent does not look into them. It reads a part each time it is asked, so that nobody has to hold a large
message, or to remember how far things are.
"""

import os
from pathlib import Path

from taskd.core.messages import Notes, NotesWanted

PART_BYTES = 1024 * 1024


def read_notes(shm_dir: str, wanted: NotesWanted) -> Notes:
    """Read the part that is asked for; an answer without one if there are no such notes here."""
    try:
        with (Path(shm_dir) / f"rank-{wanted.rank}.setup").open("rb") as file:
            total = os.fstat(file.fileno()).st_size
            file.seek(max(0, wanted.offset))
            data = file.read(PART_BYTES)
    except OSError:
        total, data = 0, b""
    return Notes(wanted.rank, wanted.source, wanted.offset, total, data)
