"""The weaknesses that were seen in the reference operator, one test each: ours has none of them (1 to 8).

Each test does what broke the reference, and asks for what it got wrong there.
"""

from __future__ import annotations

import time
import uuid

import yaml

from taskd.testing.kube import Cluster, Nodes, VolcanoStandIn
from tests.kube.operator.site import GROUPS, Controller, Site, until
from tests.kube.operator.small import (
    Story,
    annotate_pod,
    conditions,
    counts,
    delete_pod,
    label,
    small,
    true_states,
    uid,
    versions,
    wait_replaced,
    wait_running,
    wait_settled,
    written,
)

QUEUES = "/apis/scheduling.volcano.sh/v1beta1/queues"


def test_weakness_01_a_standby_has_the_rank_of_its_source_and_takes_its_place(
    kube: Cluster, site: Site, controller: Controller, nodes: Nodes, volcano: VolcanoStandIn
) -> None:
    """The standby carries index, rank and environment of its source; then two pods remain, not three."""
    nodes.add(3)
    site.submit(small(workers=2, labels={"subHealthyStrategy": "hotSwitch"}))
    wait_running(site, "job")
    source = site.pod("job-worker-1")
    environment = site.env("job-worker-1")
    mark = kube.audit.mark()

    annotate_pod(site, "job-worker-1", inHotSwitchFlow="true", needOperatorOpe="create")
    found = site.wait_pods("job", 4)
    (standby,) = set(found) - {"job-master-0", "job-worker-0", "job-worker-1"}
    assert label(site, standby, "replica-index") == "1"
    for key in ("hccl/rankIndex", "taskd.io/shape"):
        assert found[standby]["metadata"]["annotations"][key] == source["metadata"]["annotations"][key]
    assert site.env(standby) == environment
    nodes.wait_phase(site.namespace, standby, "Running")
    until(lambda: site.pod("job-worker-1")["metadata"]["annotations"].get("backupNewPodName") == standby)

    annotate_pod(site, "job-worker-1", needVolcanoOpe="delete")
    until(lambda: set(site.pods("job")) == {"job-master-0", "job-worker-0", standby})
    until(lambda: "podType" not in site.pod(standby)["metadata"]["annotations"])
    time.sleep(1.0)

    assert set(site.pods("job")) == {"job-master-0", "job-worker-0", standby}
    creations = [entry for entry in written(site, mark, "pods") if entry[0] == "create"]
    assert len(creations) == 1, "the standby and nothing else"
    assert counts(site.status("job")) == {"Master": {"active": 1}, "Worker": {"active": 2}}
    assert site.status("job")["restarts"] == 0
    assert site.state("job") == "Running"


def test_weakness_02_a_large_job_is_created_without_a_conflict_or_a_false_failure(
    kube: Cluster, site: Site, controller: Controller, nodes: Nodes, volcano: VolcanoStandIn
) -> None:
    """Each of 201 pods is created once, nothing is answered 409, and nothing says that a creation failed."""
    nodes.add(2)
    mark = kube.audit.mark()
    with Story(site, "job") as story:
        site.submit(small(workers=200))
        wait_running(site, "job", 60)
    wrote = written(site, mark)
    assert len([entry for entry in wrote if entry[:2] == ("create", "pods")]) == 201
    assert [entry for entry in wrote if entry[3] >= 400] == []
    assert "PodCreateFailed" not in story.said()
    assert conditions(site, "job").get("Created", {"reason": "JobCreated"})["reason"] == "JobCreated"


def test_weakness_03_jobs_that_wait_cause_no_writes(
    kube: Cluster, site: Site, controller: Controller, nodes: Nodes, volcano: VolcanoStandIn
) -> None:
    """A hundred jobs that wait for room are silent; the reference wrote for ever from about sixty on."""
    nodes.add(1, capacity={"huawei.com/Ascend910": 8})
    wanted = {"resources": {"limits": {"nvidia.com/gpu": 8}}}
    many = [small(f"job-{number}", container=wanted) for number in range(100)]
    for content in many:
        content["metadata"]["namespace"] = site.namespace
    kube.apply_yaml(yaml.safe_dump_all(many))

    def all_wait() -> bool:
        found = kube.api.items(f"/apis/mindxdl.gitee.com/v1/namespaces/{site.namespace}/ascendjobs")
        told = [job.get("status", {}).get("conditions", [{}])[-1].get("reason") for job in found]
        return told == ["PodGroupPending"] * 100

    until(all_wait, 60)
    time.sleep(1.0)
    mark = kube.audit.mark()
    time.sleep(3.0)
    assert written(site, mark) == []


