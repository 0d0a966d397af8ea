"""The controller, started as the Deployment starts it, under exactly the account that is installed."""

import time
from pathlib import Path
from typing import Any

import pytest

from taskd.testing.kube import Cluster, Nodes, User
from tests.deploy.conftest import start
from tests.deploy.rights import GRANTED, GRANTED_AT_HOME
from tests.deploy.support import EXAMPLES, load
from tests.kube.operator.site import Site, until
from tests.kube.operator.town import NPU, job
from tools import manifests

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

# What is granted and not seen in the log of requests, and why it is needed all the same.
NOT_SEEN = {
    ("podgroups", "create"): "the server asks for it when an object is applied that is not there yet",
    ("ascendjobs/finalizers", "update"): "asked for by a plug-in of the server that is off here",
}
SELDOM_SEEN = {
    ("events", "patch"): "counts repetitions of an event, which a healthy controller does not have",
}


# What a job says when it may not have one of its objects.
REASONS = {
    "podgroups": "SyncPodGroupFailed",
    "services": "SyncServiceFailed",
    "pods": "PodCreateFailed",
}


def test_the_controller_needs_all_of_its_rights_and_no_others(
    installed: Cluster, account: User, log: Path
) -> None:
    """Through the life of jobs no request is refused, and every right that is granted is used."""
    nodes = Nodes(installed)
    nodes.add(4)
    with installed.namespace() as namespace:
        live_through_everything(Site(installed, namespace), nodes)
        # A quick machine is done with all that before the lease has to be renewed.
        until(lambda: ("leases", "update") in used_by(installed, account), 40)
        asked = installed.audit.requests(user=account.name)

    assert [] == [request for request in asked if request.code in (401, 403)], log.read_text()
    used = used_by(installed, account)
    assert set() == used - granted(), "used and not granted"
    assert set() == granted() - used - NOT_SEEN.keys() - SELDOM_SEEN.keys(), "granted and not used"
    assert set() == used & NOT_SEEN.keys(), "needs no excuse any more"


def used_by(installed: Cluster, account: User) -> set[tuple[str, str]]:
    """The rights that the account has made use of."""
    asked = installed.audit.requests(user=account.name)
    return {(subresource_of(request), request.verb) for request in asked if request.resource}


def live_through_everything(site: Site, nodes: Nodes) -> None:
    """Jobs that run, fail, are retried, lose a node, are switched, are mistaken, end well and are deleted."""
    namespace = site.namespace
    told = {"recover-strategy": "recover", "taskd.io/rank-table": "configmap"}
    retried: dict[str, Any] = {"labels": {"fault-retry-times": "5"}, "annotations": told, "devices": {NPU: 8}}

    site.submit(job("long", **retried))
    wait_whole(site, "long", 0)
    # A pod fails, and is deleted and made anew.
    nodes.exit(namespace, "long-worker-0", 1)
    pods = wait_whole(site, "long", 1)
    # A node is taken out of the cluster with a pod on it.
    nodes.remove(pods["long-worker-0"]["spec"]["nodeName"])
    wait_whole(site, "long", 2)
    # A pod is to be switched: a second one stands by, and both are annotated.
    wish = {"inHotSwitchFlow": "true", "needOperatorOpe": "create"}
    path = f"/api/v1/namespaces/{namespace}/pods/long-worker-0"
    site.kube.api.patch(path, {"metadata": {"annotations": wish}})
    until(lambda: "backupNewPodName" in site.pod("long-worker-0")["metadata"]["annotations"], 40)

    # Somebody else's pod has the name of ours.
    site.kube.api.create(
        f"/api/v1/namespaces/{namespace}/pods",
        {"metadata": {"name": "taken-worker-0"}, "spec": {"containers": [{"name": "a", "image": "none"}]}},
    )
    site.submit(job("taken"))
    site.wait_state("taken", "Created", "PodCreateFailed", limit_s=40)

    # A job names a queue that there is not.
    site.submit(job("unqueued", policy={"schedulingPolicy": {"queue": "nowhere"}}))
    site.wait_state("unqueued", "Failed", "JobValidFailed", limit_s=40)

    # A job ends well; its group and the leader's Service go.
    site.submit(job("done"))
    site.wait_state("done", "Running", limit_s=40)
    for pod in ("done-master-0", "done-worker-0"):
        nodes.succeed(namespace, pod)
    site.wait_state("done", "Succeeded", limit_s=40)
    until(lambda: not [group for group in site.groups() if group["metadata"]["name"].startswith("done-")], 40)
    until(lambda: "done-master-0" not in site.services(), 40)

    # A job ends well and is deleted when its time has come.
    site.submit(job("short", policy={"ttlSecondsAfterFinished": 1}))
    site.wait_state("short", "Running", limit_s=40)
    for pod in ("short-master-0", "short-worker-0"):
        nodes.succeed(namespace, pod)
    jobs = f"/apis/mindxdl.gitee.com/v1/namespaces/{namespace}/ascendjobs"
    until(lambda: site.kube.api.find(f"{jobs}/short") is None, 40)


