"""Keeps the plane's state in the cluster: one ConfigMap for each job, which goes when the job goes.

The state is small and written at each step of a recovery, so it has an object of its own: a status that
people read would change under their eyes, and one ConfigMap for all jobs would make them wait for each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from taskd.core.acjob import names as acjob
from taskd.core.plane.jobs import JobView
from taskd.kube.client import KubeClient
from taskd.kube.errors import ApiError
from taskd.kube.resources import CONFIG_MAP
from taskd.plane.directory import Directory
from taskd.plane.names import MANAGED_BY, MANAGER

LABEL: Final = "taskd.io/plane-state"
KEY: Final = "state"


def owner_of(job: JobView) -> dict[str, object]:
    """The reference that lets an object go with its job."""
    return {
        "apiVersion": acjob.API_VERSION,
        "kind": acjob.KIND,
        "name": job.name,
        "uid": job.job_id,
        "controller": True,
        "blockOwnerDeletion": False,
    }


class StateMaps:
    """The states of jobs."""

    def __init__(self, client: KubeClient, directory: Directory, namespace: str | None = None) -> None:
        self._client = client
        self._directory = directory
        self._namespace = namespace
        self._places: dict[str, tuple[str, str]] = {}

    async def load(self) -> Mapping[str, bytes]:
        """Return all states by job id."""
        found: dict[str, bytes] = {}
        listed = await self._client.list(CONFIG_MAP, self._namespace, label_selector=LABEL)
        for each in listed.items:
            job_id = each.metadata.labels.get(LABEL, "")
            found[job_id] = each.data.get(KEY, "").encode()
            self._places[job_id] = each.metadata.namespace, each.metadata.name
        return found

    async def save(self, job_id: str, state: bytes) -> None:
        """Keep the state of a job; one that is gone needs none."""
        job = self._directory.find(job_id)
        if job is None:
            return
        name = f"taskd-plane-{job_id}"
        manifest = {
            "metadata": {"labels": {**MANAGED_BY, LABEL: job_id}, "ownerReferences": [owner_of(job)]},
            "data": {KEY: state.decode()},
        }
        await self._client.apply(CONFIG_MAP, job.namespace, name, manifest, field_manager=MANAGER)
        self._places[job_id] = job.namespace, name

    async def forget(self, job_id: str) -> None:
        """Drop the state of a job that is gone."""
        place = self._places.pop(job_id, None)
        if place is None:
            return
        try:
            await self._client.delete(CONFIG_MAP, *place)
        except ApiError as error:
            if not error.is_not_found:
                raise
