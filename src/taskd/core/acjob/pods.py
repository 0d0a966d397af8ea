"""The pods: the template as the user wrote it, plus what makes a pod a member of its job.

What is the same for all pods of a type is prepared once; a pod then copies only the levels that differ from
its neighbour (labels, annotations, environment, host name) and shares everything else with the template. So
nobody may change a manifest that came from here; it is made to be sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from taskd.core import podplace
from taskd.core.acjob import hostnames, names, recoveryenv, standbys
from taskd.core.acjob.avoiding import Avoided, closed, with_avoidance
from taskd.core.acjob.devices import World, requested, world
from taskd.core.acjob.environment import Addresses, ByRank, Variables, has_ascend, literal, merge, variables
from taskd.core.acjob.job import WORKER, Job, Json, Replicas, Slot, mapping, once
from taskd.core.acjob.services import owner_reference, type_labels
from taskd.core.acjob.volumes import CONFIG_MAP, FILE, Mount, asked_sinks, mounts, with_mounts
from taskd.core.certificates import VARIABLE

_EXIT_CODE: Final = "ExitCode"
_NOTHING: Final[Mapping[str, str]] = {}


class PodMaker:
    """Makes the pods of one job, for as long as the job and the addresses stay the same."""

    def __init__(
        self,
        job: Job,
        addresses: Addresses,
        *,
        gang: bool,
        certificates: str = "",
        issued: str = "",
        avoided: tuple[Avoided, ...] = (),
    ) -> None:
        self.job = job
        self.world = world(job)
        added = mounts(job, certificates=certificates, issued=issued)
        scheduler = scheduler_name(job) if gang else ""
        self._moulds = {
            replicas.kind: _Mould(
                job,
                self.world,
                replicas,
                addresses,
                added,
                scheduler,
                gang=gang,
                issued=issued,
                avoided=avoided,
            )
            for replicas in job.replicas
        }

    def pod(
        self, slot: Slot, version: int, *, name: str = "", annotations: Mapping[str, str] = _NOTHING
    ) -> dict[str, Any]:
        """The pod of that place, made by the restart `version` (0 at first).

        The new pod of a hot switch has another name and a few annotations more, and the same index, rank and
        environment.
        """
        rank = self.world.node_rank(slot)
        return self._moulds[slot.kind].pod(slot, rank, version, name or self.job.pod_name(slot), annotations)

    def standby(self, number: int, version: int) -> dict[str, Any]:
        """A pod that is kept ready: it has no place, so no rank, and no Service leads to it.

        Its environment has the first rank of its type, since there must be one; `TASKD_SPARE_POD` says that
        it is not meant.
        """
        slot = Slot(standbys.kind_of(self.job), 0)
        made = self.pod(slot, version, name=standbys.pod_name(self.job, number))
        metadata, spec = made["metadata"], made["spec"]
        metadata["labels"] |= {
            **type_labels(self.job, names.STANDBY),
            names.REPLICA_INDEX: str(number),
            names.REPLICA_INDEX_SHORT: str(number),
        }
        metadata["labels"].pop(names.JOB_ROLE, None)
        marks = metadata["annotations"]
        marks[names.POD_TYPE] = names.STANDBY
        del marks[names.RANK_INDEX]
        if names.TASK_SPEC in marks:
            marks[names.TASK_SPEC] = names.STANDBY
        said = literal(podplace.SPARE, "1")
        spec["containers"] = [
            {**each, "env": merge([said], each.get("env") or ())}
            if each.get("name") == names.CONTAINER
            else each
            for each in spec["containers"]
        ]
        return made


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
        issued: str,
        avoided: tuple[Avoided, ...],
    ) -> None:
        metadata = mapping(replicas.template.get("metadata"))
        self._labels = {**mapping(metadata.get("labels")), **type_labels(job, replicas.label)}
        if replicas.kind != WORKER:
            self._labels[names.JOB_ROLE] = "master"
        self._annotations = dict(mapping(metadata.get("annotations")))
        self._annotations[names.SHAPE] = shape(job)
        if issued:
            self._annotations[names.CERTIFIED] = issued
        if gang:
            self._annotations[names.POD_GROUP_OF] = job.pod_group
            self._annotations[names.TASK_SPEC] = replicas.label
        self._metadata = {"namespace": job.namespace, "ownerReferences": [owner_reference(job)]}
        if metadata.get("finalizers"):
            self._metadata["finalizers"] = metadata["finalizers"]

        spec = with_mounts(mapping(replicas.template.get("spec")), added)
        has_device = requested(replicas.template) is not None
        spec = with_avoidance(spec, avoided, has_device=has_device)
        if shut := closed(avoided, has_device=has_device):
            self._annotations[names.AVOIDS] = ",".join(shut)
        self._named = hostnames.are_given(job, spec)
        self._spec = {**spec, "restartPolicy": pod_restart_policy(replicas)}
        if scheduler:
            self._spec["schedulerName"] = scheduler
        self._containers = list(spec.get("containers") or ())
        own = variables(job, sizes, replicas.kind, addresses, gang=gang)
        if issued:
            told = literal(VARIABLE, names.CERTIFICATES_PATH)
            own = replace(own, entries=(*own.entries, told))
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
        if self._named and hostnames.is_label(name):
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


def assignment(
    job: Job, slot: Slot, version: int, annotations: Mapping[str, str | None], *, gang: bool
) -> dict[str, Any]:
    """What is changed about a standby to make it the pod of a place: what such a pod is made with."""
    replicas = job.of_kind(slot.kind)
    index = str(slot.index)
    role = "master" if slot.kind != WORKER else None
    marks: dict[str, str | None] = {names.RANK_INDEX: str(world(job).node_rank(slot)), **annotations}
    if gang:
        marks[names.TASK_SPEC] = replicas.label
    return {
        "labels": {
            **type_labels(job, replicas.label),
            names.REPLICA_INDEX: index,
            names.REPLICA_INDEX_SHORT: index,
            names.POD_VERSION: str(version),
            names.JOB_ROLE: role,
        },
        "annotations": marks,
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


@once
def shape(job: Job) -> str:
    """All that a pod was told of the others: pods of different shapes never meet."""
    sizes = world(job)
    parts = (f"{kind}={count}x{sizes.per_pod[kind]}" for kind, count in sizes.counts.items())
    return " ".join((job.framework, *parts))


def warnings(job: Job, *, gang: bool, table_files: bool = True) -> tuple[tuple[str, str], ...]:
    """What the user should know though the job runs: reason and message of Warning events, once per job.

    `table_files` says whether this controller has a directory for rank tables.
    """
    found = [*_nameless(job), *_unmet_tables(job, table_files=table_files)]
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
    found += [*_odd_labels(job), *_idle_standbys(job)]
    if refusal := recoveryenv.refused(job):
        found.append((names.RECOVERY_REFUSED, f"the job's recovery strategies are not in force: {refusal}"))
    policy = job.annotations.get(names.SCHEDULE_POLICY)
    if policy is not None and policy not in names.SCHEDULE_POLICIES:
        text = f"annotation {names.SCHEDULE_POLICY}={policy}"
        found.append((names.UNKNOWN_SCHEDULE_POLICY, _unknown(text, names.SCHEDULE_POLICIES)))
    return tuple(found)


def _nameless(job: Job) -> Iterator[tuple[str, str]]:
    """Pods that have no host name of their own, because their name cannot be one."""
    for replicas in job.replicas:
        spec = mapping(replicas.template.get("spec"))
        last = job.pod_name(Slot(replicas.kind, max(0, replicas.count - 1)))
        if hostnames.are_given(job, spec) and not hostnames.is_label(last):
            text = (
                f"pods such as {last} have no host name in DNS: one has at most 63 characters, "
                "small letters, digits and '-'; choose a shorter or plainer name for the job"
            )
            yield names.NO_HOST_NAME, text
            return


def _idle_standbys(job: Job) -> Iterator[tuple[str, str]]:
    """Standby pods that would stand by for nothing."""
    asked = job.annotations.get(names.STANDBY_PODS, "0")
    if int(asked) and not standbys.can_have(job):
        text = (
            f"annotation {names.STANDBY_PODS}={asked} is ignored: pods stand by for training of PyTorch "
            "whose Master has processes"
        )
        yield names.STANDBY_PODS_IGNORED, text


def _unmet_tables(job: Job, *, table_files: bool) -> Iterator[tuple[str, str]]:
    """Wishes for a rank table that nobody fulfils."""
    words = [word.strip() for word in job.annotations.get(names.RANK_TABLE, "").split(",") if word.strip()]
    unknown = [word for word in words if word.lower() not in {CONFIG_MAP, FILE}]
    if unknown:
        text = (
            f"annotation {names.RANK_TABLE}: {', '.join(unknown)} is ignored; known are {CONFIG_MAP}, {FILE}"
        )
        yield names.RANK_TABLE_NOT_WRITTEN, text
    sinks = asked_sinks(job)
    if sinks and not has_ascend(job):
        text = (
            "a rank table is asked for and is not written: it lists Ascend devices, and the job requests none"
        )
        yield names.RANK_TABLE_NOT_WRITTEN, text
    elif FILE in sinks and not table_files:
        text = (
            "a rank table is asked for as a file and is not written: "
            "the controller has no directory for it (--rank-table-dir)"
        )
        yield names.RANK_TABLE_NOT_WRITTEN, text


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
    if times < 0:
        # Documentation says 0 to 100, and samples of inference services ask for 10000: more is no mistake.
        found.append((names.UNKNOWN_LABEL_VALUE, f"label {names.FAULT_RETRY_TIMES}={times} counts as 0"))
    return found


def _unknown(given: str, known: tuple[str, ...]) -> str:
    return f"{given} is passed on to the scheduler as it is; known are {', '.join(known)}"


def _template_field(replicas: Replicas, name: str) -> str:
    return str(mapping(replicas.template.get("spec")).get(name) or "")
