"""What the plane does to a job's objects: it asks the operator, marks pods, and tells people.

Pods are created and deleted by the operator alone. A pod that shall be replaced is named in a request in the
job's status, which the operator takes up once; a standby is asked for with the annotations of the reference.
What a fault of hardware costs does not count towards the job's limit of restarts, as in the reference.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol, assert_never

import structlog

from taskd.core.acjob import names as acjob
from taskd.core.acjob.job import mapping
from taskd.core.plane.jobs import JobView, PodView
from taskd.core.plane.requests import PREFIX, meant, requests, told_apart
from taskd.core.plane.state import Ask, RecordIncident, SetAnnotation, SetLabel, Wish
from taskd.kube.client import KubeClient
from taskd.kube.errors import ApiError
from taskd.kube.events import ObjectRef
from taskd.kube.resources import ASCENDJOB, POD, POD_GROUP
from taskd.plane.isolating import Isolation
from taskd.plane.names import MANAGER
from taskd.plane.sources import Sources

TOUCHED: Final = "taskd.io/reset-config"
"""On a pod: when its reset-config was last written in a hurry."""
AT_ONCE: Final = 16
HARD_FAILURES: Final = ("failed", "ended")
log = structlog.get_logger("taskd.plane")


class Teller(Protocol):
    """Tells people: as Events. It never waits and never fails."""

    def normal(self, about: ObjectRef, reason: str, message: str) -> None:
        """Say that something happened."""

    def warning(self, about: ObjectRef, reason: str, message: str) -> None:
        """Say that something is wrong."""


class ClusterHands:
    """Does it through the API server."""

    def __init__(
        self,
        client: KubeClient,
        sources: Sources,
        recorder: Teller,
        *,
        groups: bool,
        isolation: Isolation | None = None,
    ) -> None:
        self._isolation = isolation
        self._client = client
        self._sources = sources
        self._recorder = recorder
        self._groups = groups
        self._asked: dict[str, dict[str, dict[str, Any]]] = {}

    async def ask(self, job: JobView, ask: Ask) -> None:
        """Have the operator do something to pods."""
        pods = [pod for rank in ask.pods if (pod := meant(ask, job.pods, rank)) is not None]
        if self._isolation is not None and ask.wish in {Wish.REPLACE, Wish.RESTART_JOB, Wish.STANDBY}:
            await self._isolation.tell(job)
        match ask.wish:
            case Wish.REPLACE | Wish.RESTART_JOB:
                await self._request(job, requests(ask, job.pods))
            case Wish.KEEP:
                pass  # nobody replaces a pod that nobody has asked to be replaced
            case Wish.STANDBY:
                marks = {acjob.HOT_SWITCH: "true", acjob.ASK_OPERATOR: "create"}
                await self._mark(job, pods, marks)
            case Wish.DROP_STANDBY:
                await self._drop(job, pods)
            case Wish.REMOVE_OLD:
                await self._mark(job, pods, {acjob.ASK_VOLCANO: "delete"})
            case _:
                assert_never(ask.wish)

    async def _request(self, job: JobView, made: list[dict[str, Any]]) -> None:
        """Add requests to the job's status. Earlier ones stay until the operator has taken them up.

        The answer does not go into the cache: it is the operator's too, and what is in there already wakes
        nobody. So what was asked is remembered here until the cache shows it.
        """
        raw = self._sources.jobs.store.by_uid(job.job_id)
        if raw is None:
            self._asked.pop(job.job_id, None)
            return
        status = mapping(raw.get("status"))
        handled = mapping(status.get("handledRequests"))
        known = {str(each["id"]): each for each in _requests(status)} | self._asked.get(job.job_id, {})
        asked = told_apart(made, known)
        waiting = {key: each for key, each in (known | asked).items() if key not in handled}
        self._asked[job.job_id] = waiting
        if waiting.keys().isdisjoint(asked):
            return
        body = {
            "apiVersion": acjob.API_VERSION,
            "kind": acjob.KIND,
            "metadata": {"name": job.name, "uid": job.job_id},
            "status": {"requests": list(waiting.values())},
        }
        await self._client.apply(
            ASCENDJOB, job.namespace, job.name, body, field_manager=MANAGER, subresource="status"
        )

    async def _mark(self, job: JobView, pods: Iterable[PodView], marks: Mapping[str, str | None]) -> None:
        for pod in pods:
            await self._patch_pod(job.namespace, pod.name, pod.uid, {"annotations": dict(marks)})

    async def _drop(self, job: JobView, pods: Iterable[PodView]) -> None:
        for pod in pods:
            standby = self._sources.pods.store.by_uid(pod.standby) if pod.standby else None
            if standby is not None:
                name, uid = standby.metadata.name, standby.metadata.uid
                await self._patch_pod(
                    job.namespace, name, uid, {"annotations": {acjob.ASK_OPERATOR: "delete"}}
                )
            cleared = dict.fromkeys((acjob.HOT_SWITCH, acjob.ASK_OPERATOR, acjob.ASK_VOLCANO))
            await self._patch_pod(job.namespace, pod.name, pod.uid, {"annotations": cleared})

    async def hurry(self, job: JobView) -> None:
        """Touch the job's pods: a kubelet looks after a pod that changed at once, else within a minute."""
        stamp = str(time.time_ns() // 1_000_000)
        turns = asyncio.Semaphore(AT_ONCE)

        async def touch(pod: PodView) -> None:
            async with turns:
                await self._mark(job, [pod], {TOUCHED: stamp})

        await asyncio.gather(*(touch(pod) for pod in job.pods.values()))

    async def set_label(self, job: JobView, label: SetLabel) -> None:
        """Set or remove a label: of a pod, or of the job's PodGroup."""
        metadata = {"labels": {label.key: label.value}}
        if label.pod < 0:
            await self._patch_group(job, metadata)
            return
        pod = job.pods.get(label.pod)
        if pod is not None:
            await self._patch_pod(job.namespace, pod.name, pod.uid, metadata)

    async def set_annotation(self, job: JobView, annotation: SetAnnotation) -> None:
        """Set an annotation of the job's PodGroup, where platforms look for it."""
        await self._patch_group(job, {"annotations": {annotation.key: annotation.value}})

    async def record(self, job: JobView, incident: RecordIncident) -> None:
        """Tell people, as an event of the job."""
        about = ObjectRef(acjob.API_VERSION, acjob.KIND, job.namespace, job.name, job.job_id)
        strategy = f"{incident.strategy}: " if incident.strategy else ""
        said = f"{incident.what}; {strategy}{incident.outcome}"
        if incident.reason and incident.reason not in said:
            said += f" ({incident.reason})"
        failed = incident.outcome.startswith(HARD_FAILURES)
        (self._recorder.warning if failed else self._recorder.normal)(about, "ProcessRecovery", said)

    # -------------------------------------------------------------------------------------------- writes

    async def _patch_pod(self, namespace: str, name: str, uid: str, metadata: dict[str, Any]) -> None:
        """Change a pod; one that is gone, or whose place another has, is left alone."""
        try:
            await self._client.patch(
                POD, namespace, name, {"metadata": {"uid": uid, **metadata}}, field_manager=MANAGER
            )
        except ApiError as error:
            if not error.is_not_found and not error.is_conflict:
                raise
            log.info("pod_left_alone", pod=f"{namespace}/{name}", why=str(error))

    async def _patch_group(self, job: JobView, metadata: dict[str, Any]) -> None:
        if not self._groups:
            return
        try:
            await self._client.patch(
                POD_GROUP, job.namespace, job.pod_group, {"metadata": metadata}, field_manager=MANAGER
            )
        except ApiError as error:
            if not error.is_not_found:
                raise


def _requests(status: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The plane's own requests in a status."""
    listed = status.get("requests") or ()
    return [dict(each) for each in listed if str(mapping(each).get("id", "")).startswith(PREFIX)]
