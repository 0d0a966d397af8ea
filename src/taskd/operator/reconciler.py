"""Brings one job from what it is to what it should be.

Look, decide, do, look again, until nothing is left to do; then store the status, once. Every round begins
from the caches, into which the answers of the last round have gone already, and from nothing that this
process remembers: a successor that begins anywhere in between ends at the same point.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import structlog

from taskd.core.acjob import job as jobs
from taskd.core.acjob import names, podgroups, pods, services, telling, validation
from taskd.core.acjob import status as statuses
from taskd.core.acjob.actions import CreatePods, Decision
from taskd.core.acjob.decide import decide
from taskd.core.acjob.job import Job, Slot
from taskd.core.acjob.seen import SUCCEEDED, Failure, PodGroupSeen, PodSeen, ServiceSeen, Snapshot
from taskd.core.acjob.status import Status, stamp
from taskd.kube.objects import Json, Pod
from taskd.kube.resources import ASCENDJOB
from taskd.kube.store import Change
from taskd.operator.carrier import Carrier
from taskd.operator.cluster import Cluster
from taskd.operator.forms import Form, Forms
from taskd.operator.held import Held, Key, Later
from taskd.operator.owners import MANAGER
from taskd.operator.ranktables import RankTables
from taskd.operator.views import see_group, slot_of, version_of

ROUNDS = 32
CROWDED_DELAYS = 30
_CONDITIONS = (
    names.SYNC_POD_GROUP_FAILED,
    names.SYNC_SERVICE_FAILED,
    names.SYNC_CERTIFICATES_FAILED,
    names.POD_CREATE_FAILED,
)
log = structlog.get_logger()


class Recorder(Protocol):
    """Tells people: as Events of the job."""

    def tell(self, raw: Json, reason: str, message: str, *, warning: bool) -> None:
        """Record an Event; never waits, never fails."""


@dataclass(slots=True)
class _Told:
    """What was told of a job that is odd, and for which form of it."""

    form: Form
    said: frozenset[tuple[str, str]] = frozenset()


@dataclass(slots=True)
class Reconciler:
    """Looks after the jobs; one call of `reconcile` at a time for each."""

    cluster: Cluster
    carrier: Carrier
    tables: RankTables
    recorder: Recorder
    later: Later
    clock: Callable[[], float] = time.time
    status_delay_s: float = 0.5
    stored: Callable[[Json, Status, Status], None] = lambda _raw, _before, _after: None
    departed: dict[str, dict[Slot, int]] = field(default_factory=dict)
    """Pods that were seen to go, by the UID of their job; a little later the status has `filled`."""
    finished: dict[str, set[Slot]] = field(default_factory=dict)
    """Those of them that had ended well, until the status says so."""
    forms: Forms = field(default_factory=Forms)
    _unwritten: dict[str, float] = field(default_factory=dict)
    _held: Held = field(init=False)
    _told: dict[str, _Told] = field(default_factory=dict)
    _troubled: dict[str, str] = field(default_factory=dict)
    """What is known to stand in the way of a job's rank table, by UID."""

    def __post_init__(self) -> None:
        self._held = Held(self.later)

    # ------------------------------------------------------------------------------------ what is seen

    def pod_changed(self, change: Change, old: Pod | None, new: Pod | None) -> None:
        """Remember that a pod has gone which nobody here has deleted."""
        pod = old or new
        if change is Change.ADDED and pod is not None and pod.metadata.is_terminating:
            # It was being deleted before this process looked, maybe by a predecessor of it and on purpose.
            # A job that was whole counts it all the same.
            self.carrier.own_deletes.add(pod.metadata.uid)
        if change is not Change.DELETED or pod is None:
            return
        if pod.metadata.uid in self.carrier.own_deletes:
            self.carrier.own_deletes.discard(pod.metadata.uid)
            return
        slot = slot_of(pod)
        if slot is not None and pod.status.phase == SUCCEEDED:
            self.finished.setdefault(pod.metadata.controller_uid, set()).add(slot)
        elif slot is not None and pod.metadata.annotations.get(names.POD_TYPE) != names.BACKUP:
            losses = self.departed.setdefault(pod.metadata.controller_uid, {})
            losses[slot] = max(losses.get(slot, 0), version_of(pod))

    async def _snapshot(
        self, raw: Json, form: Form, job: Job | None, failures: tuple[Failure, ...]
    ) -> Snapshot:
        uid = raw["metadata"]["uid"]
        found = self.cluster.pods_of(uid)
        gone = self._gone(raw, form, found)
        return Snapshot(
            raw=raw,
            job=form.job,
            problems=form.problems,
            pods=found,
            gang=self.cluster.gang,
            pod_group=self._group(form, job or jobs.read(raw), gone),
            service=self._service(form, job) if job else None,
            needs_service=job is not None and job.leader is not None,
            extras=self.carrier.extras.known(uid, raw["metadata"]["namespace"]),
            missing_queue=await self._missing_queue(raw, found),
            nodes=await self.cluster.lost_nodes(found),
            departed=self.departed.get(uid, {}),
            finished=frozenset(self.finished.get(uid, ())),
            gone=gone,
            failures=failures,
        )

    async def _missing_queue(self, raw: Json, found: list[PodSeen]) -> str | None:
        """The queue that keeps the job from starting; one that has started needs none."""
        started = found or statuses.read(raw).start_time
        return None if started else await self.cluster.missing_queue(raw)

    def _gone(self, raw: Json, form: Form, found: list[PodSeen]) -> frozenset[Slot]:
        """The places that are done and whose pods somebody has deleted."""
        uid = raw["metadata"]["uid"]
        told = "finished" in (raw.get("status") or {})
        if form.job is None or form.job.suspend or not (told or self.finished.get(uid)):
            return frozenset()
        done = statuses.read(raw).finished | self.finished.get(uid, set())
        there = {pod.slot for pod in found}
        return frozenset(slot for slot in form.job.slots() if slot in done and slot not in there)

    def _group(self, form: Form, job: Job, gone: frozenset[Slot]) -> PodGroupSeen | None:
        if self.cluster.groups is None:
            return None
        group = self.cluster.groups.get(job.namespace, job.pod_group)
        if group is None or group.metadata.controller_uid != job.uid:
            return None
        paused = group.metadata.labels.get(names.PROCESS_RECOVER) == podgroups.PAUSED
        # Nobody asks whether the group of a job with mistakes is up to date.
        wanted = form.group_mark(job, paused=paused, gone=gone) if form.job is not None else ""
        return see_group(group, wanted)

    def _service(self, form: Form, job: Job) -> ServiceSeen | None:
        name = services.leader_service_name(job)
        service = self.cluster.services.get(job.namespace, name) if name else None
        if service is None or service.metadata.controller_uid != job.uid:
            return None
        current = form.is_current(job, service) and not service.metadata.is_terminating
        return ServiceSeen(service.spec.cluster_ip, current=current)

    # ---------------------------------------------------------------------------------- one job

    async def reconcile(self, key: Key) -> bool:
        """Bring the job on; False where something was refused and has to be tried again."""
        self._held.drop(key)
        try:
            return await self._bring_on(key)
        finally:
            self._held.let_go()

    async def _bring_on(self, key: Key) -> bool:
        raw = self.cluster.jobs.get(*key)
        if raw is None or raw["metadata"].get("deletionTimestamp"):
            await self._forget(raw)
            return True
        failures: tuple[Failure, ...] = ()
        for _ in range(ROUNDS):
            form = self.forms.of(raw)
            job = _readable(raw, form)
            acting = job or jobs.read(raw)
            if acting.suspend:
                self.finished.pop(acting.uid, None)
                self.departed.pop(acting.uid, None)  # whoever goes now was meant to
            seen = await self._snapshot(raw, form, job, failures)
            decision = decide(seen, self.clock())
            if decision.status_first:
                raw = await self._store(raw, decision.status)
                if not decision.actions:
                    continue
            if not decision.actions or failures:
                self._tell_rest(raw, decision.status, failures)
                await self._conclude(key, raw, decision, seen)
                if job is not None and not decision.status.completion_time:
                    return await self._tabulate(raw, job) and not failures
                return not failures
            leader_ip = decision.status.leader_ip
            failures = await self.carrier.carry(acting, decision.actions, leader_ip=leader_ip)
            if any(isinstance(action, CreatePods) for action in decision.actions):
                self.tables.distrust(acting.uid)
            if failures and not any(failure.reason in _CONDITIONS for failure in failures):
                # Nothing that the job's state speaks of: an Event says so, and it is tried again.
                self._tell_rest(raw, None, failures)
                return False
            failures = tuple(failure for failure in failures if failure.reason in _CONDITIONS)
            current = self.cluster.jobs.get(*key)
            if current is None or current["metadata"]["uid"] != raw["metadata"]["uid"]:
                return True
            raw = current
        log.error("no_end_in_sight", job="/".join(key), rounds=ROUNDS)
        return False

    def _tell_rest(self, raw: Json, status: Status | None, failures: tuple[Failure, ...]) -> None:
        """Tell as Events what was refused and the job's state does not speak of."""
        said = status.last.message if status is not None and status.last is not None else ""
        for failure in failures:
            if failure.message not in said:
                self.recorder.tell(raw, failure.reason, failure.message, warning=True)

    async def _tabulate(self, raw: Json, job: Job) -> bool:
        """Bring the rank table up to date; False where that has to be tried again."""
        trouble = await self.tables.sync(job, self.cluster.pods_of(job.uid))
        if trouble is None:
            self._troubled.pop(job.uid, None)
            return True
        if self._troubled.get(job.uid) != trouble.message:
            self._troubled[job.uid] = trouble.message
            self.recorder.tell(raw, names.RANK_TABLE_FAILED, trouble.message, warning=True)
        return not trouble.again

    async def _conclude(self, key: Key, raw: Json, decision: Decision, seen: Snapshot) -> None:
        before, status = statuses.read(raw), decision.status
        uid = raw["metadata"]["uid"]
        self._warn_once(raw, seen.missing_queue)
        if decision.wake_at is not None:
            self.later.add_after(key, max(0.05, decision.wake_at - self.clock()))
        if status == before:
            self._unwritten.pop(uid, None)
            self.finished.pop(uid, None)
            return
        now = self.clock()
        since = self._unwritten.setdefault(uid, now)
        # Of a pod that ended well and is gone, nothing else says so any more.
        if not telling.urgent(before, status) and not self.finished.get(uid):
            # Where many jobs wait for their pods, those come before what is only told of others. That waits
            # until there is no crowd any more, though not for ever.
            crowded = self._held.crowded
            delay_s = self.status_delay_s * (CROWDED_DELAYS if crowded else 1)
            if now < since + delay_s:
                if crowded:
                    self._held.hold(key)
                self.later.add_after(key, since + delay_s - now)
                return
        await self._store(raw, status)

    async def _store(self, raw: Json, status: Status) -> Json:
        """Write the status, unless it says that already; returns the job as it is now."""
        before = statuses.read(raw)
        if status == before:
            return raw
        metadata = raw["metadata"]
        body: dict[str, Any] = {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            # The UID keeps the status of a job that is gone from a new one of the same name.
            "metadata": {"name": metadata["name"], "uid": metadata["uid"]},
            "status": {**status.as_json(), "lastReconcileTime": stamp(self.clock())},
        }
        stored = await self.cluster.client.apply(
            ASCENDJOB,
            metadata["namespace"],
            metadata["name"],
            body,
            field_manager=MANAGER,
            subresource="status",
        )
        self._unwritten.pop(metadata["uid"], None)
        self.finished.pop(metadata["uid"], None)
        self.cluster.jobs.assume(stored)
        self.stored(raw, before, status)
        for note in telling.notes(before, status):
            self.recorder.tell(raw, note.reason, note.message, warning=note.warning)
        return stored

    def _warn_once(self, raw: Json, missing_queue: str | None) -> None:
        """Tell what is odd about a job, once for each form of it, and only what is new."""
        uid = raw["metadata"]["uid"]
        form = self.forms.of(raw)
        before = self._told.get(uid)
        if before is not None and before.form is form:
            return
        problems = validation.validate(raw, missing_queue=missing_queue) if missing_queue else form.problems
        odd = [(problem.code, f"{problem.message} ({problem.path})") for problem in problems]
        if form.job is not None and not problems:
            odd += pods.warnings(form.job, gang=self.cluster.gang, table_files=bool(self.tables.files.root))
        self._told[uid] = _Told(form, frozenset(odd))
        if before is None and (raw.get("status") or {}).get("observedGeneration") == form.generation:
            return  # a predecessor of this process has told it
        for reason, message in odd:
            if before is None or (reason, message) not in before.said:
                self.recorder.tell(raw, reason, message, warning=True)

    async def _forget(self, raw: Json | None) -> None:
        uids = {raw["metadata"]["uid"]} if raw else set()
        alive = {job["metadata"]["uid"] for job in self.cluster.jobs.store} - uids
        for memory in (self.departed, self.finished, self._unwritten, self._told, self._troubled):
            for uid in [uid for uid in memory if uid not in alive]:
                del memory[uid]
        self.carrier.extras.forget(alive)
        self.forms.forget(alive)
        await self.tables.forget(alive)


def _readable(raw: Json, form: Form) -> Job | None:
    """The job, where it can be read at all; one with problems may not be."""
    if form.job is None and statuses.read(raw).completion_time:
        return jobs.read(raw)
    return form.job
