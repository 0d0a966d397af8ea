"""A replacement's question for what its predecessor was told before the loop, if that was on another node.

It is asked before the watch begins, so the training thread itself listens. Whatever else comes meanwhile is
in the worker's page too, or comes again.
"""

import time
from collections.abc import Callable

from taskd.core.messages import Notes, NotesWanted
from taskd.worker.client import Worker

REPEAT_S = 0.3
SILENCE_S = 5.0
LIMIT_S = 15.0
LOOK_S = 0.02


def fetch_notes(worker: Worker, rank: int, is_whole: Callable[[bytes], bool]) -> bytes:
    """Return a rank's notes from a node that keeps them; nothing if none does, or none answers in time."""
    now = time.monotonic()
    deadline, heard = now + LIMIT_S, now
    found, source = b"", 0
    while now < deadline:
        wanted = NotesWanted(rank, source, len(found))
        worker.say(wanted)
        answer = _listen(worker, wanted)
        now = time.monotonic()
        if answer is not None and answer.total < 0:
            break
        if answer is None:
            if now - heard < SILENCE_S:
                continue
        else:
            heard = now
            found += answer.data
            if answer.data and len(found) < answer.total:
                continue
            if found and len(found) == answer.total and is_whole(found):
                return found
        found, source, heard = b"", source + 1, now
    return b""


def _listen(worker: Worker, wanted: NotesWanted) -> Notes | None:
    until = time.monotonic() + REPEAT_S
    while time.monotonic() < until:
        for message in worker.receive(LOOK_S):
            if (
                isinstance(message, Notes)
                and NotesWanted(message.rank, message.source, message.offset) == wanted
            ):
                return message
    return None
