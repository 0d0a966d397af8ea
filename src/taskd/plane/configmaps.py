"""Keeps ConfigMaps in the cluster as they are wanted.

Whoever wants one says so and goes on; a write happens when the wanted content is another than the last one
written, however often it was said in between, and one that fails is tried again, later each time. A ConfigMap
that somebody else may have changed is applied again now and then: the server answers that without an event
for its readers where nothing differs, so this costs them nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from taskd.kube.client import KubeClient
from taskd.kube.errors import ApiError, KubeError, NotLeader
from taskd.kube.objects import ConfigMap
from taskd.kube.resources import CONFIG_MAP
from taskd.kube.workqueue import WorkQueue
from taskd.plane.names import MANAGED_BY, MANAGER

WORKERS: Final = 8
REPAIR_S: Final = 300.0
MISSING_NAMESPACE_S: Final = 5.0
Key = tuple[str, str]
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a ConfigMap shall be; `data` None: not there."""

    data: Mapping[str, str] | None
    labels: Mapping[str, str] = field(default_factory=dict)
    version: Callable[[], str] | None = None
    """The resourceVersion over which it may be written, for one that people edit; "" where there is none."""
    done: Callable[[ConfigMap | None], None] | None = None
    """Called with what was written."""


class ConfigMaps:
    """The writer; `run` until cancelled."""

    def __init__(self, client: KubeClient, *, repair_s: float = REPAIR_S) -> None:
        self._client = client
        self._repair_s = repair_s
        self._wanted: dict[Key, Wanted] = {}
        self._written: dict[Key, tuple[Mapping[str, str] | None, Mapping[str, str]]] = {}
        self._queue: WorkQueue[Key] = WorkQueue(base_delay_s=0.05, longest_delay_s=10.0)
        self.writes = 0

    def want(self, namespace: str, name: str, wanted: Wanted) -> None:
        """Say what it shall be from now on."""
        key = namespace, name
        self._wanted[key] = wanted
        if self._written.get(key) != (wanted.data, wanted.labels):
            self._queue.add(key)

    def wants(self, namespace: str, name: str) -> bool:
        """Whether it shall be there."""
        wanted = self._wanted.get((namespace, name))
        return wanted is not None and wanted.data is not None

    @property
    def idle(self) -> bool:
        """Nothing waits to be written."""
        return self._queue.is_idle

    async def run(self) -> None:
        """Write until cancelled; NotLeader ends it."""
        await self._queue.run(WORKERS, self._serve)

    async def _serve(self, key: Key) -> None:
        wanted = self._wanted.get(key)
        if wanted is None:
            return
        try:
            found = await self._carry_out(key, wanted)
        except NotLeader:
            raise
        except ApiError as error:
            # Without the namespace there is nobody to write for; it may be made at any time.
            missing = error.is_not_found
            delay_s = self._queue.retry(key, at_least_s=MISSING_NAMESPACE_S if missing else 0.0)
            log.warning("config_map_waits", name="/".join(key), error=str(error), again_s=round(delay_s, 2))
            return
        except KubeError as error:
            delay_s = self._queue.retry(key)
            log.warning("config_map_waits", name="/".join(key), error=str(error), again_s=round(delay_s, 2))
            return
        self._queue.forget(key)
        self.writes += 1
        if wanted.data is None:
            if self._wanted.get(key) is wanted:
                del self._wanted[key]
                self._written.pop(key, None)
        else:
            self._written[key] = wanted.data, wanted.labels
            self._queue.add_after(key, self._repair_s)
        if wanted.done is not None:
            wanted.done(found)

    async def _carry_out(self, key: Key, wanted: Wanted) -> ConfigMap | None:
        namespace, name = key
        version = wanted.version() if wanted.version is not None else ""
        if wanted.data is None:
            try:
                await self._client.delete(CONFIG_MAP, namespace, name, resource_version=version or None)
            except ApiError as error:
                if not error.is_not_found:
                    raise
            return None
        metadata: dict[str, Any] = {"labels": {**MANAGED_BY, **wanted.labels}}
        if version:
            metadata["resourceVersion"] = version
        manifest = {"metadata": metadata, "data": dict(wanted.data)}
        return await self._client.apply(CONFIG_MAP, namespace, name, manifest, field_manager=MANAGER)
