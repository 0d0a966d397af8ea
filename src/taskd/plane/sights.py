"""From what the caches hold to what the fault centre is told."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from taskd.core.acjob import job as acjobs
from taskd.core.acjob import names, validation
from taskd.core.acjob.devices import World, requested, soft_shared, world
from taskd.core.acjob.job import Job, Slot
from taskd.core.acjob.ranktable import table_version
from taskd.core.faults import nodesight
from taskd.core.faults.nodesight import NodeSight
from taskd.core.faults.places import JobSight, PodDevices, PodPlace, read_pod_devices
from taskd.core.faults.policy import read_filters
from taskd.core.faults.reading import Refused
from taskd.core.faults.texts.jobsummary import JobFacts, PodFacts
from taskd.kube.objects import Json, Node, Pod

PENDING: Final = "Pending"
RESCHEDULING: Final = frozenset({"grace", "force"})
PAUSED: Final = "pause"
LEAVING: Final = frozenset(names.SUB_HEALTHY_VALUES) - {"ignore"}
"""Strategies that do something about a device that is merely degraded."""
INFERENCE_SERVER: Final = "mindie-ms-server"
CUSTOM_JOB_KEY: Final = "customJobKey"
CUSTOM_JOB_ID: Final = "custom-job-id"
SHARED_TOR: Final = "isSharedTor"
SHARED_TOR_IP: Final = "sharedTorIp"
PLAIN_NPU: Final = "huawei.com/npu"


@dataclass(frozen=True, slots=True)
class Seen:
    """A job in both forms, and what was strange about it."""

    sight: JobSight
    facts: JobFacts
    notes: tuple[str, ...] = ()


def see_node(node: Node) -> NodeSight:
    """A node."""
    addresses = {address.type: address.address for address in reversed(node.status.addresses)}
    return nodesight.see_node(
        ip=addresses.get("InternalIP", ""),
        annotations=node.metadata.annotations,
        conditions=[nodesight.Condition(c.type, c.status, c.reason) for c in node.status.conditions],
        taints=[nodesight.Taint(taint.key, taint.effect) for taint in node.spec.taints],
        unschedulable=node.spec.unschedulable,
        capacity=node.status.capacity,
        allocatable=node.status.allocatable,
    )


@dataclass(frozen=True, slots=True)
class _Form:
    """What does not change with a job's pods."""

    raw: Json
    job: Job
    sizes: World
    bare: JobSight
    notes: tuple[str, ...]


@dataclass(slots=True)
class JobReader:
    """Reads jobs, each object once: of a thousand pods one changes at a time."""

    _forms: dict[str, _Form] = field(default_factory=dict)
    _pods: dict[str, dict[str, _ReadPod]] = field(default_factory=dict)

    def see_job(self, raw: Json, pods: Iterable[Pod], serial_of: Callable[[str], str]) -> Seen | None:
        """A job with its pods; None where it is not valid, and so has none."""
        uid = str(raw["metadata"]["uid"])
        form = self._forms.get(uid)
        if form is None or form.raw is not raw:
            if validation.validate(raw):
                self.forget(uid)
                return None
            form = self._forms[uid] = _form(raw)
            self._pods.pop(uid, None)
        known, now = self._pods.get(uid, {}), {}
        for pod, slot in _in_their_places(form.job, pods):
            read = known.get(pod.metadata.uid)
            if read is None or read.pod is not pod:
                read = _read_pod(form, pod, slot, serial_of(pod.spec.node_name))
            now[pod.metadata.uid] = read
        self._pods[uid] = now
        places = [read.place for read in now.values() if read.place is not None]
        places.sort(key=lambda place: (place.node_rank, place.name))
        facts = tuple(read.facts for read in now.values())
        strange = [note for read in now.values() for note in read.notes]
        sight = replace(form.bare, pods=tuple(places))
        return Seen(sight, _summary(raw, form.job, facts), (*strange, *form.notes))

    def forget(self, uid: str) -> None:
        """Keep nothing of a job that is gone."""
        self._forms.pop(uid, None)
        self._pods.pop(uid, None)


@dataclass(frozen=True, slots=True)
class _ReadPod:
    pod: Pod
    place: PodPlace | None
    facts: PodFacts
    notes: tuple[str, ...]


