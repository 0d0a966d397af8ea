"""Writes onto pods what faults that belong together mean: the label that schedulers of the reference read."""

from __future__ import annotations

import structlog

from taskd.core.faults.events import PodMark
from taskd.kube.client import KubeClient
from taskd.kube.errors import ApiError, KubeError, NotLeader
from taskd.kube.resources import POD
from taskd.kube.workqueue import WorkQueue
from taskd.plane.names import FAULT_TYPE, MANAGER

WORKERS = 4
log = structlog.get_logger()


class PodLabels:
    """The label `fault-type` of pods; `run` until cancelled."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._wanted: dict[tuple[str, str], PodMark] = {}
        self._queue: WorkQueue[tuple[str, str]] = WorkQueue(base_delay_s=0.05, longest_delay_s=10.0)

    def want(self, namespace: str, mark: PodMark) -> None:
        """Have a pod labelled."""
        self._wanted[namespace, mark.pod] = mark
        self._queue.add((namespace, mark.pod))

    async def run(self) -> None:
        """Write until cancelled; NotLeader ends it."""
        await self._queue.run(WORKERS, self._serve)

    async def _serve(self, key: tuple[str, str]) -> None:
        mark = self._wanted.get(key)
        if mark is None:
            return
        # The UID makes the write fail for a pod that has taken the place meanwhile.
        patch = {"metadata": {"uid": mark.uid, "labels": {FAULT_TYPE: mark.strategy.value}}}
        try:
            await self._client.patch(POD, *key, patch, field_manager=MANAGER)
        except NotLeader:
            raise
        except KubeError as error:
            if not isinstance(error, ApiError) or error.is_transient:
                self._queue.retry(key)
                return
            log.info("pod_not_labelled", pod="/".join(key), error=str(error))
        self._queue.forget(key)
        if self._wanted.get(key) is mark:
            del self._wanted[key]
