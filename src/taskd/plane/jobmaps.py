"""The ConfigMaps of one job that several programs write: `reset-config-<job>` and `data-trace-<job>`.

The scheduler and the device plugin write the first one too, so a change is made over exactly the version that
was read; where somebody was faster the write fails with a conflict, and the caller reads and decides again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from taskd.core.acjob import names as acjob
from taskd.kube.client import KubeClient
from taskd.kube.errors import ApiError
from taskd.kube.informer import Informer
from taskd.kube.objects import ConfigMap
from taskd.kube.resources import CONFIG_MAP
from taskd.kube.store import Change
from taskd.plane.names import MANAGER

MOST_REMEMBERED = 20_000
Listener = Callable[[str, str, Mapping[str, str]], None]


class Owner(Protocol):
    """A job, as far as its ConfigMaps are concerned."""

    @property
    def job_id(self) -> str: ...  # noqa: D102 - the UID
    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def namespace(self) -> str: ...  # noqa: D102


class JobConfigMaps:
    """Reads and writes them; one caller at a time for each."""

    def __init__(self, client: KubeClient, resets: Informer[ConfigMap] | None = None) -> None:
        self._client = client
        self._versions: dict[tuple[str, str], str] = {}
        self._resets = resets
        self._listeners: list[Listener] = []
        if resets is not None:
            resets.add_handler(self._changed)

    def resets(self, namespace: str, job: str) -> Mapping[str, str]:
        """What the reset-config of a job says, by the cache; nothing where there is none."""
        found = self._resets.get(namespace, f"{acjob.RESET_CONFIG}{job}") if self._resets else None
        return found.data if found is not None else {}

    def listen_for_resets(self, listener: Listener) -> Callable[[], None]:
        """Call it with namespace, job and data of each reset-config that changed."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def _changed(self, change: Change, _old: ConfigMap | None, new: ConfigMap | None) -> None:
        if new is None or change is Change.DELETED:
            return
        name = new.metadata.name
        if name.startswith(acjob.RESET_CONFIG):
            job = name.removeprefix(acjob.RESET_CONFIG)
            for listener in tuple(self._listeners):
                listener(new.metadata.namespace, job, new.data)

    async def read(self, namespace: str, name: str) -> Mapping[str, str] | None:
        """The data; None where there is no such ConfigMap."""
        try:
            found = await self._client.get(CONFIG_MAP, namespace, name)
        except ApiError as error:
            if not error.is_not_found:
                raise
            self._versions.pop((namespace, name), None)
            return None
        self._remember(namespace, name, found.metadata.resource_version)
        return found.data

    async def write(self, job: Owner, name: str, data: Mapping[str, str]) -> None:
        """Write these keys over what was read last, or create it, owned by the job; others' keys stay.

        ApiError.is_conflict, or .already_exists, where somebody else was faster: read again.
        """
        key = job.namespace, name
        metadata: dict[str, Any] = {"labels": {acjob.RESET_LABEL: "true"}}
        version = self._versions.pop(key, "")
        if not version:
            owner = {
                "apiVersion": acjob.API_VERSION,
                "kind": acjob.KIND,
                "name": job.name,
                "uid": job.job_id,
                "controller": True,
                "blockOwnerDeletion": True,
            }
            metadata |= {"name": name, "ownerReferences": [owner]}
            made = await self._client.create(
                CONFIG_MAP, job.namespace, {"metadata": metadata, "data": dict(data)}
            )
            self._remember(*key, made.metadata.resource_version)
            return
        metadata["resourceVersion"] = version
        patch = {"metadata": metadata, "data": dict(data)}
        changed = await self._client.patch(CONFIG_MAP, *key, patch, field_manager=MANAGER)
        self._remember(*key, changed.metadata.resource_version)

    def _remember(self, namespace: str, name: str, version: str) -> None:
        if len(self._versions) >= MOST_REMEMBERED:
            self._versions.pop(next(iter(self._versions)))
        self._versions[namespace, name] = version
