"""Installing, upgrading and removing on a real API server, and the rights that come with it."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskd.testing.kube import ApiError, Cluster, User
from tests.deploy.conftest import control_plane
from tests.deploy.rights import GRANTED, GRANTED_AT_HOME
from tests.deploy.support import BASE, CHART, CRD, JOBS, SAMPLE, load, wait_until_served

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

NAMESPACE = "taskd-system"
DEFINITION = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/ascendjobs.mindxdl.gitee.com"
DEPLOYMENT = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/taskd-controller"

# What every service account may ask about itself.
EVERYBODY = {"selfsubjectaccessreviews", "selfsubjectrulesreviews", "selfsubjectreviews"}
VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")


class Helm:
    """Helm, talking to one cluster."""

    def __init__(self, program: Path, cluster: Cluster) -> None:
        self._program, self._cluster = program, cluster

    def __call__(self, *arguments: str) -> str:
        done = self.attempt(*arguments)
        assert 0 == done.returncode, done.stderr
        return done.stdout

    def attempt(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        home = str(self._cluster.directory)
        return subprocess.run(
            [self._program, *arguments, "--namespace", NAMESPACE],
            env={"PATH": "/usr/bin:/bin", "HOME": home, "KUBECONFIG": str(self._cluster.kubeconfig)},
            check=False,
            capture_output=True,
            text=True,
            timeout=90,
        )


@pytest.fixture(scope="module")
def kustomized() -> Iterator[Cluster]:
    """Everything is installed by the command of the guide; tests here look and change nothing."""
    with control_plane() as plane:
        plane.kubectl("apply", "--server-side", "-k", str(BASE))
        wait_until_served(plane)
        yield plane
        plane.api.close()


@pytest.fixture(scope="module")
def controller(kustomized: Cluster) -> User:
    """The controller's own account, with its rights and no others."""
    return kustomized.service_account(NAMESPACE, "taskd-controller")


@pytest.fixture
def empty(empty_cluster: Cluster, helm: Path) -> Iterator[Cluster]:
    """Nothing of ours is there; whatever a test installs is gone before the next one begins."""
    yield empty_cluster
    Helm(helm, empty_cluster).attempt("uninstall", "taskd")
    empty_cluster.kubectl("delete", "-f", str(CRD), "--ignore-not-found")


def test_kustomize_installs_and_installs_again(kustomized: Cluster) -> None:
    """A second apply finds everything as it is; client-side apply works as well."""
    before = kustomized.api.get(DEPLOYMENT)["metadata"]["generation"]

    kustomized.kubectl("apply", "--server-side", "-k", str(BASE))

    assert before == kustomized.api.get(DEPLOYMENT)["metadata"]["generation"]
    assert "serverside-applied" not in kustomized.kubectl("apply", "-k", str(BASE))


def test_helm_installs_upgrades_and_leaves_the_jobs(empty: Cluster, helm: Path) -> None:
    """After `helm uninstall` the definition and the jobs are still there, and Helm can come back to them."""
    run = Helm(helm, empty)
    run("install", "taskd", str(CHART), "--create-namespace")
    wait_until_served(empty)
    empty.kubectl("apply", "-f", str(SAMPLE))
    job = empty.api.get(f"{JOBS.format('default')}/default-test-pytorch")

    run("upgrade", "taskd", str(CHART), "--set", "replicas=3")
    assert 3 == empty.api.get(DEPLOYMENT)["spec"]["replicas"]
    run("uninstall", "taskd")

    assert None is empty.api.find(DEPLOYMENT)
    assert job == empty.api.get(f"{JOBS.format('default')}/default-test-pytorch")
    run("install", "taskd", str(CHART))
    assert job == empty.api.get(f"{JOBS.format('default')}/default-test-pytorch")


def test_an_upgrade_updates_the_definition(empty: Cluster, helm: Path) -> None:
    """What Helm does not do for a chart's crds/ directory."""
    run = Helm(helm, empty)
    run("install", "taskd", str(CHART), "--create-namespace")
    old = {"spec": {"names": {"shortNames": ["outdated"]}}}
    empty.api.patch(DEFINITION, old)

    run("upgrade", "taskd", str(CHART))

    assert ["acjob"] == empty.api.get(DEFINITION)["spec"]["names"]["shortNames"]


def test_a_definition_that_is_there_is_not_taken_silently(empty: Cluster, helm: Path) -> None:
    """Helm refuses what somebody else made, and both ways of the guide work."""
    empty.kubectl("apply", "-f", str(CRD))
    run = Helm(helm, empty)

    refused = run.attempt("install", "taskd", str(CHART), "--create-namespace")
    assert 0 != refused.returncode
    assert "ascendjobs.mindxdl.gitee.com" in refused.stderr

    run("install", "taskd", str(CHART), "--create-namespace", "--set", "crd.install=false")
    run("uninstall", "taskd")
    run("install", "taskd", str(CHART), "--take-ownership")
    empty.kubectl("apply", "--server-side", "--force-conflicts", "-k", str(CRD.parent))


