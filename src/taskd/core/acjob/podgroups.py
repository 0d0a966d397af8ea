"""The PodGroup: what Volcano must find room for before any pod of the job starts.

It is computed from the job alone and in a fixed order, so the same job always gives the same group, and a
change of the job gives exactly the change of the group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from taskd.core.acjob import names
from taskd.core.acjob.job import Job, Json, Slot, mapping
from taskd.core.acjob.quantities import Quantity, largest, parse
from taskd.core.acjob.services import owner_reference

PAUSED = "pause"
_NONE: Mapping[str, int] = {}


def pod_group(job: Job, *, paused: bool = False, gone: Collection[Slot] = ()) -> dict[str, Any]:
    """The group that the job needs; raises QuantityError where a template asks for what is no amount.

    All labels and annotations of the job are on it: that is how scheduler and control plane see them. While
    the control plane works on a process it writes `pause` over our label; `paused` keeps that as it is.

    Places that are done and whose pods are `gone` get none any more: a pod that is lost afterwards would wait
    for theirs for ever.
    """
    labels = dict(job.labels)
    if names.RECOVER_STRATEGY in job.annotations:
        labels[names.PROCESS_RECOVER] = PAUSED if paused else "on"
    done = Counter(slot.kind for slot in gone)
    members = min(min_member(job), job.total - len(gone))
    spec: dict[str, Any] = {
        "minMember": members,
        "minTaskMember": {replicas.label: replicas.count - done[replicas.kind] for replicas in job.replicas},
        "queue": job.scheduling.queue or names.DEFAULT_QUEUE,
        "minResources": (
            dict(job.scheduling.min_resources)
            if job.scheduling.min_resources is not None
            else min_resources(job, members, done)
        ),
    }
    if job.scheduling.priority_class:
        spec["priorityClassName"] = job.scheduling.priority_class
    return {
        "apiVersion": names.POD_GROUP_API,
        "kind": "PodGroup",
        "metadata": {
            "name": job.pod_group,
            "namespace": job.namespace,
            "labels": labels,
            "annotations": {
                key: value for key, value in job.annotations.items() if key != names.LAST_APPLIED
            },
            "ownerReferences": [owner_reference(job)],
        },
        "spec": spec,
    }


def min_member(job: Job) -> int:
    """How many pods must start together."""
    wanted = job.scheduling.min_available
    return job.total if wanted is None else wanted


def min_resources(job: Job, members: int, done: Mapping[str, int] = _NONE) -> dict[str, str]:
    """What the first `members` pods ask for together, the leader counted first; so many are done of each."""
    total: dict[str, Quantity] = {}
    left = members
    for replicas in job.replicas:
        counted = min(left, replicas.count - done.get(replicas.kind, 0))
        left -= counted
        if counted > 0:
            _grow(total, {name: each * counted for name, each in pod_request(replicas.template).items()})
    return {name: str(total[name]) for name in sorted(total)}


def pod_request(template: Json) -> dict[str, Quantity]:
    """What a pod occupies, as the scheduler counts it.

    Init containers run one after another before the others, so the largest counts, together with the
    sidecars (init containers that stay) that were started before it.
    """
    spec = mapping(template.get("spec"))
    peak: dict[str, Quantity] = {}
    staying: dict[str, Quantity] = {}
    for container in spec.get("initContainers") or ():
        wanted = _container_request(container)
        if container.get("restartPolicy") == "Always":
            _grow(staying, wanted)
            wanted = {}
        together = dict(staying)
        _grow(together, wanted)
        _raise(peak, together)
    for container in spec.get("containers") or ():
        _grow(staying, _container_request(container))
    _raise(staying, peak)
    _grow(staying, _amounts(mapping(spec.get("overhead"))))
    return staying


def _container_request(container: Json) -> dict[str, Quantity]:
    resources = mapping(container.get("resources"))
    # A limit without a request is a request.
    return _amounts({**mapping(resources.get("limits")), **mapping(resources.get("requests"))})


def _amounts(raw: Json) -> dict[str, Quantity]:
    return {name: parse(amount) for name, amount in raw.items()}


def _grow(total: dict[str, Quantity], more: Mapping[str, Quantity]) -> None:
    for name, amount in more.items():
        total[name] = total[name] + amount if name in total else amount


def _raise(total: dict[str, Quantity], least: Mapping[str, Quantity]) -> None:
    for name, amount in least.items():
        total[name] = largest(total[name], amount) if name in total else amount