def test_weakness_04_a_job_that_succeeded_stays_so(
    kube: Cluster, site: Site, controller: Controller, nodes: Nodes, volcano: VolcanoStandIn
) -> None:
    """Neither the end of its queue nor another controller makes it fail."""
    nodes.add(1)
    queue = f"q-{uuid.uuid4().hex[:8]}"
    kube.api.create(
        QUEUES,
        {
            "apiVersion": "scheduling.volcano.sh/v1beta1",
            "kind": "Queue",
            "metadata": {"name": queue},
            "spec": {"weight": 1},
        },
    )
    policy = {"schedulingPolicy": {"queue": queue}}
    until(lambda: kube.api.find(f"{QUEUES}/{queue}"))
    site.submit(small(policy=policy, marks={"kubelet.taskd.test/exit": "0"}))
    site.wait_state("job", "Succeeded", limit_s=30)
    kube.api.delete(f"{QUEUES}/{queue}")
    controller.kill()
    controller.start()
    site.patch("job", {"metadata": {"labels": {"touched": "true"}}})
    time.sleep(1.5)
    assert true_states(site, "job") == ["Succeeded"]
    assert site.state("job") == "Succeeded"


def test_weakness_05_the_backoff_limit_survives_the_controller(
    site: Site, controller: Controller, nodes: Nodes, volcano: VolcanoStandIn
) -> None:
    """With a limit of 1 the second loss fails the job, though another controller counts by then."""
    nodes.add(1)
    site.submit(small(policy={"backoffLimit": 1}))
    wait_running(site, "job")
    delete_pod(site, "job-worker-0")
    wait_settled(site, "job", 1)
    controller.kill()
    controller.start()
    delete_pod(site, "job-worker-0")
    told = site.wait_state("job", "Failed", "JobFailed")
    assert "backoff limit" in told["message"]
    assert site.status("job")["restarts"] == 1


def test_weakness_06_a_job_says_running_only_while_all_of_it_runs(
    site: Site, controller: Controller, nodes: Nodes, volcano: VolcanoStandIn
) -> None:
    """While pods are failed, deleted or awaited, no state that was ever stored claims Running."""
    nodes.add(1)
    site.submit(small(labels={"fault-retry-times": "3"}))
    wait_running(site, "job")
    volcano.stop()  # so that no new pod starts for a while
    with Story(site, "job") as story:
        old = {name: uid(site, name) for name in ("job-master-0", "job-worker-0")}
        nodes.exit(site.namespace, "job-worker-0", 1)
        site.wait_state("job", "Restarting")
        delete_pod(site, "job-worker-0")
        delete_pod(site, "job-master-0")
        for name, before in old.items():
            wait_replaced(site, name, before)
        time.sleep(1.0)
        assert true_states(site, "job") == ["Restarting"]
        volcano.start()
        wait_running(site, "job")
    for status in story.statuses:
        running = [c for c in status["conditions"] if c["type"] == "Running" and c["status"] == "True"]
        active = sum(found.get("active", 0) for found in status["replicaStatuses"].values())
        assert not running or active == 2, status
    assert story.states() == ["Running", "Restarting", "Running"]


def test_weakness_07_a_job_whose_pod_group_was_deleted_goes_on(
    kube: Cluster, site: Site, controller: Controller, nodes: Nodes, volcano: VolcanoStandIn
) -> None:
    """The group comes back, and a pod lost before the scheduler has looked at it is replaced and counted."""
    nodes.add(1)
    site.submit(small())
    wait_running(site, "job")
    volcano.stop()
    (group,) = site.groups()
    kube.api.delete(f"{GROUPS.format(site.namespace)}/{group['metadata']['name']}")

    def made_again() -> bool:
        found = [other for other in site.groups() if other["metadata"]["uid"] != group["metadata"]["uid"]]
        return bool(found) and not found[0].get("status", {}).get("phase")

    until(made_again)
    old = uid(site, "job-worker-0")
    delete_pod(site, "job-worker-0")
    wait_replaced(site, "job-worker-0", old)
    until(lambda: counts(site.status("job"))["Worker"] == {"pending": 1})
    volcano.start()
    wait_settled(site, "job", 1)
    assert versions(site, "job") == {"job-master-0": 0, "job-worker-0": 1}


def test_weakness_08_the_leaders_address_stays_when_its_service_is_deleted(
    kube: Cluster, site: Site, controller: Controller, nodes: Nodes, volcano: VolcanoStandIn
) -> None:
    """The Service comes back with the address that running pods were given."""
    nodes.add(1)
    site.submit(small())
    wait_running(site, "job")
    service = site.services()["job-master-0"]
    kube.api.delete(f"/api/v1/namespaces/{site.namespace}/services/job-master-0")

    def made_again() -> bool:
        found = site.services().get("job-master-0")
        return found is not None and found["metadata"]["uid"] != service["metadata"]["uid"]

    until(made_again)
    assert site.services()["job-master-0"]["spec"]["clusterIP"] == service["spec"]["clusterIP"]
    old = uid(site, "job-worker-0")
    before = site.env("job-worker-0")["MASTER_ADDR"]
    delete_pod(site, "job-worker-0")
    wait_replaced(site, "job-worker-0", old)
    assert site.env("job-worker-0")["MASTER_ADDR"] == before
    assert site.env("job-master-0")["MASTER_ADDR"] == before
