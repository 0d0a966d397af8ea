"""Who keeps the notes of what a rank was told before its loop.

They are in the memory of the rank's own node, and of the next node of the plan: each rank gives them to the
same local rank there when its loop begins (``train.torch.buddies``). A replacement on another node asks for
them through the manager, which keeps nothing of it: where to ask follows from the plan alone.
"""

from taskd.core.launch import Plan


def find_keeper(plan: Plan, rank: int, asking: str, source: int) -> str | None:
    """Return the node to ask for a rank's notes when ``source`` others had none; None if none is left.

    The first is the rank's own place: in a hot switch it is still there. Who asks has looked at home.
    """
    place = plan.place_of_rank(rank)
    if place is None:
        return None
    at = plan.places.index(place)
    following = plan.places[(at + 1) % len(plan.places)]
    keepers = [node for node in dict.fromkeys((place.node, following.node)) if node != asking]
    return keepers[source] if 0 <= source < len(keepers) else None
