"""The jobs of the cluster as the plane sees them, from the caches that the operator has anyway.

A job is read again when it or one of its pods changed, once for all that happened in a turn of the event
loop; listeners hear of it then. A job that is not valid has no place here, nor has one that has ended: there
is nothing to recover.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import structlog

from taskd.core.acjob import conditions, names, validation
from taskd.core.acjob import job as acjobs
from taskd.core.acjob import status as statuses
from taskd.core.acjob.devices import World, requested, world
from taskd.core.acjob.job import Job, Slot, mapping
from taskd.core.acjob.relief import number_of
from taskd.core.acjob.standbys import kind_of
from taskd.core.acjob.volumes import left_alone
from taskd.core.faults.texts import jobsummary
from taskd.core.faults.texts.jobsummary import JobStatus
from taskd.core.plane.faultlists import Shape
from taskd.core.plane.jobs import JobView, PodView, StandbyView
from taskd.core.plane.policy import RECOVER_PATH
from taskd.kube.objects import Json, Pod
from taskd.plane.sights import JobReader
from taskd.plane.sources import Sources

TRACE_PATH: Final = "/user/cluster-info/datatrace-config"
RUNNING: Final = "Running"
FAILED: Final = "Failed"
SHOWN: Final = 300
log = structlog.get_logger("taskd.plane")


@dataclass(slots=True)
class _Known:
    raw: Json
    job: Job
    sizes: World
    status: JobStatus = JobStatus.PENDING
    view: JobView | None = None


class Directory:
    """All jobs; follows the caches from the moment of `connect`."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._reader = JobReader()
        self._known: dict[str, _Known] = {}
        self._by_name: dict[tuple[str, str], str] = {}
        self._dirty: set[str] = set()
        self._listeners: list[Callable[[str], None]] = []
        self._turn: asyncio.Handle | None = None

    def connect(self) -> None:
        """Read all jobs that there are and follow them."""
        self._sources.jobs.add_handler(self._job_changed)
        self._sources.pods.add_handler(self._pod_changed)
        self._dirty |= {str(raw["metadata"]["uid"]) for raw in self._sources.jobs.store}
        self._look()

    def close(self) -> None:
        """Look no more."""
        if self._turn is not None:
            self._turn.cancel()

    # --------------------------------------------------------------------------------------------- asked

    def find(self, job_id: str) -> JobView | None:
        """Return a job by its UID."""
        known = self._known.get(job_id)
        return known.view if known else None

    def named(self, namespace: str, name: str) -> JobView | None:
        """Return a job by its name."""
        return self.find(self._by_name.get((namespace, name), ""))

    def jobs(self) -> Iterable[JobView]:
        """Return all jobs."""
        return [known.view for known in self._known.values() if known.view is not None]

    def listen(self, listener: Callable[[str], None]) -> Callable[[], None]:
        """Have a listener told the id of each job that appeared, changed or went."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    # ------------------------------------------------------------------------------------------ followed

    def _job_changed(self, _change: object, old: Json | None, new: Json | None) -> None:
        for raw in (old, new):
            if raw is not None:
                self._note(str(raw["metadata"]["uid"]))

    def _pod_changed(self, _change: object, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        if pod is not None and pod.metadata.controller_uid:
            self._note(pod.metadata.controller_uid)

    def _note(self, uid: str) -> None:
        self._dirty.add(uid)
        if self._turn is None:
            self._turn = asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        self._turn = None
        dirty, self._dirty = self._dirty, set()
        stored = self._sources.jobs.store
        for uid in sorted(dirty):
            before = self.find(uid)
            raw = stored.by_uid(uid)
            if raw is None or not self._read(uid, raw):
                self._forget(uid)
            if self.find(uid) != before:
                for listener in tuple(self._listeners):
                    listener(uid)

    def _read(self, uid: str, raw: Json) -> bool:
        """Read a job; False where there is nothing to look after."""
        if raw["metadata"].get("deletionTimestamp") or conditions.finished(statuses.read(raw).conditions):
            return False
        known = self._known.get(uid)
        if known is None or known.raw is not raw:
            if validation.validate(raw):
                return False
            job = acjobs.read(raw)
            fresh = _Known(raw, job, world(job))
            if known is not None:
                fresh.status = known.status
            known = self._known[uid] = fresh
            self._by_name[job.namespace, job.name] = uid
        seen = self._reader.see_job(raw, self._sources.pods.owned_by(uid), self._serial)
        if seen is None:
            return False
        known.status = jobsummary.job_status(seen.facts, known.status)
        summary = jobsummary.summary(seen.facts, known.status)[0].data
        known.view = replace(
            _bare(known),
            pods=_pods(known, self._sources.pods.owned_by(uid)),
            standbys=_standbys(self._sources.pods.owned_by(uid)),
            status=known.status.value,
            rank_table=summary.get("hccl.json", ""),
            master_addr=summary.get("masterAddr", ""),
            shared_tor_ip=summary.get("sharedTorIp", ""),
            created=seen.facts.created,
            custom_id=seen.facts.sid,
        )
        return True

    def _serial(self, node: str) -> str:
        found = self._sources.nodes.get("", node)
        return found.metadata.annotations.get("product-serial-number", "") if found else ""

    def _forget(self, uid: str) -> None:
        known = self._known.pop(uid, None)
        self._reader.forget(uid)
        if known is not None and self._by_name.get((known.job.namespace, known.job.name)) == uid:
            del self._by_name[known.job.namespace, known.job.name]


def _bare(known: _Known) -> JobView:
    job, sizes = known.job, known.sizes
    each = {count for count in sizes.per_pod.values() if count}
    # Ranks of a pod follow from its number only where all pods have as many: others are not recovered here.
    per_pod = each.pop() if len(each) == 1 else 0
    return JobView(
        job_id=job.uid,
        name=job.name,
        namespace=job.namespace,
        shape=Shape(sizes.nodes, per_pod),
        labels=job.labels,
        annotations=_annotations(job),
        pod_group=job.pod_group,
        framework=job.framework,
        suspended=job.suspend,
        has_devices=requested(job.of_kind(kind_of(job)).template) is not None,
        # The operator mounts the switches wherever it may.
        mounts_trace=not left_alone(job) or all(_mounts(replicas.template) for replicas in job.replicas),
    )


def _annotations(job: Job) -> Mapping[str, str]:
    """Those of the job; how far a restart may reach, the templates say in the reference."""
    for replicas in job.replicas:
        template = mapping(mapping(replicas.template.get("metadata")).get("annotations"))
        if RECOVER_PATH in template and RECOVER_PATH not in job.annotations:
            return {**job.annotations, RECOVER_PATH: str(template[RECOVER_PATH])}
    return job.annotations


def _pods(known: _Known, pods: Iterable[Pod]) -> dict[int, PodView]:
    """The pods that have processes, by their rank; one that is being deleted is not there any more."""
    standbys: dict[str, Pod] = {}
    regular: dict[Slot, Pod] = {}
    listed = sorted(pods, key=lambda pod: (pod.metadata.is_terminating, pod.metadata.name))
    there = {pod.metadata.name for pod in listed}
    for pod in listed:
        slot = acjobs.slot_of(pod.metadata.labels)
        source = pod.metadata.annotations.get(names.BACKUP_SOURCE, "")
        if pod.metadata.annotations.get(names.POD_TYPE) == names.BACKUP and source in there:
            standbys[source] = pod
        elif pod.metadata.is_terminating:
            continue
        elif slot is not None and slot.index < known.sizes.counts.get(slot.kind, 0):
            regular.setdefault(slot, pod)
    found: dict[int, PodView] = {}
    for slot, pod in regular.items():
        if not known.sizes.per_pod[slot.kind]:
            continue
        standby = standbys.get(pod.metadata.name)
        found[known.sizes.node_rank(slot)] = PodView(
            name=pod.metadata.name,
            uid=pod.metadata.uid,
            node=pod.spec.node_name,
            running=_runs(pod),
            standby=standby.metadata.uid if standby is not None else "",
            standby_running=standby is not None and _runs(standby),
            failed=pod.status.phase == FAILED,
            standby_waits=_waits(standby) if standby is not None else "",
            standby_name=standby.metadata.name if standby is not None else "",
        )
    return dict(sorted(found.items()))


def _standbys(pods: Iterable[Pod]) -> tuple[StandbyView, ...]:
    """The pods that are kept ready, as the operator counts them."""
    ready = (pod for pod in pods if pod.metadata.annotations.get(names.POD_TYPE) == names.STANDBY)
    found = [StandbyView(pod.metadata.name, pod.spec.node_name) for pod in ready if _runs(pod)]
    return tuple(sorted(found, key=lambda each: number_of(each.name)))


def _runs(pod: Pod) -> bool:
    return pod.status.phase == RUNNING and not pod.metadata.is_terminating


def _waits(pod: Pod) -> str:
    """Why a pod does not run: what the scheduler or the kubelet says, cut to a length for an event."""
    said = [each.message for each in pod.status.conditions if each.status == "False" and each.message]
    return said[0][:SHOWN] if said and not _runs(pod) else ""


def _mounts(template: Mapping[str, Any]) -> bool:
    mounts: Any = acjobs.main_container(template).get("volumeMounts") or ()
    return any(mapping(mount).get("mountPath") == TRACE_PATH for mount in mounts)