def test_the_controller_fits_the_strictest_pod_security(kustomized: Cluster) -> None:
    """Its namespace enforces `restricted`, and a pod of the Deployment is admitted there."""
    kustomized.wait(
        lambda: kustomized.api.find(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/taskd-controller")
    )
    template = kustomized.api.get(DEPLOYMENT)["spec"]["template"]
    pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe"}, "spec": template["spec"]}

    kustomized.api.request("POST", pods, pod, query={"dryRun": "All", "fieldValidation": "Strict"})

    # The check is alive: the same pod as root is refused.
    root = {**pod, "spec": {**pod["spec"], "securityContext": {"runAsUser": 0}}}
    with pytest.raises(ApiError, match="violates PodSecurity"):
        kustomized.api.request("POST", pods, root, query={"dryRun": "All"})


@pytest.mark.parametrize(
    ("namespace", "granted"),
    [("default", GRANTED), (NAMESPACE, GRANTED_AT_HOME)],
    ids=["any namespace", "its own namespace"],
)
def test_the_rights_are_those_of_the_table_and_no_others(
    controller: User, kustomized: Cluster, namespace: str, granted: dict[str, set[str]]
) -> None:
    """Every verb on every kind of object that the cluster knows is asked about."""
    allowed: dict[str, set[str]] = {}
    for group, resource, namespaced in every_resource(kustomized):
        kind, _, subresource = resource.partition("/")
        name = ".".join(filter(None, (kind, group))) + (f"/{subresource}" if subresource else "")
        for verb in VERBS:
            attributes = {"verb": verb, "group": group, "resource": kind, "subresource": subresource}
            if namespaced:
                attributes["namespace"] = namespace
            if may(kustomized, controller, attributes):
                allowed.setdefault(name, set()).add(verb)

    assert granted == {
        name: verbs for name, verbs in allowed.items() if name.partition(".")[0] not in EVERYBODY
    }


def test_only_its_own_lease_can_be_taken_over(controller: User, kustomized: Cluster) -> None:
    """The rights on leases are bound to the name, beside creating one."""

    def lease(verb: str, name: str, namespace: str) -> bool:
        attributes = {"verb": verb, "group": "coordination.k8s.io", "resource": "leases", "name": name}
        return may(kustomized, controller, {**attributes, "namespace": namespace})

    for verb in ("get", "update"):
        assert lease(verb, "taskd-controller", NAMESPACE)
        assert not lease(verb, "another", NAMESPACE)
        assert not lease(verb, "taskd-controller", "kube-system")
    for verb in ("patch", "delete"):
        assert not lease(verb, "taskd-controller", NAMESPACE)


def test_the_namespace_that_is_named_is_the_only_one(empty: Cluster, helm: Path) -> None:
    """With `namespace` set the account can make pods there and nowhere else."""
    with empty.namespace("team") as team:
        Helm(helm, empty)("install", "taskd", str(CHART), "--create-namespace", "--set", f"namespace={team}")
        user = empty.service_account(NAMESPACE, "taskd-controller")

        def may_make_pods(namespace: str) -> bool:
            return may(empty, user, {"verb": "create", "resource": "pods", "namespace": namespace})

        assert may_make_pods(team)
        assert not may_make_pods("default")
        assert not may_make_pods(NAMESPACE)


def test_every_document_of_the_base_is_valid_for_the_server(kustomized: Cluster) -> None:
    """Strictly: no field that this version of Kubernetes does not know."""
    text = (BASE / "taskd.yaml").read_text("utf-8")

    said = kustomized.kubectl(
        *("apply", "--dry-run=server", "--validate=strict", "--server-side", "--force-conflicts", "-f", "-"),
        stdin=text,
    )

    assert len(load(text)) == said.count("serverside-applied (server dry run)")


def may(cluster: Cluster, user: User, attributes: dict[str, str]) -> bool:
    """Ask the API server whether this user may do that."""
    review = cluster.api.create(
        "/apis/authorization.k8s.io/v1/subjectaccessreviews",
        {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": user.name,
                "groups": [
                    "system:serviceaccounts",
                    f"system:serviceaccounts:{NAMESPACE}",
                    "system:authenticated",
                ],
                "resourceAttributes": attributes,
            },
        },
    )
    return bool(review["status"]["allowed"])


def every_resource(cluster: Cluster) -> Iterator[tuple[str, str, bool]]:
    """Return group, name and whether it is namespaced of everything that the API server serves."""
    named = cluster.api.get("/apis")["groups"]
    groups = [(group["name"], f"/apis/{group['preferredVersion']['groupVersion']}") for group in named]
    groups.append(("", "/api/v1"))
    for group, path in groups:
        for resource in cluster.api.get(path)["resources"]:
            yield group, resource["name"], resource["namespaced"]
    # Not served, here or anywhere; rights can be given on them all the same.
    yield "mindxdl.gitee.com", "ascendjobs/finalizers", True
    yield "scheduling.volcano.sh", "podgroups", True
    yield "scheduling.volcano.sh", "queues", False
