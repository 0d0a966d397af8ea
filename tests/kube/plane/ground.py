"""A namespace that holds all the plane's ConfigMaps, a job with two pods, and a fault centre."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import yaml

from taskd.core.faults.view import JobFaults
from taskd.kube.client import KubeClient
from taskd.kube.config import load_config
from taskd.plane.faultcentre import FaultCentre
from taskd.plane.names import PlaneNames
from taskd.testing.kube import Cluster, Nodes
from tests.core.faults.scenes import device_info

Json = dict[str, Any]
PATIENCE_S = 30.0
JOBS = "/apis/mindxdl.gitee.com/v1/namespaces/{}/ascendjobs"


class Clock:
    """The wall clock, which a test may set forward."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead_s


class Ground:
    """What a test does to the cluster, and what it sees of the plane."""

    def __init__(self, kube: Cluster, namespace: str, nodes: list[str]) -> None:
        self.kube = kube
        self.namespace = namespace
        self.nodes = nodes
        self.names = PlaneNames(namespace, namespace, namespace, namespace, namespace)
        self.clock = Clock()
        self.told: list[tuple[float, JobFaults]] = []
        self.gone: list[str] = []
        self.job_id = ""
        self.centre: FaultCentre | None = None

    # -------------------------------------------------------------------------------------------- the cluster

    def submit(self, name: str = "job", **metadata: Any) -> str:
        """A job with a Master and a Worker of eight chips, and their pods, as the operator makes them."""
        container = {"name": "ascend", "image": "i", "resources": {"limits": {"huawei.com/Ascend910": 8}}}
        spec = {"replicas": 1, "restartPolicy": "Never", "template": {"spec": {"containers": [container]}}}
        labels = {"framework": "pytorch", **metadata.pop("labels", {})}
        body = {
            "apiVersion": "mindxdl.gitee.com/v1",
            "kind": "AscendJob",
            "metadata": {"name": name, "labels": labels, **metadata},
            "spec": {"replicaSpecs": {"Master": spec, "Worker": spec}},
        }
        self.job_id = self.kube.api.create(JOBS.format(self.namespace), body)["metadata"]["uid"]
        for rank, (kind, node) in enumerate(zip(("master", "worker"), self.nodes, strict=False)):
            self._pod(name, kind, rank, node)
        return self.job_id

    def _pod(self, job: str, kind: str, rank: int, node: str) -> None:
        devices = {
            "pod_name": f"{job}-{kind}-0",
            "server_id": f"10.1.0.{rank}",
            "host_ip": f"10.1.0.{rank}",
            "devices": [{"device_id": str(chip), "device_ip": f"10.2.{rank}.{chip}"} for chip in range(8)],
        }
        body = {
            "metadata": {
                "name": f"{job}-{kind}-0",
                "labels": {
                    "training.kubeflow.org/operator-name": "ascendjob-controller",
                    "training.kubeflow.org/replica-type": kind,
                    "training.kubeflow.org/replica-index": "0",
                },
                "annotations": {
                    "hccl/rankIndex": str(rank),
                    "ascend.kubectl.kubernetes.io/ascend-910-configuration": json.dumps(devices),
                },
                "ownerReferences": [
                    {
                        "apiVersion": "mindxdl.gitee.com/v1",
                        "kind": "AscendJob",
                        "name": job,
                        "uid": self.job_id,
                        "controller": True,
                    }
                ],
            },
            "spec": {
                "nodeName": node,
                "restartPolicy": "Never",
                "containers": [{"name": "ascend", "image": "i"}],
            },
        }
        self.kube.api.create(f"/api/v1/namespaces/{self.namespace}/pods", body)

    def apply(self, name: str, data: dict[str, str], label: str = "mx-consumer-cim") -> None:
        """`kubectl apply` of a ConfigMap, as a device plugin's user would."""
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": self.namespace, "labels": {label: "true"}},
            "data": data,
        }
        self.kube.kubectl(
            "apply", "--server-side", "--force-conflicts", "-f", "-", stdin=yaml.safe_dump(body)
        )

    def devices(self, node: int, *faults: Json, **more: Any) -> None:
        """The device plugin of a node reports."""
        self.apply(f"mindx-dl-deviceinfo-{self.nodes[node]}", device_info(faults, **more))

    def config_map(self, name: str) -> Json | None:
        """A ConfigMap as it stands."""
        return self.kube.api.find(f"/api/v1/namespaces/{self.namespace}/configmaps/{name}")

    def data(self, name: str) -> dict[str, str]:
        """Its data; empty where it is not there."""
        found = self.config_map(name)
        return {} if found is None else dict(found.get("data") or {})

    # ---------------------------------------------------------------------------------------------- the plane

    @contextlib.asynccontextmanager
    async def plane(self) -> AsyncIterator[FaultCentre]:
        """A fault centre that runs meanwhile."""
        async with KubeClient(load_config(self.kube.kubeconfig)) as client:
            centre = self.centre = FaultCentre(client, self.names, clock=self.clock)
            centre.listen(lambda view: self.told.append((time.monotonic(), view)))
            centre.listen_for_ends(self.gone.append)
            task = asyncio.create_task(centre.run())
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await centre.started()
                yield centre
            finally:
                task.cancel()
                ended = await asyncio.gather(task, return_exceptions=True)
                self.centre = None
                assert isinstance(ended[0], asyncio.CancelledError), ended

    def view(self) -> JobFaults:
        """The job's view now."""
        assert self.centre is not None
        return self.centre.view(self.job_id)

    def ranks(self) -> list[tuple[int, str]]:
        return [(rank.rank, rank.code) for rank in self.view().ranks]

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something is so."""
        async with asyncio.timeout(PATIENCE_S):
            while not await asyncio.to_thread(holds):
                await asyncio.sleep(0.01)


def make(kube: Cluster, namespace: str, nodes: Nodes) -> Ground:
    return Ground(kube, namespace, nodes.add(2))
