"""Nodes without machines: kwok plays their kubelets, and a test plays the accidents.

A pod that is bound to such a node runs at once and has an address. What else shall happen to it is said in
annotations, which a job's template may carry, so that whoever creates the pods need not know:

=====================================  ==========================================================
``kubelet.taskd.test/hold``            it stays Pending, as while an image is pulled
``kubelet.taskd.test/start-after``     it runs only after this time ("1s")
``kubelet.taskd.test/exit``            it ends with this exit code (0: Succeeded)
``kubelet.taskd.test/exit-after``      … this long after it began to run ("500ms")
``kubelet.taskd.test/reason``          … for this reason (default Error or Completed)
``kubelet.taskd.test/container``       … this container; the others end with 0
``kubelet.taskd.test/stuck``           deleted, it stays in Terminating
``kubelet.taskd.test/remove-after``    deleted, it is gone only after this time
=====================================  ==========================================================

What happens to one pod at one moment is a method here: it writes the pod's status as a kubelet would.
"""

import http.client
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from taskd.testing.kube import binaries
from taskd.testing.kube.client import STRATEGIC, ApiError
from taskd.testing.kube.cluster import Cluster
from taskd.testing.kube.processes import Program
from taskd.testing.kube.removal import Remover

PREFIX: Final = "kubelet.taskd.test"
HOLD: Final = f"{PREFIX}/hold"
START_AFTER: Final = f"{PREFIX}/start-after"
EXIT: Final = f"{PREFIX}/exit"
EXIT_AFTER: Final = f"{PREFIX}/exit-after"
REASON: Final = f"{PREFIX}/reason"
CONTAINER: Final = f"{PREFIX}/container"
STUCK: Final = f"{PREFIX}/stuck"
REMOVE_AFTER: Final = f"{PREFIX}/remove-after"

# Nodes with this label have a kubelet; taking the label away is what cutting the cable is elsewhere.
MANAGED: Final = "taskd.test/kubelet"
_LEASE_S: Final = 40
_NODES: Final = "/api/v1/nodes"


