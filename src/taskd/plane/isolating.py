"""Tells the operator, in a job's status, which nodes new pods of the job stay away from.

The list is written before pods are asked for, with every node that is isolated then. From then on it only
shrinks, when a fault is gone: what breaks later is told with the next request. So a node that fails costs no
write for the jobs that have nothing to do with it. A job that keeps a pod ready there is told at once, so
that the pod has moved by the time it is needed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol

import structlog

from taskd.core.acjob import names as acjob
from taskd.core.acjob.avoiding import FIELD, read_avoided
from taskd.core.acjob.job import mapping
from taskd.core.faults.isolating import Isolated, isolation
from taskd.core.faults.state import State
from taskd.core.plane.jobs import JobView
from taskd.core.plane.policy import Policy, SubHealth, read_policy
from taskd.kube.client import KubeClient
from taskd.kube.errors import ApiError, KubeError, NotLeader
from taskd.kube.objects import Json, Pod
from taskd.kube.resources import ASCENDJOB
from taskd.plane.names import MANAGER
from taskd.plane.sources import Sources

FIELD_MANAGER: Final = f"{MANAGER}-isolation"
"""Its own, so that this list and the plane's requests do not remove each other."""
MOST: Final = 200
AGAIN_S: Final = 2.0
log = structlog.get_logger("taskd.plane")


class Nodes(Protocol):
    """The fault centre, as far as nodes are concerned."""

    state: State

    def listen_for_nodes(self, listener: Callable[[Iterable[str]], None]) -> Callable[[], None]:
        """Call it with the names of nodes whose faults changed."""


