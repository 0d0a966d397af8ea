"""Pod-level rescheduling in real pods, without any recovery strategy: a device fails, and only its pod moves.

The fault is a device plugin's ConfigMap. The processes in the other pod are started again, from their last
checkpoint, by the manager that the plane has refused to speak with.
"""

import json
from pathlib import Path

import pytest

from taskd.testing.cluster import RealNodes
from tests.cluster.conftest import Planned
from tests.cluster.pairs import EVERY, GRACE, MASTER, MOUNTED, WORKER, Pair, Results, reported_device
from tests.cluster.pods import column
from tests.kube.operator.site import until

pytestmark = pytest.mark.slow


def test_only_the_pod_on_the_broken_device_moves(
    cluster: RealNodes,
    planned: Planned,
    tmp_path: Path,
    calm_pair: Results,
) -> None:
    """S2-2: the other pod keeps its UID and restarts its process once; the bits are those of a calm run."""
    site, plane = planned.site, planned.plane
    job = Pair(cluster, site, tmp_path / "out", plane)
    job.submit(GRACE)
    job.wait_step(2 * EVERY)
    uids = column(cluster, site.namespace, ".metadata.uid")
    node = column(cluster, site.namespace, ".spec.nodeName")[WORKER]
    with reported_device(cluster, node):
        job.wait(lambda: len(job.lives(0)) == len(job.lives(1)) == 2, "new processes in both pods")
        isolated = [entry["name"] for entry in site.status("j").get("isolatedNodes", [])]
    until(lambda: json.loads(job.exec(MASTER, "cat", MOUNTED))["RetryTime"] == 1, 120)
    until(lambda: not site.status("j").get("isolatedNodes"))
    first_again = job.lives(0)[1][0]["step"]
    job.wait_step(job.entries(0)[-1]["step"] + 3)
    incidents = json.loads(job.exec(MASTER, "taskd", "timeline", "--output", "json"))
    now = column(cluster, site.namespace, ".metadata.uid")
    nodes = column(cluster, site.namespace, ".spec.nodeName")
    job.finish()

    assert [WORKER] == [pod for pod in uids if uids[pod] != now[pod]]
    assert node != nodes[WORKER]
    assert [node] == isolated
    assert dict.fromkeys(uids, "0") == column(
        cluster, site.namespace, ".status.containerStatuses[0].restartCount"
    )
    assert ([2, 2], 1) == ([len(job.lives(0)), len(job.lives(1))], len(incidents)), incidents
    assert 0 < first_again, "from the last checkpoint, not from the beginning"
    assert calm_pair == job.run()
    assert (1, 1) == (site.status("j")["restarts"], site.status("j")["voluntaryRestarts"])
    told = [message for _, reason, message in site.events("j") if reason == "ProcessRecovery"]
    assert any("device fault" in message for message in told), told