def test_certificates_take_three_rights_on_secrets(
    installed: Cluster, account: User, helm: Path, tmp_path: Path
) -> None:
    """Made before the pods, looked at by name, mended where somebody spoilt one; and nothing is refused."""
    for name in ("mindx-dl", "cluster-system"):
        installed.api.create("/api/v1/namespaces", {"metadata": {"name": name}})
    chart = manifests.template("--set", "crd.install=false", "--set", "plane.enabled=true", program=str(helm))
    installed.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=chart)
    Nodes(installed).add(2)
    log = tmp_path / "controller.log"
    process = start(installed, account, log, "--plane-listen", "127.0.0.1:0")
    try:
        until(lambda: '"serving"' in log.read_text() or process.poll() is not None, 30, log.read_text)
        with installed.namespace() as namespace:
            site = Site(installed, namespace)
            site.submit(job("long"))
            site.wait_state("long", "Running", limit_s=40)
            path = f"/api/v1/namespaces/{namespace}/secrets/taskd-certificates-long"
            before = installed.api.get(path)["data"]["ca.crt"]
            installed.api.patch(path, {"data": {"ca.crt": ""}})

            def mended() -> bool:
                # It is looked at whenever pods are made, unless that was done a moment ago.
                for pod in site.pods("long"):
                    installed.api.delete(f"/api/v1/namespaces/{namespace}/pods/{pod}", grace_s=0)
                time.sleep(1)
                return bool(installed.api.get(path)["data"]["ca.crt"] == before)

            until(mended, 60, log.read_text)
            # A namespace that goes refuses everything.
            asked = installed.audit.requests(user=account.name)
    finally:
        process.terminate()
        assert 0 == process.wait(15), log.read_text()

    assert [] == [request for request in asked if request.code in (401, 403)], log.read_text()
    secrets = {(kind, verb) for kind, verb in used_by(installed, account) if kind == "secrets"}
    assert {("secrets", "get"), ("secrets", "create"), ("secrets", "patch")} == secrets


def wait_whole(site: Site, name: str, restarts: int) -> dict[str, Any]:
    """Wait until the job runs after so many restarts, with two pods that stay; returns them."""

    def there() -> dict[str, Any] | None:
        pods = site.pods(name)
        kept = [pod for pod in pods.values() if "deletionTimestamp" not in pod["metadata"]]
        running = [pod for pod in kept if pod["status"]["phase"] == "Running"]
        status = site.status(name)
        counted = status.get("restarts", 0) == restarts and status.get("stable")
        return pods if counted and len(pods) == len(running) == 2 else None

    return until(there, 60, lambda: f"{site.status(name)} {sorted(site.pods(name))}")


def test_s4_40_s4_43_s4_44_what_is_refused_is_told_and_tried_again(
    installed: Cluster, account: User, log: Path
) -> None:
    """A right that is taken away shows in the job, in the server's own words; giving it back is enough."""
    role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/taskd-controller"
    rules = installed.api.get(role)["rules"]
    Nodes(installed).add(2)
    with installed.namespace() as namespace:
        site = Site(installed, namespace)
        for resource, reason in REASONS.items():
            name = f"without-{resource}"
            installed.api.patch(role, {"rules": [without_writes(rule, resource) for rule in rules]})
            site.submit(job(name))

            message = site.wait_state(name, "Created", reason, limit_s=40)["message"]
            assert f'resource "{resource}"' in message

            installed.api.patch(role, {"rules": rules})
            site.wait_state(name, "Running", limit_s=60)
    assert "look_broke" not in log.read_text()


def without_writes(rule: dict[str, Any], resource: str) -> dict[str, Any]:
    """Return the rule, without what changes objects of this kind."""
    if rule["resources"] != [resource]:
        return rule
    return {**rule, "verbs": [verb for verb in rule["verbs"] if verb in ("get", "list", "watch")]}


def test_s4_3_every_sample_runs_unchanged(installed: Cluster, log: Path) -> None:
    """Applied with kubectl as it is, each becomes Running with all of its pods and without a warning.

    But for the one that mounts a rank table: as it is installed here, the controller has nowhere to write it.
    """
    nodes = Nodes(installed)
    nodes.add(24, labels={"example-key": "example-value"})
    nodes.add(4, capacity={"nvidia.com/gpu": 8})
    with installed.namespace() as namespace:
        site = Site(installed, namespace)
        for path in EXAMPLES:
            installed.kubectl("apply", "-n", namespace, "-f", str(path))
        for path in EXAMPLES:
            (sent,) = load(path.read_text("utf-8"))
            name = sent["metadata"]["name"]

            site.wait_state(name, "Running", limit_s=40)

            roles = sent["spec"]["replicaSpecs"]
            wanted = {f"{name}-{role.lower()}-{i}" for role in roles for i in range(roles[role]["replicas"])}
            ready = int(sent["metadata"].get("annotations", {}).get("taskd.io/standby-pods", "0"))
            wanted |= {f"{name}-standby-{i}" for i in range(ready)}
            wait_pods(site, name, wanted)
            assert sent["spec"] == site.job(name)["spec"]
            expected = {"RankTableNotWritten"} if "name: ranktable" in path.read_text("utf-8") else set()
            wait_warnings(site, name, expected)
    assert "look_broke" not in log.read_text()


def wait_pods(site: Site, name: str, wanted: set[str]) -> None:
    """Wait until the job has these pods, those that stand by included."""
    until(lambda: wanted == site.pods(name).keys(), 20, lambda: f"{name}: {sorted(site.pods(name))}")


def wait_warnings(site: Site, name: str, expected: set[str]) -> None:
    """Wait until the job has Warning events of these reasons, and of no others."""

    def told() -> set[str]:
        return {reason for kind, reason, _ in site.events(name) if kind == "Warning"}

    until(lambda: expected == told(), 20, lambda: f"{name}: {told()}")


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