def _form(raw: Json) -> _Form:
    job = acjobs.read(raw)
    strategies = job.strategies() if _may_recover(job) else ()
    filters, notes = read_filters(job.annotations, inference=job.labels.get(names.APP) == INFERENCE_SERVER)
    bare = JobSight(
        job.uid,
        retry="retry" in strategies,
        in_place="recover-in-place" in strategies,
        ignores_sub_health=job.labels.get(names.SUB_HEALTHY) not in LEAVING,
        filters=filters,
        super_pod=table_version(job) == "1.2",
    )
    return _Form(raw, job, world(job), bare, notes)


def _may_recover(job: Job) -> bool:
    """Whether process recovery may do anything; otherwise no fault is held back for it."""
    allowed = job.labels.get(names.FAULT_SCHEDULING, "").strip() in RESCHEDULING
    return allowed and job.labels.get(names.PROCESS_RECOVER) != PAUSED


def _read_pod(form: _Form, pod: Pod, slot: Slot, serial: str) -> _ReadPod:
    devices = read_pod_devices(pod.metadata.annotations)
    notes: tuple[str, ...] = ()
    if isinstance(devices, Refused):
        notes = (f"pod {pod.metadata.name}: {devices.reason}",)
        devices = PodDevices(())
    sizes = form.sizes
    first, node_rank = sizes.first_rank(slot), sizes.node_rank(slot)
    place = None
    if pod.spec.node_name and pod.status.phase not in {PENDING, ""}:
        request = requested(form.job.of_kind(slot.kind).template)
        place = PodPlace(
            pod.metadata.name,
            pod.metadata.uid,
            pod.spec.node_name,
            node_rank,
            first,
            sizes.per_pod[slot.kind],
            devices.chips,
            request.resource if request else "",
        )
    return _ReadPod(pod, place, _facts(pod, node_rank, first, devices, serial), notes)


def _in_their_places(job: Job, pods: Iterable[Pod]) -> list[tuple[Pod, Slot]]:
    """One pod for each place: not one that stands by while the pod it stands by for is there."""
    listed = sorted(pods, key=lambda pod: (pod.metadata.is_terminating, pod.metadata.name))
    present = {pod.metadata.name for pod in listed}
    counts = {replicas.kind: replicas.count for replicas in job.replicas}
    found: dict[Slot, Pod] = {}
    for pod in listed:
        annotations = pod.metadata.annotations
        if (
            annotations.get(names.POD_TYPE) == names.BACKUP
            and annotations.get(names.BACKUP_SOURCE) in present
        ):
            continue
        slot = acjobs.slot_of(pod.metadata.labels)
        if slot is not None and slot.index < counts.get(slot.kind, 0):
            found.setdefault(slot, pod)
    return [(found[slot], slot) for slot in sorted(found)]


def _facts(pod: Pod, node_rank: int, first: int, devices: PodDevices, serial: str) -> PodFacts:
    annotations = pod.metadata.annotations
    return PodFacts(
        pod.metadata.name,
        pod.status.phase or PENDING,
        pod.spec.node_name,
        node_rank,
        first,
        pod.status.host_ip,
        serial,
        devices,
        {status.name: status.container_id for status in pod.status.container_statuses if status.container_id},
        annotations.get(SHARED_TOR_IP, "") if annotations.get(SHARED_TOR) == "1" else "",
    )


def _summary(raw: Json, job: Job, pods: tuple[PodFacts, ...]) -> JobFacts:
    asked = [request for replicas in job.replicas if (request := requested(replicas.template)) is not None]
    labels = job.labels
    sid = labels.get(labels.get(CUSTOM_JOB_KEY, ""), "") or labels.get(CUSTOM_JOB_ID, "")
    return JobFacts(
        job.namespace,
        job.name,
        job.uid,
        job.framework,
        job.scheduling.min_available or job.total,
        pods,
        sid,
        next((pod.ip for pod in pods if pod.node_rank == 0), ""),
        epoch(raw["metadata"].get("creationTimestamp")),
        needs_devices=any(request.whole_cards for request in asked) and not soft_shared(job),
        plain_npu=any(request.resource == PLAIN_NPU for request in asked),
    )


def epoch(text: str | None) -> int:
    """Seconds since the epoch of a time of the API; 0 where there is none."""
    if not text:
        return 0
    try:
        return int(datetime.fromisoformat(text).timestamp())
    except ValueError:
        return 0
