"""The weaknesses that were seen in the reference operator, one test each: ours has none of them (9 to 15)."""

from __future__ import annotations

import time
from functools import partial

from taskd.testing.kube import Cluster, Nodes, VolcanoStandIn
from tests.kube.operator.site import JOBS, Controller, Json, Site, until
from tests.kube.operator.small import (
    Story,
    conditions,
    counts,
    delete_pod,
    small,
    true_states,
    uid,
    wait_running,
    wait_settled,
    written,
)


def _resize(site: Site, workers: int) -> None:
    site.patch("job", {"spec": {"replicaSpecs": {"Worker": {"replicas": workers}}}})


def _sizes(site: Site) -> set[str]:
    return {pod["metadata"]["annotations"]["taskd.io/shape"] for pod in site.pods("job").values()}


def _has_size(site: Site, workers: int) -> bool:
    return (
        len(site.pods("job")) == workers + 1
        and _sizes(site) == {f"pytorch Master=1x1 Worker={workers}x1"}
        and site.groups()[0]["spec"]["minMember"] == workers + 1
        and counts(site.status("job")).get("Worker") == {"active": workers}
    )


def test_weakness_09_a_job_can_be_made_smaller_and_larger(
    site: Site, controller: Controller, nodes: Nodes, volcano: VolcanoStandIn
) -> None:
    """Surplus pods go, all pods agree on the size, and the PodGroup follows."""
    nodes.add(1)
    site.submit(small(workers=3, policy={"backoffLimit": 1}))
    wait_running(site, "job")
    for workers in (1, 4):
        _resize(site, workers)
        until(partial(_has_size, site, workers), 30, lambda: f"{site.pods('job').keys()}")
        wait_running(site, "job")
    assert {"FailedCreatePod", "PodCreateFailed"}.isdisjoint({reason for _, reason, _ in site.events("job")})
    assert true_states(site, "job") == ["Running"], "a change of size costs nothing of the limit"


def test_weakness_10_a_failed_job_stops_its_peers_and_goes_when_its_time_is_over(
    site: Site, controller: Controller, nodes: Nodes, volcano: VolcanoStandIn
) -> None:
    """Nobody has to touch the job for that; and its PodGroup is not taken away from running pods."""
    nodes.add(1)
    site.submit(small(workers=2, policy={"ttlSecondsAfterFinished": 2}))
    wait_running(site, "job")
    since = site.kube.audit.mark()
    nodes.exit(site.namespace, "job-worker-1", 1)
    site.wait_state("job", "Failed", "JobFailed")
    until(lambda: set(site.pods("job")) == {"job-worker-1"})
    until(lambda: not site.groups())
    # Whoever deletes them: the controller asks for it, and the kubelet says that they have ended.
    deleted = [
        (request.resource, request.name)
        for request in site.kube.audit.writes(since=since, namespace=site.namespace)
        if request.verb == "delete" and request.resource in {"pods", "podgroups"}
    ]
    (group,) = [at for at, (resource, _name) in enumerate(deleted) if resource == "podgroups"]
    assert {("pods", "job-master-0"), ("pods", "job-worker-0")} == set(deleted[:group]), deleted
    assert {"job-master-0", "job-worker-0"}.isdisjoint(name for _resource, name in deleted[group:])
    until(lambda: site.kube.api.find(f"{JOBS.format(site.namespace)}/job") is None, 10)
    until(lambda: not site.pods("job"), 120)  # the cluster's clean-up looks for new kinds every 30 s


def test_weakness_11_a_new_job_does_not_take_over_pods_of_another(
    kube: Cluster, site: Site, controller: Controller, nodes: Nodes, volcano: VolcanoStandIn
) -> None:
    """Pods that a job of the same name left behind are neither counted nor deleted; it waits for them."""
    nodes.add(1)
    site.submit(small())
    wait_running(site, "job")
    left = {name: uid(site, name) for name in site.pods("job")}
    kube.kubectl("delete", "acjob", "job", "-n", site.namespace, "--cascade=orphan")
    until(lambda: not any(pod["metadata"].get("ownerReferences") for pod in site.pods("job").values()))
    kube.api.delete(f"/api/v1/namespaces/{site.namespace}/services/job-master-0")
    site.submit(small())
    told = site.wait_state("job", "Created", "PodCreateFailed")
    assert "job-master-0" in told["message"]
    assert "belongs to somebody else" in told["message"]
    time.sleep(0.5)
    assert {name: uid(site, name) for name in site.pods("job")} == left
    assert not any(counts(site.status("job")).values()), "they are not counted"
    for name in left:
        delete_pod(site, name)
    wait_running(site, "job", 10)
    assert left.items().isdisjoint({name: uid(site, name) for name in site.pods("job")}.items())
    assert site.status("job")["restarts"] == 0
    assert conditions(site, "job")["Created"]["reason"] == "JobCreated", "what was refused once is over"


