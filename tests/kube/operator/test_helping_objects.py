"""Objects around a job come back when somebody removes or bends them, and go when they serve nobody."""

from __future__ import annotations

from taskd.testing.kube import Cluster, Nodes, VolcanoStandIn
from tests.kube.operator.site import JOBS, Controller, Site, until
from tests.kube.operator.small import PODS, delete_pod, small, uid, wait_running, wait_settled

CORE = "/api/v1/namespaces/{}"
RECOVER = {"recover-strategy": "recover"}
OURS = "training.kubeflow.org/operator-name"


def test_the_host_names_of_a_namespace_come_back(
    kube: Cluster, site: Site, controller: Controller, nodes: Nodes, volcano: VolcanoStandIn
) -> None:
    """The headless Service is made again at once: without it no pod finds another by name."""
    nodes.add(1)
    site.submit(small())
    wait_running(site, "job")
    kube.api.delete(f"{CORE.format(site.namespace)}/services/acjob-pods")
    until(lambda: "acjob-pods" in site.services())
    assert 0 == site.status("job")["restarts"]


def test_a_config_map_that_somebody_deleted_is_there_for_the_next_pod(
    kube: Cluster, site: Site, controller: Controller, nodes: Nodes, volcano: VolcanoStandIn
) -> None:
    """The controller has no cache of ConfigMaps; it looks again when it makes pods some time later."""
    nodes.add(1)
    site.submit(small(annotations=RECOVER))
    wait_running(site, "job")
    path = f"{CORE.format(site.namespace)}/configmaps/reset-config-job"
    kube.api.delete(path)
    controller.kill()
    controller.start()
    delete_pod(site, "job-worker-0")
    wait_settled(site, "job", 1)
    assert kube.api.find(path) is not None


def test_a_job_made_again_at_once_has_a_config_map_of_its_own(
    kube: Cluster, site: Site, controller: Controller, nodes: Nodes, volcano: VolcanoStandIn
) -> None:
    """What its predecessor leaves is not taken for a user's: it goes a moment later."""
    nodes.add(1)
    path = f"{CORE.format(site.namespace)}/configmaps/reset-config-job"
    site.submit(small(annotations=RECOVER))
    wait_running(site, "job")
    for _ in range(2):
        kube.kubectl("delete", "acjob", "job", "-n", site.namespace, "--wait=false")
        until(lambda: kube.api.find(f"{JOBS.format(site.namespace)}/job") is None)
        site.submit(small(annotations=RECOVER))
        # The cluster's own clean-up looks for kinds that are new to it every 30 s, and this one may be.
        wait_settled(site, "job", 0, 120)
        (owner,) = kube.api.get(path)["metadata"]["ownerReferences"]
        assert site.job("job")["metadata"]["uid"] == owner["uid"]


def test_the_leader_is_found_again_after_its_service_was_bent(
    kube: Cluster, site: Site, controller: Controller, nodes: Nodes, volcano: VolcanoStandIn
) -> None:
    """A selector or a port that somebody changed is put right; a port that somebody added stays."""
    nodes.add(1)
    site.submit(small())
    wait_running(site, "job")
    path = f"{CORE.format(site.namespace)}/services/job-master-0"
    before = kube.api.get(path)["spec"]
    more = {"name": "more", "port": 8080, "protocol": "TCP", "targetPort": 8080}
    (own,) = before["ports"]
    bent = {"selector": {"job-name": "other"}, "ports": [{**own, "targetPort": 1}, more]}
    kube.api.patch(path, {"spec": bent})
    until(lambda: kube.api.get(path)["spec"]["selector"] == before["selector"])
    after = kube.api.get(path)["spec"]
    assert [own, more] == sorted(after["ports"], key=lambda port: port["port"])
    assert before["clusterIP"] == after["clusterIP"]


def test_a_job_that_has_ended_gives_its_address_back(
    site: Site, controller: Controller, nodes: Nodes, volcano: VolcanoStandIn
) -> None:
    """The leader's Service goes when no pod is left that could use it; with the policy None it stays."""
    nodes.add(1)
    site.submit(small("plain"))
    site.submit(small("kept", policy={"cleanPodPolicy": "None"}))
    for name in ("plain", "kept"):
        wait_running(site, name)
        for pod in site.pods(name):
            nodes.succeed(site.namespace, pod)
        site.wait_state(name, "Succeeded")
    until(lambda: "plain-master-0" not in site.services())
    assert {"kept-master-0", "acjob-pods"} == set(site.services())


def test_a_pod_that_loses_our_label_is_taken_back(
    kube: Cluster, site: Site, controller: Controller, nodes: Nodes, volcano: VolcanoStandIn
) -> None:
    """It is the same pod, and no restart: the controller sees pods by their label, and owns them by UID."""
    nodes.add(1)
    site.submit(small())
    wait_running(site, "job")
    before = uid(site, "job-worker-0")
    path = f"{PODS.format(site.namespace)}/job-worker-0"
    kube.api.patch(path, {"metadata": {"labels": {OURS: None}}})
    until(lambda: OURS in site.pod("job-worker-0")["metadata"]["labels"])
    wait_settled(site, "job", 0)
    assert before == uid(site, "job-worker-0")
