"""Small jobs without devices, and short words for what tests look at again and again."""

from __future__ import annotations

import copy
import threading
from contextlib import suppress
from typing import Any, Self

from taskd.testing.kube.client import ApiError
from tests.kube.operator.site import JOBS, Json, Site, until

PODS = "/api/v1/namespaces/{}/pods"


def small(name: str = "job", workers: int = 1, **changes: Any) -> Json:
    """A PyTorch job of one Master and some Workers, which any node can run.

    `labels`, `annotations`, `policy` (runPolicy), `restart` (restartPolicy), `marks` (annotations of the
    pods: what the played kubelet does with them), `pod` (fields of the pod's spec), `env`.
    """
    container: Json = {"name": "ascend", "image": "train:1", **changes.get("container", {})}
    template: Json = {"spec": {"containers": [container], **changes.get("pod", {})}}
    if "marks" in changes:
        template["metadata"] = {"annotations": changes["marks"]}
    spec = {"replicas": 1, "restartPolicy": changes.get("restart", "Never"), "template": template}
    replicas: Json = {"Master": spec}
    if workers:
        replicas["Worker"] = {**copy.deepcopy(spec), "replicas": workers}
    return {
        "apiVersion": "mindxdl.gitee.com/v1",
        "kind": "AscendJob",
        "metadata": {
            "name": name,
            "labels": {"framework": "pytorch", **changes.get("labels", {})},
            "annotations": changes.get("annotations", {}),
        },
        "spec": {"replicaSpecs": replicas, "runPolicy": changes.get("policy", {})},
    }


def conditions(site: Site, name: str) -> dict[str, Json]:
    """The conditions of a job by type; one entry each."""
    listed = site.status(name).get("conditions", [])
    found = {entry["type"]: entry for entry in listed}
    assert len(found) == len(listed), "one entry a type"
    return found


def true_states(site: Site, name: str) -> list[str]:
    """Which of the states that exclude each other are true."""
    return [
        kind
        for kind, entry in conditions(site, name).items()
        if kind != "Created" and entry["status"] == "True"
    ]


def counts(status: Json) -> dict[str, Json]:
    """The counts of pods in a status that are not zero, by role."""
    return {
        kind: {name: count for name, count in found.items() if count}
        for kind, found in status["replicaStatuses"].items()
    }


def uid(site: Site, pod: str) -> str:
    """The UID of a pod."""
    return str(site.pod(pod)["metadata"]["uid"])


def delete_pod(site: Site, pod: str, grace_s: int = 0) -> None:
    """Delete a pod, as anybody may; that one, and not its successor should the request be sent twice."""
    path = f"{PODS.format(site.namespace)}/{pod}"
    found = site.kube.api.find(path)
    if found is not None:
        body = {"gracePeriodSeconds": grace_s, "preconditions": {"uid": found["metadata"]["uid"]}}
        with suppress(ApiError):  # it is gone, or another has its name
            site.kube.api.request("DELETE", path, body)


def annotate_pod(site: Site, pod: str, **marks: str | None) -> None:
    """Set annotations of a pod."""
    site.kube.api.patch(f"{PODS.format(site.namespace)}/{pod}", {"metadata": {"annotations": marks}})


def label(site: Site, pod: str, name: str) -> str:
    """A label of a pod."""
    return str(site.pod(pod)["metadata"]["labels"][name])


def versions(site: Site, name: str) -> dict[str, int]:
    """The generation of each pod of a job that is not being deleted."""
    return {
        pod: int(content["metadata"]["labels"]["version"])
        for pod, content in site.pods(name).items()
        if not content["metadata"].get("deletionTimestamp")
    }


def wait_running(site: Site, name: str, limit_s: float = 30.0) -> Json:
    """Wait until a job runs."""
    return site.wait_state(name, "Running", limit_s=limit_s)


def wait_settled(site: Site, name: str, restarts: int, limit_s: float = 30.0) -> None:
    """Wait until a job runs whole after so many restarts."""

    def there() -> bool:
        status = site.status(name)
        return (
            status.get("restarts") == restarts
            and bool(status.get("stable"))
            and site.state(name) == "Running"
        )

    until(there, limit_s, lambda: f"{name} is {site.status(name)}")


def wait_replaced(site: Site, pod: str, old: str, limit_s: float = 20.0) -> Json:
    """Wait until another pod has this name."""

    def there() -> Json | None:
        found = site.kube.api.find(f"{PODS.format(site.namespace)}/{pod}")
        return found if found is not None and found["metadata"]["uid"] != old else None

    return until(there, limit_s, lambda: f"{pod} was not replaced: {site.pods()}")


def written(site: Site, since: int, resource: str | None = None) -> list[tuple[str, str, str, int]]:
    """What the controller has written here since a mark of the audit log, its lease left out."""
    audit = site.kube.audit
    return [
        (request.verb, f"{request.resource}/{request.subresource}".rstrip("/"), request.name, request.code)
        for request in audit.writes(since=since, user_agent="taskd-controller/", namespace=site.namespace)
        if request.resource != "leases" and resource in {None, request.resource}
    ]


class Story:
    """Every state that a job was in while this was open, in order; a watch sees what polling misses."""

    def __init__(self, site: Site, name: str) -> None:
        self._site, self._name = site, name
        self._watch = site.kube.api.watch(JOBS.format(site.namespace), fieldSelector=f"metadata.name={name}")
        self.statuses: list[Json] = []
        self._versions: list[str] = []
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def _follow(self) -> None:
        for event in self._watch:
            if event.type in {"ADDED", "MODIFIED"}:
                self.statuses.append(event.object.get("status") or {})
                self._versions.append(event.object["metadata"]["resourceVersion"])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_details: object) -> None:
        # What the test has read last may not have come through the watch yet.
        last = self._site.kube.api.find(f"{JOBS.format(self._site.namespace)}/{self._name}")
        if last is not None:
            until(lambda: last["metadata"]["resourceVersion"] in self._versions, 20.0)
        self._watch.close()
        self._thread.join(5)

    def states(self) -> list[str]:
        """The newest condition of each, repetitions left out."""
        found = [status["conditions"][-1]["type"] for status in self.statuses if status.get("conditions")]
        return [state for before, state in zip(["", *found], found, strict=False) if state != before]

    def said(self) -> set[str]:
        """Every reason that was ever given."""
        return {entry["reason"] for status in self.statuses for entry in status.get("conditions", ())}