def test_weakness_12_a_deployment_of_the_same_name_is_none_of_its_business(
    kube: Cluster, site: Site, controller: Controller, nodes: Nodes, volcano: VolcanoStandIn
) -> None:
    """The job runs beside it, and does not mind when it goes."""
    nodes.add(1)
    deployments = f"/apis/apps/v1/namespaces/{site.namespace}/deployments"
    labels = {"app": "other"}
    template: Json = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "ascend", "image": "other:1"}]},
    }
    kube.api.create(
        deployments,
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "job"},
            "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template},
        },
    )
    site.submit(small())
    wait_running(site, "job")
    until(lambda: any(reason == "JobRunning" for _, reason, _ in site.events("job")))  # told a moment later
    mark = kube.audit.mark()
    kube.api.delete(f"{deployments}/job")
    time.sleep(1.0)
    assert written(site, mark) == []
    assert site.state("job") == "Running"


def test_weakness_13_a_job_that_was_mended_runs(
    site: Site, controller: Controller, nodes: Nodes, volcano: VolcanoStandIn
) -> None:
    """Its failure is taken back, and nothing is told of deletions that never were."""
    nodes.add(1)
    content = small()
    content["metadata"]["labels"]["framework"] = "caffe"
    site.submit(content)
    site.wait_state("job", "Failed", "JobValidFailed")
    assert not site.pods("job")
    site.patch("job", {"metadata": {"labels": {"framework": "pytorch"}}})
    wait_running(site, "job")
    assert true_states(site, "job") == ["Running"]
    assert conditions(site, "job")["Failed"]["status"] == "False"
    assert not any("Delete" in reason for _, reason, _ in site.events("job"))


def test_weakness_14_pods_with_different_numbers_of_devices_are_summed(
    site: Site, controller: Controller, nodes: Nodes, volcano: VolcanoStandIn
) -> None:
    """A Master with 4 and two Workers with 8 devices make a world of 20."""
    nodes.add(3, capacity={"huawei.com/Ascend910": 8})
    content = small(workers=2)
    for kind, count in (("Master", 4), ("Worker", 8)):
        (container,) = content["spec"]["replicaSpecs"][kind]["template"]["spec"]["containers"]
        amount = {"huawei.com/Ascend910": count}
        container["resources"] = {"limits": amount, "requests": amount}
    site.submit(content)
    pods = site.wait_pods("job", 3)
    assert {site.env(pod)["WORLD_SIZE"] for pod in pods} == {"20"}
    assert {pod: site.env(pod)["LOCAL_WORLD_SIZE"] for pod in pods} == {
        "job-master-0": "4",
        "job-worker-0": "8",
        "job-worker-1": "8",
    }


def test_weakness_15_no_write_ends_in_a_conflict(
    kube: Cluster, site: Site, controller: Controller, nodes: Nodes, volcano: VolcanoStandIn
) -> None:
    """Jobs that start, lose pods, restart and end under many hands: no answer is 409."""
    nodes.add(2)
    mark = kube.audit.mark()
    names = [f"job-{number}" for number in range(8)]
    with Story(site, names[0]) as story:
        for name in names:
            site.submit(small(name, workers=3, labels={"fault-retry-times": "5"}))
        for name in names:
            wait_settled(site, name, 0)
            site.patch(name, {"metadata": {"labels": {"touched": "true"}}})
            delete_pod(site, f"{name}-worker-0")
            site.patch(name, {"metadata": {"annotations": {"touched": "again"}}})
        for name in names:
            wait_settled(site, name, 1, 60)
            nodes.exit(site.namespace, f"{name}-worker-1", 1)
        for name in names:
            wait_settled(site, name, 2, 60)
            for pod in site.pods(name):
                nodes.succeed(site.namespace, pod)
        for name in names:
            site.wait_state(name, "Succeeded", limit_s=30)
    wrote = written(site, mark)
    assert [entry for entry in wrote if entry[3] == 409] == []
    assert len([entry for entry in wrote if entry[1] == "ascendjobs/status"]) >= 8 * 5
    assert story.states()[-1] == "Succeeded"
