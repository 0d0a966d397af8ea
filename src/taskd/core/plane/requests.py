"""What the operator is asked for: requests in a job's status, made from what the machine wants.

A pod that nobody reaches is asked for apart from the others. It gets no time to end, because nobody there can
confirm that it has ended, while the others keep theirs; the operator takes both up with one restart. Where
such pods were, nothing of that restart is placed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import count
from typing import Any, Final

from taskd.core.plane.jobs import PodView
from taskd.core.plane.state import Ask, Wish

PREFIX: Final = "plane-"
CUT: Final = "-cut"


def requests(ask: Ask, pods: Mapping[int, PodView]) -> list[dict[str, Any]]:
    """The requests that a wish comes to; none where all that it names was replaced already."""
    name = f"{PREFIX}{ask.uuid}-{ask.wish}"
    common: dict[str, Any] = {
        "reason": ask.reason,
        "voluntary": True,
        **({"avoid": list(ask.avoid)} if ask.avoid else {}),
    }
    if ask.standbys:
        common["standbys"] = {str(rank): pod for rank, pod in sorted(ask.standbys.items())}
    cut = [pod for rank in ask.cut if (pod := meant(ask, pods, rank)) is not None]
    made: list[dict[str, Any]] = []
    if ask.wish is Wish.RESTART_JOB:
        made.append({"id": name, "force": ask.force, "scope": "job", **common})
    elif reached := [
        pod for rank in ask.pods if rank not in ask.cut and (pod := meant(ask, pods, rank)) is not None
    ]:
        made.append({"id": name, "force": ask.force, **_names(reached), **common})
    if cut:
        made.append({"id": f"{name}{CUT}", "force": True, **_names(cut), **common})
    return made


def told_apart(
    made: Iterable[Mapping[str, Any]], known: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """The requests by their names, each of which is taken up once.

    What is asked for again keeps its name. Another pod of the same round gets another: under the name of the
    first it would count as done, or the first would be forgotten.
    """
    found: dict[str, dict[str, Any]] = {}
    for request in made:
        names = (f"{request['id']}{f'-{number}' if number else ''}" for number in count())
        name = next(name for name in names if name not in known or _covers(known[name], request))
        pods = {key: known[name][key] for key in ("pods", "uids") if key in known.get(name, {})}
        found[name] = {**request, **pods, "id": name}
    return found


def _covers(known: Mapping[str, Any], request: Mapping[str, Any]) -> bool:
    return set(request.get("uids") or ()) <= set(known.get("uids") or ())


def meant(ask: Ask, pods: Mapping[int, PodView], rank: int) -> PodView | None:
    """The pod that is meant; None if another one has its place by now."""
    pod = pods.get(rank)
    return pod if pod is not None and ask.origin.get(rank, pod.uid) == pod.uid else None


def _names(pods: Iterable[PodView]) -> dict[str, list[str]]:
    pods = tuple(pods)
    return {"pods": [pod.name for pod in pods], "uids": [pod.uid for pod in pods]}
