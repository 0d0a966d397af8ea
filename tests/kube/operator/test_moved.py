"""Pods that have to move: their node is out of reach, or somebody asks for it. Where others moved to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from taskd.testing.kube import Cluster, ControlPlane, Nodes, VolcanoStandIn, install_crds
from tests.kube.operator.site import JOBS, ROOT, Controller, Json, Site, until
from tests.kube.operator.small import delete_pod, small, uid, wait_replaced, wait_running, wait_settled

SERVICES = "/api/v1/namespaces/{}/services"
PLANE = "clusterd-grpc-svc"


def test_a_pod_on_a_node_out_of_reach_moves_once_the_cluster_gives_it_up(
    site: Site, controller: Controller, nodes: Nodes, volcano: VolcanoStandIn
) -> None:
    """Its kubelet cannot confirm the deletion, so the pod is removed without it. That is one restart."""
    patience = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"}
    first = nodes.add(1, labels={"part": "worker"})[0]
    nodes.add(1, labels={"part": "master"})
    content = small(pod={"tolerations": [{**patience, "tolerationSeconds": 1}]})
    for kind, replicas in content["spec"]["replicaSpecs"].items():
        replicas["template"]["spec"]["nodeSelector"] = {"part": kind.lower()}
    site.submit(content)
    wait_running(site, "job")
    before = {pod: uid(site, pod) for pod in site.pods("job")}
    second = nodes.add(1, labels={"part": "worker"})[0]
    nodes.lose(first)
    wait_settled(site, "job", 1, 60)
    assert second == site.pod("job-worker-0")["spec"]["nodeName"]
    assert before["job-worker-0"] != uid(site, "job-worker-0")
    assert before["job-master-0"] == uid(site, "job-master-0")
    status = site.status("job")
    assert {"node-lost": 1} == status["restartCauses"]
    assert ("job-worker-0", first) == (status["lastFault"]["pod"], status["lastFault"]["node"])


def test_a_request_in_the_status_moves_the_pod_and_is_counted_once(
    site: Site, controller: Controller, nodes: Nodes, volcano: VolcanoStandIn
) -> None:
    """Whoever watches devices asks there. A voluntary one costs nothing of the limit."""
    nodes.add(1)
    site.submit(small(policy={"backoffLimit": 1}))
    wait_running(site, "job")
    before = {pod: uid(site, pod) for pod in site.pods("job")}
    hot: Json = {"id": "a", "pods": ["job-worker-0"], "reason": "card 3 is hot"}
    _ask(site, [hot])
    wait_replaced(site, "job-worker-0", before["job-worker-0"])
    wait_settled(site, "job", 1)
    status = site.status("job")
    assert ({"a": 1}, {"requested": 1}) == (status["handledRequests"], status["restartCauses"])
    assert ("requested", "card 3 is hot") == (status["lastFault"]["type"], status["lastFault"]["summary"])
    assert before["job-master-0"] == uid(site, "job-master-0")

    _ask(site, [hot, {"id": "b", "pods": ["job-master-0"], "reason": "maintenance", "voluntary": True}])
    wait_replaced(site, "job-master-0", before["job-master-0"])
    wait_settled(site, "job", 2)
    status = site.status("job")
    assert ({"a": 1, "b": 2}, 1) == (status["handledRequests"], status["voluntaryRestarts"])


def _ask(site: Site, requests: list[Json]) -> None:
    site.kube.api.patch(f"{JOBS.format(site.namespace)}/job/status", {"status": {"requests": requests}})


@pytest.fixture
def led(site: Site, tmp_path: Path) -> Iterator[Controller]:
    """A controller whose control plane is in the test's namespace."""
    flags = ("--no-leader-elect", "--plane-service", f"{site.namespace}/{PLANE}")
    made = Controller(site.kube.kubeconfig, site.namespace, tmp_path / "log", *flags).start()
    yield made
    assert 0 == made.stop()


def test_new_pods_are_told_where_the_control_plane_is_now(
    kube: Cluster, site: Site, led: Controller, nodes: Nodes, volcano: VolcanoStandIn
) -> None:
    """Its name at first; its address once it has one; another address after it was made anew."""
    nodes.add(1)
    site.submit(small())
    wait_running(site, "job")
    assert site.env("job-worker-0")["MINDX_SERVER_IP"].startswith(f"{PLANE}.{site.namespace}.svc")
    for _ in range(2):
        kube.api.delete(f"{SERVICES.format(site.namespace)}/{PLANE}")
        body = {"metadata": {"name": PLANE}, "spec": {"ports": [{"port": 8899}]}}
        address = kube.api.create(SERVICES.format(site.namespace), body)["spec"]["clusterIP"]
        _wait_told(site, address)


def _wait_told(site: Site, address: str) -> None:
    """Replace a pod until the new one is told this address; the watch may be behind at first."""

    def told() -> bool:
        before = uid(site, "job-worker-0")
        delete_pod(site, "job-worker-0")
        wait_replaced(site, "job-worker-0", before)
        return bool(address == site.env("job-worker-0")["MINDX_SERVER_IP"])

    until(told)


def test_who_insists_on_gang_scheduling_gets_no_job_without(own_kube: ControlPlane, tmp_path: Path) -> None:
    """The controller waits for Volcano's PodGroup, and says so."""
    own_kube.apply_yaml((ROOT / "deploy" / "crd" / "ascendjobs.yaml").read_text())
    Nodes(own_kube).add(1)
    with own_kube.namespace() as namespace:
        site = Site(own_kube, namespace)
        log = tmp_path / "log"
        flags = ("--no-leader-elect", "--gang", "on", "--discovery-s", "0.3")
        controller = Controller(own_kube.kubeconfig, namespace, log, *flags).start(leads=False)
        try:
            site.submit(small())
            until(lambda: log.read_text().count("gang is on, and the cluster has no PodGroup") > 1)
            assert {} == site.pods()
            install_crds(own_kube)
            with VolcanoStandIn(own_kube):
                wait_running(site, "job", 60)
            assert 1 == len(site.groups())
        finally:
            assert 0 == controller.stop()
