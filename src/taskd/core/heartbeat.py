"""The page of shared memory in which a worker writes how far it is.

The agent makes one small file per rank in the node's shared memory and the worker maps it. A store of eight
aligned bytes is all that a step costs, and the page stays readable when the process is gone, which is when
its content matters most.
"""

from dataclasses import dataclass
from enum import IntEnum

from taskd.core.testimony import Place

MAGIC = 0x6473_6B74  # "tksd"
FIELDS = 17
SIZE_BYTES = FIELDS * 8

F_MAGIC, F_GENERATION, F_PID, F_STATE, F_STEP, F_CHANGED_NS, F_STEPS_DONE = range(7)
# Written by the agent: the generation that was raised over the worker, and who leads it.
F_WANTED, F_LEADER = 7, 8
# The step whose whole gradient the worker holds and has voted for.
F_VOTED = 9
# The step that the worker is in or was in last, where in it (``core.testimony.Place``), and since when.
F_BEGUN, F_PLACE, F_MOVED_NS = 10, 11, 12
# The agent's question where the worker is, and the last one that the worker answered; both are counters.
F_ASKED, F_ANSWERED = 13, 14
# How long the last step took, without what came before it; 0 if the script does not say when a step begins.
F_TOOK_NS = 15
# Written by the agent before F_WANTED: twice the generation that was raised gently, plus one for who leaves.
F_GENTLE = 16


class BeatState(IntEnum):
    """What the worker said of itself."""

    NEW = 0
    JOINED = 1
    LET_GO = 2
    READY = 3


@dataclass(frozen=True, slots=True)
class BeatView:
    """One reading of the page."""

    generation: int
    pid: int
    state: BeatState
    step: int
    changed_ns: int
    steps_done: int
    voted: int = -1
    begun: int = -1
    place: Place = Place.BETWEEN
    moved_ns: int = 0
    answered: int = 0
    took_ns: int = 0


def blank(generation: int) -> list[int]:
    """Return the fields of a page that no worker has touched."""
    fields = [0] * FIELDS
    fields[F_MAGIC], fields[F_GENERATION], fields[F_STATE] = MAGIC, generation, BeatState.NEW
    fields[F_STEP] = fields[F_VOTED] = fields[F_LEADER] = fields[F_BEGUN] = -1
    fields[F_WANTED] = generation
    return fields


def parse_page(fields: list[int]) -> BeatView | None:
    """Read the fields of a page; None if this is not one."""
    if len(fields) < FIELDS or fields[F_MAGIC] != MAGIC:
        return None
    try:
        state, place = BeatState(fields[F_STATE]), Place(fields[F_PLACE])
    except ValueError:
        return None
    return BeatView(
        fields[F_GENERATION],
        fields[F_PID],
        state,
        fields[F_STEP],
        fields[F_CHANGED_NS],
        fields[F_STEPS_DONE],
        fields[F_VOTED],
        fields[F_BEGUN],
        place,
        fields[F_MOVED_NS],
        fields[F_ANSWERED],
        fields[F_TOOK_NS],
    )
