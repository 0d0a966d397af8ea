"""The plane on a real API server, with the operator that does what it asks; the manager is played."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from taskd.core.faults.view import FaultKind, Health, JobFaults, NodeFaults, RankFault
from taskd.kube.client import KubeClient
from taskd.kube.config import load_config
from taskd.kube.events import ObjectRef
from taskd.kube.informer import Informer
from taskd.kube.resources import ASCENDJOB, POD
from taskd.plane.directory import Directory
from taskd.plane.hands import ClusterHands
from taskd.plane.jobmaps import JobConfigMaps
from taskd.plane.keeping import StateMaps
from taskd.plane.names import PlaneNames
from taskd.plane.server import Plane, PlaneConfig, open_plane
from taskd.plane.sources import Sources
from taskd.testing.kube import Nodes
from taskd.testing.plane import MemoryCluster, MemoryFaults
from tests.kube.operator.site import Site
from tests.kube.operator.small import delete_pod, small, uid, wait_replaced, wait_running
from tests.plane.player import FakeManager, ranks

LIMIT_S = 60.0
pytestmark = pytest.mark.usefixtures("controller", "volcano")


class Ground:
    """A plane whose jobs are in the cluster; faults of devices are made by the test."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.faults = MemoryCluster()
        self.told: list[str] = []

    def normal(self, about: ObjectRef, reason: str, message: str) -> None:
        self.told.append(message)

    def warning(self, about: ObjectRef, reason: str, message: str) -> None:
        self.told.append(message)

    @asynccontextmanager
    async def plane(self) -> AsyncIterator[Plane]:
        async with KubeClient(load_config(self.site.kube.kubeconfig)) as client:
            jobs = Informer(client, ASCENDJOB, namespace=self.site.namespace)
            pods = Informer(client, POD, namespace=self.site.namespace)
            tasks = [asyncio.create_task(informer.run()) for informer in (jobs, pods)]
            try:
                async with asyncio.timeout(LIMIT_S):
                    await asyncio.gather(jobs.synced(), pods.synced())
                sources = Sources.make(client, PlaneNames(jobs=self.site.namespace), jobs=jobs, pods=pods)
                directory = Directory(sources)
                directory.connect()
                async with open_plane(
                    PlaneConfig(address="127.0.0.1:0", insecure=True),
                    directory=directory,
                    centre=MemoryFaults(self.faults),
                    config_maps=JobConfigMaps(client),
                    hands=ClusterHands(client, sources, self, groups=True),
                    keeper=StateMaps(client, directory, self.site.namespace),
                ) as plane:
                    yield plane
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    def reset(self, name: str) -> dict[str, object]:
        path = f"/api/v1/namespaces/{self.site.namespace}/configmaps/reset-config-{name}"
        found = self.site.kube.api.find(path)
        read: dict[str, object] = json.loads((found or {}).get("data", {}).get("reset.json", "{}"))
        return read

    def break_device(self, job_id: str, node: str, fault: RankFault) -> None:
        health = Health.SUB_HEALTHY if fault.level == "SubHealthFault" else Health.UNHEALTHY
        view = JobFaults(job_id, health, (NodeFaults(node, "", "", health, ()),), (fault,))
        self.faults.faults[job_id] = view
        for listener in list(self.faults.fault_listeners):
            listener(view)


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not await asyncio.to_thread(holds):
            await asyncio.sleep(0.05)


def submit(site: Site, nodes: Nodes, **labels: str) -> str:
    """A job of two pods with two processes each, running; returns its UID."""
    nodes.add(3)
    job = small(
        "job",
        labels={"fault-scheduling": "grace", **labels},
        annotations={"recover-strategy": "recover", "taskd.io/processes-per-pod": "2"},
    )
    site.submit(job)
    wait_running(site, "job")
    return str(site.job("job")["metadata"]["uid"])


