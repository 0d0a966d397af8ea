"""The pods: the template as the user wrote it, plus what makes a pod a member of its job.

What is the same for all pods of a type is prepared once; a pod then copies only the levels that differ from
its neighbour (labels, annotations, environment, host name) and shares everything else with the template. So
nobody may change a manifest that came from here; it is made to be sent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from taskd.core.acjob import names
from taskd.core.acjob.devices import World, world
from taskd.core.acjob.environment import Addresses, ByRank, Variables, literal, merge, variables
from taskd.core.acjob.job import WORKER, Job, Json, Replicas, Slot, mapping
from taskd.core.acjob.services import owner_reference, type_labels
from taskd.core.acjob.volumes import Mount, left_alone, mounts, with_mounts

_DNS_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_NAMED_BY: Final = ("hostname", "subdomain", "hostNetwork", "setHostnameAsFQDN")
"""Fields by which a template settles the host name itself. The last one would make the full name the host
name, which the kernel cuts at 64 characters and the kubelet therefore refuses."""
_EXIT_CODE: Final = "ExitCode"
_NOTHING: Final[Mapping[str, str]] = {}


class PodMaker:
    """Makes the pods of one job, for as long as the job and the addresses stay the same."""

    def __init__(self, job: Job, addresses: Addresses, *, gang: bool, certificates: str = "") -> None:
        self.job = job
        self.world = world(job)
        added = mounts(job, certificates=certificates)
        scheduler = scheduler_name(job) if gang else ""
        self._moulds = {
            replicas.kind: _Mould(job, self.world, replicas, addresses, added, scheduler, gang=gang)
            for replicas in job.replicas
        }

    def pod(
        self, slot: Slot, version: int, *, name: str = "", annotations: Mapping[str, str] = _NOTHING
    ) -> dict[str, Any]:
        """The pod of that place, made by the restart `version` (0 at first).

        A standby pod has another name and a few annotations more, and the same index, rank and environment.
        """
        rank = self.world.node_rank(slot)
        return self._moulds[slot.kind].pod(slot, rank, version, name or self.job.pod_name(slot), annotations)


class _Mould:
    """What all pods of one type have in common."""

    def __init__(
        self,
        job: Job,
        sizes: World,
        replicas: Replicas,
        addresses: Addresses,
        added: tuple[Mount, ...],
        scheduler: str,
        *,
        gang: bool,
    ) -> None:
        metadata = mapping(replicas.template.get("metadata"))
        self._labels = {**mapping(metadata.get("labels")), **type_labels(job, replicas.label)}
        if replicas.kind != WORKER:
            self._labels[names.JOB_ROLE] = "master"
        self._annotations = dict(mapping(metadata.get("annotations")))
        self._annotations[names.WORLD_SIZE] = str(sizes.size)
        if gang:
            self._annotations[names.POD_GROUP_OF] = job.pod_group
            self._annotations[names.TASK_SPEC] = replicas.label
        self._metadata = {"namespace": job.namespace, "ownerReferences": [owner_reference(job)]}
        if metadata.get("finalizers"):
            self._metadata["finalizers"] = metadata["finalizers"]

        spec = with_mounts(mapping(replicas.template.get("spec")), added)
        self._named = not left_alone(job) and not any(spec.get(field) for field in _NAMED_BY)
        self._spec = {**spec, "restartPolicy": pod_restart_policy(replicas)}
        if scheduler:
            self._spec["schedulerName"] = scheduler
        self._containers = list(spec.get("containers") or ())
        own = variables(job, sizes, replicas.kind, addresses, gang=gang)
        self._filled = [
            (index, container, *_fill(own, container.get("env") or ()))
            for index, container in enumerate(self._containers)
            if container.get("name") == names.CONTAINER
        ]

    def pod(
        self, slot: Slot, rank: int, version: int, name: str, annotations: Mapping[str, str]
    ) -> dict[str, Any]:
        index = str(slot.index)
        spec = self._spec.copy()
        if self._named and _DNS_LABEL.fullmatch(name):
            spec["hostname"] = name
            spec["subdomain"] = names.PODS_SERVICE
        containers = self._containers.copy()
        for position, container, env, ranked in self._filled:
            own = env.copy()
            for place, variable, value in ranked:
                own[place] = literal(variable, value(rank))
            containers[position] = {**container, "env": own}
        spec["containers"] = containers
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                **self._metadata,
                "name": name,
                "labels": {
                    **self._labels,
                    names.REPLICA_INDEX: index,
                    names.REPLICA_INDEX_SHORT: index,
                    names.POD_VERSION: str(version),
                },
                "annotations": {**self._annotations, names.RANK_INDEX: str(rank), **annotations},
            },
            "spec": spec,
        }


def _fill(own: Variables, users: Sequence[Json]) -> tuple[list[Json], list[tuple[int, str, ByRank]]]:
    """The environment, and the places in it that depend on the rank; a user's entry never does."""
    theirs = {entry.get("name") for entry in users}
    env = merge(own.entries, users)
    ranked = [
        (place, entry["name"], own.by_rank[entry["name"]])
        for place, entry in enumerate(env)
        if entry.get("name") in own.by_rank and entry["name"] not in theirs
    ]
    return env, ranked


