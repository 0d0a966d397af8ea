"""Before there are pods: what a job says while its PodGroup waits, and when its conditions change their times."""

import time

import pytest

from taskd.testing.kube import Cluster, Nodes, VolcanoStandIn
from tests.kube.operator.site import GROUPS, Controller, Json, Site, until
from tests.kube.operator.town import NPU, job


@pytest.fixture
def scheduler(kube: Cluster) -> VolcanoStandIn:
    """Volcano, which does not run yet."""
    return VolcanoStandIn(kube)


def test_s4_41_without_a_scheduler_the_group_is_not_initialized(site: Site, controller: Controller) -> None:
    """The job says so, with the command that shows the scheduler's state, and makes no pods."""
    name = site.submit(job("unseen", devices={NPU: 1}))
    last = site.wait_state(name, "Created", "PodGroupNotInitialized")

    assert (
        "volcano-scheduler is maybe not running, execute command to check the status: "
        "kubectl get pod -n volcano-system -l app=volcano-scheduler"
    ) == last["message"]
    (group,) = site.groups()
    assert "phase" not in group.get("status", {})
    assert {} == site.pods(name)


def test_s4_42_without_room_the_job_repeats_what_the_scheduler_says(
    site: Site, controller: Controller, nodes: Nodes, volcano: VolcanoStandIn
) -> None:
    """It has no pods and holds no device; when a node comes, it runs."""
    nodes.add(1, capacity={NPU: 1})
    name = site.submit(job("crowded", devices={NPU: 2}))
    last = site.wait_state(name, "Created", "PodGroupPending")

    def told() -> str:
        (group,) = site.groups()
        return str(next(c["message"] for c in group["status"]["conditions"] if c["type"] == "Unschedulable"))

    assert told() == last["message"]
    assert "Insufficient" in last["message"] or "nsufficient" in last["message"]
    assert {} == site.pods(name)

    nodes.add(2, capacity={NPU: 2})
    site.wait_state(name, "Running")
    assert 2 == len(site.pods(name))


def test_s4_34_s4_35_s4_41_s4_42_the_two_times_of_a_condition(
    site: Site, controller: Controller, nodes: Nodes, scheduler: VolcanoStandIn
) -> None:
    """What is true for another reason is updated and has not changed; what is no longer true has changed."""
    name = site.submit(job("timed", devices={NPU: 1}))
    first = site.wait_state(name, "Created", "PodGroupNotInitialized")
    assert first["lastTransitionTime"] == first["lastUpdateTime"]

    wait_second(first["lastUpdateTime"])
    with scheduler:
        second = site.wait_state(name, "Created", "PodGroupPending")
        assert first["lastTransitionTime"] == second["lastTransitionTime"]
        assert first["lastUpdateTime"] < second["lastUpdateTime"]

        nodes.add(1, capacity={NPU: 8})
        running = site.wait_state(name, "Running")
        wait_second(running["lastUpdateTime"])
        nodes.exit(site.namespace, "timed-worker-0", 1)
        failed = site.wait_state(name, "Failed")
        (before,) = [c for c in site.status(name)["conditions"] if c["type"] == "Running"]
        assert ("False", running["message"]) == (before["status"], before["message"])
        assert running["lastTransitionTime"] < before["lastTransitionTime"] == before["lastUpdateTime"]
        assert failed["lastTransitionTime"] == before["lastTransitionTime"]


def test_s4_34_s4_35_times_stand_still_while_nothing_happens(site: Site, controller: Controller) -> None:
    """Looking at a job again and again does not make its conditions younger."""
    name = site.submit(job("still", devices={NPU: 1}))
    site.wait_state(name, "Created", "PodGroupNotInitialized")
    before = site.status(name)
    wait_second(before["conditions"][-1]["lastUpdateTime"])
    (group,) = site.groups()
    path = f"{GROUPS.format(site.namespace)}/{group['metadata']['name']}"
    site.kube.api.patch(path, {"metadata": {"labels": {"somebody": "was-here"}}})
    site.kube.api.patch(path, {"metadata": {"labels": {"somebody": None}}})
    time.sleep(1.2)

    assert before == site.status(name)


def test_s4_26_s4_41_a_job_waits_again_only_without_pods(
    site: Site, controller: Controller, nodes: Nodes, volcano: VolcanoStandIn
) -> None:
    """A running job whose PodGroup is deleted stays Running, gets its group back, and a lost pod too."""
    nodes.add(1)
    name = site.submit(job("kept", devices={NPU: 1}))
    site.wait_state(name, "Running")
    (group,) = site.groups()
    site.kube.api.delete(f"{GROUPS.format(site.namespace)}/{group['metadata']['name']}")
    until(lambda: [g for g in site.groups() if g["metadata"]["uid"] != group["metadata"]["uid"]])
    assert "Running" == site.state(name)

    before = site.pod("kept-worker-0")["metadata"]["uid"]
    site.kube.kubectl("delete", "pod", "-n", site.namespace, "kept-worker-0", "--wait=false")
    until(lambda: [p for p in site.pods(name).values() if before != p["metadata"]["uid"] and worker(p)])
    site.wait_state(name, "Running")


def worker(pod: Json) -> bool:
    """Whether it is a Worker."""
    return bool(pod["metadata"]["labels"]["replica-type"] == "worker")


def wait_second(stamp: str) -> None:
    """Wait until the clock, which counts seconds there, shows another one."""
    until(lambda: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()) > stamp)
