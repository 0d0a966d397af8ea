"""What the container `ascend` of a pod finds in its environment, besides what the user wrote.

Nearly all of it is the same in every pod of a type. The rest follows from the pod's rank alone, so it is
kept as functions of the rank, and a thousand pods share one computation.

Ours stands before the user's: Kubernetes expands `$(WORLD_SIZE)` in a value only where that name stands
earlier in the list. A name that the user gave is left to the user.

A job on other devices, or on none, gets the variables of its framework too. It does not get what only
Ascend's software reads (`ASCEND_VISIBLE_DEVICES`, `HCCL_…`, `MS_ENABLE_THM`), which would be false there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from taskd.core import podplace
from taskd.core.acjob import hostnames, names, recoveryenv
from taskd.core.acjob.devices import ASCEND, Request, World, requested, soft_shared
from taskd.core.acjob.job import WORKER, Job, Json, mapping, once

Entry: TypeAlias = dict[str, Any]
ByRank: TypeAlias = Callable[[int], str]

SOFT: Final = "soft"
MULTILEVEL: Final = "multilevel"


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the job's leader and the control plane are found."""

    leader_ip: str = ""
    leader_port: int = names.PORT
    plane_ip: str = ""
    """Empty where it is not known; the domain then stands in its place."""
    plane_domain: str = names.PLANE_DOMAIN


@dataclass(frozen=True, slots=True)
class Variables:
    """The variables of one replica type, in their order."""

    entries: tuple[Entry, ...]
    """Entries that depend on the rank stand here as they are for rank 0."""
    by_rank: Mapping[str, ByRank]


def literal(name: str, value: str) -> Entry:
    """A variable with that value."""
    return {"name": name, "value": value}


