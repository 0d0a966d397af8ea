"""Which changes have which jobs looked at."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from taskd.kube.informer import Informer
from taskd.kube.resources import QUEUE
from taskd.operator.cluster import Cluster
from taskd.operator.controller import subscribe


def raw(name: str, version: int, queue: str = "") -> dict[str, Any]:
    policy = {"schedulingPolicy": {"queue": queue}} if queue else {}
    return {
        "metadata": {"name": name, "namespace": "n", "uid": f"u-{name}", "resourceVersion": str(version)},
        "spec": {"runPolicy": policy},
    }


def team(version: int, weight: int) -> dict[str, Any]:
    return {
        "metadata": {"name": "team", "uid": "q-1", "resourceVersion": str(version)},
        "spec": {"weight": weight},
    }


def test_a_queue_that_comes_or_goes_concerns_the_jobs_that_name_it() -> None:
    """A change of one concerns nobody: the scheduler writes into queues all the time."""
    looked: set[tuple[str, str]] = set()
    cluster = Cluster(cast("Any", None))
    cluster.queues = Informer(cast("Any", None), QUEUE)
    reconciler = SimpleNamespace(pod_changed=lambda *_change: None)
    subscribe(cluster, cast("Any", SimpleNamespace(add=looked.add)), cast("Any", reconciler))
    for number, (name, queue) in enumerate((("ours", "team"), ("other", "default"), ("none", "")), 1):
        cluster.jobs.store.changed(raw(name, number, queue))

    looked.clear()
    cluster.queues.store.changed(team(4, 1))
    assert {("n", "ours")} == looked

    looked.clear()
    cluster.queues.store.changed(team(5, 2))
    assert set() == looked

    cluster.queues.store.deleted(team(6, 2))
    assert {("n", "ours")} == looked
