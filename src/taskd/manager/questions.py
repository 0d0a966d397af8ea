"""A question of one node's worker to another node's agent: the manager passes it on and keeps nothing of it.

The agent's answer has the worker's address, and comes back the same way.
"""

import msgspec

from taskd.core.keepers import find_keeper
from taskd.core.launch import Plan
from taskd.core.messages import MANAGER, Notes, NotesWanted, agent_address
from taskd.wire.envelope import Envelope, pack


def pass_on(plan: Plan, envelope: Envelope, wanted: NotesWanted) -> tuple[str, Envelope]:
    """Return the node that can answer and what to send it, or the answer that there is none."""
    asking = envelope.src.split("/")[1]
    keeper = find_keeper(plan, wanted.rank, asking, wanted.source)
    if keeper is not None:
        return keeper, msgspec.structs.replace(envelope, dst=agent_address(keeper))
    nobody = Notes(wanted.rank, wanted.source, wanted.offset, total=-1)
    return asking, pack(envelope.job, MANAGER, envelope.src, nobody)
