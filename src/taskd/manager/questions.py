"""Questions of workers. The manager keeps nothing of them: a worker asks again until it is answered.

One for another node's agent is passed on; the agent's answer has the worker's address, and comes back the
same way. Whether a rank is still where the worker believes, the manager says itself.
"""

import msgspec

from taskd.core.keepers import find_keeper
from taskd.core.launch import Plan
from taskd.core.messages import MANAGER, Notes, NotesWanted, PlaceAsked, PlaceHeld, agent_address
from taskd.wire.envelope import Envelope, pack


def pass_on(plan: Plan, envelope: Envelope, wanted: NotesWanted) -> tuple[str, Envelope]:
    """Return the node that can answer and what to send it, or the answer that there is none."""
    asking = envelope.src.split("/")[1]
    keeper = find_keeper(plan, wanted.rank, asking, wanted.source)
    if keeper is not None:
        return keeper, msgspec.structs.replace(envelope, dst=agent_address(keeper))
    nobody = Notes(wanted.rank, wanted.source, wanted.offset, total=-1)
    return asking, pack(envelope.job, MANAGER, envelope.src, nobody)


def confirm(plan: Plan, envelope: Envelope, asked: PlaceAsked) -> tuple[str, Envelope] | None:
    """Return the node to answer and the answer, if the plan has that rank there; None says nothing."""
    asking = envelope.src.split("/")[1]
    place = plan.place_of_rank(asked.rank)
    if plan.generation != asked.generation or place is None or place.node != asking:
        return None
    held = PlaceHeld(asked.generation, asked.rank, asked.number)
    return asking, pack(envelope.job, MANAGER, envelope.src, held, generation=asked.generation)
