"""The whole path with the control plane: it hears of a fault in a pod, decides, and the training goes on.

Controller and plane run on the machine; managers in pods reach the plane over the network.
"""

import os
import signal
from pathlib import Path

import pytest

from taskd.testing.cluster import RealNodes
from tests.cluster.conftest import Planned, UndisturbedRun
from tests.cluster.jobs import NAME, PODS, WORLD, PodJob
from tests.cluster.pods import column
from tests.kube.operator.site import Site
from tests.train.runs import assert_same

pytestmark = pytest.mark.slow

VICTIM = 3
RESTARTS = ".status.containerStatuses[0].restartCount"


def told(site: Site) -> list[str]:
    """What kubectl describe shows of recoveries."""
    return [message for _, reason, message in site.events(NAME) if reason == "ProcessRecovery"]


def test_a_killed_process_is_the_planes_decision(
    cluster: RealNodes, planned: Planned, tmp_path: Path, undisturbed: UndisturbedRun
) -> None:
    """Recover-in-place, decided by the plane: one process is new, pods and bits are as they were."""
    site = planned.site
    job = PodJob(cluster, site, tmp_path / "out", spares=1, plane=planned.plane)
    job.submit("recover-in-place,recover")
    job.wait_step(5)
    uids = column(cluster, site.namespace, ".metadata.uid")
    before = job.all_processes()
    os.kill(before[VICTIM].pid, signal.SIGKILL)
    job.wait_step(job.step() + 5)
    after = job.all_processes()
    reasons = [incident["reason"] for incident in job.timeline()]
    job.finish()

    assert [VICTIM] == [rank for rank in range(WORLD) if before[rank].identity != after[rank].identity]
    assert uids == column(cluster, site.namespace, ".metadata.uid")
    assert dict.fromkeys(PODS, "0") == column(cluster, site.namespace, RESTARTS)
    assert_same(undisturbed.run, job.out, (VICTIM,))
    assert any("the control plane decided: recover-in-place" in reason for reason in reasons), reasons
    assert any("rank 3" in message for message in told(site)), told(site)


@pytest.mark.parametrize("scheduling", ["grace", "force"])
def test_a_deleted_pod_is_recovered_through_the_plane(
    cluster: RealNodes, planned: Planned, tmp_path: Path, undisturbed: UndisturbedRun, scheduling: str
) -> None:
    """Recover: the pod is another one, all other processes and the bits stay, and the plane tells of it.

    With `grace` it has its time to end first; with `force` it is deleted at once.
    """
    site = planned.site
    job = PodJob(cluster, site, tmp_path / "out", plane=planned.plane, scheduling=scheduling)
    job.submit("recover")
    job.wait_step(5)
    before = job.all_processes()
    cluster.kubectl("delete", "pod", "-n", site.namespace, "j-worker-1", "--wait=false")
    job.wait_step(job.step() + 10)
    after = job.all_processes()
    job.finish()

    lost = (4, 5)
    assert [*lost] == [rank for rank in range(WORLD) if before[rank].identity != after[rank].identity]
    assert_same(undisturbed.run, job.out, lost)
    assert told(site)
    assert 1 == site.status(NAME)["restarts"]
