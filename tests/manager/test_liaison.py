"""A manager and a control plane in earnest, over a connection; the job's ranks are played."""

import asyncio
import contextlib
from dataclasses import replace

from taskd.core.faults.isolating import Scope
from taskd.core.faults.view import FaultKind, RankFault
from taskd.core.jobstate import NodeLost
from taskd.core.plane.jobs import StandbyView
from taskd.core.status import JobPhase
from taskd.links.plane import PlaneAddress, connect_plane
from taskd.testing.plane import MemoryCluster
from tests.manager.played import JOB, PATIENCE_S, managed
from tests.plane.player import plane_for


def told(cluster: MemoryCluster) -> list[str]:
    return [incident.outcome for _, incident in cluster.incidents]


async def test_a_memory_error_of_a_device_is_decided_once_the_rank_has_felt_it() -> None:
    """The rank is told and says so at its next step; until then the plane waits for the stop."""
    cluster = MemoryCluster()
    cluster.add_job(JOB, "retry", pods=3, ranks_per_pod=1)
    async with plane_for(cluster) as plane, managed(plane.port, "retry") as manager:
        cluster.break_devices(JOB, RankFault(1, FaultKind.UCE, "RestartBusiness", "80E01801"))
        await manager.until(lambda: bool(manager.orders))
        await asyncio.sleep(0.1)
        assert JobPhase.RUNNING is manager.job.phase
        manager.trouble("1", "uce")
        await manager.until(lambda: manager.job.phase is JobPhase.RECOVERING)
        incident = manager.scene.incidents[1]
        manager.come_through()
        await manager.until(lambda: told(cluster)[-1] == "recovered")

    assert [(1,)] == [order.ranks for order in manager.orders]
    assert ("retry", True) == (incident.strategy, "the control plane decided: retry" in incident.reason)


async def test_what_the_job_did_while_there_was_no_plane_is_told_to_the_next_one() -> None:
    """The plane dies with the question; the job recovers alone, and the next plane asks for nothing."""
    cluster = MemoryCluster()
    cluster.add_job(JOB, "recover-in-place", pods=3, ranks_per_pod=1)
    async with contextlib.AsyncExitStack() as stack:
        first = contextlib.AsyncExitStack()
        plane = await first.enter_async_context(plane_for(cluster))
        address = f"127.0.0.1:{plane.port}"
        manager = await stack.enter_async_context(managed(plane.port, "recover-in-place"))
        desk = plane.office.desk(JOB)
        assert desk is not None
        manager.killed("1")
        await first.aclose()
        await manager.until(lambda: manager.job.phase is JobPhase.RECOVERING)
        manager.come_through()
        assert "recovered" == manager.scene.incidents[1].outcome
        await stack.enter_async_context(plane_for(cluster, address=address))
        await manager.until(lambda: "recovered" in told(cluster))
        await manager.until(lambda: manager.job.plane_limit_s > 0)
        await asyncio.sleep(0.2)

    assert JobPhase.RUNNING is manager.job.phase
    assert [1] == list(manager.scene.incidents)


async def test_a_plane_hears_which_pods_have_the_places_of_others() -> None:
    """What is no place is left out; a pod that has its own place by then is not asked for."""
    cluster = MemoryCluster()
    job = cluster.add_job(JOB, "recover", pods=3, ranks_per_pod=1)
    placed = ((1, "job-standby-0"), (2, job.pods[2].name), (7, "?"))
    async with plane_for(cluster) as plane:
        async with connect_plane(PlaneAddress(f"127.0.0.1:{plane.port}", JOB), PATIENCE_S) as link:
            await link.begin()
            status = await link.report_outcome(0, "rank 1 was replaced", "recover", alone=True, placed=placed)
        async with asyncio.timeout(PATIENCE_S):
            while not cluster.asks:
                await asyncio.sleep(0.01)

    ((_, ask),) = cluster.asks
    assert (0, (1,), {1: "job-standby-0"}) == (status.code, ask.pods, ask.standbys)


async def test_the_manager_places_ranks_as_the_operator_is_told() -> None:
    """One standby is on an isolated node: the plane gives the place to the other, and both sides hear it."""
    cluster = MemoryCluster()
    job = cluster.add_job(JOB, "recover", pods=3, ranks_per_pod=1)
    standbys = (StandbyView("j-standby-0", "node-a"), StandbyView("j-standby-1", "node-b"))
    cluster.put_job(replace(job, standbys=standbys))
    cluster.isolated["node-a"] = Scope.NODE
    async with plane_for(cluster) as plane, managed(plane.port, "recover") as manager:
        for name in ("j-standby-0", "j-standby-1"):
            manager.stand_by(name)
        manager.apply(NodeLost(manager.scene.at(), manager.scene.now, "1", "1a", "it is gone"))
        await manager.until(lambda: manager.job.phase is JobPhase.RECOVERING)

    assert manager.job.plan is not None
    assert "standby-j-standby-1" == manager.job.plan.places[1].node
    assert [{1: "j-standby-1"}] == [ask.standbys for _, ask in cluster.asks if ask.wish == "replace"]