async def test_a_faulty_pod_is_replaced_and_the_others_stay(site: Site, nodes: Nodes) -> None:
    """From the report to the recovered job: the operator replaces the pod that the plane names, and no other.

    The reset-config says each step, and a plane that is started again in the middle goes on from the
    ConfigMap that the one before has left.
    """
    job_id = await asyncio.to_thread(submit, site, nodes)
    ground = Ground(site)
    master, worker = uid(site, "job-master-0"), uid(site, "job-worker-0")
    async with ground.plane() as plane:
        manager = FakeManager(plane.port, job_id)
        await manager.join()
        await manager.report("ReportProcessFault", faultRanks=ranks("3:1"))
        stop = await manager.next_signal()
        await until(lambda: ground.reset("job").get("FaultFlushing"))
        await manager.report("ReportStopComplete", status={"code": 0})
        told = await manager.next_signal()
        await manager.close()
    async with ground.plane() as plane:
        manager = FakeManager(plane.port, job_id)
        await manager.join()
        again = await manager.next_signal()
        await asyncio.to_thread(wait_replaced, site, "job-worker-0", worker, LIMIT_S)
        await manager.report("ReportRecoverStrategy", strategies=["recover", "exit"])
        order = await manager.next_signal()
        await until(lambda: ground.reset("job").get("RankList") == [])
        answer = await manager.report("ReportRecoverStatus", strategy="recover", status={"code": 0})
        await until(lambda: any("recovered" in text for text in ground.told))
        await manager.close()

    assert (["3"], ["2", "3"], ["1"]) == (
        [each.rankId for each in stop.faultRanks],
        [each.rankId for each in told.faultRanks],
        list(told.nodeRankIds),
    )
    assert told == again, "the outstanding signal is said again, with its uuid"
    assert ("recover", told.uuid) == (order.changeStrategy, order.uuid)
    assert 0 == answer.code
    assert master == uid(site, "job-master-0")
    assert 1 == site.status("job")["restarts"]


async def test_a_hot_switch_moves_a_pod(site: Site, nodes: Nodes) -> None:
    """The operator makes the standby and removes the old pod; the switch is no restart."""
    job_id = await asyncio.to_thread(submit, site, nodes, subHealthyStrategy="hotSwitch")
    ground = Ground(site)
    worker = uid(site, "job-worker-0")
    node = site.pod("job-worker-0")["spec"]["nodeName"]
    async with ground.plane() as plane:
        manager = FakeManager(plane.port, job_id)
        await manager.join()
        ground.break_device(job_id, node, RankFault(2, FaultKind.NORMAL, "SubHealthFault", "80E18401"))
        signals = [await manager.next_signal(), await manager.next_signal()]
        # Nobody here keeps the new pod off the slow node, and there it would have to move again.
        ground.faults.faults.clear()
        await manager.report("ReportRecoverStrategy", strategies=["exit", "migration"])
        signals.append(await manager.next_signal())
        await manager.report("ReportRecoverStatus", strategy="migration", status={"code": 0})
        await until(lambda: any("switched" in text for text in ground.told))
        await manager.close()

    found = {pod["metadata"]["uid"] for pod in site.pods("job").values()}
    actions = [list(each.actions) for each in signals]
    assert [["hot switch"], ["new pod running"], ["change_strategy"]] == actions
    assert worker not in found
    assert 2 == len(found)
    assert 0 == site.status("job").get("restarts", 0)


async def test_a_deleted_pod_is_noticed_without_a_report(site: Site, nodes: Nodes) -> None:
    """The order to stop follows the deletion; the pod that the operator made by itself is used."""
    job_id = await asyncio.to_thread(submit, site, nodes)
    ground = Ground(site)
    async with ground.plane() as plane:
        manager = FakeManager(plane.port, job_id)
        await manager.join()
        await asyncio.to_thread(delete_pod, site, "job-worker-0")
        stop = await manager.next_signal()
        await manager.report("ReportStopComplete", status={"code": 0})
        await manager.next_signal()
        await manager.report("ReportRecoverStrategy", strategies=["recover"])
        order = await manager.next_signal()
        await until(lambda: ground.reset("job").get("RankList") == [])
        answer = await manager.report("ReportRecoverStatus", strategy="recover", status={"code": 0})
        await manager.close()

    assert ("stopTrain", ["2", "3"]) == (stop.signalType, [each.rankId for each in stop.faultRanks])
    assert "recover" == order.changeStrategy
    assert 0 == answer.code
    assert 1 == site.status("job")["restarts"], "the pod was lost once and is replaced once"


async def test_what_is_kept_goes_with_the_job(site: Site, nodes: Nodes) -> None:
    """The state is the job's own: it is deleted with it."""
    job_id = await asyncio.to_thread(submit, site, nodes)
    ground = Ground(site)

    def kept() -> list[str]:
        path = f"/api/v1/namespaces/{site.namespace}/configmaps"
        names = [each["metadata"]["name"] for each in site.kube.api.items(path)]
        return [name for name in names if name.startswith("taskd-plane-")]

    async with ground.plane() as plane:
        manager = FakeManager(plane.port, job_id)
        await manager.join()
        await until(lambda: kept() == [f"taskd-plane-{job_id}"])
        await asyncio.to_thread(site.delete, "job")
        async with asyncio.timeout(LIMIT_S):
            await manager.ended.wait()
        await until(lambda: kept() == [])
        await manager.close()
