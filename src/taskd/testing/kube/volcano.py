"""Volcano's part, played from outside: PodGroups move, pods are placed in gangs.

Volcano itself cannot be had where these tests run, so this plays its part against the API server as the
real one was seen to do it: a group waits (`Pending`) until the cluster and its queue have room for its
`minResources`, is let in (`Inqueue`), and when `minMember` of its pods fit together they are bound and the
group is `Running`. A running group that lacks a pod is `Unknown`. While it cannot go on, a condition
`Unschedulable` says why. Devices are handed out as the device plugin does it, in annotations of the pod.

It decides on what its watches have told it plus what it has written since, and writes only changes. Where the
real one works once a second, this one works when something has happened, so that tests need not wait.
"""

import http.client
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from taskd.testing.kube.client import ApiError, Event, Object, Watch
from taskd.testing.kube.cluster import Cluster
from taskd.testing.kube.gang import Session, World

GROUP: Final = "/apis/scheduling.volcano.sh/v1beta1"
CRDS: Final = Path(__file__).with_name("crds")

_WRITERS: Final = 8
_GATHER_S: Final = 0.005
_GATHER_MOST_S: Final = 0.25
_RETRY_S: Final = 0.2


def install_crds(cluster: Cluster) -> None:
    """Put Volcano's CRDs into the cluster, and wait until they are served."""
    for file in sorted(CRDS.glob("*.yaml")):
        text = file.read_text()
        name = f"{file.stem}.scheduling.volcano.sh"
        cluster.api.apply(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}", text)
    cluster.wait(lambda: _served(cluster), timeout_s=20)


def remove_crds(cluster: Cluster) -> None:
    """Take them out again, with every PodGroup: a cluster without Volcano."""
    for file in CRDS.glob("*.yaml"):
        name = f"{file.stem}.scheduling.volcano.sh"
        cluster.api.delete(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}")
    cluster.wait(lambda: cluster.api.find(f"{GROUP}/podgroups") is None, timeout_s=20)


def _served(cluster: Cluster) -> bool:
    try:
        return all(cluster.api.find(f"{GROUP}/{file.stem}") is not None for file in CRDS.glob("*.yaml"))
    except ApiError as error:
        # It is being set up, and says so.
        if error.code == http.client.TOO_MANY_REQUESTS:
            return False
        raise


class VolcanoStandIn:
    """Plays Volcano's scheduler for a whole cluster while it is started; can be stopped and started again.

    places: bind the pods too. Without it another scheduler of that name places them, and this one only moves
    the PodGroups.
    """

    def __init__(self, cluster: Cluster, *, scheduler_name: str = "volcano", places: bool = True) -> None:
        self._cluster = cluster
        self._api = cluster.client(user_agent="volcano-stand-in")
        self._scheduler_name = scheduler_name
        self._places = places
        self._world = World()
        self._events: queue.SimpleQueue[tuple[str, Event] | None] = queue.SimpleQueue()
        self._watches: list[Watch] = []
        self._threads: list[threading.Thread] = []
        self._writers: ThreadPoolExecutor | None = None
        self.errors: list[BaseException] = []

    @property
    def running(self) -> bool:
        """Whether it plays."""
        return bool(self._threads)

    def start(self) -> Self:
        """Install the CRDs and the queue `default` where they are missing, and begin to play."""
        if self.running:
            return self
        install_crds(self._cluster)
        self._cluster.api.apply(
            f"{GROUP}/queues/default",
            {
                "apiVersion": "scheduling.volcano.sh/v1beta1",
                "kind": "Queue",
                "metadata": {"name": "default"},
                "spec": {"weight": 1, "reclaimable": True},
            },
        )
        self._world = World()
        self._events = queue.SimpleQueue()
        self._writers = ThreadPoolExecutor(_WRITERS, thread_name_prefix="volcano-writer")
        sources = {
            "Node": "/api/v1/nodes",
            "Queue": f"{GROUP}/queues",
            "Pod": "/api/v1/pods",
            "PodGroup": f"{GROUP}/podgroups",
        }
        for kind, path in sources.items():
            watch = self._api.watch(path)
            self._watches.append(watch)
            self._begin(f"volcano-{kind}", partial(self._listen, kind, watch, self._events))
        self._begin("volcano-decide", partial(self._decide, set(sources)))
        return self

    def stop(self) -> None:
        """End it. PodGroups and pods stay as they are, as when the real scheduler is down."""
        for watch in self._watches:
            watch.close()
        self._events.put(None)
        for thread in self._threads:
            thread.join(10)
        if self._writers is not None:
            self._writers.shutdown()
        self._watches.clear()
        self._threads.clear()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _begin(self, name: str, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target, name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    @staticmethod
    def _listen(kind: str, watch: Watch, events: "queue.SimpleQueue[tuple[str, Event] | None]") -> None:
        for event in watch:
            events.put((kind, event))

    def _decide(self, unsynced: set[str]) -> None:
        """Take in everything that has happened, then hold one session; again when something happens."""
        failed = False
        used_s = 0.0
        while True:
            batch = []
            with suppress(queue.Empty):
                batch.append(self._events.get(timeout=_RETRY_S if failed else None))
            # What happens together is decided together; and most of the processor is left to others, however
            # much a session needs.
            time.sleep(min(max(_GATHER_S, 3 * used_s), _GATHER_MOST_S))
            with suppress(queue.Empty):
                while True:
                    batch.append(self._events.get_nowait())
            for entry in batch:
                if entry is None:
                    return
                kind, event = entry
                if event.type == "SYNCED":
                    unsynced.discard(kind)
                else:
                    self._world.take(kind, event)
            if not unsynced:
                failed, used_s = self._session()

    def _session(self) -> tuple[bool, float]:
        """Decide and write; return whether some write failed, and what deciding cost of a processor."""
        started_s = time.thread_time()
        session = Session(self._world, self._scheduler_name, places=self._places)
        session.run()
        used_s = time.thread_time() - started_s
        assert self._writers is not None  # noqa: S101 - start() made it
        writes: list[Future[None]] = [
            self._writers.submit(self._bind, pod, node, notes) for pod, node, notes in session.bindings
        ]
        writes += [self._writers.submit(self._write, group, status) for group, status in session.statuses]
        failed = False
        for write in writes:
            try:
                write.result()
            except (ApiError, OSError, http.client.HTTPException) as error:
                # The API server is away, or refused. The next session sees to it. What was deleted meanwhile
                # needs nothing more, and is no error.
                if not (isinstance(error, ApiError) and error.code == http.client.NOT_FOUND):
                    self.errors.append(error)
                    failed = True
        return failed, used_s

    def _bind(self, pod: Object, node: str, notes: dict[str, str]) -> None:
        meta = pod["metadata"]
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        self._api.create(
            f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/binding",
            {
                "apiVersion": "v1",
                "kind": "Binding",
                # The API server copies these to the pod: one write instead of two.
                "metadata": {"name": meta["name"], "uid": meta["uid"], "annotations": notes},
                "target": target,
            },
        )
        self._world.bound(pod, node, notes)

    def _write(self, group: Object, status: Object) -> None:
        meta = group["metadata"]
        path = f"{GROUP}/namespaces/{meta['namespace']}/podgroups/{meta['name']}"
        self._world.groups[meta["uid"]] = self._api.patch(
            path, {"metadata": {"uid": meta["uid"]}, "status": status}
        )
