"""Takes deleted pods away, as kubelets do when the containers have ended.

kwok can do that too, but it deletes by name: a pod whose successor has come already is deleted again in the
person of the successor. Here the UID is said, and the API server refuses what is meant for somebody else.
"""

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Self

from taskd.testing.kube.client import ApiError, Object
from taskd.testing.kube.cluster import Cluster

_WORKERS: Final = 8
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0}


class Remover:
    """Removes the pods that are being deleted from nodes that carry a label."""

    def __init__(self, cluster: Cluster, *, node_label: str, stuck: str, remove_after: str) -> None:
        self._api = cluster.client(user_agent="kubelet-stand-in")
        self._node_label, self._stuck, self._remove_after = node_label, stuck, remove_after
        self._watches = {
            "node": self._api.watch("/api/v1/nodes", labelSelector=node_label),
            "pod": self._api.watch("/api/v1/pods"),
        }
        self._lock = threading.Lock()
        self._nodes: set[str] = set()
        self._ending: dict[str, Object] = {}
        self._asked: set[str] = set()
        self._timers: list[threading.Timer] = []
        self._threads: list[threading.Thread] = []
        self._workers = ThreadPoolExecutor(_WORKERS, thread_name_prefix="kubelet-remover")

    def start(self) -> Self:
        """Begin to watch."""
        for kind in self._watches:
            thread = threading.Thread(
                target=self._listen, args=(kind,), name=f"kubelet-remover-{kind}", daemon=True
            )
            thread.start()
            self._threads.append(thread)
        return self

    def stop(self) -> None:
        """End; what is being deleted stays so."""
        for watch in self._watches.values():
            watch.close()
        for timer in self._timers:
            timer.cancel()
        for thread in self._threads:
            thread.join(10)
        self._workers.shutdown(cancel_futures=True)

    def _listen(self, kind: str) -> None:
        for event in self._watches[kind]:
            if event.type == "SYNCED":
                continue
            with self._lock:
                if kind == "node":
                    self._take_node(event.object, gone=event.type == "DELETED")
                else:
                    self._take_pod(event.object, gone=event.type == "DELETED")

    def _take_node(self, node: Object, *, gone: bool) -> None:
        """A node that loses the label is cut off; the watch tells that as its end."""
        name = node["metadata"]["name"]
        if gone:
            self._nodes.discard(name)
            return
        if name in self._nodes:
            return
        self._nodes.add(name)
        for pod in list(self._ending.values()):
            self._look(pod)

    def _take_pod(self, pod: Object, *, gone: bool) -> None:
        uid = pod["metadata"]["uid"]
        if gone:
            self._ending.pop(uid, None)
            self._asked.discard(uid)
        elif pod["metadata"].get("deletionTimestamp"):
            self._ending[uid] = pod
            self._look(pod)

    def _look(self, pod: Object) -> None:
        meta = pod["metadata"]
        notes = meta.get("annotations") or {}
        if self._stuck in notes or meta["uid"] in self._asked or pod["spec"].get("nodeName") not in self._nodes:
            return
        self._asked.add(meta["uid"])
        delay_s = seconds(notes.get(self._remove_after, "0s"))
        if not delay_s:
            self._workers.submit(self._remove, pod)
            return
        timer = threading.Timer(delay_s, self._remove, [pod])
        timer.daemon = True
        timer.start()
        self._timers.append(timer)

    def _remove(self, pod: Object) -> None:
        meta = pod["metadata"]
        body = {
            "kind": "DeleteOptions",
            "apiVersion": "v1",
            "gracePeriodSeconds": 0,
            "preconditions": {"uid": meta["uid"]},
        }
        try:
            self._api.request("DELETE", f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}", body)
        except ApiError:
            pass  # gone already, or its successor is there
        except OSError:
            with self._lock:
                # The API server is away. When it is back the watch begins again, and with it another try.
                self._asked.discard(meta["uid"])


def seconds(text: str) -> float:
    """A duration as kwok writes it: "500ms", "2s", "1m"."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m)", text)
    if match is None:
        raise ValueError(f"{text!r} is no duration")
    return float(match[1]) * _UNITS[match[2]]
