"""Builders of jobs for the tests of this folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from taskd.core.acjob import job as jobs
from taskd.core.acjob.environment import Addresses
from taskd.core.acjob.job import LEADERS, WORKER, Job
from taskd.core.acjob.pods import PodMaker

CARDS = "huawei.com/Ascend910"
ADDRESSES = Addresses("10.96.0.7", 2222, "10.96.0.9")


def make_template(
    devices: int = 8,
    resource: str = CARDS,
    env: Sequence[Mapping[str, Any]] = (),
    container: Mapping[str, Any] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    ascend: dict[str, Any] = {"name": "ascend", "image": "train:latest", **(container or {})}
    if env:
        ascend["env"] = list(env)
    if devices:
        ascend["resources"] = {"limits": {resource: devices}, "requests": {resource: devices}}
    return {"spec": {"containers": [ascend], **spec}}


def make_job(
    framework: str = "pytorch",
    workers: int = 1,
    *,
    leader: dict[str, Any] | None = None,
    worker: dict[str, Any] | None = None,
    alone: bool = False,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    policy: Mapping[str, Any] | None = None,
    restart: str = "Never",
    **spec: Any,
) -> Job:
    """A job with a leader and workers; `alone` leaves the leader out, and no workers leaves the type out."""
    replicas: dict[str, Any] = {}
    if workers:
        template = worker or make_template()
        replicas[WORKER] = {"replicas": workers, "restartPolicy": restart, "template": template}
    if not alone:
        replicas[LEADERS[framework]] = {"restartPolicy": restart, "template": leader or make_template()}
    return jobs.read(
        {
            "metadata": {
                "namespace": "team",
                "name": "job",
                "uid": "u-1",
                "labels": {"framework": framework, **(labels or {})},
                "annotations": dict(annotations or {}),
            },
            "spec": {"replicaSpecs": replicas, "runPolicy": dict(policy or {}), **spec},
        }
    )


def make_pods(job: Job, *, gang: bool = True, version: int = 0) -> dict[str, dict[str, Any]]:
    """All pods of the job by name."""
    maker = PodMaker(job, ADDRESSES, gang=gang)
    found = [maker.pod(slot, version) for slot in job.slots()]
    return {pod["metadata"]["name"]: pod for pod in found}


def env_of(pod: Mapping[str, Any]) -> dict[str, str]:
    """The environment of the container `ascend`: value, or the path of the field it comes from."""
    container = next(each for each in pod["spec"]["containers"] if each["name"] == "ascend")
    entries = container.get("env", [])
    assert len({entry["name"] for entry in entries}) == len(entries), "a name stands there twice"
    return {
        entry["name"]: entry["value"] if "value" in entry else entry["valueFrom"]["fieldRef"]["fieldPath"]
        for entry in entries
    }
