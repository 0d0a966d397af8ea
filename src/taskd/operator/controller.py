"""The controller as a whole: leads, follows the cluster, and looks after one job at a time for each worker.

Caches are filled only after the lease is held. A predecessor has stopped writing by then, so the first list
shows everything that it did, and no counter is read that is older than its last write.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any

import structlog

from taskd.core.acjob import names
from taskd.core.acjob.environment import Addresses
from taskd.core.certificates import plane_names
from taskd.core.lease import LeaseTimes
from taskd.kube.client import KubeClient
from taskd.kube.config import load_config
from taskd.kube.elector import Elector
from taskd.kube.errors import ApiError, ApiUnreachable, ConfigError, KubeError, NotLeader
from taskd.kube.events import EventRecorder, ObjectRef
from taskd.kube.informer import Informer
from taskd.kube.objects import Json, Node, Pod, PodGroup, Service
from taskd.kube.resources import ASCENDJOB, POD_GROUP, SERVICE
from taskd.kube.store import Change
from taskd.kube.transport import Limits
from taskd.kube.workqueue import WorkQueue
from taskd.operator.authority import AuthorityKeeper
from taskd.operator.carrier import Carrier
from taskd.operator.cluster import Cluster, owner_keys, queue_of
from taskd.operator.config import ControllerConfig
from taskd.operator.held import Key
from taskd.operator.jobcertificates import JobCertificates
from taskd.operator.metrics import Metrics
from taskd.operator.ranktables import RankTables
from taskd.operator.reconciler import Reconciler
from taskd.operator.tablefiles import TableFiles
from taskd.operator.views import is_unreachable
from taskd.operator.web import pages

log = structlog.get_logger()


@dataclass(slots=True)
class Events:
    """Events of jobs, by way of the recorder."""

    recorder: EventRecorder

    def tell(self, raw: Json, reason: str, message: str, *, warning: bool) -> None:
        """Record one; never waits, never fails."""
        metadata = raw["metadata"]
        about = ObjectRef(
            names.API_VERSION, names.KIND, metadata["namespace"], metadata["name"], metadata["uid"]
        )
        (self.recorder.warning if warning else self.recorder.normal)(about, reason, message)


Beside = Callable[[Cluster, EventRecorder, AuthorityKeeper | None], Coroutine[None, None, None]]
"""What runs beside the operator while it leads, with its caches, and its authority where it has one."""


@dataclass(slots=True)
class Controller:
    """One replica of the controller; `run` until cancelled."""

    config: ControllerConfig
    beside: Beside | None = None
    metrics: Metrics = field(default_factory=Metrics)
    cluster: Cluster | None = field(init=False, default=None)
    port: int = field(init=False, default=0)

    async def run(self) -> None:
        """Serve the pages, wait for the lease, lead; LeadershipLost ends it."""
        config = self.config
        identity = config.identity or f"{socket.gethostname()}_{secrets.token_hex(4)}"
        limits = Limits(connections=config.connections)
        async with (
            KubeClient(load_config(config.kubeconfig or None), limits, observe=self.metrics.called) as client,
            pages(config.listen, ready=self._ready, metrics=self._page) as self.port,
        ):
            await _crd_exists(client)
            log.info("controller_started", identity=identity, port=self.port)
            if not config.leader_elect:
                await self._lead_on(client)
                return
            times = LeaseTimes(config.lease_s, config.lease_s * 2 / 3, config.lease_s * 2 / 15)
            elector = Elector(client, config.lease_namespace, config.lease_name, identity, times)
            await elector.lead(lambda: self._lead_on(client.guarded(elector.check)))

    async def _lead_on(self, client: KubeClient) -> None:
        """Lead, and begin anew whenever the cluster has learned or forgotten what a PodGroup is."""
        while True:
            try:
                await self._lead(client)
            except* _ClusterChanged:
                log.warning("cluster_changed", what="PodGroup came or went; beginning anew")

    async def _lead(self, client: KubeClient) -> None:
        config = self.config
        if config.gang == "on":
            await _volcano_comes(client, config.discovery_s)
        cluster = Cluster(client, namespace=config.namespace)
        log.info("leading", note=await cluster.discover(config.gang))
        queue: WorkQueue[Key] = WorkQueue(hooks=self.metrics)
        recorder = EventRecorder(client)
        keeper = self._authority(client)
        issued = JobCertificates(client, keeper) if keeper is not None else None
        carrier = Carrier(cluster, certificates=config.certificates, issued=issued)
        plane = await self._plane(client, carrier, keeper)
        tables = RankTables(client, TableFiles(config.rank_table_dir, client.config.fingerprint()))
        reconciler = Reconciler(
            cluster,
            carrier,
            tables,
            Events(recorder),
            queue,
            status_delay_s=config.status_delay_s,
            stored=self.metrics.stored,
        )
        subscribe(cluster, queue, reconciler)
        self.cluster = cluster
        self.metrics.leading.set(1)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(recorder.run())
                if config.gang != "off":
                    tasks.create_task(_notice_change(client, config.discovery_s, gang=cluster.gang))
                for informer in (*cluster.informers(), *plane):
                    tasks.create_task(informer.run())
                await cluster.synced()
                for raw in cluster.jobs.store:
                    queue.add(_key(raw))
                log.info("synced", jobs=len(cluster.jobs))
                tasks.create_task(
                    tables.clear(lambda uid: cluster.jobs.store.by_uid(uid) is not None, config.namespace)
                )
                if keeper is not None and issued is not None:
                    await keeper.look()
                    await keeper.bring_operators()
                    tasks.create_task(keeper.run(lambda: _renew(cluster, issued, queue)))
                if self.beside is not None:
                    tasks.create_task(self.beside(cluster, recorder, keeper))
                await queue.run(config.workers, lambda key: _look(queue, reconciler, key))
        finally:
            self.metrics.leading.set(0)
            self.cluster = None
            with contextlib.suppress(Exception):
                await recorder.flush(1.0)

    def _authority(self, client: KubeClient) -> AuthorityKeeper | None:
        config = self.config
        return AuthorityKeeper(client, config.lease_namespace, config.authority) if config.issues else None

    async def _plane(
        self, client: KubeClient, carrier: Carrier, keeper: AuthorityKeeper | None
    ) -> list[Informer[Service]]:
        """Tell the carrier where pods find the control plane, now and whenever its Service is made anew.

        And the authority, which makes a certificate for these names.

        Its name in DNS stands for it where it has no address, or where we may not look for one.
        """
        namespace, _, name = self.config.plane_service.partition("/")
        nowhere = Addresses(plane_domain=f"{name}.{namespace}.svc.cluster.local")

        def changed(change: Change, _old: Service | None, service: Service | None) -> None:
            there = service if change is not Change.DELETED else None
            carrier.plane = replace(nowhere, plane_ip=there.spec.cluster_ip) if there else nowhere
            if keeper is not None:
                more = tuple(filter(None, (part.strip() for part in self.config.plane_names.split(","))))
                keeper.call_plane(plane_names(self.config.plane_service, carrier.plane.plane_ip, more))

        changed(Change.DELETED, None, None)
        try:
            found = await client.get(SERVICE, namespace, name)
            changed(Change.ADDED, None, found)
        except ApiError as error:
            if not error.is_not_found:
                log.warning("control_plane_not_followed", service=self.config.plane_service, error=str(error))
                return []
        informer = Informer(client, SERVICE, namespace=namespace, field_selector=f"metadata.name={name}")
        informer.add_handler(changed)
        return [informer]

    def _ready(self) -> tuple[bool, str]:
        if self.cluster is None:
            return True, "standing by"
        return (
            (True, "leading") if self.cluster.healthy else (False, "the caches do not follow the API server")
        )

    def _page(self) -> bytes:
        return self.metrics.expose(self.cluster.jobs.store if self.cluster else ())


class _ClusterChanged(Exception):
    pass


async def _volcano_comes(client: KubeClient, pause_s: float) -> None:
    """Wait until gang scheduling is possible; who insists on it wants no job started without."""
    while True:
        with contextlib.suppress(KubeError):
            if await client.serves(POD_GROUP):
                return
            log.warning(
                "waiting", what=f"gang is on, and the cluster has no PodGroup of {names.POD_GROUP_API}"
            )
        await asyncio.sleep(pause_s)


async def _notice_change(client: KubeClient, pause_s: float, *, gang: bool) -> None:
    """Look now and then whether gang scheduling has become possible, or impossible."""
    while True:
        await asyncio.sleep(pause_s)
        with contextlib.suppress(KubeError):
            if await client.serves(POD_GROUP) != gang:
                raise _ClusterChanged


async def _look(queue: WorkQueue[Key], reconciler: Reconciler, key: Key) -> None:
    """One look at a job. What goes wrong is told and tried again, later each time."""
    try:
        if await reconciler.reconcile(key):
            queue.forget(key)
            return
    except NotLeader:
        raise
    except ApiError as error:
        if error.is_not_found or error.is_conflict:
            # The job went away under us, or another one has its name: the watch will tell.
            log.info("look_again", job="/".join(key), error=str(error))
        else:
            log.warning("look_failed", job="/".join(key), error=str(error))
    except KubeError as error:
        log.warning("look_failed", job="/".join(key), error=str(error))
    except Exception:
        # A defect that one job brings out must not stop the others.
        log.exception("look_broke", job="/".join(key))
    queue.retry(key)


def _renew(cluster: Cluster, issued: JobCertificates, queue: WorkQueue[Key]) -> None:
    """Have the jobs looked at whose certificates are to be renewed."""
    for uid in issued.due():
        raw = cluster.jobs.store.by_uid(uid)
        if raw is not None and not (raw.get("status") or {}).get("completionTime"):
            queue.add(_key(raw))


def subscribe(cluster: Cluster, queue: WorkQueue[Key], reconciler: Reconciler) -> None:
    """Have every change put the jobs that it concerns into the queue."""

    def job_changed(_change: Change, old: Json | None, new: Json | None) -> None:
        raw = new or old
        if raw is not None:
            queue.add(_key(raw))

    def child_changed(_change: Change, old: Any, new: Any) -> None:  # noqa: ANN401 - three kinds of objects
        child: Pod | Service | PodGroup | None = new or old
        if child is not None:
            for key in owner_keys(child):
                queue.add(key)

    def service_changed(change: Change, old: Service | None, new: Service | None) -> None:
        child_changed(change, old, new)
        service = new or old
        if change is Change.DELETED and service and service.metadata.name == names.PODS_SERVICE:
            for raw in cluster.jobs.store:
                if raw["metadata"]["namespace"] == service.metadata.namespace:
                    queue.add(_key(raw))

    def node_changed(change: Change, old: Node | None, new: Node | None) -> None:
        node = new or old
        if node is not None and (change is Change.DELETED or is_unreachable(node)):
            for key in cluster.jobs_on(node.metadata.name):
                queue.add(key)

    def queue_changed(change: Change, old: Json | None, new: Json | None) -> None:
        # Of a queue only that it is there is asked; the scheduler writes into it all the time.
        named = new or old
        if named is not None and change is not Change.MODIFIED:
            for raw in cluster.jobs.store:
                if queue_of(raw) == named["metadata"]["name"]:
                    queue.add(_key(raw))

    cluster.jobs.add_handler(job_changed)
    cluster.pods.add_handler(reconciler.pod_changed)
    cluster.pods.add_handler(child_changed)
    cluster.services.add_handler(service_changed)
    cluster.nodes.add_handler(node_changed)
    if cluster.groups is not None:
        cluster.groups.add_handler(child_changed)
    if cluster.queues is not None:
        cluster.queues.add_handler(queue_changed)


def _key(raw: Json) -> Key:
    return raw["metadata"]["namespace"], raw["metadata"]["name"]


async def _crd_exists(client: KubeClient) -> None:
    try:
        if not await client.serves(ASCENDJOB):
            raise ConfigError(
                f"the cluster does not know {names.KIND} of {names.API_VERSION}: install deploy/crd"
            )
    except ApiUnreachable as error:
        raise ConfigError(f"the API server cannot be reached: {error}") from error
