"""What is not the job's own is left alone, and what was its own goes with it."""

from __future__ import annotations

import time

import pytest

from taskd.testing.kube import Cluster, Nodes, VolcanoStandIn
from tests.kube.operator.site import GROUPS, Controller, Json, Site, until
from tests.kube.operator.small import PODS, conditions, delete_pod, small, uid, wait_running, wait_settled

CORE = "/api/v1/namespaces/{}"


def _service(name: str) -> Json:
    ports = [{"name": "http", "port": 80}]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": {"app": "shop"}},
        "spec": {"selector": {"app": "shop"}, "ports": ports},
    }


def test_a_pod_of_somebody_else_is_neither_counted_nor_touched(
    kube: Cluster, site: Site, controller: Controller, nodes: Nodes, volcano: VolcanoStandIn
) -> None:
    """The job says whose name is in its way, and goes on when it is free."""
    nodes.add(1)
    kube.api.create(
        PODS.format(site.namespace),
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "job-worker-0"},
            "spec": {"containers": [{"name": "main", "image": "shop:1"}]},
        },
    )
    foreign = uid(site, "job-worker-0")
    site.submit(small())
    told = site.wait_state("job", "Created", "PodCreateFailed")
    assert told["message"].endswith("pod job-worker-0 exists already and belongs to somebody else")
    time.sleep(0.3)
    assert uid(site, "job-worker-0") == foreign
    delete_pod(site, "job-worker-0")
    wait_running(site, "job")
    assert site.status("job")["restarts"] == 0
    assert conditions(site, "job")["Created"]["reason"] == "JobCreated"


def test_a_service_of_somebody_else_is_not_taken_over(
    kube: Cluster, site: Site, controller: Controller, nodes: Nodes, volcano: VolcanoStandIn
) -> None:
    """Neither that with the leader's name nor that with the name of our headless one."""
    nodes.add(1)
    services = f"{CORE.format(site.namespace)}/services"
    made = {
        name: kube.api.create(services, _service(name))["metadata"]["resourceVersion"]
        for name in ("job-master-0", "acjob-pods")
    }
    site.submit(small())
    told = site.wait_state("job", "Created", "SyncServiceFailed")
    assert "job-master-0 belongs to somebody else" in told["message"]
    assert {name: site.services()[name]["metadata"]["resourceVersion"] for name in made} == made
    kube.api.delete(f"{services}/job-master-0")
    wait_running(site, "job")
    assert site.services()["acjob-pods"]["metadata"]["resourceVersion"] == made["acjob-pods"]
    assert conditions(site, "job")["Created"]["reason"] == "JobCreated"


def test_a_pod_group_of_somebody_else_is_in_the_way_and_says_so(
    kube: Cluster, site: Site, controller: Controller, nodes: Nodes, volcano: VolcanoStandIn
) -> None:
    """One that another controller manages is not changed; the job goes on when it is gone."""
    nodes.add(1)
    controller.stop()
    site.submit(small())
    name = f"job-{site.job('job')['metadata']['uid']}"
    settings = kube.api.create(f"{CORE.format(site.namespace)}/configmaps", {"metadata": {"name": "owner"}})[
        "metadata"
    ]
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": settings["uid"]}
    group = kube.api.create(
        GROUPS.format(site.namespace),
        {
            "apiVersion": "scheduling.volcano.sh/v1beta1",
            "kind": "PodGroup",
            "metadata": {"name": name, "ownerReferences": [{**owner, "controller": True}]},
            "spec": {"minMember": 7},
        },
    )
    controller.start()
    site.wait_state("job", "Created", "SyncPodGroupFailed")
    (found,) = site.groups()
    assert found["spec"]["minMember"] == 7
    assert found["metadata"]["uid"] == group["metadata"]["uid"]
    kube.api.delete(f"{GROUPS.format(site.namespace)}/{name}")
    wait_settled(site, "job", 0)


