import time
from pathlib import Path

import pytest

from taskd.testing.cluster import RealNodes
from tests.cluster.pods import column, make_pod

pytestmark = pytest.mark.slow

COUNT = "import itertools, time\nfor n in itertools.count(): open({!r}, 'w').write(str(n)); time.sleep(0.05)"


def test_a_node_whose_cable_is_cut(cluster: RealNodes, namespace: str, tmp_path: Path) -> None:
    """It is NotReady after some eleven seconds, what it runs goes on, and it comes back as it was."""
    file = tmp_path / "count"
    make_pod(
        cluster, namespace, "p", "python3", "-c", COUNT.format(str(file)), node="node-2", writable=(tmp_path,)
    )
    cluster.wait_pod_ready(namespace, "p")
    before = (cluster.pids_in_pod(namespace, "p"), column(cluster, namespace, ".metadata.uid"))
    cluster.cut_link("node-2")
    try:
        cut_at = time.monotonic()
        cluster.wait(lambda: not cluster.node_ready("node-2"), timeout_s=30, every_s=0.1)
        took_s = time.monotonic() - cut_at
        count = int(cluster.wait(file.read_text))
        cluster.wait(lambda: int(file.read_text() or "0") > count + 10)
    finally:
        cluster.mend_link("node-2")
    cluster.wait(lambda: cluster.node_ready("node-2"), timeout_s=60, every_s=0.1)
    assert 6 < took_s < 15
    assert before == (cluster.pids_in_pod(namespace, "p"), column(cluster, namespace, ".metadata.uid"))
    assert {"p": "0"} == column(cluster, namespace, ".status.containerStatuses[0].restartCount")
    # The kubelet answers again.
    assert "1\n" == cluster.wait(
        lambda: cluster.kubectl("exec", "-n", namespace, "p", "--", "echo", "1", check=False)
    )
