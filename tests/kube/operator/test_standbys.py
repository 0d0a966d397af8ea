"""Pods that are kept ready beside a job, as kubectl shows them."""

from __future__ import annotations

import pytest

from taskd.testing.kube import Nodes, VolcanoStandIn
from tests.kube.operator.site import Controller, Json, Site, until
from tests.kube.operator.small import delete_pod, small, wait_settled

LONG_S = 60.0
READY = "job-standby-0"


@pytest.fixture
def kept_ready(site: Site, controller: Controller, nodes: Nodes, volcano: VolcanoStandIn) -> Site:
    """A job of three pods with a standby, all of them running."""
    nodes.add(2)
    site.submit(small(workers=2, annotations={"taskd.io/standby-pods": "1"}))
    wait_settled(site, "job", 0, LONG_S)
    nodes.wait_phase(site.namespace, READY, "Running", timeout_s=LONG_S)
    return site


def endpoints(site: Site) -> list[str]:
    """The pods that the leader's Service leads to."""
    found = site.kube.api.find(f"/api/v1/namespaces/{site.namespace}/endpoints/job-master-0") or {}
    return [
        address["targetRef"]["name"] for part in found.get("subsets") or () for address in part["addresses"]
    ]


def told(pod: Json) -> tuple[str | None, ...]:
    metadata = pod["metadata"]
    labels, marks = metadata["labels"], metadata["annotations"]
    return labels["replica-type"], labels["replica-index"], labels["version"], marks.get("hccl/rankIndex")


def test_a_standby_is_no_part_of_the_job(kept_ready: Site) -> None:
    """Neither of its counts, nor of its gang, nor of its Service; it is owned by UID as any pod."""
    site = kept_ready
    pod = site.pod(READY)
    assert ("standby", "0", "0", None) == told(pod)
    assert site.job("job")["metadata"]["uid"] == pod["metadata"]["ownerReferences"][0]["uid"]
    assert {"name": "TASKD_SPARE_POD", "value": "1"} in pod["spec"]["containers"][0]["env"]
    assert "3/3" == site.status("job")["readyReplicas"]
    assert [3] == [group["spec"]["minMember"] for group in site.groups()]


@pytest.mark.parametrize(
    ("lost", "place"), [("job-worker-1", ("worker", "1")), ("job-master-0", ("master", "0"))]
)
def test_a_lost_pod_is_relieved(kept_ready: Site, nodes: Nodes, lost: str, place: tuple[str, str]) -> None:
    """The pod that was ready has its place at once, one restart is counted, and another one is made ready."""
    site = kept_ready
    uid = site.pod(READY)["metadata"]["uid"]
    delete_pod(site, lost)
    wait_settled(site, "job", 1, LONG_S)
    nodes.wait_phase(site.namespace, "job-standby-1", "Running", timeout_s=LONG_S)
    pod = site.pod(READY)
    rank = "0" if place[0] == "master" else "2"
    assert (uid, (*place, "1", rank)) == (pod["metadata"]["uid"], told(pod))
    assert "podType" not in pod["metadata"]["annotations"]
    assert lost not in site.pods("job")
    assert ({"pod-lost": 1}, "3/3") == (
        site.status("job")["restartCauses"],
        site.status("job")["readyReplicas"],
    )
    if place[0] == "master":
        until(lambda: endpoints(site) == [READY], LONG_S, lambda: f"{endpoints(site)}")


def ready_pods(site: Site) -> set[str]:
    """The UIDs of the standbys that run."""
    pods = [pod for name, pod in site.pods("job").items() if name.startswith("job-standby-")]
    return {pod["metadata"]["uid"] for pod in pods if pod["status"]["phase"] == "Running"}


def test_a_standby_that_fails_is_made_anew_and_nothing_is_counted(kept_ready: Site) -> None:
    """The job does not even blink. The next one has another number while the old one takes its time to go."""
    site = kept_ready
    before = ready_pods(site)
    delete_pod(site, READY)
    until(lambda: len(ready_pods(site)) == 1 and ready_pods(site) != before, LONG_S)
    assert (0, "Running") == (site.status("job").get("restarts", 0), site.state("job"))


def test_a_number_that_is_none_is_refused(site: Site, controller: Controller) -> None:
    """Where a user looks for it: in the job's state."""
    site.submit(small(annotations={"taskd.io/standby-pods": "some"}))
    site.wait_state("job", "Failed", "JobValidFailed")
    assert "InvalidStandbyPods" in site.last("job")["message"]
