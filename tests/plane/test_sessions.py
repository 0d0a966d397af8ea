"""Sessions and streams, as a manager of the reference control plane sees them."""

import asyncio
from dataclasses import replace

import grpc
import pytest

from taskd.core.faults.view import FaultKind, RankFault
from taskd.core.plane.state import Limits
from taskd.links.rpc import AddressInUse
from taskd.plane import desk as desks
from taskd.plane.server import InsecureRefused, PlaneConfig, open_plane
from taskd.testing.plane import MemoryCluster, MemoryFaults
from tests.plane.player import WAIT_S, FakeManager, Stub, plane_for, ranks

JOB = "job-0001"


async def test_the_codes_and_texts_of_a_session() -> None:
    """Init, Register, HealthCheck and early calls answer with the codes and texts of the reference."""
    cluster = MemoryCluster()
    cluster.add_job(JOB)
    async with plane_for(cluster) as plane:
        stub = Stub(plane.port)

        async def say(name: str, job_id: str = JOB) -> tuple[int, str]:
            answer = await stub.call(f"Recover/{name}", jobId=job_id, role="taskd")
            return answer.code, answer.info

        assert (408, f"jobId={JOB} not inited") == await say("Register")
        answer = await stub.call("Recover/ReportProcessFault", jobId=JOB, faultRanks=ranks("1:1"))
        assert (400, f"jobId={JOB} not registed") == (answer.code, answer.info)
        assert (502, "job(uid=nobody) one of jobName, pgName, ns is empty") == await say("Init", "nobody")
        assert (0, f"job(uid={JOB}) init success") == await say("Init")
        assert (0, f"job(uid={JOB}) init success") == await say("Init")
        assert (0, "register success") == await say("Register")
        assert (0, "register success") == await say("Register")
        assert (0, f"jobId={JOB}, receive HeathCheck") == await say("HealthCheck")
        await stub.close()


@pytest.mark.parametrize(
    ("labels", "strategies", "want"),
    [
        ({"fault-scheduling": "off"}, "recover", "fault-scheduling is absent or off"),
        ({"fault-scheduling": ""}, "recover", "fault-scheduling is absent or off"),
        ({}, "", "neither recover-strategy nor subHealthyStrategy=hotSwitch"),
        ({"process-recover-enable": "pause"}, "recover", "process-recover-enable is pause"),
    ],
)
async def test_a_job_that_does_not_allow_recovery_is_told_why(
    labels: dict[str, str], strategies: str, want: str
) -> None:
    """403 with the reason, so that a user sees which label is missing."""
    cluster = MemoryCluster()
    cluster.add_job(JOB, strategies, labels=labels)
    async with plane_for(cluster) as plane:
        stub = Stub(plane.port)
        answer = await stub.call("Recover/Init", jobId=JOB)
        await stub.close()

    assert 403 == answer.code
    assert want in answer.info


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("SubscribeProcessManageSignal", "not registed"),
        ("SubscribeNotifySwitch", "not registed, please wait agent register"),
        ("SubscribeNotifyExecStressTest", "not registed, please wait agent register"),
    ],
)
async def test_a_stream_of_an_unregistered_job_is_refused(call: str, text: str) -> None:
    """With UNKNOWN and the text that managers know."""
    async with plane_for(MemoryCluster()) as plane:
        stub = Stub(plane.port)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in stub.call(f"Recover/{call}", jobId=JOB):
                pass
        await stub.close()

    assert (grpc.StatusCode.UNKNOWN, f"jobId={JOB} {text}") == (caught.value.code(), caught.value.details())


