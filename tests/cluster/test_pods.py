import time
from collections.abc import Iterator

import pytest

from taskd.testing.cluster import RealNodes
from tests.cluster.pods import WEB, column, make_heads, make_pod, make_service

ASK = "import sys, urllib.request as r\nfor url in sys.argv[1:]: print(r.urlopen(url, timeout=10).status)"


@pytest.fixture(scope="module")
def pair(cluster: RealNodes) -> Iterator[str]:
    """Two pods that serve, on two nodes, with a Service for the second; returns their namespace."""
    with cluster.namespace("pair") as namespace:
        make_heads(cluster, namespace, "heads")
        ports = [{"port": 80, "targetPort": 8000}]
        make_service(cluster, namespace, "web", {"selector": {"name": "second"}, "ports": ports})
        make_pod(cluster, namespace, "first", *WEB, node="node-1", subdomain="heads")
        make_pod(cluster, namespace, "second", *WEB, node="node-2", subdomain="heads")
        for name in ("first", "second"):
            cluster.wait_pod_ready(namespace, name)
        yield namespace


@pytest.mark.parametrize("asking", ["first", "second"])
def test_pods_reach_each_other(cluster: RealNodes, pair: str, asking: str) -> None:
    """By address, by Service and by name; across nodes, and a pod that asks for itself too."""
    address = column(cluster, pair, ".status.podIP")["second"]
    service = cluster.api.get(f"/api/v1/namespaces/{pair}/services/web")["spec"]["clusterIP"]
    urls = [
        f"http://{address}:8000",
        f"http://{service}",
        "http://web",
        f"http://web.{pair}.svc.cluster.local",
        "http://second.heads:8000",
    ]

    def answers() -> list[str] | None:
        said = cluster.kubectl("exec", "-n", pair, asking, "--", "python3", "-c", ASK, *urls, check=False)
        # The Service's rules take a moment to arrive on the nodes.
        return said.split() if said.split() == ["200"] * len(urls) else None

    assert ["200"] * len(urls) == cluster.wait(answers, timeout_s=20, every_s=0.5)


def test_each_pod_is_on_the_node_it_asked_for(cluster: RealNodes, pair: str) -> None:
    """And no kubelet had to start a container twice."""
    assert {"first": "node-1", "second": "node-2"} == column(cluster, pair, ".spec.nodeName")
    restarts = column(cluster, pair, ".status.containerStatuses[0].restartCount")
    assert {"first": "0", "second": "0"} == restarts


def test_exec_and_logs(cluster: RealNodes, pair: str) -> None:
    """What a person does first: look inside, and read."""
    assert "second\n" == cluster.kubectl("exec", "-n", pair, "second", "--", "hostname")
    assert "Serving HTTP" in cluster.kubectl("logs", "-n", pair, "second")


def test_processes_of_a_pod_are_found(cluster: RealNodes, pair: str) -> None:
    """As this machine sees them and as the pod does, without the pod's sandbox."""
    (process,) = cluster.pids_in_pod(pair, "first")
    assert (1, WEB) == (process.pid_inside, process.command)
    assert process.pid != 1


def test_a_pod_is_ready_in_seconds(cluster: RealNodes, namespace: str) -> None:
    """One to two seconds where the machine has nothing else to do; the best of three counts."""
    took_s = []
    for number in range(3):
        began = time.monotonic()
        make_pod(cluster, namespace, f"p{number}", "sleep", "1000")
        cluster.wait_pod_ready(namespace, f"p{number}")
        took_s.append(time.monotonic() - began)
    assert min(took_s) < 3, took_s


def test_pods_for_volcano_are_placed(cluster: RealNodes, namespace: str) -> None:
    """The second scheduler name is served."""
    parts = cluster.training_volumes()
    spec = {
        "schedulerName": "volcano",
        "terminationGracePeriodSeconds": 0,
        "containers": [parts.container("sleep", "1000")],
        "volumes": parts.volumes,
    }
    cluster.api.create(f"/api/v1/namespaces/{namespace}/pods", {"metadata": {"name": "gang"}, "spec": spec})
    pod = cluster.wait_pod_ready(namespace, "gang")
    assert pod["spec"]["nodeName"] in cluster.node_names


def test_devices_that_do_not_exist(cluster: RealNodes, namespace: str) -> None:
    """A node has as many as it was given, and a pod that asks for some goes there and runs."""
    cluster.add_device_capacity("node-3", "taskd.test/device", 4)
    parts = cluster.training_volumes()
    container = parts.container("sleep", "1000")
    container["resources"] = {"limits": {"taskd.test/device": "3"}}
    spec = {"terminationGracePeriodSeconds": 0, "containers": [container], "volumes": parts.volumes}
    for name in ("one", "two"):
        cluster.api.create(f"/api/v1/namespaces/{namespace}/pods", {"metadata": {"name": name}, "spec": spec})
        if name == "one":
            assert "node-3" == cluster.wait_pod_ready(namespace, name)["spec"]["nodeName"]
    why = ".status.conditions[?(@.type=='PodScheduled')].message"
    said = cluster.wait(lambda: column(cluster, namespace, why).get("two"), timeout_s=10) or ""
    assert "Insufficient taskd.test/device" in said
