"""The controller, started as the Deployment starts it, under exactly the account that is installed."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from taskd.testing.kube import Cluster, Kubelets, Nodes, User, VolcanoStandIn, install_crds
from tests.deploy.conftest import control_plane
from tests.deploy.rights import GRANTED, GRANTED_AT_HOME
from tests.deploy.support import BASE, EXAMPLES, load, wait_until_served
from tests.kube.operator.site import Site, until
from tests.kube.operator.town import NPU, job

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

NAMESPACE = "taskd-system"
DEPLOYMENT = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/taskd-controller"

# What is granted and not seen in the log of requests, and why it is needed all the same.
NOT_SEEN = {
    ("services", "create"): "the server asks for it when an object is applied that is not there yet",
    ("podgroups", "create"): "the same",
    ("ascendjobs/finalizers", "update"): "asked for by a plug-in of the server that is off here",
    ("events", "patch"): "counts repetitions of an event, which a healthy controller does not have",
}


@pytest.fixture
def installed() -> Iterator[Cluster]:
    """A cluster with nodes and Volcano, and everything of ours installed."""
    with control_plane(audit=True) as plane:
        install_crds(plane)
        plane.kubectl("apply", "--server-side", "-k", str(BASE))
        wait_until_served(plane)
        with Kubelets(plane), VolcanoStandIn(plane):
            yield plane
        plane.api.close()


@pytest.fixture
def account(installed: Cluster) -> User:
    """The controller's own account."""
    return installed.service_account(NAMESPACE, "taskd-controller")


@pytest.fixture
def log(installed: Cluster, account: User, tmp_path: Path) -> Iterator[Path]:
    """A controller that runs with the arguments of the Deployment; returns its log."""
    path = tmp_path / "controller.log"
    process = start(installed, account, path)
    until(lambda: '"synced"' in path.read_text() or process.poll() is not None, 30, path.read_text)
    yield path
    process.terminate()
    assert 0 == process.wait(15), path.read_text()


