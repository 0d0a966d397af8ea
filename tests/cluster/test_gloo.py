from pathlib import Path

import pytest

from taskd.testing.cluster import RealNodes
from tests.cluster.pods import column, make_heads, make_pod

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).with_name("gloo_job.py")


def test_two_pods_train(cluster: RealNodes, namespace: str) -> None:
    """Two pods on two nodes run torchrun and find each other by a name of a headless Service."""
    make_heads(cluster, namespace, "crew")
    for rank in (0, 1):
        command = ["torchrun", "--nnodes=2", f"--node-rank={rank}", "--nproc-per-node=1"]
        command += ["--master-addr=crew-0.crew", "--master-port=29500", str(SCRIPT)]
        make_pod(cluster, namespace, f"crew-{rank}", *command, node=f"node-{rank + 1}", subdomain="crew")
    ended = {"crew-0": "Succeeded", "crew-1": "Succeeded"}

    def over() -> bool:
        phases = column(cluster, namespace, ".status.phase")
        assert "Failed" not in phases.values(), cluster.kubectl("logs", "-n", namespace, "crew-1")
        return ended == phases

    cluster.wait(over, timeout_s=180, every_s=0.5)
    said = [cluster.kubectl("logs", "-n", namespace, name).splitlines()[-1] for name in ended]
    assert said[0].startswith("trained True ")
    assert said[0] == said[1]