class Kubelets:
    """The kwok program, and what takes deleted pods away; one for all nodes of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        kwok = binaries.require("kwok")["kwok"]
        config = Path(__file__).with_name("kwok.yaml")
        self.program = Program(
            [
                kwok,
                f"--kubeconfig={cluster.kubeconfig}",
                f"--config={config}",
                f"--manage-nodes-with-label-selector={MANAGED}=kwok",
                "--manage-all-nodes=false",
                f"--node-lease-duration-seconds={_LEASE_S}",
                # It would serve logs and exec of its pods on every address of this machine.
                "--node-port=0",
                "--server-address=",
                "--node-ip=10.63.255.254",
                "--cidr=10.63.0.1/16",
            ],
            log=cluster.directory / "kwok.log",
        )
        self._remover = Remover(cluster, node_label=f"{MANAGED}=kwok", stuck=STUCK, remove_after=REMOVE_AFTER)

    def start(self) -> Self:
        """Start it; nodes that are added become Ready."""
        self.program.start()
        self._remover.start()
        return self

    def stop(self) -> None:
        """End it; nodes and pods stay as they are. It is not started a second time."""
        self._remover.stop()
        self.program.kill()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class Nodes:
    """Some nodes of one test, and what happens to the pods on them; needs `Kubelets` to be running."""

    _counter = 0
    _counter_lock = threading.Lock()

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._api = cluster.api
        self.names: list[str] = []

    def add(
        self,
        count: int = 1,
        *,
        capacity: Mapping[str, str | int] | None = None,
        labels: Mapping[str, str] | None = None,
        prefix: str = "node",
        timeout_s: float = 20,
    ) -> list[str]:
        """Add nodes (default: eight huawei.com/Ascend910 each) and wait until they are Ready."""
        devices = {"huawei.com/Ascend910": 8} if capacity is None else capacity
        amounts = {"cpu": "256", "memory": "1Ti", "pods": "250", **{k: str(v) for k, v in devices.items()}}
        added: list[str] = []
        while len(added) < count:
            number = self._next_number()
            name = f"{prefix}-{number}"
            try:
                self._api.create(_NODES, _node(name, number, amounts, labels or {}))
            except ApiError as error:
                # Somebody else's, in a cluster that was there before us.
                if error.code != http.client.CONFLICT:
                    raise
            else:
                added.append(name)
        self.names += added
        waiting = set(added)

        def ready() -> bool:
            items = self._api.items(_NODES, labelSelector=MANAGED, resourceVersion="0")
            waiting.difference_update(node["metadata"]["name"] for node in items if is_ready(node))
            return not waiting

        self._cluster.wait(ready, timeout_s=timeout_s)
        return added

    def remove(self, *names: str) -> None:
        """Take nodes out of the cluster (`kubectl delete node`); pods on them stay in the API for a while."""
        for name in names:
            self._api.delete(f"{_NODES}/{name}")
            if name in self.names:
                self.names.remove(name)

    def remove_all(self) -> None:
        """Remove the nodes that were added here."""
        self.remove(*self.names)

    def lose(self, name: str) -> None:
        """Cut a node off: its kubelet says nothing any more, and the cluster has noticed.

        Noticing is what the controller-manager does after its grace period; so that nobody has to wait for
        it, the condition is written here, and the controller-manager goes on from it: it taints the node and,
        when the pods' toleration is over, deletes them, which then hang in Terminating.
        """
        self._api.patch(f"{_NODES}/{name}", {"metadata": {"labels": {MANAGED: None}}})
        self._ready(name, "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.")

    def restore(self, name: str) -> None:
        """Bring a lost node back; pods that were deleted meanwhile are removed by it."""
        self._api.patch(f"{_NODES}/{name}", {"metadata": {"labels": {MANAGED: "kwok"}}})
        self._ready(name, "True", "KubeletReady", "kubelet is posting ready status")

    def exit(
        self,
        namespace: str,
        pod: str,
        code: int = 1,
        *,
        reason: str | None = None,
        signal: int | None = None,
        message: str = "",
        container: str | None = None,
    ) -> None:
        """End a pod's container (default: all of them) with an exit code, and do what its policy says.

        With a signal and no code of its own the code is 128 + signal, as a runtime reports it. A pod that may
        restart its containers does so in place; otherwise it is Failed, or Succeeded for 0.
        """
        if signal is not None and code == 1:
            code = 128 + signal
        path = f"/api/v1/namespaces/{namespace}/pods/{pod}"
        body = self._api.get(path)
        now = _now()
        terminated = {
            "exitCode": code,
            "reason": reason or ("Completed" if code == 0 else "Error"),
            "startedAt": body.get("status", {}).get("startTime") or now,
            "finishedAt": now,
            **({"signal": signal} if signal is not None else {}),
            **({"message": message} if message else {}),
        }
        policy = body["spec"]["restartPolicy"]
        again = policy == "Always" or (policy == "OnFailure" and code != 0)
        before = {status["name"]: status for status in body.get("status", {}).get("containerStatuses", [])}
        statuses = []
        for spec in body["spec"]["containers"]:
            mine = container is None or spec["name"] == container
            own = terminated if mine else {**terminated, "exitCode": 0, "reason": "Completed"}
            if again and not mine:
                continue
            restarts = before.get(spec["name"], {}).get("restartCount", 0)
            statuses.append(_container(spec, own, again=again, restarts=restarts, now=now))
        status: dict[str, Any] = {"containerStatuses": statuses}
        if not again:
            status |= {
                "phase": "Succeeded" if code == 0 else "Failed",
                "conditions": _not_ready("PodCompleted" if code == 0 else "PodFailed", now),
            }
        self._api.patch(f"{path}/status", {"status": status}, kind=STRATEGIC)

    def succeed(self, namespace: str, pod: str) -> None:
        """End a pod well."""
        self.exit(namespace, pod, 0)

    def out_of_memory(self, namespace: str, pod: str, *, container: str | None = None) -> None:
        """Let the kernel kill a pod's container for its memory."""
        self.exit(namespace, pod, 137, reason="OOMKilled", container=container)

    def evict(self, namespace: str, pod: str, message: str = "The node was low on resource: memory.") -> None:
        """Evict a pod as a kubelet under pressure does: it stays, Failed, with the reason Evicted."""
        now = _now()
        disrupted = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "TerminationByKubelet",
            "message": message,
            "lastTransitionTime": now,
        }
        status = {
            "phase": "Failed",
            "reason": "Evicted",
            "message": message,
            "conditions": [*_not_ready("PodFailed", now), disrupted],
        }
        self._api.patch(
            f"/api/v1/namespaces/{namespace}/pods/{pod}/status", {"status": status}, kind=STRATEGIC
        )

    def stick(self, namespace: str, pod: str) -> None:
        """Make one pod hang in Terminating when it is deleted."""
        self._api.patch(
            f"/api/v1/namespaces/{namespace}/pods/{pod}", {"metadata": {"annotations": {STUCK: "true"}}}
        )

    def wait_phase(self, namespace: str, pod: str, phase: str, *, timeout_s: float = 20) -> dict[str, Any]:
        """Wait until a pod is in a phase, and return it."""
        path = f"/api/v1/namespaces/{namespace}/pods/{pod}"
        deadline = time.monotonic() + timeout_s
        while True:
            found: dict[str, Any] | None = self._api.find(path)
            if found is not None and found["status"].get("phase") == phase:
                return found
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"pod {pod} not {phase} after {timeout_s:g} s: {(found or {}).get('status')}"
                )
            time.sleep(0.02)

    def _ready(self, name: str, status: str, reason: str, message: str) -> None:
        now = _now()
        condition = {
            "type": "Ready",
            "status": status,
            "reason": reason,
            "message": message,
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        }
        self._api.patch(f"{_NODES}/{name}/status", {"status": {"conditions": [condition]}}, kind=STRATEGIC)

    @classmethod
    def _next_number(cls) -> int:
        with cls._counter_lock:
            cls._counter += 1
            return cls._counter