async def test_the_stream_stays_open_and_shows_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an event the same stream goes on, and carries a keep-alive with the uuid of what is under way."""
    monkeypatch.setattr(desks, "KEEP_ALIVE_S", 0.05)
    cluster = MemoryCluster()
    cluster.add_job(JOB, "retry")
    async with plane_for(cluster) as plane:
        manager = FakeManager(plane.port, JOB)
        await manager.join()
        async with asyncio.timeout(WAIT_S):
            idle = await manager.signals.get()
        for _ in range(2):
            await manager.report("ReportProcessFault", faultRanks=ranks("1:0"))
            stop = await manager.next_signal()
            async with asyncio.timeout(WAIT_S):
                alive = await manager.signals.get()
            await manager.report("ReportStopComplete", status={"code": 0})
            await manager.next_signal()
            await manager.report("ReportRecoverStrategy", strategies=["retry"])
            await manager.next_signal()
            await manager.report("ReportRecoverStatus", status={"code": 0}, strategy="retry")

            assert ("keep-alive", stop.uuid) == (alive.signalType, alive.uuid)
        assert ("keep-alive", "") == (idle.signalType, idle.uuid)
        assert not manager.ended.is_set()
        await manager.close()


async def test_a_fault_before_the_subscription_is_not_lost() -> None:
    """A device that failed before Register, and a report before Subscribe, are both there at Subscribe."""
    cluster = MemoryCluster()
    cluster.add_job(JOB)
    cluster.break_devices(JOB, RankFault(9, FaultKind.NORMAL, "SeparateNPU", "80E18401"))
    async with plane_for(cluster) as plane:
        manager = FakeManager(plane.port, JOB)
        await manager.join()
        first = await manager.next_signal()
        await manager.hang_up()
        answer = await manager.report("ReportProcessFault", faultRanks=ranks("1:1"))
        await manager.subscribe()
        second = await manager.next_signal()
        await manager.close()

    assert "preExitProcess" == first.signalType
    assert 0 == answer.code
    assert ("stopTrain", ["1", "9"]) == (second.signalType, [each.rankId for each in second.faultRanks])


async def test_without_a_manager_the_faulty_pods_are_replaced() -> None:
    """Nobody subscribes: after a while the pods are replaced and all start again, and nothing hangs."""
    cluster = MemoryCluster()
    cluster.obedient = True
    cluster.add_job(JOB)
    async with plane_for(cluster, Limits(absent_s=0.05)) as plane:
        manager = FakeManager(plane.port, JOB)
        for name in ("Init", "Register"):
            await manager.stub.call(f"Recover/{name}", jobId=JOB)
        await manager.report("ReportProcessFault", faultRanks=ranks("1:1"))
        async with asyncio.timeout(WAIT_S):
            while not any("started again" in each.outcome for _, each in cluster.incidents):
                await asyncio.sleep(0.01)
        await manager.close()

    assert [("replace", (0,))] == [(ask.wish.value, ask.pods) for _, ask in cluster.asks]


async def test_a_job_that_waits_does_not_delay_another() -> None:
    """Twenty jobs whose cluster is slow each get their order in the time of one."""
    cluster = MemoryCluster()
    cluster.write_delay_s = 0.3
    async with plane_for(cluster) as plane:
        managers = []
        for number in range(20):
            cluster.add_job(f"job-{number:04}")
            managers.append(FakeManager(plane.port, f"job-{number:04}"))
        await asyncio.gather(*(manager.join() for manager in managers))
        began = asyncio.get_running_loop().time()
        await asyncio.gather(
            *(manager.report("ReportProcessFault", faultRanks=ranks("1:1")) for manager in managers)
        )
        signals = await asyncio.gather(*(manager.next_signal() for manager in managers))
        took_s = asyncio.get_running_loop().time() - began
        await asyncio.gather(*(manager.close() for manager in managers))

    assert {"stopTrain"} == {signal.signalType for signal in signals}
    assert took_s < 2.0, "one after the other they would have taken six seconds"


async def test_labels_are_read_again_when_they_change() -> None:
    """A strategy that is added while the job runs counts for the next fault."""
    cluster = MemoryCluster()
    job = cluster.add_job(JOB, "recover")
    async with plane_for(cluster) as plane:
        manager = FakeManager(plane.port, JOB)
        await manager.join()
        cluster.put_job(replace(job, annotations={"recover-strategy": " dump , nonsense"}))
        await manager.report("ReportProcessFault", faultRanks=ranks("1:1"))
        signal = await manager.next_signal()
        await manager.close()

    assert "saveAndExit" == signal.signalType


async def test_a_deleted_job_is_forgotten() -> None:
    """Its state, its registration and its stream go with it."""
    cluster = MemoryCluster()
    cluster.add_job(JOB)
    async with plane_for(cluster) as plane:
        manager = FakeManager(plane.port, JOB)
        await manager.join()
        assert {JOB} == set(cluster.states)
        cluster.remove_job(JOB)
        async with asyncio.timeout(WAIT_S):
            await manager.ended.wait()
            while cluster.states:
                await asyncio.sleep(0.01)
        answer = await manager.report("ReportProcessFault", faultRanks=ranks("1:1"))
        await manager.close()

    assert 400 == answer.code


async def test_operations_that_are_not_built_say_so() -> None:
    """Switching links and stress tests exist and answer that they are not supported."""
    cluster = MemoryCluster()
    cluster.add_job(JOB)
    async with plane_for(cluster) as plane:
        stub = Stub(plane.port)
        known = await stub.call("Recover/SwitchNicTrack", jobID=JOB)
        unknown = await stub.call("Recover/StressTest", jobID="nobody")
        reply = await stub.call("Recover/ReplyStressTestResult", jobId=JOB)
        told = [each.msg async for each in stub.call("Recover/SubscribeStressTestResponse", jobID=JOB)]
        told += [each.msg async for each in stub.call("Recover/SubscribeSwitchNicSignal", jobID=JOB)]
        await stub.close()

    assert 413 == known.code
    assert "not supported" in known.info
    assert (413, "job:nobody not exist") == (unknown.code, unknown.info)
    assert 401 == reply.code
    assert 2 == len([text for text in told if "not supported" in text])


async def test_the_streams_for_operations_stay_open() -> None:
    """A manager that subscribes to them does not have to ask again every two seconds."""
    cluster = MemoryCluster()
    cluster.add_job(JOB)
    async with plane_for(cluster) as plane:
        manager = FakeManager(plane.port, JOB)
        await manager.join()
        call = manager.stub.call("Recover/SubscribeNotifySwitch", jobId=JOB)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await call.read()
        call.cancel()
        await manager.close()


async def test_insecurity_has_to_be_asked_for() -> None:
    """Without certificates and without the wish to do without, nothing is served."""
    cluster = MemoryCluster()
    with pytest.raises(InsecureRefused, match="ask for insecure by name"):
        async with open_plane(
            PlaneConfig(address="127.0.0.1:0"),
            directory=cluster,
            centre=MemoryFaults(cluster),
            config_maps=cluster,
            hands=cluster,
            keeper=cluster,
        ):
            pass


async def test_a_port_in_use_is_an_error() -> None:
    """A second plane on the port fails at once and says why."""
    cluster = MemoryCluster()
    async with plane_for(cluster) as plane:
        with pytest.raises(AddressInUse):
            async with plane_for(cluster, address=f"127.0.0.1:{plane.port}"):
                pass