def start(cluster: Cluster, account: User, log: Path) -> "subprocess.Popen[bytes]":
    (container,) = cluster.api.get(DEPLOYMENT)["spec"]["template"]["spec"]["containers"]
    assert ["taskd", "controller"] == container["command"]
    arguments = [argument.replace("$(POD_NAMESPACE)", NAMESPACE) for argument in container["args"]]
    # Where the account's token is, and a port that is free here: the only differences from the pod.
    arguments += ["--kubeconfig", str(account.kubeconfig), "--listen", "127.0.0.1:0"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with log.open("ab") as stream:
        return subprocess.Popen(
            [sys.executable, "-m", "taskd.cli.main", "controller", *arguments], stderr=stream, env=environment
        )


def test_the_controller_needs_all_of_its_rights_and_no_others(
    installed: Cluster, account: User, log: Path
) -> None:
    """Through the life of jobs no request is refused, and every right that is granted is used."""
    nodes = Nodes(installed)
    nodes.add(4)
    with installed.namespace() as namespace:
        live_through_everything(Site(installed, namespace), nodes)

        asked = installed.audit.requests(user=account.name)

    assert [] == [request for request in asked if request.code in (401, 403)], log.read_text()
    used = {(subresource_of(request), request.verb) for request in asked if request.resource}
    assert set() == used - granted(), "used and not granted"
    assert set() == granted() - used - NOT_SEEN.keys(), "granted and not used"


def live_through_everything(site: Site, nodes: Nodes) -> None:
    """Jobs that run, fail, are retried, lose a node, are switched, end well and are deleted."""
    namespace = site.namespace
    told = {"recover-strategy": "recover", "taskd.io/rank-table": "configmap"}
    retried: dict[str, Any] = {"labels": {"fault-retry-times": "5"}, "annotations": told, "devices": {NPU: 8}}

    site.submit(job("long", **retried))
    site.wait_state("long", "Running", limit_s=40)
    # A pod fails, and is deleted and made anew.
    nodes.exit(namespace, "long-worker-0", 1)
    until(lambda: site.status("long").get("restarts") == 1, 30, lambda: str(site.status("long")))
    site.wait_state("long", "Running", limit_s=40)
    # A node is taken out of the cluster with a pod on it.
    nodes.remove(site.pod("long-worker-0")["spec"]["nodeName"])
    until(lambda: site.status("long").get("restarts") == 2, 40, lambda: str(site.status("long")))
    site.wait_state("long", "Running", limit_s=40)
    # A pod is to be switched: a second one stands by, and both are annotated.
    wish = {"inHotSwitchFlow": "true", "needOperatorOpe": "create"}
    path = f"/api/v1/namespaces/{namespace}/pods/long-worker-0"
    site.kube.api.patch(path, {"metadata": {"annotations": wish}})
    until(lambda: "backupNewPodName" in site.pod("long-worker-0")["metadata"]["annotations"], 30)

    # Somebody else's pod has the name of ours.
    site.kube.api.create(
        f"/api/v1/namespaces/{namespace}/pods",
        {"metadata": {"name": "taken-worker-0"}, "spec": {"containers": [{"name": "a", "image": "none"}]}},
    )
    site.submit(job("taken"))
    site.wait_state("taken", "Created", "PodCreateFailed", limit_s=40)

    # A job ends well and is deleted when its time has come.
    site.submit(job("short", policy={"ttlSecondsAfterFinished": 1}))
    site.wait_state("short", "Running", limit_s=40)
    for pod in ("short-master-0", "short-worker-0"):
        nodes.succeed(namespace, pod)
    jobs = f"/apis/mindxdl.gitee.com/v1/namespaces/{namespace}/ascendjobs"
    until(lambda: site.kube.api.find(f"{jobs}/short") is None, 40)


def test_without_a_right_the_controller_says_what_is_missing(
    installed: Cluster, account: User, log: Path
) -> None:
    """A role that was cut too far shows in the job, in the server's own words, and mending it is enough."""
    role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/taskd-controller"
    rules = installed.api.get(role)["rules"]
    installed.api.patch(role, {"rules": [rule for rule in rules if rule["resources"] != ["pods"]]})
    with installed.namespace() as namespace:
        site = Site(installed, namespace)
        Nodes(installed).add(1)
        site.submit(job("poor"))

        message = site.wait_state("poor", "Created", "PodCreateFailed", limit_s=40)["message"]
        assert 'cannot create resource "pods"' in message

        installed.api.patch(role, {"rules": rules})
        site.wait_state("poor", "Running", limit_s=60)


def test_every_sample_runs_unchanged(installed: Cluster, log: Path) -> None:
    """Applied with kubectl as it is, each becomes Running with all of its pods and without a warning."""
    nodes = Nodes(installed)
    nodes.add(8, labels={"example-key": "example-value"})
    nodes.add(4, capacity={"nvidia.com/gpu": 8})
    with installed.namespace() as namespace:
        site = Site(installed, namespace)
        for path in EXAMPLES:
            (sent,) = load(path.read_text("utf-8"))
            name = sent["metadata"]["name"]
            installed.kubectl("apply", "-n", namespace, "-f", str(path))

            site.wait_state(name, "Running", limit_s=40)

            roles = sent["spec"]["replicaSpecs"]
            wanted = {f"{name}-{role.lower()}-{i}" for role in roles for i in range(roles[role]["replicas"])}
            assert wanted == site.pods(name).keys()
            assert sent["spec"] == site.job(name)["spec"]
            assert [] == [event for event in site.events(name) if event[0] == "Warning"]
            site.delete(name)
            # The next one needs the room.
            site.wait_pods(name, 0, limit_s=40)
    assert "look_broke" not in log.read_text()


def granted() -> set[tuple[str, str]]:
    """Return the table of rights as pairs of a resource, without its group, and a verb."""
    pairs = {(short(resource), verb) for resource, verbs in GRANTED.items() for verb in verbs}
    pairs |= {("leases", verb) for verb in ("get", "update")}
    return pairs | {("leases", verb) for verb in GRANTED_AT_HOME["leases.coordination.k8s.io"]}


def short(resource: str) -> str:
    kind, _, subresource = resource.partition("/")
    return "/".join(filter(None, (kind.partition(".")[0], subresource)))


def subresource_of(request: Any) -> str:
    return "/".join(filter(None, (request.resource, request.subresource)))