def is_ready(node: Mapping[str, Any]) -> bool:
    """Say whether a node is Ready."""
    conditions = node.get("status", {}).get("conditions", [])
    return any(found["type"] == "Ready" and found["status"] == "True" for found in conditions)


def _node(name: str, number: int, amounts: Mapping[str, str], labels: Mapping[str, str]) -> dict[str, Any]:
    """Describe a node with addresses of its own: 10.62.x.y for itself, a /20 for its pods."""
    pods = (10 << 24) + (64 << 16) + (number % 1024) * 4096
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                MANAGED: "kwok",
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "arm64",
                **labels,
            },
        },
        "spec": {"podCIDR": f"{_dotted(pods)}/20", "podCIDRs": [f"{_dotted(pods)}/20"]},
        "status": {
            "capacity": dict(amounts),
            "allocatable": dict(amounts),
            "addresses": [
                {"type": "InternalIP", "address": f"10.62.{number // 250 % 250}.{number % 250 + 1}"},
                {"type": "Hostname", "address": name},
            ],
        },
    }


def _dotted(address: int) -> str:
    return ".".join(str(address >> shift & 255) for shift in (24, 16, 8, 0))


def _container(
    spec: Mapping[str, Any], ended: dict[str, Any], *, again: bool, restarts: int, now: str
) -> dict[str, Any]:
    common = {"name": spec["name"], "image": spec["image"], "imageID": ""}
    if again:
        return {
            **common,
            "ready": True,
            "started": True,
            "restartCount": restarts + 1,
            "state": {"running": {"startedAt": now}, "terminated": None},
            "lastState": {"terminated": ended},
        }
    return {
        **common,
        "ready": False,
        "started": False,
        "restartCount": restarts,
        "state": {"terminated": ended, "running": None},
    }


def _not_ready(reason: str, now: str) -> list[dict[str, Any]]:
    return [
        {"type": kind, "status": "False", "reason": reason, "lastTransitionTime": now}
        for kind in ("ContainersReady", "Ready")
    ]


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
