"""Carries out what a decision asks for.

Every answer of the API server goes into the caches at once, so the next decision does not work on old news: a
pod is not created twice, and one that was deleted is not deleted again. What was refused comes back as a
failure with the reason that the job's condition shall have.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, assert_never

import msgspec
import structlog

from taskd.core.acjob import jobsecret, names, podgroups, scaling, services, switching
from taskd.core.acjob.actions import (
    Action,
    AnnotatePod,
    AssignStandby,
    BuryPod,
    CreateBackup,
    CreatePods,
    CreateStandbys,
    DeleteJob,
    DeletePod,
    DeletePodGroup,
    DeleteService,
    SyncExtras,
    SyncPodGroup,
    SyncService,
)
from taskd.core.acjob.avoiding import Avoided
from taskd.core.acjob.environment import Addresses
from taskd.core.acjob.job import Job, Slot
from taskd.core.acjob.pods import PodMaker, assignment
from taskd.core.acjob.quantities import QuantityError
from taskd.core.acjob.seen import Failure
from taskd.kube.claims import claim
from taskd.kube.errors import ApiError, KubeError
from taskd.kube.objects import Pod, Service
from taskd.kube.resources import ASCENDJOB, CONFIG_MAP, POD, POD_GROUP, SERVICE
from taskd.operator.cluster import Cluster
from taskd.operator.extras import Extras
from taskd.operator.jobcertificates import JobCertificates
from taskd.operator.owners import MANAGER

SLOW_START = (1, 4)
BATCH = 16
log = structlog.get_logger()


def mark(manifest: object) -> str:
    """A short mark of a manifest: equal for equal ones."""
    return hashlib.sha256(msgspec.json.encode(manifest, order="deterministic")).hexdigest()[:16]


def pod_group_manifest(job: Job, *, paused: bool, gone: frozenset[Slot]) -> dict[str, Any]:
    """The PodGroup with the mark of what it is."""
    manifest = podgroups.pod_group(job, paused=paused, gone=gone)
    manifest["metadata"]["annotations"][names.APPLIED] = mark(manifest)
    return manifest


@dataclass(slots=True)
class Carrier:
    """Does what decisions ask for, one job at a time."""

    cluster: Cluster
    plane: Addresses = field(default_factory=Addresses)
    certificates: str = ""
    """A Secret that an administrator brings for all jobs."""
    issued: JobCertificates | None = None
    """Makes each job a Secret of its own."""
    own_deletes: set[str] = field(default_factory=set)
    """UIDs of pods that were deleted on purpose: their going is no loss."""
    extras: Extras = field(init=False)

    def __post_init__(self) -> None:
        self.extras = Extras(self.cluster, self.issued)

    async def carry(self, job: Job, actions: Sequence[Action], *, leader_ip: str) -> tuple[Failure, ...]:
        """Do all of it, side by side where the order does not matter; returns what was refused."""
        makes = CreatePods | CreateBackup | CreateStandbys
        before = [action for action in actions if not isinstance(action, makes)]
        after = [action for action in actions if isinstance(action, makes)]
        failures: list[Failure] = []
        for group in (before, after):
            if group and not failures:
                done = await asyncio.gather(*(self._do(job, action, leader_ip) for action in group))
                failures += [failure for failure in done if failure is not None]
        return tuple(failures)

    async def _do(self, job: Job, action: Action, leader_ip: str) -> Failure | None:
        match action:
            case SyncPodGroup(gone=gone):
                return await self._sync_group(job, gone)
            case SyncService(ip=ip):
                return await self._sync_service(job, ip)
            case SyncExtras():
                return await self.extras.sync(job)
            case CreatePods():
                return await self._create(job, action, leader_ip)
            case CreateStandbys():
                return await self._create_standbys(job, action, leader_ip)
            case AssignStandby():
                return await self._assign(job, action)
            case CreateBackup():
                return await self._create_backup(job, action, leader_ip)
            case DeletePod():
                return await self._delete_pod(job, action)
            case BuryPod():
                return await self._bury(job, action)
            case AnnotatePod():
                return await self._annotate(job, action)
            case DeletePodGroup():
                return await self._delete_group(job)
            case DeleteService():
                return await self._delete_service(job)
            case DeleteJob():
                return await self._delete_job(job)
        assert_never(action)

    # ---------------------------------------------------------------------------- what pods depend on

    async def _sync_group(self, job: Job, gone: frozenset[Slot]) -> Failure | None:
        assert self.cluster.groups is not None  # noqa: S101 - asked for only with gang scheduling
        known = self.cluster.groups.get(job.namespace, job.pod_group)
        paused = known is not None and known.metadata.labels.get(names.PROCESS_RECOVER) == podgroups.PAUSED
        try:
            manifest = pod_group_manifest(job, paused=paused, gone=gone)
            group = await self.cluster.client.apply(
                POD_GROUP, job.namespace, job.pod_group, manifest, field_manager=MANAGER
            )
        except (KubeError, QuantityError) as error:
            return _failure(names.SYNC_POD_GROUP_FAILED, f"unable to create PodGroup: {_words(error)}", error)
        self.cluster.groups.assume(group)
        return None

    async def _sync_service(self, job: Job, ip: str) -> Failure | None:
        manifest = services.leader_service(job, ip)
        name = services.leader_service_name(job)
        if manifest is None or name is None:
            return None
        known = self.cluster.services.get(job.namespace, name)
        ours = known is not None and known.metadata.controller_uid == job.uid
        if known is not None and not ours:
            return Failure(names.SYNC_SERVICE_FAILED, f"the Service {name} belongs to somebody else")
        try:
            service = await self._store_service(job.namespace, name, manifest, ours=ours)
        except KubeError as error:
            if not ours and isinstance(error, ApiError) and error.is_conflict:
                return _failure(
                    names.SYNC_SERVICE_FAILED,
                    f"the Service {name} belongs to somebody else: {_words(error)}",
                    error,
                )
            return _failure(
                names.SYNC_SERVICE_FAILED, f"unable to sync Service {name}: {_words(error)}", error
            )
        self.cluster.services.assume(service)
        return None

    async def _store_service(
        self, namespace: str, name: str, manifest: dict[str, Any], *, ours: bool
    ) -> Service:
        client = self.cluster.client
        if ours:
            await claim(client, SERVICE, namespace, name, MANAGER)
        else:
            try:
                return await client.create(SERVICE, namespace, manifest, field_manager=MANAGER)
            except ApiError as error:
                if not error.already_exists:
                    raise
        # Of one that is not ours the cache need not know. Without force the server refuses to change what
        # another has written.
        return await client.apply(SERVICE, namespace, name, manifest, field_manager=MANAGER, force=ours)

    # ------------------------------------------------------------------------------------------ pods

    async def _may_start(self, job: Job) -> Failure | None:
        """A part of an inference service waits for its turn, where a rule says so."""
        rule = job.labels.get(names.SCALING_RULE)
        if rule is None or self.cluster.groups is None:
            return None
        refusal = f"job {job.key} can't create pod, try later"
        running: Counter[str] = Counter()
        for group in self.cluster.groups.store:
            labels = group.metadata.labels
            if (
                group.metadata.namespace == job.namespace
                and labels.get(names.SCALING_RULE) == rule
                and labels.get(names.JOB_ID) == job.labels.get(names.JOB_ID)
                and group.status.phase == "Running"
                and group.metadata.name != job.pod_group
            ):
                running[labels.get(names.SCALING_GROUP, "")] += 1
        try:
            found = await self.cluster.client.get(CONFIG_MAP, job.namespace, rule)
            sizes = scaling.read_rule(found.data.get(scaling.RULE_KEY, ""))
        except (KubeError, scaling.BadRule) as error:
            return Failure(names.POD_CREATE_FAILED, f"{refusal}: {_words(error)}")
        if scaling.may_start(sizes, running, job.labels.get(names.SCALING_GROUP, "")):
            return None
        return Failure(names.POD_CREATE_FAILED, refusal)

    async def _create(self, job: Job, action: CreatePods, leader_ip: str) -> Failure | None:
        """Create pods side by side, beginning slowly.

        A template that is refused is refused once, not often.
        """
        waits = await self.extras.freshen(job) or await self._may_start(job)
        if waits is not None:
            return waits
        maker = self._maker(job, leader_ip, action.avoid)
        slots, begun = action.slots, 0
        for width in (*SLOW_START, BATCH):
            some = slots[begun:] if width == BATCH else slots[begun : begun + width]
            refused = await self._create_some(job, maker, some, action, width)
            if refused is not None:
                return refused
            begun += len(some)
        return None

    async def _create_some(
        self, job: Job, maker: PodMaker, slots: Sequence[Slot], action: CreatePods, width: int
    ) -> Failure | None:
        """Keep so many creations under way until all are done or one is refused."""
        left = iter(slots)
        refused: list[Failure] = []

        async def create() -> None:
            for slot in left:
                if refused or not self._wanted(job):
                    return
                failure = await self._create_pod(job, maker.pod(slot, action.version))
                if failure is not None:
                    said = f"failed to create pods of type<{slot.kind}>: {failure.message}"
                    refused.append(Failure(failure.reason, said))

        await asyncio.gather(*(create() for _ in range(min(width, len(slots)))))
        return refused[0] if refused else None

    def _wanted(self, job: Job) -> bool:
        """Whether the job is still what it was when this began."""
        now = self.cluster.jobs.get(job.namespace, job.name)
        if now is None:
            return False
        metadata = now["metadata"]
        return (
            metadata.get("uid") == job.uid
            and not metadata.get("deletionTimestamp")
            and metadata.get("generation", 0) == job.generation
        )

    async def _create_backup(self, job: Job, action: CreateBackup, leader_ip: str) -> Failure | None:
        maker = self._maker(job, leader_ip, action.avoid)
        marks = {names.HOT_SWITCH: "true", names.POD_TYPE: names.BACKUP, names.BACKUP_SOURCE: action.source}
        name = switching.backup_name(action.source, action.source_uid)
        return await self._create_pod(
            job, maker.pod(action.slot, action.version, name=name, annotations=marks)
        )

    async def _create_standbys(self, job: Job, action: CreateStandbys, leader_ip: str) -> Failure | None:
        waits = await self.extras.freshen(job)
        if waits is not None:
            return waits
        maker = self._maker(job, leader_ip, action.avoid)
        for number in action.numbers:
            manifest = maker.standby(number, action.version)
            refused = await self._create_pod(job, manifest)
            if refused is not None:
                return Failure(refused.reason, f"failed to create a standby pod: {refused.message}")
        return None

    async def _create_pod(self, job: Job, manifest: dict[str, Any]) -> Failure | None:
        try:
            pod = await self.cluster.client.create(POD, job.namespace, manifest, brief=True)
        except ApiError as error:
            if error.already_exists:
                return await self._adopt(job, manifest["metadata"]["name"])
            return _failure(names.POD_CREATE_FAILED, _words(error), error)
        except KubeError as error:
            return _failure(names.POD_CREATE_FAILED, _words(error), error)
        self.cluster.pods.assume(pod)
        return None

    async def _adopt(self, job: Job, name: str) -> Failure | None:
        """The name is taken: by a pod of ours that the cache has not shown yet, or by somebody else's."""
        try:
            pod = await self.cluster.client.get(POD, job.namespace, name)
        except ApiError as error:
            return None if error.is_not_found else _failure(names.POD_CREATE_FAILED, _words(error), error)
        except KubeError as error:
            return _failure(names.POD_CREATE_FAILED, _words(error), error)
        if pod.metadata.controller_uid == job.uid:
            return await self._take_back(job, pod)
        state = "is being deleted" if pod.metadata.is_terminating else "belongs to somebody else"
        return Failure(names.POD_CREATE_FAILED, f"pod {name} exists already and {state}")

    async def _take_back(self, job: Job, pod: Pod) -> Failure | None:
        """Have a pod of ours in the cache, which sees only those that bear our label."""
        if pod.metadata.labels.get(names.OPERATOR_NAME) == names.CONTROLLER:
            self.cluster.pods.assume(pod)
            return None
        log.warning("pod_lost_its_label", job=job.key, pod=pod.metadata.name)
        labels = {names.OPERATOR_NAME: names.CONTROLLER}
        patch = {"metadata": {"uid": pod.metadata.uid, "labels": labels}}
        try:
            labelled = await self.cluster.client.patch(
                POD, job.namespace, pod.metadata.name, patch, field_manager=MANAGER
            )
        except KubeError as error:
            return _failure(names.POD_CREATE_FAILED, _words(error), error)
        self.cluster.pods.assume(labelled)
        return None

    async def _delete_pod(self, job: Job, action: DeletePod) -> Failure | None:
        self.own_deletes.add(action.uid)
        try:
            deletion = await self.cluster.client.delete(
                POD, job.namespace, action.name, uid=action.uid, grace_period_s=action.grace_s
            )
        except ApiError as error:
            if error.is_not_found or error.is_conflict:
                self.cluster.pods.assume_deleted(action.uid)
                return None
            self.own_deletes.discard(action.uid)
            return _failure("FailedDeletePod", _words(error), error)
        except KubeError as error:
            return _failure("FailedDeletePod", _words(error), error)
        self.cluster.pods.assume_deletion(action.uid, deletion)
        log.info("pod_deleted", job=job.key, pod=action.name, why=action.why)
        return None

    async def _bury(self, job: Job, action: BuryPod) -> Failure | None:
        """Let the name of a pod go. It is no deletion of ours: whoever asked for that, the loss counts."""
        try:
            deletion = await self.cluster.client.delete(
                POD, job.namespace, action.name, uid=action.uid, grace_period_s=0
            )
        except ApiError as error:
            if not (error.is_not_found or error.is_conflict):
                return _failure("FailedDeletePod", _words(error), error)
            self.cluster.pods.assume_deleted(action.uid)
            return None
        except KubeError as error:
            return _failure("FailedDeletePod", _words(error), error)
        self.cluster.pods.assume_deletion(action.uid, deletion)
        log.info("pod_buried", job=job.key, pod=action.name)
        return None

    async def _annotate(self, job: Job, action: AnnotatePod) -> Failure | None:
        return await self._change(job, action, {"annotations": dict(action.annotations)})

    async def _assign(self, job: Job, action: AssignStandby) -> Failure | None:
        marks = assignment(job, action.slot, action.version, action.annotations, gang=self.cluster.gang)
        refused = await self._change(job, action, marks)
        if refused is None:
            log.info("standby_assigned", job=job.key, pod=action.name, place=job.pod_name(action.slot))
        return refused

    async def _change(
        self, job: Job, action: AnnotatePod | AssignStandby, metadata: dict[str, Any]
    ) -> Failure | None:
        patch = {"metadata": {"uid": action.uid, **metadata}}
        try:
            pod = await self.cluster.client.patch(
                POD, job.namespace, action.name, patch, field_manager=MANAGER
            )
        except ApiError as error:
            if error.is_not_found or (error.is_conflict and await self._is_replaced(job, action)):
                self.cluster.pods.assume_deleted(action.uid)
                return None
            return _failure("FailedPatchPod", _words(error), error)
        except KubeError as error:
            return _failure("FailedPatchPod", _words(error), error)
        self.cluster.pods.assume(pod)
        return None

    async def _is_replaced(self, job: Job, action: AnnotatePod | AssignStandby) -> bool:
        """Whether the pod is gone, or another one has its name; a conflict may mean either, or neither."""
        try:
            pod = await self.cluster.client.get(POD, job.namespace, action.name)
        except KubeError as error:
            return isinstance(error, ApiError) and error.is_not_found
        return pod.metadata.uid != action.uid

    # --------------------------------------------------------------------------------------- the end

    async def _delete_service(self, job: Job) -> Failure | None:
        name = services.leader_service_name(job)
        service = self.cluster.services.get(job.namespace, name) if name else None
        if service is None or service.metadata.controller_uid != job.uid:
            return None
        uid = service.metadata.uid
        try:
            deletion = await self.cluster.client.delete(
                SERVICE, job.namespace, service.metadata.name, uid=uid
            )
        except ApiError as error:
            if error.is_not_found or error.is_conflict:
                self.cluster.services.assume_deleted(uid)
                return None
            return _failure("FailedDeleteService", _words(error), error)
        except KubeError as error:
            return _failure("FailedDeleteService", _words(error), error)
        self.cluster.services.assume_deletion(uid, deletion)
        return None

    async def _delete_group(self, job: Job) -> Failure | None:
        assert self.cluster.groups is not None  # noqa: S101 - asked for only with gang scheduling
        group = self.cluster.groups.get(job.namespace, job.pod_group)
        if group is None:
            return None
        try:
            deletion = await self.cluster.client.delete(
                POD_GROUP, job.namespace, job.pod_group, uid=group.metadata.uid
            )
        except ApiError as error:
            if error.is_not_found or error.is_conflict:
                self.cluster.groups.assume_deleted(group.metadata.uid)
                return None
            return _failure("FailedDeletePodGroup", _words(error), error)
        except KubeError as error:
            return _failure("FailedDeletePodGroup", _words(error), error)
        self.cluster.groups.assume_deletion(group.metadata.uid, deletion)
        return None

    async def _delete_job(self, job: Job) -> Failure | None:
        try:
            deletion = await self.cluster.client.delete(
                ASCENDJOB, job.namespace, job.name, uid=job.uid, propagation="Background"
            )
        except ApiError as error:
            if error.is_not_found or error.is_conflict:
                self.cluster.jobs.assume_deleted(job.uid)
                return None
            return _failure("FailedDeleteJob", _words(error), error)
        except KubeError as error:
            return _failure("FailedDeleteJob", _words(error), error)
        self.cluster.jobs.assume_deletion(job.uid, deletion)
        return None

    def _maker(self, job: Job, leader_ip: str, avoided: tuple[Avoided, ...]) -> PodMaker:
        others = self.cluster.pods_of(job.uid)
        return PodMaker(
            job,
            self._addresses(job, leader_ip),
            gang=self.cluster.gang,
            certificates=self.certificates,
            issued=jobsecret.of_next_pod(job, others, issuing=self.issued is not None),
            avoided=avoided,
        )

    def _addresses(self, job: Job, leader_ip: str) -> Addresses:
        return Addresses(
            leader_ip=leader_ip,
            leader_port=services.leader_port(job),
            plane_ip=self.plane.plane_ip,
            plane_domain=self.plane.plane_domain,
        )


def _words(error: Exception) -> str:
    return error.message if isinstance(error, ApiError) else str(error)


def _failure(reason: str, message: str, error: Exception) -> Failure:
    log.warning("write_refused", reason=reason, error=str(error))
    return Failure(reason, message)
