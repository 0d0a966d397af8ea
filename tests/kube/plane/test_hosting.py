"""The plane as a part of `taskd controller`: orders reach a manager, and pods move because of it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from taskd.links.plane import PlaneAddress, PlaneError, connect_plane
from taskd.testing.kube import Nodes
from tests.core.faults.scenes import device_info
from tests.kube.operator.conftest import _end
from tests.kube.operator.site import Controller, Site, until
from tests.kube.operator.small import small, uid
from tests.kube.plane.manager import PlayedManager, find_port, managing

STRATEGIES = {"recover-strategy": "recover,dump,exit"}
FORCED = {"fault-scheduling": "force"}
PLANE = ("--no-leader-elect", "--gang", "off", "--plane", "--plane-insecure", "--plane-listen", "127.0.0.1:0")


@pytest.fixture
def planned(site: Site, nodes: Nodes, tmp_path: Path) -> Iterator[Controller]:
    """A controller with a plane, and a node."""
    nodes.add(1)
    process = Controller(site.kube.kubeconfig, site.namespace, tmp_path / "controller.log", *PLANE).start()
    yield process
    _end(process)


def running(site: Site, name: str = "job", **changes: object) -> str:
    """Submit a job of a Master and two Workers and wait until it runs; returns its UID."""
    job = small(name, workers=2, annotations=STRATEGIES, labels={**FORCED, **changes})
    site.submit(job)
    site.wait_state(name, "Running")
    return str(site.job(name)["metadata"]["uid"])


def replaced(site: Site, before: str) -> bool:
    """The worker is another pod; in between there may be none."""
    worker = site.pods("job").get("job-worker-0")
    return worker is not None and worker["metadata"]["uid"] != before


async def stop_and_offer(manager: PlayedManager, *offers: str) -> None:
    """Play the trainer from the stop to the question what it can do."""
    await manager.hears("stopTrain")
    await manager.link.report_stopped(0, "stopped", ())
    await manager.hears("globalFault")
    await manager.link.report_offers((), offers)


async def test_a_fault_moves_its_pod_and_nobody_elses(site: Site, planned: Controller) -> None:
    """From the report to the result: one pod has another UID, one restart is counted, people are told."""
    job_id = running(site)
    before = {pod: uid(site, pod) for pod in site.pods("job")}
    async with managing(planned.log, job_id) as manager:
        await manager.link.report_fault(((1, "1"),))
        await stop_and_offer(manager, "recover", "dump", "exit")
        order = await manager.hears("changeStrategy")
        until(lambda: replaced(site, before["job-worker-0"]), say=lambda: str(site.job("job")["status"]))
        site.wait_state("job", "Running")
        status = await manager.link.report_outcome(0, "recovered", "recover")

    assert ("recover", 0) == (order.strategy, status.code)
    after = {pod: uid(site, pod) for pod in site.pods("job")}
    assert {"job-worker-0"} == {pod for pod in before if before[pod] != after[pod]}
    assert (1, 1) == (site.status("job")["restarts"], site.status("job")["voluntaryRestarts"])
    assert "rank 1" in site.status("job")["lastFault"]["summary"]
    told = until(lambda: [each for each in site.events("job") if each[1] == "ProcessRecovery"])
    assert any("recover" in message for _, _, message in told)


@pytest.mark.parametrize("standbys", ["0", "1"])
async def test_a_pod_that_nobody_reaches_goes_by_force_and_not_back_there(
    site: Site, planned: Controller, nodes: Nodes, standbys: str
) -> None:
    """A standby has its place at once, and that is no further fault; else a new pod is put elsewhere."""
    nodes.add(3)
    annotations = {**STRATEGIES, "taskd.io/standby-pods": standbys}
    site.submit(small("job", workers=2, annotations=annotations, labels={"fault-scheduling": "grace"}))
    site.wait_state("job", "Running")
    if standbys == "1":
        nodes.wait_phase(site.namespace, "job-standby-0", "Running")
    job_id, there = str(site.job("job")["metadata"]["uid"]), site.pods("job")
    # A standby on the same node would be out of reach too.
    busy = there["job-standby-0"]["spec"]["nodeName"] if standbys == "1" else ""
    index = next(n for n in (0, 1) if there[f"job-worker-{n}"]["spec"]["nodeName"] != busy)
    rank, old = index + 1, there[f"job-worker-{index}"]
    where, name = old["spec"]["nodeName"], old["metadata"]["name"]
    async with managing(planned.log, job_id) as manager:
        await manager.link.report_fault(((rank, "1"),), cut=(rank,))
        await stop_and_offer(manager, "recover", "exit")
        order = await manager.hears("changeStrategy")
        if standbys == "1":
            await manager.link.report_outcome(0, "recovered", "recover")
        until(lambda: site.status("job").get("restarts") == 1, say=lambda: str(site.job("job")["status"]))
        site.wait_state("job", "Running")

    assert ("recover", (rank,)) == (order.strategy, order.nodes)
    request = site.status("job")["requests"][-1]
    assert (True, [where]) == (request["force"], request["avoid"])
    pods = site.pods("job")
    if standbys == "1":
        assert "worker" == pods["job-standby-0"]["metadata"]["labels"]["replica-type"]
        assert name not in pods
    else:
        new = pods[name]
        assert where != new["spec"]["nodeName"]
        assert old["metadata"]["uid"] != new["metadata"]["uid"]
    assert 1 == site.status("job")["restarts"]


async def test_a_device_fault_reaches_the_manager_without_a_word_of_the_trainer(
    site: Site, planned: Controller, nodes: Nodes
) -> None:
    """A device plugin's ConfigMap is answered with a warning for the ranks on that chip."""
    node = {"huawei.com/Ascend910": 8}
    nodes.add(2, capacity=node)
    container = {"resources": {"limits": {"huawei.com/Ascend910": 8}}}
    job = small("job", workers=1, annotations=STRATEGIES, labels=FORCED, container=container)
    site.submit(job)
    site.wait_state("job", "Running")
    job_id = str(site.job("job")["metadata"]["uid"])
    worker = site.pod("job-worker-0")["spec"]["nodeName"]
    chips = ",".join(f"Ascend910-{chip}" for chip in range(8))
    path = f"/api/v1/namespaces/{site.namespace}/pods/job-worker-0"
    site.kube.api.patch(path, {"metadata": {"annotations": {"huawei.com/AscendReal": chips}}})
    async with managing(planned.log, job_id) as manager:
        fault = {
            "fault_type": "CardUnhealthy",
            "npu_name": "Ascend910-3",
            "fault_level": "SeparateNPU",
            "fault_code": "80E18005",
        }
        body = {
            "metadata": {"name": f"mindx-dl-deviceinfo-{worker}", "labels": {"mx-consumer-cim": "true"}},
            "data": device_info((fault,)),
        }
        site.kube.api.create("/api/v1/namespaces/kube-system/configmaps", body)
        try:
            warning = await manager.hears("preExitProcess")
        finally:
            site.kube.api.delete(f"/api/v1/namespaces/kube-system/configmaps/mindx-dl-deviceinfo-{worker}")

    assert ((11, "1"),) == warning.ranks
    assert (1,) == warning.nodes


