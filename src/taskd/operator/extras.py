"""The objects that only help: the headless Service of a namespace, and a job's ConfigMaps; and certificates.

A job is not held up where the first two are refused; that is told. Without its certificates it is held up:
to run in the clear has to be asked for, not to happen. What only failed for now is tried again, since a
pod may wait for such an object. The Service is in a cache, so its going is noticed; ConfigMaps are not (their
number is nobody's guess, and most are other people's), so they are looked at again whenever pods are made.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import structlog

from taskd.core.acjob import names, services, volumes
from taskd.core.acjob.job import Job
from taskd.core.acjob.seen import Failure
from taskd.kube.errors import HTTP_SERVER_ERROR, HTTP_TOO_MANY, ApiError, ApiUnreachable
from taskd.kube.objects import Service
from taskd.kube.resources import CONFIG_MAP, SERVICE
from taskd.operator.cluster import Cluster
from taskd.operator.jobcertificates import JobCertificates
from taskd.operator.owners import MANAGER, is_predecessors

FRESH_S = 5.0
"""Whatever was looked at so shortly before pods are made is not looked at again."""
log = structlog.get_logger()


class _NotYetGone(Exception):
    """The object is there, but not for long."""


@dataclass(slots=True)
class Extras:
    """Which jobs have all that helps them, and how they come by it."""

    cluster: Cluster
    certificates: JobCertificates | None = None
    clock: Callable[[], float] = time.monotonic
    _looked: dict[str, float] = field(default_factory=dict)
    """When the objects of a job were last known to be there, by its UID."""
    _without: set[str] = field(default_factory=set)
    """Namespaces whose headless Service is not ours: somebody else's has its name, or it was refused."""
    _doors: dict[str, asyncio.Lock] = field(default_factory=dict)

    def known(self, uid: str, namespace: str) -> bool:
        """Whether they are there, as far as can be told without asking."""
        if self.certificates is not None and self.certificates.is_due(uid):
            return False
        return uid in self._looked and (
            namespace in self._without or self.cluster.services.get(namespace, names.PODS_SERVICE) is not None
        )

    def forget(self, alive: set[str]) -> None:
        """Keep what is known of these jobs only."""
        for uid in self._looked.keys() - alive:
            del self._looked[uid]
        if self.certificates is not None:
            self.certificates.forget(alive)

    async def freshen(self, job: Job) -> Failure | None:
        """Look again, unless that was done just now."""
        looked = self._looked.get(job.uid)
        if looked is not None and self.clock() < looked + FRESH_S and self.known(job.uid, job.namespace):
            return None
        return await self.sync(job)

    async def sync(self, job: Job) -> Failure | None:
        """Make what is missing; returns what has to be tried again, or what pods cannot be made without."""
        failure = await self._help(job)
        if failure is None and self.certificates is not None:
            failure = await self.certificates.sync(job)
        if failure is None:
            self._looked[job.uid] = self.clock()
        return failure

    async def _help(self, job: Job) -> Failure | None:
        try:
            await self._host_names(job)
            for manifest in volumes.config_maps(job):
                await self._config_map(job, manifest)
        except _NotYetGone as error:
            return Failure(names.SYNC_CONFIG_MAP_FAILED, str(error))
        except ApiError as error:
            if _passes(error):
                return Failure(names.SYNC_SERVICE_FAILED, error.message)
            log.warning("extras_refused", job=job.key, error=str(error))
            if self.cluster.services.get(job.namespace, names.PODS_SERVICE) is None:
                self._without.add(job.namespace)
        except ApiUnreachable as error:
            return Failure(names.SYNC_SERVICE_FAILED, str(error))
        return None

    async def _host_names(self, job: Job) -> None:
        """Make the headless Service. One at a time: the first jobs of a namespace often come together."""
        async with self._doors.setdefault(job.namespace, asyncio.Lock()):
            found = await self._service(job.namespace)
            if found is None:
                found = await self.cluster.client.apply(
                    SERVICE,
                    job.namespace,
                    names.PODS_SERVICE,
                    services.pods_service(job.namespace),
                    field_manager=MANAGER,
                )
                self.cluster.services.assume(found)
            if found.metadata.labels.get(names.OPERATOR_NAME) == names.CONTROLLER:
                self._without.discard(job.namespace)
            else:
                self._without.add(job.namespace)

    async def _service(self, namespace: str) -> Service | None:
        """The Service of that name, whoever made it.

        The cache holds only those with our label. Applying over one that it does not hold could take
        somebody's Service away from him, so the server is asked first.
        """
        known = self.cluster.services.get(namespace, names.PODS_SERVICE)
        if known is not None:
            return known
        try:
            return await self.cluster.client.get(SERVICE, namespace, names.PODS_SERVICE)
        except ApiError as error:
            if error.is_not_found:
                return None
            raise

    async def _config_map(self, job: Job, manifest: dict[str, Any]) -> None:
        """Make it where it is missing; one that a user made is used as it is."""
        name = manifest["metadata"]["name"]
        try:
            found = await self.cluster.client.get(CONFIG_MAP, job.namespace, name)
        except ApiError as error:
            if not error.is_not_found:
                raise
            await self.cluster.client.create(CONFIG_MAP, job.namespace, manifest)
            return
        if is_predecessors(found.metadata, job):
            raise _NotYetGone(f"the ConfigMap {name} of an earlier job of this name has not gone yet")


def _passes(error: ApiError) -> bool:
    return (
        error.is_conflict
        or error.already_exists
        or error.status_code == HTTP_TOO_MANY
        or error.status_code >= HTTP_SERVER_ERROR
    )
