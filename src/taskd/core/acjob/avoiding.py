"""Nodes that new pods of a job stay away from, because something there is isolated.

The plane names them in the job's status and takes them out when the fault is gone. A node that is closed as a
whole is excluded. One with a broken device is only the last choice where a device plugin keeps that device
from pods; where the job's pods ask for no device, nobody does that, so it is excluded too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from taskd.core.acjob.job import Json, mapping

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


def with_avoidance(spec: Json, avoided: Iterable[Avoided], *, has_device: bool) -> Json:
    """The pod spec that keeps away from these nodes; itself where there are none.

    By the node's name, which no label can contradict. Of a user's own terms one is enough for the scheduler,
    so each of them gets the exclusion.
    """
    avoided = tuple(avoided)
    closed = [each.node for each in avoided if not (each.device_only and has_device)]
    last = [each.node for each in avoided if each.device_only and has_device]
    if not avoided:
        return spec
    affinity = dict(mapping(spec.get("affinity")))
    node_affinity = dict(mapping(affinity.get("nodeAffinity")))
    if closed:
        required = dict(mapping(node_affinity.get("requiredDuringSchedulingIgnoredDuringExecution")))
        terms = required.get("nodeSelectorTerms") or [{}]
        required["nodeSelectorTerms"] = [
            {**term, "matchFields": [*(term.get("matchFields") or ()), *_not_in(closed)]} for term in terms
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
