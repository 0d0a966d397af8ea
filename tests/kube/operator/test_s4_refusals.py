"""What the API server refuses becomes the job's condition, in its words; when the cause goes, the job runs.

Every refusal here is the API server's own: by quota, by missing rights, by its check of a pod, or because a
name is taken.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from taskd.testing.kube import Cluster, Nodes, VolcanoStandIn
from tests.kube.operator.rights import rules
from tests.kube.operator.site import Controller, Json, Site, until
from tests.kube.operator.town import job


@pytest.fixture(autouse=True)
def room(nodes: Nodes, volcano: VolcanoStandIn) -> None:
    """A node for all."""
    nodes.add(1)


@pytest.fixture
def patient(site: Site, tmp_path: Path) -> Iterator[Controller]:
    """A controller that comes back to what was refused."""
    process = Controller(site.kube.kubeconfig, site.namespace, tmp_path / "log", "--lease-s", "60").start()
    yield process
    assert 0 == process.stop(), process.log.read_text()


def quota(site: Site, **hard: str) -> str:
    """Limit the namespace, and wait until the limit is in force; returns its path."""
    path = f"/api/v1/namespaces/{site.namespace}/resourcequotas/limit"
    amounts = {name.replace("__", "/").replace("_", "."): amount for name, amount in hard.items()}
    site.kube.api.apply(
        path,
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "limit"},
            "spec": {"hard": amounts},
        },
    )
    until(lambda: amounts == (site.kube.api.get(path).get("status") or {}).get("hard"))
    return path


def test_s4_40_a_refused_pod_group(kube: Cluster, site: Site, tmp_path: Path) -> None:
    """Without the right to make PodGroups the job says SyncPodGroupFailed and has no pods."""
    granted = [*rules(), {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["*"]}]
    without = [
        {**rule, "verbs": [verb for verb in rule["verbs"] if verb not in {"create", "patch"}]}
        if "podgroups" in rule["resources"]
        else rule
        for rule in granted
    ]
    user = kube.add_user("no-groups", rules=without)
    controller = Controller(user.kubeconfig, site.namespace, tmp_path / "log", "--lease-s", "60").start()
    name = site.submit(job("groupless"))
    last = site.wait_state(name, "Created", "SyncPodGroupFailed")

    assert last["message"].startswith("unable to create PodGroup: podgroups.scheduling.volcano.sh ")
    assert 'User "system:serviceaccount:taskd-users:no-groups" cannot' in last["message"]
    assert {} == site.pods(name)
    assert ("Warning", "SyncPodGroupFailed") in until(
        lambda: [event[:2] for event in site.events(name) if event[1] == "SyncPodGroupFailed"]
    )

    kube.add_user("no-groups", rules=granted)
    site.wait_state(name, "Running")
    assert 0 == controller.stop()


def test_s4_40_a_pod_group_beyond_the_quota(site: Site, patient: Controller) -> None:
    """An amount that is none cannot become a group either; the quota's own words are in the message."""
    path = quota(site, **{"count__podgroups.scheduling.volcano.sh": "0"})
    name = site.submit(job("one-too-many"))
    last = site.wait_state(name, "Created", "SyncPodGroupFailed")

    assert "exceeded quota: limit" in last["message"]
    assert [] == site.groups()
    site.kube.api.delete(path)
    site.wait_state(name, "Running")


def test_s4_43_a_refused_service(site: Site, patient: Controller) -> None:
    """A namespace that may have no Services: the job says SyncServiceFailed and has no pods."""
    path = quota(site, services="0")
    name = site.submit(job("addressless"))
    last = site.wait_state(name, "Created", "SyncServiceFailed")

    assert last["message"].startswith(
        'unable to sync Service addressless-master-0: services "addressless-master-0"'
    )
    assert "exceeded quota: limit" in last["message"]
    assert {} == site.pods(name)

    site.kube.api.delete(path)
    site.wait_state(name, "Running")


def test_s4_43_a_service_that_is_somebody_elses(site: Site, patient: Controller) -> None:
    """It is left exactly as it is, and the job says whose fault it is; once it is gone the job runs."""
    path = f"/api/v1/namespaces/{site.namespace}/services"
    other = site.kube.api.create(
        path,
        {
            "metadata": {"name": "taken-master-0"},
            "spec": {"selector": {"app": "shop"}, "ports": [{"name": "web", "port": 80}]},
        },
    )
    name = site.submit(job("taken"))
    last = site.wait_state(name, "Created", "SyncServiceFailed")

    assert "taken-master-0" in last["message"]
    assert other["spec"] == site.services()["taken-master-0"]["spec"]
    assert "ownerReferences" not in site.services()["taken-master-0"]["metadata"]
    assert {} == site.pods(name)

    site.kube.api.delete(f"{path}/taken-master-0")
    site.wait_state(name, "Running")