class Isolation:
    """Keeps the lists; `close` when done."""

    def __init__(self, client: KubeClient, sources: Sources, nodes: Nodes) -> None:
        self._client = client
        self._sources = sources
        self._nodes = nodes
        self._tasks: set[asyncio.Task[None]] = set()
        self._busy: dict[str, asyncio.Lock] = {}
        self._written: dict[str, list[dict[str, Any]]] = {}
        """What was written last, until the cache shows it."""
        self._told: dict[str, frozenset[str]] = {}
        """The nodes that jobs were told of, by UID; only jobs that were told of any."""
        self._standbys: dict[str, tuple[str, str]] = {}
        """The pods that are kept ready, by UID: job and node."""
        self._forget = nodes.listen_for_nodes(self._changed)
        sources.jobs.add_handler(self._job_changed)
        sources.pods.add_handler(self._pod_changed)
        for raw in sources.jobs.store:  # what was released while nobody looked
            self._job_changed(None, None, raw)
        for pod in sources.pods.store:
            self._pod_changed(None, None, pod)

    def close(self) -> None:
        """Look no more."""
        self._forget()
        for task in self._tasks:
            task.cancel()

    async def tell(self, job: JobView) -> None:
        """Write down all nodes that are isolated now, before pods of the job are asked for."""
        raw = self._sources.jobs.store.by_uid(job.job_id)
        if raw is not None:
            await self._write(raw, self._all(raw, {pod.node for pod in job.pods.values()}))

    def _all(self, raw: Json, mine: set[str]) -> list[dict[str, Any]]:
        """What is isolated now; nodes of the job come first where there are too many."""
        ignores = _policy(raw).sub_health is SubHealth.IGNORE
        records = self._nodes.state.nodes
        found = [isolation(records[name], ignores_sub_health=ignores) for name in sorted(records)]
        mine = mine | {node for job, node in self._standbys.values() if job == raw["metadata"]["uid"]}
        listed = sorted((each for each in found if each), key=lambda each: each.node not in mine)[:MOST]
        return [each.as_json() for each in sorted(listed, key=lambda each: each.node)]

    def _changed(self, nodes: Iterable[str]) -> None:
        """Look at the jobs that were told of one of these nodes, or keep a pod ready there."""
        names = set(nodes)
        for uid, told in self._told.items():
            if told & names:
                self._run(self._release(uid))
        for uid in {job for job, node in self._standbys.values() if node in names}:
            self._run(self._move_off(uid))

    def _pod_changed(self, _change: object, old: Pod | None, new: Pod | None) -> None:
        """Follow the pods that are kept ready."""
        pod = new or old
        if pod is None:
            return
        uid, job, node = pod.metadata.uid, pod.metadata.controller_uid, pod.spec.node_name
        stands_by = pod.metadata.annotations.get(acjob.POD_TYPE) == acjob.STANDBY
        if new is None or not stands_by or not node or pod.metadata.is_terminating:
            self._standbys.pop(uid, None)
        elif uid not in self._standbys:
            self._standbys[uid] = job, node
            self._run(self._move_off(job))

    async def _move_off(self, uid: str) -> None:
        """Tell a job that a node on which it keeps a pod ready is isolated, if it is."""

        def all_isolated(raw: Json) -> list[dict[str, Any]] | None:
            here = [{"name": node} for job, node in self._standbys.values() if job == uid]
            if not _policy(raw).reschedules or not any(self._is_isolated(raw, entry) for entry in here):
                return None
            return self._all(raw, set())

        await self._insist(uid, all_isolated)

    def _job_changed(self, _change: object, old: Json | None, new: Json | None) -> None:
        """See our own writes arrive; a fault may have gone before they did."""
        job = new or old
        uid = str(job["metadata"]["uid"]) if job is not None else ""
        told = frozenset(each.node for each in read_avoided(new))
        if told:
            self._told[uid] = told
        else:
            self._told.pop(uid, None)
        if new is None:
            self._written.pop(uid, None)
            self._busy.pop(uid, None)
        elif _listed(new) != _listed(old or {}):
            if self._written.get(uid) == _listed(new):
                del self._written[uid]
            self._run(self._release(uid))

    async def _release(self, uid: str) -> None:
        """Take out what is over."""

        def still_isolated(raw: Json) -> list[dict[str, Any]]:
            known = self._written.get(uid, _listed(raw))
            return [entry for entry in known if self._is_isolated(raw, entry)]

        await self._insist(uid, still_isolated)

    async def _insist(self, uid: str, list_nodes: Callable[[Json], list[dict[str, Any]] | None]) -> None:
        """Write a list, if there is one to write; it is tried until it is done or the job is gone."""
        while (raw := self._sources.jobs.store.by_uid(uid)) is not None:
            try:
                listed = list_nodes(raw)
                if listed is not None:
                    await self._write(raw, listed)
            except NotLeader:
                return
            except KubeError as error:
                log.warning("isolation_waits", job=uid, why=str(error))
                await asyncio.sleep(AGAIN_S)
            else:
                return

    def _is_isolated(self, raw: Json, entry: Mapping[str, Any]) -> Isolated | None:
        record = self._nodes.state.nodes.get(str(entry.get("name")))
        ignores = _policy(raw).sub_health is SubHealth.IGNORE
        return isolation(record, ignores_sub_health=ignores) if record is not None else None

    async def _write(self, raw: Json, listed: list[dict[str, Any]]) -> None:
        metadata = raw["metadata"]
        uid = str(metadata["uid"])
        async with self._busy.setdefault(uid, asyncio.Lock()):
            if listed == self._written.get(uid, _listed(raw)):
                return
            body = {
                "apiVersion": acjob.API_VERSION,
                "kind": acjob.KIND,
                "metadata": {"name": metadata["name"], "uid": metadata["uid"]},
                "status": {FIELD: listed} if listed else {},
            }
            try:
                await self._client.apply(
                    ASCENDJOB,
                    metadata["namespace"],
                    metadata["name"],
                    body,
                    field_manager=FIELD_MANAGER,
                    subresource="status",
                )
            except ApiError as error:
                if not error.is_not_found and not error.is_conflict:
                    raise
            self._written[uid] = listed
            log.info("isolated", job=uid, nodes=[entry["name"] for entry in listed])

    def _run(self, work: Any) -> None:  # noqa: ANN401 - a coroutine
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _policy(raw: Json) -> Policy:
    metadata = mapping(raw.get("metadata"))
    return read_policy(mapping(metadata.get("labels")), mapping(metadata.get("annotations")))


def _listed(raw: Json) -> list[dict[str, Any]]:
    return [dict(entry) for entry in mapping(raw.get("status")).get(FIELD) or () if isinstance(entry, dict)]
