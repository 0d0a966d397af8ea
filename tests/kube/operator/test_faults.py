"""The API server, the watches or the controller itself fail: nothing is lost, nothing is done twice.

The controller here runs with a long lease, so that it is the fault that is tested and not the speed of the
machine; what happens when a lease is lost is the last test.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskd.testing.kube import Cluster, ControlPlane, Nodes, VolcanoStandIn
from tests.kube.operator.proxy import Proxy
from tests.kube.operator.site import Controller, Site, until
from tests.kube.operator.small import (
    conditions,
    delete_pod,
    small,
    true_states,
    versions,
    wait_running,
    wait_settled,
    written,
)

WORKERS = 50


@pytest.fixture
def proxy(kube: Cluster, tmp_path: Path) -> Iterator[Proxy]:
    """A way to the API server that can be disturbed."""
    with Proxy(kube, tmp_path) as found:
        yield found


@pytest.fixture
def steady(site: Site, tmp_path: Path) -> Iterator[Controller]:
    """A controller that goes straight to the API server and need not hurry for its lease."""
    yield from _run(Controller(site.kube.kubeconfig, site.namespace, tmp_path / "log", "--lease-s", "120"))


@pytest.fixture
def disturbed(proxy: Proxy, site: Site, tmp_path: Path) -> Iterator[Controller]:
    """A controller behind the proxy."""
    yield from _run(Controller(proxy.kubeconfig, site.namespace, tmp_path / "log", "--lease-s", "120"))


def _run(controller: Controller) -> Iterator[Controller]:
    controller.start()
    yield controller
    assert controller.stop() == 0
    assert "look_broke" not in controller.log.read_text()


def _healthy(site: Site, name: str, pods: int, restarts: int = 0) -> None:
    """The job runs whole, nothing was counted that did not happen, and no old trouble is told."""
    wait_settled(site, name, restarts, 60)
    assert len(site.pods(name)) == pods
    assert true_states(site, name) == ["Running"]
    assert conditions(site, name)["Created"]["reason"] == "JobCreated"


def test_the_api_server_is_killed_while_pods_are_created(
    kube: ControlPlane, site: Site, steady: Controller, nodes: Nodes, volcano: VolcanoStandIn
) -> None:
    """Each pod is there once, of the first generation."""
    nodes.add(1)
    site.submit(small(workers=WORKERS))
    until(lambda: len(site.pods("job")) >= 3)
    kube.restart_apiserver()
    _healthy(site, "job", WORKERS + 1)
    assert set(versions(site, "job").values()) == {0}


def test_the_api_server_stands_still_for_ten_seconds(
    kube: ControlPlane, site: Site, steady: Controller, nodes: Nodes, volcano: VolcanoStandIn
) -> None:
    """A pod lost just before is replaced once, when the server goes on."""
    nodes.add(1)
    site.submit(small(workers=3))
    wait_running(site, "job")
    mark = kube.audit.mark()
    delete_pod(site, "job-worker-0")
    kube.apiserver.pause()
    time.sleep(10)
    kube.apiserver.resume()
    _healthy(site, "job", 4, restarts=1)
    made = [entry for entry in written(site, mark, "pods") if entry[0] == "create" and entry[3] == 201]
    assert len(made) == 1


@pytest.mark.parametrize("code", [429, 500, 503])
def test_every_third_write_is_refused(
    code: int, site: Site, proxy: Proxy, disturbed: Controller, nodes: Nodes, volcano: VolcanoStandIn
) -> None:
    """Everything comes to be all the same, and the refusals are forgotten."""
    nodes.add(1)
    proxy.strike = lambda number, _what: code if number % 3 == 0 else None
    site.submit(small(workers=6, annotations={"recover-strategy": "recover"}))
    _healthy(site, "job", 7)
    delete_pod(site, "job-worker-3")
    _healthy(site, "job", 7, restarts=1)
    assert site.kube.api.find(f"/api/v1/namespaces/{site.namespace}/configmaps/reset-config-job") is not None


def test_watches_are_cut_again_and_again(
    site: Site, proxy: Proxy, disturbed: Controller, nodes: Nodes, volcano: VolcanoStandIn
) -> None:
    """What happens while no watch is open is not missed."""
    nodes.add(1)
    site.submit(small(workers=5))
    wait_running(site, "job")
    for restarts in range(1, 6):
        proxy.cut_watches()
        delete_pod(site, f"job-worker-{restarts - 1}")
        _healthy(site, "job", 6, restarts)


def test_versions_are_compacted_away_while_the_controller_stands_still(
    kube: ControlPlane, site: Site, steady: Controller, nodes: Nodes, volcano: VolcanoStandIn
) -> None:
    """The watches end with 410; what happened meanwhile is found out by listing, and counted once."""
    nodes.add(1)
    site.submit(small(workers=3))
    wait_running(site, "job")
    assert steady.process is not None
    mark = kube.audit.mark()
    os.kill(steady.process.pid, signal.SIGSTOP)
    try:
        delete_pod(site, "job-worker-0")
        delete_pod(site, "job-worker-1")
        site.submit(small("second"))
        # The server forgets old versions when it begins anew: its watch cache is empty then.
        kube.restart_apiserver()
    finally:
        os.kill(steady.process.pid, signal.SIGCONT)
    _healthy(site, "job", 4, restarts=1)
    _healthy(site, "second", 2)
    asked = kube.audit.requests(since=mark, user_agent="taskd-controller/", resource="pods")
    assert "list" in {request.verb for request in asked}, "the watch could not go on"
    assert versions(site, "job") == {
        "job-master-0": 0, "job-worker-0": 1, "job-worker-1": 1, "job-worker-2": 0,
    }  # fmt: skip


def test_a_controller_that_slept_over_its_lease_writes_nothing_more(
    site: Site, nodes: Nodes, volcano: VolcanoStandIn, tmp_path: Path
) -> None:
    """It ends itself; its successor has counted by then, and the count stays."""
    nodes.add(1)
    kube = site.kube
    first = Controller(kube.kubeconfig, site.namespace, tmp_path / "first", "--lease-s", "6").start()
    second = Controller(kube.kubeconfig, site.namespace, tmp_path / "second", "--lease-s", "6")
    site.submit(small(workers=3))
    wait_running(site, "job")
    process = first.process
    assert process is not None
    os.kill(process.pid, signal.SIGSTOP)
    try:
        delete_pod(site, "job-worker-0")
        second.start()
        wait_settled(site, "job", 1, 60)
        before = {pod: content["metadata"]["uid"] for pod, content in site.pods("job").items()}
    finally:
        os.kill(process.pid, signal.SIGCONT)
    assert process.wait(30) != 0, "it says that it lost the lease"
    first.process = None
    time.sleep(0.5)
    assert {pod: content["metadata"]["uid"] for pod, content in site.pods("job").items()} == before
    _healthy(site, "job", 4, restarts=1)
    assert second.stop() == 0