def field(name: str, path: str) -> Entry:
    """A variable that takes its value from a field of the pod."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def annotation(name: str, key: str) -> Entry:
    """A variable that takes its value from an annotation, which the scheduler writes."""
    return field(name, f"metadata.annotations['{key}']")


def variables(job: Job, world: World, kind: str, addresses: Addresses, *, gang: bool) -> Variables:
    """Everything that the operator adds to the pods of that type."""
    maker = _Maker(job, world, kind, addresses, gang=gang)
    return maker.inference() if job.inference else maker.training()


def merge(own: Sequence[Entry], users: Sequence[Json]) -> list[Json]:
    """Ours and the user's: no name twice, and the user's value wins.

    Of a name that the user wrote twice the last one stays, which is the one that a container would see.
    """
    last = {entry.get("name"): index for index, entry in enumerate(users)}
    kept = [entry for index, entry in enumerate(users) if last[entry.get("name")] == index]
    return [*(entry for entry in own if entry["name"] not in last), *kept]


def super_pod_block(job: Job) -> int:
    """How many devices one logical super pod has; zero where the job does not say."""
    block = _number(job.annotations.get(names.SP_BLOCK, ""))
    if block or job.annotations.get(names.SCHEDULE_POLICY) != MULTILEVEL:
        return block
    levels = dict(
        part.strip().partition("=")[::2]
        for part in job.annotations.get(names.AFFINITY_CONFIG, "").split(",")
        if "=" in part
    )
    asked = (requested(replicas.template) for replicas in job.replicas)
    chips = max((each.count for each in asked if each and each.resource == "huawei.com/Ascend910"), default=0)
    return _number(levels.get("level1", "")) * chips


def nodes_per_block(block: int, chips: int) -> int:
    """How many pods make up a logical super pod; zero where there are none."""
    if block <= 0 or chips <= 0:
        return 0
    return max(1, block // chips)


def _number(text: str) -> int:
    text = text.strip()
    return int(text) if text.isdecimal() else 0


@once
def has_ascend(job: Job) -> bool:
    """Whether any type of the job asks for an Ascend device."""
    return any(_ascend(requested(replicas.template)) for replicas in job.replicas)


def _ascend(request: Request | None) -> bool:
    return request is not None and request.resource.startswith(ASCEND)


class _Maker:
    """Collects the variables of one type in a fixed order."""

    def __init__(self, job: Job, world: World, kind: str, addresses: Addresses, *, gang: bool) -> None:
        self._job, self._world, self._kind, self._addresses, self._gang = job, world, kind, addresses, gang
        self._template = job.of_kind(kind).template
        self._request = requested(self._template)
        self._entries: list[Entry] = []
        self._by_rank: dict[str, ByRank] = {}

    def inference(self) -> Variables:
        self._add("MINDX_TASK_ID", self._job.labels[names.JOB_ID])
        self._add("APP_TYPE", self._job.labels[names.APP])
        self._plane()
        self._every_job()
        return self._done()

    def training(self) -> Variables:
        self._common()
        # MindSpore without a Scheduler is one process alone: it has nobody to meet, and no Service.
        if self._job.framework != "mindspore" or self._job.leader is not None:
            {"pytorch": self._pytorch, "mindspore": self._mindspore, "tensorflow": self._tensorflow}[
                self._job.framework
            ]()
            for name, value in recoveryenv.switches(self._job, ascend=has_ascend(self._job)).items():
                self._add(name, value)
        self._every_job()
        return self._done()

    def _done(self) -> Variables:
        return Variables(tuple(self._entries), self._by_rank)

    def _add(self, name: str, value: str) -> None:
        self._entries.append(literal(name, value))

    def _add_ranked(self, name: str, value: ByRank) -> None:
        self._by_rank[name] = value
        self._add(name, value(0))

    def _every_job(self) -> None:
        self._entries.append(field("POD_IP", "status.podIP"))
        for name, value in recoveryenv.raw_strategy(self._job).items():
            self._add(name, value)

    def _plane(self) -> None:
        self._add("MINDX_SERVER_IP", self._addresses.plane_ip or self._addresses.plane_domain)
        self._add("MINDX_SERVER_DOMAIN", self._addresses.plane_domain)

    def _common(self) -> None:
        request = self._request
        if self._gang and request is not None and request.whole_cards and not soft_shared(self._job):
            self._entries.append(annotation("ASCEND_VISIBLE_DEVICES", request.resource))
        self._add("MINDX_TASK_ID", self._job.uid)
        self._plane()
        shared = bool(mapping(self._template.get("spec")).get("hostNetwork"))
        self._add("HostNetwork", "true" if shared else "false")
        if request is not None and _ascend(request):
            self._super_pod(request)
        self._add("REPLICA_TYPE", self._kind)

    def _super_pod(self, request: Request) -> None:
        name = "HCCL_LOGIC_SUPERPOD_ID"
        soft = self._job.labels.get(names.SUPER_POD_AFFINITY) == SOFT
        if soft and request.resource != "huawei.com/npu":
            self._entries.append(annotation(name, names.SUPER_POD_RANK))
            return
        nodes = nodes_per_block(super_pod_block(self._job), request.count)
        if nodes:
            self._add_ranked(name, lambda rank: str(rank // nodes))
        else:
            self._add(name, "0")

    def _sizes(self) -> tuple[str, str, int] | None:
        """Processes here, processes in all, and the first as a number; None where the device plugin says."""
        counted = self._kind if self._world.per_pod[self._kind] else WORKER
        asked = self._request
        if counted != self._kind and counted in self._world.counts:
            asked = requested(self._job.of_kind(counted).template)
        if asked is not None and asked.dynamic_cut:
            return None
        # A leader that only coordinates is told how many processes its workers have.
        local = self._world.per_pod.get(counted, 0)
        return str(local), str(self._world.size), local

    def _pytorch(self) -> None:
        if sizes := self._sizes():
            local, total, count = sizes
            self._add("LOCAL_WORLD_SIZE", local)
            self._add("WORLD_SIZE", total)
            self._add("LOCAL_RANK", ",".join(map(str, range(count))))
        self._add("MASTER_ADDR", self._addresses.leader_ip)
        self._add("MASTER_PORT", str(self._addresses.leader_port))
        self._add_ranked("RANK", str)
        # A leader without processes is no node, and its workers are counted from 0: `taskd run` has no place.
        if self._world.leader_computes:
            self._add(podplace.NODES, str(self._world.nodes))
            self._add(podplace.LEADER_SERVICE, self._addresses.leader_ip)
            if peers := podplace.format_peers(hostnames.of_all_pods(self._job)):
                self._add(podplace.PEERS, peers)

    def _mindspore(self) -> None:
        self._leader_address("MS_SCHED_HOST")
        if sizes := self._sizes():
            self._add("MS_LOCAL_WORKER", sizes[0])
            self._add("MS_WORKER_NUM", sizes[1])
        self._add_ranked("MS_NODE_RANK", str)
        self._add("MS_SCHED_PORT", str(self._addresses.leader_port))
        self._add("MS_SERVER_NUM", "0")
        self._add("MS_ROLE", "MS_WORKER" if self._kind == WORKER else "MS_SCHED")
        self._add("NPU_POD", "true" if _ascend(self._request) else "false")

    def _tensorflow(self) -> None:
        self._leader_address("CM_CHIEF_IP")
        if sizes := self._sizes():
            self._add("CM_LOCAL_WORKER", sizes[0])
            self._add("CM_WORKER_SIZE", sizes[1])
        self._add("CM_CHIEF_PORT", str(self._addresses.leader_port))
        self._add_ranked("CM_RANK", str)
        self._add("CM_CHIEF_DEVICE", "0")
        self._entries.append(field("CM_WORKER_IP", "status.podIP"))

    def _leader_address(self, name: str) -> None:
        if self._kind == WORKER:
            self._add(name, self._addresses.leader_ip)
        else:
            self._entries.append(field(name, "status.podIP"))
