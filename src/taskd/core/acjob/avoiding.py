"""Nodes that new pods of a job stay away from: something there is isolated, or nobody reaches the pods there.

The plane names isolated nodes in the job's status and takes them out when the fault is gone. A node that is
closed as a whole is excluded. One with a broken device is only the last choice where a device plugin keeps
that device from pods; where the job's pods ask for no device, nobody does that, so it is excluded too. Nodes
out of reach are named by a request (`restarts.out_of_reach`), and excluded for a minute.

A scheduler never takes an exclusion back. So a pod bears what it was excluded from, and one that still waits
when such a node may be used again is made anew.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final

from taskd.core.acjob import names
from taskd.core.acjob.job import Json, mapping
from taskd.core.acjob.seen import PENDING, PodSeen

FIELD: Final = "isolatedNodes"
DEVICE: Final = "device"
WEIGHT: Final = 100


@dataclass(frozen=True, slots=True)
class Avoided:
    """A node to stay away from."""

    node: str
    device_only: bool = False
    """Only a device of it is isolated."""


def read_avoided(raw: Json | None) -> tuple[Avoided, ...]:
    """What a job's status names; what is odd there is left out."""
    listed = mapping((raw or {}).get("status")).get(FIELD) or ()
    found = (mapping(entry) for entry in listed if isinstance(entry, dict))
    return tuple(
        Avoided(str(entry["name"]), entry.get("scope") == DEVICE) for entry in found if entry.get("name")
    )


def all_avoided(raw: Json | None, out_of_reach: Collection[str]) -> tuple[Avoided, ...]:
    """Those of the status and those that are out of reach; what nobody reaches is closed as a whole."""
    isolated = (each for each in read_avoided(raw) if each.node not in out_of_reach)
    return (*map(Avoided, sorted(out_of_reach)), *isolated)


def closed(avoided: Iterable[Avoided], *, has_device: bool) -> list[str]:
    """The nodes that pods are excluded from."""
    return [each.node for each in avoided if not (each.device_only and has_device)]


def unplaced(pod: PodSeen) -> bool:
    """Whether a pod that is kept off nodes has found no other."""
    return pod.phase == PENDING and not pod.node and names.AVOIDS in pod.annotations


def waits(pod: PodSeen) -> bool:
    """Whether it still waits for one."""
    return unplaced(pod) and not pod.deleting


def in_vain(pod: PodSeen, avoided: Iterable[Avoided]) -> bool:
    """Whether a pod waits although a node that it is kept off may be used by now."""
    still = {each.node for each in avoided}
    return waits(pod) and not still.issuperset(pod.annotations[names.AVOIDS].split(","))


def with_avoidance(spec: Json, avoided: Iterable[Avoided], *, has_device: bool) -> Json:
    """The pod spec that keeps away from these nodes; itself where there are none.

    By the node's name, which no label can contradict. Of a user's own terms one is enough for the scheduler,
    so each of them gets the exclusion.
    """
    avoided = tuple(avoided)
    shut = closed(avoided, has_device=has_device)
    last = [each.node for each in avoided if each.device_only and has_device]
    if not avoided:
        return spec
    affinity = dict(mapping(spec.get("affinity")))
    node_affinity = dict(mapping(affinity.get("nodeAffinity")))
    if shut:
        required = dict(mapping(node_affinity.get("requiredDuringSchedulingIgnoredDuringExecution")))
        terms = required.get("nodeSelectorTerms") or [{}]
        required["nodeSelectorTerms"] = [
            {**term, "matchFields": [*(term.get("matchFields") or ()), *_not_in(shut)]} for term in terms
        ]
        node_affinity["requiredDuringSchedulingIgnoredDuringExecution"] = required
    if last:
        preferred = node_affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or ()
        ours = {"weight": WEIGHT, "preference": {"matchFields": _not_in(last)}}
        node_affinity["preferredDuringSchedulingIgnoredDuringExecution"] = [*preferred, ours]
    return {**spec, "affinity": {**affinity, "nodeAffinity": node_affinity}}


def _not_in(nodes: Iterable[str]) -> list[dict[str, Any]]:
    """One requirement for each: a field may be compared with one value only."""
    return [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in nodes]