def test_a_config_map_that_a_user_made_is_used_as_it_is(
    kube: Cluster, site: Site, controller: Controller, nodes: Nodes, volcano: VolcanoStandIn
) -> None:
    """It is neither changed nor deleted with the job."""
    nodes.add(1)
    maps = f"{CORE.format(site.namespace)}/configmaps"
    body = {"metadata": {"name": "reset-config-job"}, "data": {"mine": "yes"}}
    made = kube.api.create(maps, body)["metadata"]
    site.submit(small(annotations={"recover-strategy": "recover"}))
    wait_running(site, "job")
    site.delete("job")
    until(lambda: not site.pods("job"))
    kept = kube.api.get(f"{maps}/reset-config-job")
    assert kept["data"] == {"mine": "yes"}
    assert kept["metadata"]["uid"] == made["uid"]
    assert not kept["metadata"].get("ownerReferences")


def test_a_job_made_again_at_once_waits_for_the_pods_of_its_predecessor(
    kube: Cluster, site: Site, controller: Controller, nodes: Nodes, volcano: VolcanoStandIn
) -> None:
    """Pods that take their time to end are not counted, not adopted and not killed."""
    nodes.add(1)
    site.submit(small(marks={"kubelet.taskd.test/remove-after": "1500ms"}))
    wait_running(site, "job")
    old = {name: uid(site, name) for name in site.pods("job")}
    kube.kubectl("delete", "acjob", "job", "-n", site.namespace)
    site.submit(small())
    # Its predecessor's Service goes when the garbage collector knows of such jobs, up to 30 s later.
    wait_settled(site, "job", 0, 90)
    found = {name: uid(site, name) for name in site.pods("job")}
    assert found.keys() == old.keys()
    assert found.items().isdisjoint(old.items())
    assert conditions(site, "job")["Created"]["reason"] == "JobCreated"


def test_jobs_whose_names_begin_alike_keep_apart(
    site: Site, controller: Controller, nodes: Nodes, volcano: VolcanoStandIn
) -> None:
    nodes.add(1)
    names = ("job", "job-worker", "job-worker-0")
    for name in names:
        site.submit(small(name))
    for name in names:
        wait_running(site, name)
    before = {name: {pod: uid(site, pod) for pod in site.pods(name)} for name in names}
    assert [len(pods) for pods in before.values()] == [2, 2, 2]
    site.delete("job")
    until(lambda: not site.pods("job"))
    delete_pod(site, "job-worker-worker-0")
    wait_settled(site, "job-worker", 1)
    assert {pod: uid(site, pod) for pod in site.pods("job-worker-0")} == before["job-worker-0"]
    assert site.status("job-worker-0")["restarts"] == 0


def test_nothing_is_left_of_a_job_deleted_while_its_pods_are_made(
    site: Site, controller: Controller, nodes: Nodes, volcano: VolcanoStandIn
) -> None:
    """A hundred pods are under way; whatever was created goes, and no more comes."""
    nodes.add(1)
    site.submit(small(workers=100))
    until(lambda: len(site.pods("job")) >= 10)
    site.delete("job")
    until(lambda: not site.pods("job"), 60)
    time.sleep(1.0)
    assert not site.pods("job")
    until(lambda: not site.groups())
    until(lambda: "job-master-0" not in site.services())


@pytest.mark.parametrize("reborn", [False, True])
def test_the_end_of_a_namespace_is_the_end_of_its_jobs(
    kube: Cluster,
    site: Site,
    controller: Controller,
    nodes: Nodes,
    volcano: VolcanoStandIn,
    reborn: bool,
) -> None:
    """The controller does not fight for pods in a namespace that goes; in a new one of that name it works."""
    nodes.add(1)
    site.submit(small(workers=3))
    wait_running(site, "job")
    kube.api.delete(CORE.format(site.namespace))
    kube.api.delete(f"{PODS.format(site.namespace)}", grace_s=0)
    until(lambda: kube.api.find(CORE.format(site.namespace)) is None, 60)
    if reborn:
        kube.create_namespace(site.namespace)
        site.submit(small())
        wait_settled(site, "job", 0)
