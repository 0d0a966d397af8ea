"""What the controller knows of the cluster: caches that follow the API server, and a client to write with."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from taskd.core.acjob import names
from taskd.core.acjob.seen import Nodes, PodSeen
from taskd.kube.client import KubeClient
from taskd.kube.errors import ApiError
from taskd.kube.informer import Informer
from taskd.kube.objects import Json, Node, Pod, PodGroup, Service
from taskd.kube.resources import ASCENDJOB, NODE, POD, POD_GROUP, QUEUE, SERVICE, Resource
from taskd.operator.views import is_unreachable, see_pod

OURS = f"{names.OPERATOR_NAME}={names.CONTROLLER}"


@dataclass(slots=True)
class Cluster:
    """The caches, each of one kind of object."""

    client: KubeClient
    namespace: str = ""
    gang: bool = True
    jobs: Informer[Json] = field(init=False)
    pods: Informer[Pod] = field(init=False)
    services: Informer[Service] = field(init=False)
    nodes: Informer[Node] = field(init=False)
    groups: Informer[PodGroup] | None = field(init=False, default=None)
    queues: Informer[Json] | None = field(init=False, default=None)
    _seen: dict[str, tuple[Pod, PodSeen]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        scope = self.namespace or None
        self.jobs = Informer(self.client, ASCENDJOB, namespace=scope)
        # Never all pods of a cluster: only those that carry our label, chosen by the server.
        self.pods = Informer(self.client, POD, namespace=scope, label_selector=OURS)
        self.services = Informer(self.client, SERVICE, namespace=scope, label_selector=OURS)
        self.nodes = Informer(self.client, NODE)
        self.pods.add_handler(self._forget_view)

    def informers(self) -> Iterator[Informer[Any]]:
        """All caches there are."""
        for informer in (self.jobs, self.pods, self.services, self.nodes, self.groups, self.queues):
            if informer is not None:
                yield informer

    async def discover(self, gang: str) -> str:
        """Find out whether jobs can be scheduled as gangs; returns a sentence on what was found."""
        served = gang != "off" and await self.client.serves(POD_GROUP)
        self.gang = served
        if not served:
            if gang == "off":
                return "gang scheduling is switched off"
            return "gang scheduling is off: the cluster has no PodGroup of scheduling.volcano.sh/v1beta1"
        self.groups = Informer(self.client, POD_GROUP, namespace=self.namespace or None)
        if await self.client.serves(QUEUE):
            self.queues = Informer(self.client, QUEUE)
        return "gang scheduling is on"

    async def synced(self) -> None:
        """Wait until every cache has its first list."""
        await asyncio.gather(*(informer.synced() for informer in self.informers()))

    @property
    def healthy(self) -> bool:
        """Whether every cache has its first list and the last try to follow the server was good."""
        return all(informer.is_synced and informer.is_healthy for informer in self.informers())

    def pods_of(self, uid: str) -> list[PodSeen]:
        """The pods that the job owns. A view is made once for each state of a pod."""
        found = []
        for pod in self.pods.owned_by(uid):
            known = self._seen.get(pod.metadata.uid)
            if known is None or known[0] is not pod:
                known = self._seen[pod.metadata.uid] = (pod, see_pod(pod))
            found.append(known[1])
        return found

    async def lost_nodes(self, pods: list[PodSeen]) -> Nodes:
        """Which of these pods' nodes are gone or out of reach."""
        gone, unreachable = set(), set()
        for name in {pod.node for pod in pods if pod.node}:
            node = self.nodes.get("", name)
            if node is None:
                # The cache may be behind a node that has just joined: only the server's word counts.
                if await self._is_missing(NODE, name):
                    gone.add(name)
            elif is_unreachable(node):
                unreachable.add(name)
        return Nodes(frozenset(gone), frozenset(unreachable))

    async def _is_missing(self, resource: Resource[Any], name: str) -> bool:
        """Whether the server says that there is none; that it cannot say is an error of the moment."""
        try:
            await self.client.get(resource, None, name)
        except ApiError as error:
            if error.is_not_found:
                return True
            raise
        return False

    def jobs_on(self, node: str) -> set[tuple[str, str]]:
        """The jobs that have a pod on this node."""
        return {key for pod in self.pods.store if pod.spec.node_name == node for key in owner_keys(pod)}

    async def missing_queue(self, raw: Json) -> str | None:
        """The queue that the job names and the cluster does not have.

        Whoever makes a queue and at once a job for it may have the job seen first: only the server's word
        counts against it.
        """
        queue = queue_of(raw)
        if self.queues is None or not queue or self.queues.get("", queue) is not None:
            return None
        return queue if await self._is_missing(QUEUE, queue) else None

    def _forget_view(self, _change: object, old: Pod | None, new: Pod | None) -> None:
        stored = self.pods.store
        for pod in (old, new):
            if pod is not None and stored.by_uid(pod.metadata.uid) is None:
                self._seen.pop(pod.metadata.uid, None)


def queue_of(raw: Json) -> str:
    """The queue that the job names, if it names one."""
    policy = ((raw.get("spec") or {}).get("runPolicy") or {}).get("schedulingPolicy") or {}
    return str(policy.get("queue") or "")


def owner_keys(thing: Pod | Service | PodGroup) -> Iterator[tuple[str, str]]:
    """The job that the object concerns, as a key of the work queue: the one that manages it."""
    for owner in thing.metadata.owner_references:
        if owner.controller and owner.kind == names.KIND and owner.api_version == names.API_VERSION:
            yield thing.metadata.namespace, owner.name
    if not thing.metadata.controller_uid and (job := thing.metadata.labels.get(names.JOB_NAME)):
        # Left behind by a job that is gone: a new one of that name may wait for its place.
        yield thing.metadata.namespace, job
