"""Jobs that are changed while they run, and templates that are strange but legal."""

from __future__ import annotations

import time

import pytest

from taskd.testing.kube import Cluster, Nodes, VolcanoStandIn
from tests.kube.operator.site import Controller, Json, Site, until
from tests.kube.operator.small import (
    PODS,
    delete_pod,
    small,
    true_states,
    uid,
    versions,
    wait_running,
    wait_settled,
    written,
)


def test_a_running_job_that_was_spoiled_keeps_its_pods_and_runs_on_when_mended(
    site: Site, controller: Controller, nodes: Nodes, volcano: VolcanoStandIn
) -> None:
    """An edit that makes no sense stops nothing; what was lost meanwhile comes back when it is mended."""
    nodes.add(1)
    site.submit(small())
    wait_running(site, "job")
    before = {name: uid(site, name) for name in site.pods("job")}
    site.patch("job", {"metadata": {"labels": {"framework": "caffe"}}})
    site.wait_state("job", "Failed", "JobValidFailed")
    assert {name: uid(site, name) for name in site.pods("job")} == before
    delete_pod(site, "job-worker-0")
    time.sleep(0.5)
    assert set(site.pods("job")) == {"job-master-0"}
    site.patch("job", {"metadata": {"labels": {"framework": "pytorch"}}})
    wait_settled(site, "job", 1)
    assert true_states(site, "job") == ["Running"]
    assert uid(site, "job-master-0") == before["job-master-0"]


def test_another_label_or_annotation_of_a_job_harms_nothing(
    kube: Cluster, site: Site, controller: Controller, nodes: Nodes, volcano: VolcanoStandIn
) -> None:
    """Only the PodGroup follows, which carries them."""
    nodes.add(1)
    site.submit(small())
    wait_running(site, "job")
    before = {name: uid(site, name) for name in site.pods("job")}
    time.sleep(0.7)
    mark = kube.audit.mark()
    site.patch("job", {"metadata": {"labels": {"team": "red"}, "annotations": {"note": "hello"}}})
    until(lambda: site.groups()[0]["metadata"]["labels"].get("team") == "red")
    time.sleep(0.7)
    assert {name: uid(site, name) for name in site.pods("job")} == before
    assert {entry[1] for entry in written(site, mark)} <= {"podgroups", "ascendjobs/status"}
    assert site.state("job") == "Running"


def test_a_label_that_is_changed_to_nonsense_is_told(
    site: Site, controller: Controller, nodes: Nodes, volcano: VolcanoStandIn
) -> None:
    """Labels do not count as a change of the spec, but their values mean something all the same."""
    nodes.add(1)
    site.submit(small(labels={"subHealthyStrategy": "what"}))
    wait_running(site, "job")
    site.patch("job", {"metadata": {"labels": {"tor-affinity": "nonsense"}}})
    until(lambda: "UnknownTorAffinity" in {reason for _, reason, _ in site.events("job")})
    assert ["UnknownLabelValue", "UnknownTorAffinity"] == sorted(
        reason for kind, reason, _ in site.events("job") if kind == "Warning"
    )


def test_a_port_that_a_job_has_no_longer_leaves_its_service(
    kube: Cluster, site: Site, controller: Controller, nodes: Nodes, volcano: VolcanoStandIn
) -> None:
    """However often its ports change; the address stays, and so does what somebody else has added."""
    nodes.add(1)
    path = f"/api/v1/namespaces/{site.namespace}/services/job-master-0"

    def port(number: int) -> Json:
        return {"ports": [{"name": "more", "containerPort": number}]}

    def ports() -> set[int]:
        return {entry["port"] for entry in kube.api.get(path)["spec"]["ports"]}

    site.submit(small(container=port(9000)))
    wait_running(site, "job")
    address = kube.api.get(path)["spec"]["clusterIP"]
    own = kube.api.get(path)["spec"]["ports"]
    foreign = {"name": "foreign", "port": 8080, "protocol": "TCP", "targetPort": 8080}
    kube.api.patch(path, {"metadata": {"labels": {"mine": "yes"}}, "spec": {"ports": [*own, foreign]}})
    for number in (9001, 9002):
        site.patch("job", {"spec": small(container=port(number))["spec"]})
        until(lambda number=number: number in ports())  # type: ignore[misc]
        assert {2222, number, 8080} == ports()
    service = kube.api.get(path)
    assert (address, "yes") == (service["spec"]["clusterIP"], service["metadata"]["labels"]["mine"])


