"""The Services of a job."""

from __future__ import annotations

import pytest

from taskd.core.acjob.services import leader_port, leader_service, leader_service_name, pods_service
from tests.core.acjob.play import Play, raw_job
from tests.core.acjob.samples import make_job, make_template


def test_the_leader_has_a_service_that_selects_it_alone() -> None:
    """Labels and selector are the same eight; the port is the default one."""
    service = leader_service(make_job())

    assert service is not None
    labels = {
        "training.kubeflow.org/operator-name": "ascendjob-controller",
        "group-name": "mindxdl.gitee.com",
        "training.kubeflow.org/job-name": "job",
        "job-name": "job",
        "training.kubeflow.org/replica-type": "master",
        "replica-type": "master",
        "training.kubeflow.org/replica-index": "0",
        "replica-index": "0",
    }
    assert service["metadata"]["name"] == leader_service_name(make_job()) == "job-master-0"
    assert service["metadata"]["labels"] == service["spec"]["selector"] == labels
    assert service["spec"]["type"] == "ClusterIP"
    assert "clusterIP" not in service["spec"]
    assert service["spec"]["ports"] == [
        {"name": "ascendjob-port", "protocol": "TCP", "port": 2222, "targetPort": 2222}
    ]


def test_ports_that_a_container_may_have_suit_the_service() -> None:
    """The rendezvous first; its own protocol for each; a name for all; no number twice."""
    ports = [
        {"containerPort": 9601, "name": "taskd-port"},
        {"containerPort": 53, "protocol": "UDP"},
        {"containerPort": 3333, "name": "same"},
        {"containerPort": 3333, "name": "ascendjob-port"},
        {"name": "no-number"},
    ]
    job = make_job(leader=make_template(container={"ports": ports}))

    service = leader_service(job)

    assert service is not None
    assert service["spec"]["ports"] == [
        {"name": "ascendjob-port", "protocol": "TCP", "port": 3333, "targetPort": 3333},
        {"name": "taskd-port", "protocol": "TCP", "port": 9601, "targetPort": 9601},
        {"name": "port-53-udp", "protocol": "UDP", "port": 53, "targetPort": 53},
    ]
    assert leader_port(job) == 3333


def test_a_service_may_ask_for_the_address_it_had() -> None:
    """Running pods know that one."""
    service = leader_service(make_job(), cluster_ip="10.96.3.4")

    assert service is not None
    assert service["spec"]["clusterIP"] == "10.96.3.4"


def test_a_job_without_a_leader_has_no_service() -> None:
    """MindSpore on one Worker."""
    job = make_job("mindspore", alone=True, worker=make_template(1))

    assert leader_service(job) is None
    assert leader_service_name(job) is None


def test_host_names_need_one_headless_service_in_a_namespace() -> None:
    """It belongs to no job, and knows pods before they are ready: they need each other to become so."""
    service = pods_service("team")

    assert service["metadata"]["name"] == "acjob-pods"
    assert service["metadata"]["namespace"] == "team"
    assert "ownerReferences" not in service["metadata"]
    assert service["spec"] == {
        "type": "ClusterIP",
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {"training.kubeflow.org/operator-name": "ascendjob-controller"},
    }


@pytest.mark.parametrize(
    ("policy", "stays"), [("", False), ("Running", False), ("All", False), ("None", True)]
)
def test_the_address_of_the_leader_goes_when_no_pod_runs(policy: str, stays: bool) -> None:
    """With the policy None pods may run on after the end, and somebody may still look for them."""
    play = Play(raw_job(policy={"cleanPodPolicy": policy} if policy else {})).start()
    play.fail("test-job-worker-0")
    play.reconcile()

    assert play.state == "Failed"
    assert stays == (play.service is not None)
