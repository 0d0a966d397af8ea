"""What a job has to bear: drains, crashes without end, time limits, quotas, and other people's deletions."""

from __future__ import annotations

import time
from pathlib import Path

from taskd.testing.kube import Cluster, Nodes, VolcanoStandIn
from taskd.testing.kube.nodes import HOLD
from tests.kube.operator.site import JOBS, Controller, Site, until
from tests.kube.operator.small import (
    PODS,
    annotate_pod,
    counts,
    delete_pod,
    small,
    true_states,
    uid,
    wait_replaced,
    wait_running,
    wait_settled,
    written,
)
from tests.kube.operator.town import NPU, job

KUBELET = "kubelet.taskd.test"
QUEUES = "/apis/scheduling.volcano.sh/v1beta1/queues"


def suspend(site: Site, *, wish: bool) -> None:
    site.patch("job", {"spec": {"runPolicy": {"suspend": wish}}})


def limit_pods(kube: Cluster, site: Site, count: int) -> str:
    """A quota, once the server knows what is used of it; returns its path."""
    quotas = f"/api/v1/namespaces/{site.namespace}/resourcequotas"
    kube.api.create(quotas, {"metadata": {"name": "few"}, "spec": {"hard": {"pods": str(count)}}})
    until(lambda: kube.api.get(f"{quotas}/few").get("status", {}).get("used", {}).get("pods"))
    return f"{quotas}/few"


def test_a_deadline_holds_for_pods_that_never_start_and_after_a_resumption(
    site: Site, controller: Controller, nodes: Nodes, volcano: VolcanoStandIn
) -> None:
    """Nobody has to touch the job for that."""
    nodes.add(1)
    site.submit(small("stuck", marks={HOLD: "true"}, policy={"activeDeadlineSeconds": 2}))
    site.submit(small(policy={"activeDeadlineSeconds": 10, "suspend": True}))
    site.submit(small("never", policy={"activeDeadlineSeconds": 0}))
    site.wait_state("job", "Created", "JobSuspended")
    suspend(site, wish=False)
    wait_running(site, "job")
    for name in ("stuck", "job", "never"):
        assert "deadline" in site.wait_state(name, "Failed", "JobFailed")["message"]
    until(lambda: not site.pods())


def test_a_pod_that_is_drained_and_a_peer_that_falls_over_are_one_restart(
    kube: Cluster, site: Site, controller: Controller, nodes: Nodes, volcano: VolcanoStandIn
) -> None:
    """The peer's error is the answer to the drain; the job does not allow a single failure of its own."""
    nodes.add(1)
    site.submit(small(workers=2, marks={f"{KUBELET}/remove-after": "2000ms"}))
    wait_running(site, "job")
    kube.kubectl("delete", "pod", "-n", site.namespace, "job-worker-0", "--wait=false")
    site.wait_state("job", "Restarting")
    nodes.exit(site.namespace, "job-worker-1", 1)
    wait_settled(site, "job", 1)
    assert {"pod-lost": 1} == site.status("job")["restartCauses"]


def test_a_job_that_crashes_at_once_restarts_ever_more_slowly(
    kube: Cluster, site: Site, controller: Controller, nodes: Nodes, volcano: VolcanoStandIn
) -> None:
    """At once, after 1 s, after 2 s, after 4 s: no more than four or five restarts in eight seconds."""
    nodes.add(1)
    marks = {f"{KUBELET}/exit": "137", f"{KUBELET}/exit-after": "10ms"}
    site.submit(small(restart="ExitCode", marks=marks))
    until(lambda: site.status("job").get("restarts", 0) >= 2)
    time.sleep(8)
    assert site.status("job")["restarts"] <= 6
    assert any(reason == "BackOff" for _, reason, _ in site.events("job"))


def test_a_pod_that_has_succeeded_is_not_run_again_when_its_node_goes(
    site: Site, controller: Controller, nodes: Nodes, volcano: VolcanoStandIn
) -> None:
    """Nor when somebody deletes it; and the job succeeds with what is left."""
    nodes.add(1, labels={"role": "master"})
    (lost,) = nodes.add(1, labels={"role": "worker"})
    content = small(workers=2)
    for role, replicas in content["spec"]["replicaSpecs"].items():
        replicas["template"]["spec"]["nodeSelector"] = {"role": role.lower()}
    site.submit(content)
    wait_running(site, "job")
    for pod in ("job-worker-0", "job-worker-1"):
        nodes.succeed(site.namespace, pod)
    until(lambda: {"Worker": "0-1"} == site.status("job").get("finished"))
    nodes.remove(lost)
    delete_pod(site, "job-worker-1")
    until(lambda: "job-worker-1" not in site.pods("job"))
    time.sleep(1.0)
    assert "job-worker-1" not in site.pods("job")
    assert ("Running", 0) == (site.state("job"), site.status("job")["restarts"])
    assert {"succeeded": 2} == counts(site.status("job"))["Worker"]
    nodes.succeed(site.namespace, "job-master-0")
    site.wait_state("job", "Succeeded")


