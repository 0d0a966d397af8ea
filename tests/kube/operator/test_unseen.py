"""What happened to pods while nobody looked, or just before a controller died: it is counted all the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from taskd.testing.kube import Nodes, VolcanoStandIn
from taskd.testing.kube.nodes import HOLD
from tests.kube.operator.site import Controller, Site, until
from tests.kube.operator.small import (
    annotate_pod,
    delete_pod,
    small,
    uid,
    versions,
    wait_replaced,
    wait_running,
    wait_settled,
)


@pytest.fixture
def slow(site: Site, tmp_path: Path) -> Iterator[Controller]:
    """A controller that stores what only counts pods a minute late."""
    flags = ("--no-leader-elect", "--status-delay-s", "60")
    made = Controller(site.kube.kubeconfig, site.namespace, tmp_path / "controller.log", *flags).start()
    yield made
    assert 0 == made.stop()
    assert "look_broke" not in made.log.read_text()


def test_a_pod_that_ended_well_and_is_gone_is_stored_at_once(
    site: Site, slow: Controller, nodes: Nodes, volcano: VolcanoStandIn
) -> None:
    """Nothing else says so any more; a controller that comes after a kill does not run it again."""
    nodes.add(1)
    site.submit(small())
    wait_running(site, "job")
    nodes.succeed(site.namespace, "job-worker-0")
    delete_pod(site, "job-worker-0")
    until(lambda: site.status("job").get("finished") == {"Worker": "0"}, 20)
    slow.kill()
    slow.start()
    nodes.succeed(site.namespace, "job-master-0")
    site.wait_state("job", "Succeeded")

    assert (0, ["job-master-0"]) == (site.status("job")["restarts"], list(site.pods("job")))


def test_a_pod_lost_while_the_job_started_and_no_controller_ran_is_a_restart(
    site: Site, controller: Controller, nodes: Nodes, volcano: VolcanoStandIn
) -> None:
    """Its successor says whose it is: it has the number of that restart, and the others keep theirs."""
    nodes.add(1)
    site.submit(small(marks={HOLD: "true"}))
    until(lambda: site.status("job").get("filled") == {"Master": "0", "Worker": "0"})
    before = uid(site, "job-worker-0")
    controller.kill()
    delete_pod(site, "job-worker-0")
    controller.start()
    wait_replaced(site, "job-worker-0", before)
    for pod in site.pods("job"):
        annotate_pod(site, pod, **{HOLD: None})
    wait_settled(site, "job", 1)

    assert {"pod-lost": 1} == site.status("job")["restartCauses"]
    assert {"job-master-0": 0, "job-worker-0": 1} == versions(site, "job")
    assert "filled" not in site.status("job")