def pod_restart_policy(replicas: Replicas) -> str:
    """What the kubelet is told: restarts by exit code are the operator's own business."""
    return "Never" if replicas.restart_policy == _EXIT_CODE else replicas.restart_policy


def scheduler_name(job: Job) -> str:
    """The scheduler that pods are given under gang scheduling; empty where a template names one itself."""
    if any(_template_field(replicas, "schedulerName") for replicas in job.replicas):
        return ""
    return job.scheduler_name or names.VOLCANO


def warnings(job: Job, *, gang: bool) -> tuple[tuple[str, str], ...]:
    """What the user should know though the job runs: reason and message of Warning events, once per job."""
    found = []
    if gang and job.scheduler_name not in {"", names.VOLCANO}:
        found.append((names.SET_JOB_SCHEDULER, names.SET_JOB_SCHEDULER_TEXT))
    schedulers = {_template_field(replicas, "schedulerName") for replicas in job.replicas}
    if gang and schedulers - {"", names.VOLCANO}:
        found.append((names.SET_TEMPLATE_SCHEDULER, names.SET_TEMPLATE_SCHEDULER_TEXT))
    if any(_template_field(replicas, "restartPolicy") for replicas in job.replicas):
        found.append((names.SET_TEMPLATE_RESTART, names.SET_TEMPLATE_RESTART_TEXT))
    affinity = job.labels.get(names.TOR_AFFINITY, "null")
    if affinity not in names.TOR_AFFINITY_VALUES:
        text = f"label {names.TOR_AFFINITY}={affinity}"
        found.append((names.UNKNOWN_TOR_AFFINITY, _unknown(text, names.TOR_AFFINITY_VALUES)))
    found += _odd_labels(job)
    policy = job.annotations.get(names.SCHEDULE_POLICY)
    if policy is not None and policy not in names.SCHEDULE_POLICIES:
        text = f"annotation {names.SCHEDULE_POLICY}={policy}"
        found.append((names.UNKNOWN_SCHEDULE_POLICY, _unknown(text, names.SCHEDULE_POLICIES)))
    return tuple(found)


def _odd_labels(job: Job) -> list[tuple[str, str]]:
    """Labels whose value nobody knows: they act as if they were not there."""
    known: dict[str, tuple[str, ...]] = {
        names.SUB_HEALTHY: names.SUB_HEALTHY_VALUES,
        names.FAULT_SCHEDULING: names.FAULT_SCHEDULING_VALUES,
        names.POD_RESCHEDULING: ("on", "off"),
    }
    found = [
        (
            names.UNKNOWN_LABEL_VALUE,
            f"label {label}={job.labels[label]} is ignored; known are {', '.join(values)}",
        )
        for label, values in known.items()
        if label in job.labels
        and job.labels[label] not in values
        and not (
            label == names.FAULT_SCHEDULING and job.labels[label].startswith(names.FAULT_SCHEDULING_PREFIXES)
        )
    ]
    times = int(job.labels.get(names.FAULT_RETRY_TIMES, "0").strip() or "0")
    if not 0 <= times <= names.MOST_RETRIES:
        found.append(
            (names.UNKNOWN_LABEL_VALUE, f"label {names.FAULT_RETRY_TIMES}={times} is outside of 0 to 100")
        )
    return found


def _unknown(given: str, known: tuple[str, ...]) -> str:
    return f"{given} is passed on to the scheduler as it is; known are {', '.join(known)}"


def _template_field(replicas: Replicas, name: str) -> str:
    return str(mapping(replicas.template.get("spec")).get(name) or "")
