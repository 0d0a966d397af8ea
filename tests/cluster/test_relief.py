"""Pods that are kept ready, and nodes whose cable is cut, on three real nodes.

Times are read from what the ranks wrote down; all pods have the clock of this machine.
"""

import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskd.testing.cluster import RealNodes
from tests.cluster.conftest import Planned, UndisturbedRun
from tests.cluster.jobs import NAME, PER_POD, PODS, PodJob
from tests.cluster.pods import column
from tests.train.runs import assert_same

pytestmark = pytest.mark.slow

READY = "j-standby-0"
PAUSE_S = 0.3  # so that a job of forty steps lasts until its fault
# Loosely, for whatever else the machine does; `make bench-cluster` has the figures.
AT_ONCE_S = 8.0
CUT_S = 10.0


@pytest.fixture
def mended(cluster: RealNodes) -> Iterator[None]:
    """Leave every node as it was."""
    yield
    for node in cluster.node_names:
        cluster.mend_link(node)
    cluster.wait(lambda: all(map(cluster.node_ready, cluster.node_names)), timeout_s=90, every_s=0.2)


def relieved_job(cluster: RealNodes, planned: Planned, out: Path, *, plane: str, standbys: int = 1) -> PodJob:
    """A job that has so many pods ready, and a control plane if it is told where."""
    notes = {"taskd.io/standby-pods": str(standbys)} if standbys else {}
    site = planned.site
    return PodJob(cluster, site, out, pause_s=PAUSE_S, annotations=notes, plane=plane)


def start(job: PodJob) -> None:
    """Submit it, and wait until it trains and the pod that is kept ready has joined."""
    job.submit("recover")
    job.wait_step(5)

    def ready() -> bool:
        said = job.cluster.kubectl("exec", "-n", job.namespace, PODS[0], "--", "taskd", "status", check=False)
        return READY in said

    job.cluster.wait(ready, timeout_s=90, every_s=0.2)
    time.sleep(2.0)  # its processes import torch


def resumed_s(job: PodJob, since: float, survivor: int) -> float:
    """How long after a moment a survivor did the step that ended the longest pause."""

    def found() -> float | None:
        times = [entry["at"] for entry in job.entries(survivor) if entry["at"] > since - 1.0]
        pauses = [(after - before, after) for before, after in itertools.pairwise(times)]
        longest, ended = max(pauses, default=(0.0, 0.0))
        return ended - since if ended > since and longest > 0.3 and times[-1] > ended else None

    waited = job.cluster.wait(found, timeout_s=150, every_s=0.05)
    assert waited is not None
    return waited


def processes(job: PodJob, pods: tuple[str, ...]) -> dict[int, object]:
    places = [PODS.index(pod) for pod in pods]
    return {rank: each.identity for place in places for rank, each in job.processes(place).items()}


def lose(job: PodJob) -> int:
    """A worker that can be lost: neither the standby nor the manager is on its node; its index in PODS."""
    where = column(job.cluster, job.namespace, ".spec.nodeName")
    taken = {where[PODS[0]], where.get(READY, "")}
    return next(index for index, pod in enumerate(PODS) if index and where[pod] not in taken)


def ranks_of(index: int) -> tuple[int, ...]:
    return tuple(range(index * PER_POD, (index + 1) * PER_POD))


@pytest.mark.parametrize("with_plane", [False, True], ids=["alone", "with-plane"])
def test_a_deleted_pod_is_relieved_at_once(
    cluster: RealNodes, planned: Planned, tmp_path: Path, undisturbed: UndisturbedRun, with_plane: bool
) -> None:
    """The standby has its place, the others keep their processes, one restart is counted."""
    site = planned.site
    job = relieved_job(cluster, planned, tmp_path / "out", plane=planned.plane if with_plane else "")
    start(job)
    uid = column(cluster, site.namespace, ".metadata.uid")[READY]
    before = processes(job, PODS[:2])
    began = time.monotonic()
    cluster.kubectl("delete", "pod", "-n", site.namespace, PODS[2], "--wait=false")
    took_s = resumed_s(job, began, survivor=0)
    print(f"deleted ({'plane' if with_plane else 'alone'}): {took_s:.2f} s")
    cluster.wait(lambda: site.status(NAME).get("restarts") == 1, timeout_s=60, every_s=0.1)
    after = processes(job, PODS[:2])
    cluster.wait(lambda: "j-standby-1" in site.pods(NAME), timeout_s=60, every_s=0.1)
    relief = site.pod(READY)["metadata"]
    job.finish()

    assert (uid, "worker", "1") == (
        relief["uid"],
        relief["labels"]["replica-type"],
        relief["labels"]["replica-index"],
    )
    assert before == after
    assert_same(undisturbed.run, job.out, ranks_of(2))
    assert 1 == site.status(NAME)["restarts"]
    assert took_s < AT_ONCE_S


def test_the_leaders_pod_is_relieved(
    cluster: RealNodes, planned: Planned, tmp_path: Path, undisturbed: UndisturbedRun
) -> None:
    """Rank 0 is no exception: the manager comes up elsewhere, and the leader's Service follows."""
    site = planned.site
    job = relieved_job(cluster, planned, tmp_path / "out", plane=planned.plane)
    start(job)
    before = processes(job, PODS[1:])
    began = time.monotonic()
    cluster.kubectl("delete", "pod", "-n", site.namespace, PODS[0], "--wait=false")
    took_s = resumed_s(job, began, survivor=2)
    print(f"leader deleted: {took_s:.2f} s")
    cluster.wait(lambda: site.status(NAME).get("restarts") == 1, timeout_s=60, every_s=0.1)
    after = processes(job, PODS[1:])
    job.finish()

    assert before == after
    assert "master" == site.pod(READY)["metadata"]["labels"]["replica-type"]
    assert_same(undisturbed.run, job.out, ranks_of(0))
    assert 1 == site.status(NAME)["restarts"]


@pytest.mark.parametrize("standbys", [1, 0], ids=["with-standby", "free-node"])
def test_a_node_whose_cable_is_cut_is_not_waited_for(
    cluster: RealNodes,
    planned: Planned,
    mended: None,
    tmp_path: Path,
    undisturbed: UndisturbedRun,
    standbys: int,
) -> None:
    """The job goes on long before Kubernetes notices; what comes back with the link does no harm."""
    site = planned.site
    job = relieved_job(cluster, planned, tmp_path / "out", plane=planned.plane, standbys=standbys)
    if standbys:
        start(job)
    else:
        job.submit("recover")
        job.wait_step(5)
    index = lose(job)
    victim = PODS[index]
    where = column(cluster, site.namespace, ".spec.nodeName")[victim]
    keep = tuple(pod for pod in PODS if pod != victim)
    before = processes(job, keep)
    began = time.monotonic()
    cluster.cut_link(where)
    took_s = resumed_s(job, began, survivor=0)
    print(f"cut ({standbys} standby): {took_s:.2f} s")
    assert cluster.node_ready(where), "Kubernetes has not noticed yet"
    after = processes(job, keep)
    cluster.mend_link(where)
    cluster.wait(lambda: site.status(NAME).get("restarts") == 1, timeout_s=60, every_s=0.1)
    job.finish()

    nodes = column(cluster, site.namespace, ".spec.nodeName")
    assert where not in {nodes.get(victim), nodes.get(READY)}
    assert before == after
    assert_same(undisturbed.run, job.out, ranks_of(index))
    assert 1 == site.status(NAME)["restarts"]
    assert took_s < (CUT_S if standbys else 2 * CUT_S)
