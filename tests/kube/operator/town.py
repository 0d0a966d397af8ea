"""What many tests share: a namespace with a controller that nobody harms, nodes, and the played scheduler.

A controller takes a second to start, and most promises do not ask for one of their own; jobs in the same
namespace are told apart by their names.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from taskd.testing.kube import Nodes, VolcanoStandIn
from taskd.testing.kube.nodes import HOLD
from tests.kube.operator.site import Controller, Json, Site, until

NPU = "huawei.com/Ascend910"


@dataclass(frozen=True)
class Town:
    """A namespace, its controller, nodes with room for all, and Volcano, playing."""

    site: Site
    controller: Controller
    nodes: Nodes
    volcano: VolcanoStandIn

    @property
    def namespace(self) -> str:
        return self.site.namespace

    def running(self, job: Json) -> str:
        """Submit a job and wait until it runs; returns its name."""
        name = self.site.submit(job)
        self.site.wait_state(name, "Running")
        return name

    def exit(self, pod: str, code: int = 1, **more: Any) -> None:
        """End a pod that runs."""
        self.nodes.wait_phase(self.namespace, pod, "Running")
        self.nodes.exit(self.namespace, pod, code, **more)

    def release(self, pod: str) -> None:
        """Let a held pod start."""
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod}"
        self.site.kube.api.patch(path, {"metadata": {"annotations": {HOLD: None}}})

    def wait_gone(self, pod: str, uid: str) -> None:
        """Wait until this very pod is there no more."""
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod}"

        def gone() -> bool:
            found = self.site.kube.api.find(path)
            return found is None or found["metadata"]["uid"] != uid

        until(gone, say=lambda: f"{pod} is still there")


def template(
    devices: Mapping[str, int] | None = None, *, notes: Mapping[str, str] | None = None, **container: Any
) -> Json:
    """A pod template with the one container that a job must have."""
    amounts = {name: str(count) for name, count in (devices or {}).items()}
    main: Json = {"name": "ascend", "image": "none"}
    if amounts:
        main["resources"] = {"limits": amounts, "requests": dict(amounts)}
    found: Json = {"spec": {"containers": [{**main, **container}]}}
    if notes:
        found["metadata"] = {"annotations": dict(notes)}
    return found


def job(
    name: str,
    *,
    framework: str = "pytorch",
    workers: int = 1,
    devices: Mapping[str, int] | None = None,
    restart_policy: str = "Never",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    policy: Mapping[str, Any] | None = None,
    hold: str = "",
    **spec: Any,
) -> Json:
    """A small job: a leader and some workers. `hold` names the type whose pods do not start by themselves."""
    leader = {"pytorch": "Master", "mindspore": "Scheduler", "tensorflow": "Chief"}[framework]

    def replicas(kind: str, count: int) -> Json:
        notes = {HOLD: "true"} if kind == hold else None
        return {
            "replicas": count,
            "restartPolicy": restart_policy,
            "template": template(devices, notes=notes),
        }

    return copy.deepcopy(
        {
            "apiVersion": "mindxdl.gitee.com/v1",
            "kind": "AscendJob",
            "metadata": {
                "name": name,
                "labels": {"framework": framework, **(labels or {})},
                "annotations": dict(annotations or {}),
            },
            "spec": {
                **({"runPolicy": dict(policy)} if policy else {}),
                "replicaSpecs": {leader: replicas(leader, 1), "Worker": replicas("Worker", workers)},
                **spec,
            },
        }
    )