def test_a_new_template_is_for_pods_to_come(
    site: Site, controller: Controller, nodes: Nodes, volcano: VolcanoStandIn
) -> None:
    """Pods that run are not disturbed by a new image; a pod that is replaced has it."""
    nodes.add(1)
    content = small()
    site.submit(content)
    wait_running(site, "job")
    (container,) = content["spec"]["replicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    container["image"] = "train:2"
    site.submit(content)
    until(lambda: site.status("job").get("observedGeneration") == 2)
    time.sleep(0.5)
    assert site.pod("job-worker-0")["spec"]["containers"][0]["image"] == "train:1"
    delete_pod(site, "job-worker-0")
    wait_settled(site, "job", 1)
    assert site.pod("job-worker-0")["spec"]["containers"][0]["image"] == "train:2"
    assert versions(site, "job") == {"job-master-0": 0, "job-worker-0": 1}


STRANGE: dict[str, Json] = {
    "several-containers": {
        "containers": [{"name": "logs", "image": "a:1"}, {"name": "ascend", "image": "a:1"}]
    },
    "init-and-sidecar": {
        "initContainers": [
            {"name": "fetch", "image": "a:1"},
            {"name": "side", "image": "a:1", "restartPolicy": "Always"},
        ]
    },
    "host-network": {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"},
    "own-hostname": {"hostname": "mine", "subdomain": "theirs"},
    "own-scheduler": {"schedulerName": "default-scheduler"},
    "huge-environment": {
        "containers": [
            {
                "name": "ascend",
                "image": "a:1",
                "env": [{"name": f"V{number}", "value": "x" * 200} for number in range(1000)],
            }
        ]
    },
}


@pytest.mark.timeout(180)
def test_strange_but_legal_templates_run(
    site: Site, controller: Controller, nodes: Nodes, volcano: VolcanoStandIn
) -> None:
    """Each becomes a job that runs, with the user's fields as they were."""
    nodes.add(2)
    for name, pod in STRANGE.items():
        site.submit(small(name, pod=pod))
    for name, pod in STRANGE.items():
        wait_running(site, name)
        found = site.pod(f"{name}-worker-0")["spec"]
        for field in set(pod) - {"containers", "initContainers"}:
            assert found[field] == pod[field], (name, field)
        for field in {"containers", "initContainers"} & set(pod):
            assert [entry["name"] for entry in found[field]] == [entry["name"] for entry in pod[field]]
    assert len(site.env("huge-environment-worker-0")) > 1000


def test_a_pod_with_a_finalizer_is_replaced_only_when_it_is_gone(
    kube: Cluster, site: Site, controller: Controller, nodes: Nodes, volcano: VolcanoStandIn
) -> None:
    """While somebody holds it, the slot is taken; the job says Restarting and nothing is refused."""
    nodes.add(1)
    site.submit(small())
    wait_running(site, "job")
    path = f"{PODS.format(site.namespace)}/job-worker-0"
    kube.api.patch(path, {"metadata": {"finalizers": ["example.com/hold"]}})
    mark = kube.audit.mark()
    delete_pod(site, "job-worker-0")
    site.wait_state("job", "Restarting")
    time.sleep(0.7)
    assert [entry for entry in written(site, mark) if entry[0] == "create" and entry[1] == "pods"] == []
    kube.api.patch(path, {"metadata": {"finalizers": None}})
    wait_settled(site, "job", 1)
    assert [entry for entry in written(site, mark) if entry[3] >= 400] == []