def test_s4_44_pods_beyond_the_quota(site: Site, patient: Controller) -> None:
    """One pod may be there: the job says PodCreateFailed, and the others come when the quota is gone."""
    path = quota(site, pods="1")
    name = site.submit(job("squeezed", workers=2))
    last = site.wait_state(name, "Created", "PodCreateFailed")

    assert last["message"].startswith("failed to create pods of type<Worker>: ")
    assert "exceeded quota: limit" in last["message"]
    assert ["squeezed-master-0"] == list(site.pods(name))

    site.kube.api.delete(path)
    site.wait_state(name, "Running")
    assert 0 == site.status(name)["restarts"]


def test_s4_44_a_pod_that_is_none(site: Site, patient: Controller) -> None:
    """A template that the API server refuses is told with the path of the field, and can be mended."""
    pattern = job("misshapen")
    container = pattern["spec"]["replicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    container["volumeMounts"] = [{"name": "nowhere", "mountPath": "/data"}]
    name = site.submit(pattern)
    last = site.wait_state(name, "Created", "PodCreateFailed")

    assert last["message"].startswith(
        'failed to create pods of type<Worker>: Pod "misshapen-worker-0" is invalid: '
    )
    assert 'spec.containers[0].volumeMounts[0].name: Not found: "nowhere"' in last["message"]

    del container["volumeMounts"]
    site.submit(pattern)
    site.wait_state(name, "Running")


def test_s4_44_a_pod_name_that_is_taken(site: Site, patient: Controller, nodes: Nodes) -> None:
    """Somebody else's pod is neither adopted nor removed; when it goes, the job gets its place."""
    path = f"/api/v1/namespaces/{site.namespace}/pods"
    other: Json = {
        "metadata": {"name": "doubled-worker-0", "labels": {"job-name": "doubled"}},
        "spec": {"nodeName": nodes.names[0], "containers": [{"name": "ascend", "image": "none"}]},
    }
    uid = site.kube.api.create(path, other)["metadata"]["uid"]
    name = site.submit(job("doubled"))
    last = site.wait_state(name, "Created", "PodCreateFailed")

    assert last["message"].endswith("pod doubled-worker-0 exists already and belongs to somebody else")
    found = site.pod("doubled-worker-0")["metadata"]
    assert (uid, None) == (found["uid"], found.get("ownerReferences"))

    site.kube.api.delete(f"{path}/doubled-worker-0", grace_s=0)
    site.wait_state(name, "Running")


def test_s4_31_s4_44_what_was_refused_is_gone_from_the_state_once_it_is_done(
    site: Site, patient: Controller
) -> None:
    """Created keeps being true, for its own reason again, and the newest condition is what is so now."""
    path = quota(site, pods="0")
    name = site.submit(job("recovering"))
    site.wait_state(name, "Created", "PodCreateFailed")
    site.kube.api.delete(path)
    site.wait_state(name, "Running")

    told = [(c["type"], c["status"], c["reason"]) for c in site.status(name)["conditions"]]
    assert [("Created", "True", "JobCreated"), ("Running", "True", "JobRunning")] == told
    assert "exceeded quota" not in str(site.status(name))


def test_s4_43_s4_26_an_address_that_is_taken(site: Site, patient: Controller) -> None:
    """Pods know the address of their leader, so its Service comes back with that one or says why not."""
    name = site.submit(job("robbed"))
    site.wait_state(name, "Running")
    path = f"/api/v1/namespaces/{site.namespace}/services"
    address = site.services()["robbed-master-0"]["spec"]["clusterIP"]
    pods = {pod: content["metadata"]["uid"] for pod, content in site.pods(name).items()}
    with patient.frozen():
        site.kube.api.delete(f"{path}/robbed-master-0")
        thief = {"metadata": {"name": "thief"}, "spec": {"clusterIP": address, "ports": [{"port": 80}]}}
        site.kube.api.create(path, thief)
    last = site.wait_state(name, "Created", "SyncServiceFailed")

    assert "provided IP is already allocated" in last["message"]

    site.kube.api.delete(f"{path}/thief")
    site.wait_state(name, "Running")
    assert address == site.services()["robbed-master-0"]["spec"]["clusterIP"]
    assert pods == {pod: content["metadata"]["uid"] for pod, content in site.pods(name).items()}
