"""The queue that a job names: missing is what the API server says is missing, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from taskd.testing.kube import Cluster, Nodes, VolcanoStandIn
from tests.kube.operator.proxy import Proxy
from tests.kube.operator.site import Controller, Json, Site, until
from tests.kube.operator.small import Story, small, wait_running

QUEUES = "/apis/scheduling.volcano.sh/v1beta1/queues"


@pytest.fixture(autouse=True)
def room(nodes: Nodes, volcano: VolcanoStandIn) -> None:
    """A node for all."""
    nodes.add(1)


@pytest.fixture
def proxy(kube: Cluster, tmp_path: Path) -> Iterator[Proxy]:
    """A way to the API server on which not everything is to be seen."""
    with Proxy(kube, tmp_path) as found:
        yield found


@pytest.fixture
def behind(proxy: Proxy, site: Site, tmp_path: Path) -> Iterator[Controller]:
    """A controller behind the proxy."""
    process = Controller(proxy.kubeconfig, site.namespace, tmp_path / "log", "--no-leader-elect").start()
    yield process
    assert 0 == process.stop()
    assert "look_broke" not in process.log.read_text()


@pytest.fixture
def team(kube: Cluster, site: Site) -> Iterator[str]:
    """The name of a queue that the test may make."""
    yield f"team-{site.namespace}"
    if kube.api.find(f"{QUEUES}/team-{site.namespace}") is not None:
        kube.api.delete(f"{QUEUES}/team-{site.namespace}")


def make(kube: Cluster, queue: str) -> None:
    kind = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue"}
    spec = {"weight": 1, "reclaimable": True}
    kube.api.create(QUEUES, {**kind, "metadata": {"name": queue}, "spec": spec})


def queued(queue: str) -> Json:
    return small(policy={"schedulingPolicy": {"queue": queue}})


class Blindness:
    """Lets nothing be seen of queues, or of their list alone, and counts what was asked for."""

    def __init__(self, *, lists_only: bool) -> None:
        self.lists_only = lists_only
        self.lists = 0
        self.names = 0

    def __call__(self, path: str) -> int | None:
        plain = path.partition("?")[0]
        if not plain.startswith(QUEUES):
            return None
        self.lists += plain == QUEUES
        self.names += plain != QUEUES
        return 503 if plain == QUEUES or not self.lists_only else None


def test_s4_10_s4_45_a_queue_that_was_not_heard_of_yet_is_there(
    kube: Cluster, site: Site, proxy: Proxy, behind: Controller, team: str
) -> None:
    """The watch of queues is behind that of jobs: the job starts, and no mistake is ever told."""
    proxy.blind = blind = Blindness(lists_only=True)
    proxy.cut_watches()
    until(lambda: blind.lists)
    make(kube, team)
    site.submit(queued(team))
    with Story(site, "job") as story:
        wait_running(site, "job")

    assert blind.names
    assert "JobValidFailed" not in story.said()


def test_s4_10_s4_45_a_queue_and_its_job_made_in_one_breath(
    kube: Cluster, site: Site, controller: Controller, team: str
) -> None:
    """Whichever of the two the controller sees first."""
    with controller.frozen():
        make(kube, team)
        site.submit(queued(team))
    with Story(site, "job") as story:
        wait_running(site, "job")

    assert "JobValidFailed" not in story.said()


def test_s4_10_s4_45_a_queue_that_cannot_be_asked_for_is_no_mistake(
    kube: Cluster, site: Site, proxy: Proxy, behind: Controller, team: str
) -> None:
    """An API server that answers 503 has not said that it is missing: the job waits, and then it starts."""
    proxy.blind = blind = Blindness(lists_only=False)
    proxy.cut_watches()
    until(lambda: blind.lists)
    make(kube, team)
    site.submit(queued(team))
    with Story(site, "job") as story:
        until(lambda: blind.names >= 2)
        assert {} == site.pods("job")
        blind.lists_only = True
        wait_running(site, "job")

    assert "JobValidFailed" not in story.said()


def test_s4_10_s4_45_a_queue_that_comes_later_starts_the_job(
    kube: Cluster, site: Site, controller: Controller, team: str
) -> None:
    """One that is missing is told, and nothing has to be done but to make it."""
    site.submit(queued(team))
    last = site.wait_state("job", "Failed", "JobValidFailed")
    assert f"check queue<{team}> failed" in last["message"]
    make(kube, team)

    wait_running(site, "job")
