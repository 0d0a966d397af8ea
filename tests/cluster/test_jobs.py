"""The whole path: an AscendJob, the controller, pods on three nodes, `taskd run`, a fault, and the bits.

Faults come from outside, as they do in production: a process is killed by the machine, a pod is deleted by a
user. What happened is read with kubectl and from what the ranks wrote down.
"""

import os
import signal
from pathlib import Path

import pytest

from taskd.testing.cluster import RealNodes
from tests.cluster.conftest import UndisturbedRun
from tests.cluster.jobs import NAME, PODS, STEPS, WORLD, PodJob
from tests.cluster.pods import column
from tests.kube.operator.site import Site
from tests.train.runs import assert_same

RESTARTS = ".status.containerStatuses[0].restartCount"
VICTIM = 3  # the second rank of the first worker


def test_a_job_trains_and_succeeds(undisturbed: UndisturbedRun) -> None:
    """Three pods on three nodes train to the end; the job is Succeeded and nothing was restarted."""
    assert dict.fromkeys(range(WORLD), STEPS) == {
        rank: len(losses) for rank, (losses, _) in undisturbed.run.items()
    }
    assert dict.fromkeys(PODS, "0") == undisturbed.restarts
    assert [NAME, "Succeeded"] == undisturbed.row[:2]


def test_a_process_is_killed_in_a_pod(
    cluster: RealNodes, site: Site, tmp_path: Path, undisturbed: UndisturbedRun
) -> None:
    """Recover-in-place: only that rank has a new process; pods, restart counts and bits are as they were."""
    job = PodJob(cluster, site, tmp_path / "out", spares=1)
    job.submit("recover-in-place")
    job.wait_step(5)
    uids = column(cluster, site.namespace, ".metadata.uid")
    before = job.all_processes()
    os.kill(before[VICTIM].pid, signal.SIGKILL)
    job.wait_step(job.step() + 5)
    after = job.all_processes()
    job.finish()

    assert [VICTIM] == [rank for rank in range(WORLD) if before[rank].identity != after[rank].identity]
    assert uids == column(cluster, site.namespace, ".metadata.uid")
    assert dict.fromkeys(PODS, "0") == column(cluster, site.namespace, RESTARTS)
    assert_same(undisturbed.run, job.out, (VICTIM,))


def test_a_pod_is_deleted(
    cluster: RealNodes, site: Site, tmp_path: Path, undisturbed: UndisturbedRun
) -> None:
    """Recover: the controller makes the pod again as the same rank; all other processes and the bits stay."""
    job = PodJob(cluster, site, tmp_path / "out")
    job.submit("recover")
    job.wait_step(5)
    uids = column(cluster, site.namespace, ".metadata.uid")
    before = job.all_processes()
    cluster.kubectl("delete", "pod", "-n", site.namespace, "j-worker-1", "--wait=false")
    job.wait_step(job.step() + 10)
    after = job.all_processes()
    job.finish()

    lost = (4, 5)
    assert [*lost] == [rank for rank in range(WORLD) if before[rank].identity != after[rank].identity]
    now = column(cluster, site.namespace, ".metadata.uid")
    assert ["j-worker-1"] == [pod for pod in PODS if now[pod] != uids[pod]]
    assert dict.fromkeys(PODS, "0") == column(cluster, site.namespace, RESTARTS)
    assert_same(undisturbed.run, job.out, lost)


@pytest.mark.slow
def test_a_node_is_cut_off_and_comes_back(
    cluster: RealNodes, site: Site, tmp_path: Path, undisturbed: UndisturbedRun
) -> None:
    """Nobody dies, and the manager gives the node up; when its cable is mended its ranks are replaced there.

    What its processes did meanwhile harms nobody: all other processes, the pods and the bits stay.
    """
    job = PodJob(cluster, site, tmp_path / "out")
    job.submit("recover")
    job.wait_step(5)
    uids = column(cluster, site.namespace, ".metadata.uid")
    before = job.all_processes()
    node = column(cluster, site.namespace, ".spec.nodeName")["j-worker-1"]
    timeline = ("exec", "-n", site.namespace, "j-master-0", "--", "taskd", "timeline")
    cluster.cut_link(node)
    try:
        cluster.wait(lambda: "no sign of life" in cluster.kubectl(*timeline), timeout_s=60, every_s=0.5)
        assert [True] * WORLD == [process.identity.alive for process in before.values()]
    finally:
        cluster.mend_link(node)
    job.wait_step(job.step() + 5)
    after = job.all_processes()
    job.finish()

    lost = (4, 5)
    assert [*lost] == [rank for rank in range(WORLD) if before[rank].identity != after[rank].identity]
    assert uids == column(cluster, site.namespace, ".metadata.uid")
    assert dict.fromkeys(PODS, "0") == column(cluster, site.namespace, RESTARTS)
    assert_same(undisturbed.run, job.out, lost)