async def test_a_plane_that_is_killed_goes_on_where_it_was(site: Site, planned: Controller) -> None:
    """In the middle of a recovery: its successor knows the episode, and says again what is outstanding."""
    job_id = running(site)
    before = uid(site, "job-worker-0")
    async with managing(planned.log, job_id) as manager:
        await manager.link.report_fault(((1, "1"),))
        first = await manager.hears("stopTrain")
        planned.kill()
    planned.log.write_text("")
    planned.start()
    async with managing(planned.log, job_id) as manager:
        again = await manager.hears("stopTrain")
        assert (first.uuid, first.ranks) == (again.uuid, again.ranks)
        await manager.link.report_stopped(0, "stopped", ())
        await manager.hears("globalFault")
        await manager.link.report_offers((), ("recover",))
        order = await manager.hears("changeStrategy")
        until(lambda: replaced(site, before), say=lambda: str(site.job("job")["status"]))
        site.wait_state("job", "Running")
        status = await manager.link.report_outcome(0, "recovered", "recover")

    assert ("recover", 0) == (order.strategy, status.code)
    assert 1 == site.status("job")["restarts"]


async def test_a_plane_is_not_served_in_the_clear_by_accident(
    site: Site, nodes: Nodes, tmp_path: Path
) -> None:
    """Whoever wants that has to say so: without a word about certificates there are some."""
    nodes.add(1)
    flags = [flag for flag in PLANE if flag != "--plane-insecure"]
    process = Controller(site.kube.kubeconfig, site.namespace, tmp_path / "log", *flags).start()
    try:
        port = until(lambda: find_port(tmp_path / "log"))
        with pytest.raises(PlaneError):
            async with connect_plane(PlaneAddress(f"127.0.0.1:{port}", "any"), 2.0):
                pass
    finally:
        _end(process)
    # With a Secret for jobs that somebody brings, the plane's own would be of another authority.
    refused = Controller(
        site.kube.kubeconfig, site.namespace, tmp_path / "log", "--plane", "--certificates", "mine"
    )
    with pytest.raises(AssertionError, match="--plane-certificates"):
        refused.start()
