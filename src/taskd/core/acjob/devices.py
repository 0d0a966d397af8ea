"""Which devices a job asks for, and what follows from it: processes, world size and ranks.

Ranks are counted by adding up what each pod really has, leader first. A job whose leader has four devices and
whose two workers have eight each is a world of twenty, and says so in every pod.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from taskd.core.acjob import names
from taskd.core.acjob.job import WORKER, Job, Json, Replicas, Slot, main_container, mapping, once

VENDORS: Final = ("huawei.com/", "nvidia.com/")
ASCEND: Final = "huawei.com/"
GPU: Final = "nvidia.com/gpu"
COMPUTING: Final = (ASCEND, "nvidia.com/gpu.shared", "nvidia.com/mig-")
NPU_CORE: Final = "huawei.com/npu-core"
WHOLE_CARDS: Final = (
    "huawei.com/npu",
    "huawei.com/Ascend310",
    "huawei.com/Ascend310P",
    "huawei.com/Ascend910",
)


@dataclass(frozen=True, slots=True)
class Request:
    """The devices that one pod asks for."""

    resource: str
    count: int

    @property
    def dynamic_cut(self) -> bool:
        """Whether the device plugin cuts a part out of a card and sets the sizes itself."""
        return self.resource == NPU_CORE

    @property
    def whole_cards(self) -> bool:
        """Whether whole Ascend cards are asked for, which the scheduler names in an annotation."""
        return self.resource in WHOLE_CARDS


def requested(template: Json) -> Request | None:
    """The devices of the main container that compute.

    Where there are several kinds, whole GPUs come before parts of one; otherwise the alphabet decides.
    """
    resources = mapping(main_container(template).get("resources"))
    amounts = {**mapping(resources.get("limits")), **mapping(resources.get("requests"))}
    for resource in sorted(filter(computes, amounts), key=_rank):
        count = whole_number(amounts[resource])
        if count:
            return Request(resource, count)
    return None


def _rank(resource: str) -> tuple[bool, bool, str]:
    return not resource.startswith(ASCEND), resource != GPU, resource


def computes(resource: str) -> bool:
    """Whether a process is started for each unit of it; NVIDIA's plug-ins offer network devices too."""
    return resource == GPU or resource.startswith(COMPUTING)


def whole_number(quantity: object) -> int:
    """The value of a device quantity; zero for what is not a whole number (validation has said so)."""
    text = str(quantity).strip()
    return int(text) if text.isdigit() else 0


@dataclass(frozen=True, slots=True)
class World:
    """How many processes the pods of a job have, and how they are counted."""

    per_pod: dict[str, int]
    """Processes in each pod, by replica type; zero for a leader that only coordinates."""
    counts: dict[str, int]
    leader_computes: bool

    @property
    def size(self) -> int:
        """All processes of the job."""
        return sum(self.per_pod[kind] * count for kind, count in self.counts.items())

    @property
    def nodes(self) -> int:
        """The pods that have processes."""
        return sum(count for kind, count in self.counts.items() if self.per_pod[kind])

    def node_rank(self, slot: Slot) -> int:
        """The rank of a pod among those that compute; a leader that only coordinates is called 0 too."""
        return slot.index + 1 if slot.kind == WORKER and self.leader_computes else slot.index

    def first_rank(self, slot: Slot) -> int:
        """The rank of the pod's first process."""
        before = 0
        for kind, count in self.counts.items():
            if kind == slot.kind:
                return before + slot.index * self.per_pod[kind]
            before += count * self.per_pod[kind]
        raise KeyError(slot.kind)


@once
def world(job: Job) -> World:
    """The processes of the job, from what its templates request."""
    asked = {replicas.kind: requested(replicas.template) for replicas in job.replicas}
    counts = {replicas.kind: replicas.count for replicas in job.replicas}
    if any(asked.values()):
        per_pod = {kind: _processes(job, request) for kind, request in asked.items()}
    else:
        each = int(job.annotations.get(names.PROCESSES_PER_POD, "1"))
        per_pod = {kind: 0 if kind == "Scheduler" and WORKER in counts else each for kind in asked}
    leader = job.leader
    return World(per_pod, counts, leader_computes=leader is not None and per_pod[leader.kind] > 0)


def soft_shared(job: Job) -> bool:
    """Whether several pods share one card by quota."""
    return all(label in job.labels for label in names.SOFT_SHARE)


def _processes(job: Job, request: Request | None) -> int:
    if request is None:
        return 0
    return 1 if soft_shared(job) or request.dynamic_cut else request.count


def each_container(replicas: Replicas) -> Iterator[tuple[str, Json]]:
    """Path and content of every container of a template, init containers included."""
    spec = mapping(replicas.template.get("spec"))
    for field in ("containers", "initContainers"):
        for index, container in enumerate(spec.get(field) or ()):
            yield f"{field}[{index}]", mapping(container)
