from collections.abc import Iterator

import pytest

from taskd.testing.cluster import RealCluster
from taskd.testing.kube.volcano import GROUP

pytestmark = pytest.mark.slow

DEVICE = "huawei.com/Ascend910"


@pytest.fixture
def gang_cluster(nodes_possible: None) -> Iterator[RealCluster]:
    """A cluster in which the stand-in places pods too."""
    with RealCluster(gangs=True) as started:
        yield started


def test_a_gang_is_placed_whole_or_not_at_all(gang_cluster: RealCluster) -> None:
    """Two pods that want eight devices each wait together until two nodes have them; then both run.

    Each is told which devices are its own.
    """
    cluster = gang_cluster
    cluster.add_device_capacity("node-1", DEVICE, 8)
    parts = cluster.training_volumes()
    with cluster.namespace() as namespace:
        group = {"metadata": {"name": "gang"}, "spec": {"minMember": 2, "queue": "default"}}
        group |= {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup"}
        cluster.api.create(f"{GROUP}/namespaces/{namespace}/podgroups", group)
        container = parts.container("sleep", "1000")
        container["resources"] = {"limits": {DEVICE: "8"}}
        for name in ("one", "two"):
            spec = {
                "schedulerName": "volcano",
                "terminationGracePeriodSeconds": 0,
                "containers": [container],
                "volumes": parts.volumes,
            }
            meta = {"name": name, "annotations": {"scheduling.k8s.io/group-name": "gang"}}
            cluster.api.create(f"/api/v1/namespaces/{namespace}/pods", {"metadata": meta, "spec": spec})
        place = f"{GROUP}/namespaces/{namespace}/podgroups/gang"

        def conditions() -> list[str]:
            found = cluster.api.get(place).get("status", {}).get("conditions", [])
            return [condition["message"] for condition in found if condition["type"] == "Unschedulable"]

        cluster.wait(lambda: any("2 Pending" in said for said in conditions()))
        pods = cluster.api.items(f"/api/v1/namespaces/{namespace}/pods")
        assert [None, None] == [pod["spec"].get("nodeName") for pod in pods]

        cluster.add_device_capacity("node-2", DEVICE, 8)
        found = [cluster.wait_pod_ready(namespace, name) for name in ("one", "two")]
        assert {"node-1", "node-2"} == {pod["spec"]["nodeName"] for pod in found}
        wanted = ",".join(f"Ascend910-{index}" for index in range(8))
        assert [wanted, wanted] == [pod["metadata"]["annotations"][DEVICE] for pod in found]
        assert "Running" == cluster.wait(lambda: cluster.api.get(place)["status"]["phase"])