def test_a_queue_that_is_deleted_leaves_its_jobs_running(
    kube: Cluster, site: Site, controller: Controller, nodes: Nodes, volcano: VolcanoStandIn
) -> None:
    """Who has had its turn needs no queue, even if the scheduler does not place a new pod without one."""
    nodes.add(1)
    queue = f"team-{site.namespace}"
    content = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "Queue",
        "metadata": {"name": queue},
        "spec": {"weight": 1},
    }
    kube.api.create(QUEUES, content)
    site.submit(small(policy={"schedulingPolicy": {"queue": queue}}))
    wait_running(site, "job")
    kube.api.delete(f"{QUEUES}/{queue}")
    site.patch("job", {"metadata": {"annotations": {"note": "look"}}})
    time.sleep(1.0)
    assert ["Running"] == true_states(site, "job")
    old = uid(site, "job-worker-0")
    delete_pod(site, "job-worker-0")
    wait_replaced(site, "job-worker-0", old)
    site.wait_state("job", "Restarting")
    kube.api.create(QUEUES, content)
    wait_settled(site, "job", 1)


def test_a_job_with_mistakes_gives_its_devices_back_when_it_is_suspended(
    site: Site, controller: Controller, nodes: Nodes, volcano: VolcanoStandIn
) -> None:
    nodes.add(1)
    site.submit(small())
    wait_running(site, "job")
    site.patch("job", {"metadata": {"labels": {"framework": "caffe"}}})
    site.wait_state("job", "Failed", "JobValidFailed")
    suspend(site, wish=True)
    until(lambda: not site.pods("job") and not site.groups())
    assert "JobValidFailed" == site.last("job")["reason"]
    site.patch("job", {"metadata": {"labels": {"framework": "pytorch"}}})
    suspend(site, wish=False)
    wait_settled(site, "job", 0)


def test_counts_that_another_has_written_are_taken_back(
    kube: Cluster, site: Site, controller: Controller, nodes: Nodes, volcano: VolcanoStandIn
) -> None:
    nodes.add(1)
    site.submit(small())
    wait_settled(site, "job", 0)
    time.sleep(1.0)  # what is not urgent comes half a second later
    mark = kube.audit.mark()
    path = f"{JOBS.format(site.namespace)}/job/status"
    kube.api.patch(path, {"status": {"replicaStatuses": {"Worker": {"failed": 7}}}})
    site.patch("job", {"metadata": {"annotations": {"note": "look"}}})
    until(lambda: {"active": 1} == counts(site.status("job"))["Worker"])
    time.sleep(1.0)
    stored = [entry for entry in written(site, mark) if entry[1] == "ascendjobs/status"]
    assert 1 == len(stored), stored


def test_a_quota_in_the_way_of_a_pod_does_not_unmake_the_job(
    kube: Cluster, site: Site, controller: Controller, nodes: Nodes, volcano: VolcanoStandIn
) -> None:
    """A standby that is refused is an Event; a replacement that is refused keeps the job Restarting."""
    nodes.add(1)
    site.submit(small())
    wait_running(site, "job")
    quota = limit_pods(kube, site, 2)
    annotate_pod(site, "job-worker-0", inHotSwitchFlow="true", needOperatorOpe="create")
    until(lambda: any(reason == "PodCreateFailed" for _, reason, _ in site.events("job")))
    assert ["Running"] == true_states(site, "job")
    annotate_pod(site, "job-worker-0", inHotSwitchFlow=None, needOperatorOpe=None)

    kube.api.patch(quota, {"spec": {"hard": {"pods": "1"}}})
    until(lambda: kube.api.get(quota)["status"]["hard"]["pods"] == "1")
    delete_pod(site, "job-worker-0")
    told = until(lambda: last if "Refused" in (last := site.last("job"))["message"] else None)
    assert ("Restarting", "jobRestarting") == (told["type"], told["reason"])
    assert "PodCreateFailed" in told["message"]
    assert "exceeded quota" in told["message"]
    kube.api.delete(quota)
    wait_settled(site, "job", 1, 60)


def test_a_job_of_as_many_devices_in_fewer_pods_has_new_pods(
    site: Site, controller: Controller, nodes: Nodes, volcano: VolcanoStandIn
) -> None:
    """1 + 3 pods of four devices become 1 + 1 of eight, and every pod is told so."""
    nodes.add(2, capacity={NPU: 64})
    site.submit(job("shape", workers=3, devices={NPU: 4}))
    site.wait_state("shape", "Running")
    site.submit(job("shape", workers=1, devices={NPU: 8}))
    until(lambda: 2 == len(site.pods("shape")) and bool(site.status("shape").get("stable")))
    site.wait_state("shape", "Running")
    told = {site.env(pod)["LOCAL_WORLD_SIZE"] for pod in site.pods("shape")}
    assert {"8"} == told


def test_small_jobs_do_not_wait_for_a_large_one(site: Site, tmp_path: Path) -> None:
    """All asked for at once, the large one first: those of two pods have theirs before it is complete."""
    flags = ("--no-leader-elect", "--gang", "off")
    busy = Controller(site.kube.kubeconfig, site.namespace, tmp_path / "log", *flags).start()
    watch = site.kube.api.watch(PODS.format(site.namespace))
    with busy.frozen():
        for name, workers in (("large", 299), *((f"small-{number}", 1) for number in range(5))):
            site.submit(small(name, workers=workers))
    made: list[str] = []
    for event in watch:
        if event.type == "ADDED":
            made.append(event.object["metadata"]["labels"]["job-name"])
        if len(made) == 310:
            break
    watch.close()

    assert 310 == len(made)
    assert "large" == made[-1], "it is complete last"
    assert 0 == busy.stop()
