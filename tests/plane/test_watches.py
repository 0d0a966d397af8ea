"""The services beside `Recover`: faults, jobs, rank tables, profiling switches, public faults."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import grpc
import pytest

from taskd.core.faults.view import DeviceFault, Health, JobFaults, NodeFaults, SwitchFault
from taskd.testing.plane import MemoryCluster
from tests.plane.player import WAIT_S, Stub, plane_for

JOB, OTHER = "job-0001", "job-0002"
SWITCHES = {"Step": "on", "FP": "off"}


@contextlib.asynccontextmanager
async def scene() -> AsyncIterator[tuple[MemoryCluster, Stub]]:
    cluster = MemoryCluster()
    cluster.add_job(JOB)
    cluster.add_job(OTHER)
    async with plane_for(cluster) as plane:
        stub = Stub(plane.port)
        yield cluster, stub
        await stub.close()


async def read(call: Any) -> Any:
    async with asyncio.timeout(WAIT_S):
        return await call.read()


async def refused(call: Any) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await read(call)
    return str(caught.value.details())


def faults(job_id: str, *codes: str) -> JobFaults:
    port = SwitchFault("08520003", "1", "2", "1700000000", "SubHealthFault")
    device = DeviceFault("3", "NPU", codes, ("SeparateNPU",) * len(codes), Health.UNHEALTHY, (), (), (port,))
    node = NodeFaults("node-1", "10.0.0.1", "SN1", Health.UNHEALTHY, (device,))
    return JobFaults(job_id, Health.UNHEALTHY if codes else Health.HEALTHY, (node,) if codes else (), ())


def tell(cluster: MemoryCluster, view: JobFaults) -> None:
    cluster.faults[view.job_id] = view
    for listener in list(cluster.fault_listeners):
        listener(view)


async def test_a_subscriber_hears_of_faults_and_of_their_end() -> None:
    """What is wrong now comes first, then every change; `normal` says that all is well again."""
    async with scene() as (cluster, stub):
        tell(cluster, faults(JOB, "80E18401"))
        answer = await stub.call("fault.Fault/Register", jobId=JOB, role="me")
        call = stub.call("fault.Fault/SubscribeFaultMsgSignal", jobId=JOB, role="me")
        first = await read(call)
        tell(cluster, faults(OTHER, "x"))
        tell(cluster, faults(JOB))
        last = await read(call)
        call.cancel()

    device = first.nodeFaultInfo[0].faultDevice[0]
    assert 0 == answer.code
    assert ("fault", JOB, "node-1", "UnHealthy") == (
        first.signalType,
        first.jobId,
        first.nodeFaultInfo[0].nodeName,
        device.faultLevel,
    )
    assert (["80E18401"], ["SeparateNPU"]) == (list(device.faultCodes), list(device.faultLevels))
    assert "08520003" == device.switchFaultInfos[0].faultCode
    assert ("normal", JOB) == (last.signalType, last.jobId)


async def test_the_whole_cluster_can_be_followed() -> None:
    """Without a job id every job's faults come, each under its own id."""
    async with scene() as (cluster, stub):
        tell(cluster, faults(JOB, "a"))
        call = stub.call("fault.Fault/SubscribeFaultMsgSignal", role="me")
        first = await read(call)
        tell(cluster, faults(OTHER, "b"))
        second = await read(call)
        call.cancel()

    assert [JOB, OTHER] == [first.jobId, second.jobId]


async def test_a_new_subscriber_of_a_role_takes_over() -> None:
    """The first stream ends without an error."""
    async with scene() as (_, stub):
        first = stub.call("fault.Fault/SubscribeFaultMsgSignal", jobId=JOB, role="me")
        waiting = asyncio.ensure_future(read(first))
        await asyncio.sleep(0.1)
        second = stub.call("fault.Fault/SubscribeFaultMsgSignal", jobId=JOB, role="me")
        ended = asyncio.ensure_future(read(second))
        end = await waiting
        second.cancel()
        await asyncio.gather(ended, return_exceptions=True)

    assert grpc.aio.EOF is end


async def test_faults_can_be_asked_for() -> None:
    """200 with what is wrong, 200 with a word where nothing is, 409 for an id that cannot be one."""
    async with scene() as (cluster, stub):
        tell(cluster, faults(JOB, "a"))
        found = await stub.call("fault.Fault/GetFaultMsgSignal", jobId=JOB)
        healthy = await stub.call("fault.Fault/GetFaultMsgSignal", jobId=OTHER)
        bad = await stub.call("fault.Fault/GetFaultMsgSignal", jobId="x")
        everything = await stub.call("fault.Fault/GetFaultMsgSignal")

    assert (200, JOB) == (found.code, found.faultSignal.jobId)
    assert (200, f"job with jobId: {OTHER} not found fault info") == (healthy.code, healthy.info)
    assert 409 == bad.code
    assert ("-1", 1) == (everything.faultSignal.jobId, len(everything.faultSignal.nodeFaultInfo))


async def test_who_may_not_subscribe_to_faults_is_told_why() -> None:
    """No role, or a job that there is not."""
    async with scene() as (_, stub):
        nobody = await stub.call("fault.Fault/Register", jobId=JOB)
        unknown = await stub.call("fault.Fault/Register", jobId="nobody", role="me")
        stream = await refused(stub.call("fault.Fault/SubscribeFaultMsgSignal", jobId="nobody", role="me"))

    assert (409, "request is nil or role is empty") == (nobody.code, nobody.info)
    assert (402, "jobId=nobody not exist and is not multi-instance") == (unknown.code, unknown.info)
    assert unknown.info == stream


async def test_jobs_can_be_followed() -> None:
    """A known role gets a name, with it all jobs as they are, and then every change and deletion."""
    async with scene() as (cluster, stub):
        stranger = await stub.call("job.Job/Register", role="Stranger")
        client = await stub.call("job.Job/Register", role="CCAgent")
        call = stub.call("job.Job/SubscribeJobSummarySignal", role="CCAgent", clientId=client.clientId)
        known = {(await read(call)).jobId for _ in range(2)}
        job = cluster.find(JOB)
        assert job is not None
        cluster.put_job(replace(job, status="failed"))
        failed = await read(call)
        cluster.remove_job(OTHER)
        gone = await read(call)
        call.cancel()
        bad = await refused(stub.call("job.Job/SubscribeJobSummarySignal", role="CCAgent", clientId="x"))

    assert (400, "role:Stranger is not in whitelist") == (stranger.code, stranger.info)
    assert 200 == client.code
    assert {JOB, OTHER} == known
    assert (JOB, "failed", "add") == (failed.jobId, failed.jobStatus, failed.operator)
    assert failed.deleteTime
    assert (OTHER, "delete") == (gone.jobId, gone.operator)
    assert "not registered" in bad


async def test_jobs_come_in_lists() -> None:
    """All jobs in one message where they fit, then single changes."""
    async with scene() as (cluster, stub):
        client = await stub.call("job.Job/Register", role="FdAgent")
        path = "job.Job/SubscribeJobSummarySignalList"
        call = stub.call(path, role="FdAgent", clientId=client.clientId)
        first = await read(call)
        cluster.remove_job(OTHER)
        second = await read(call)
        call.cancel()

    assert [JOB, OTHER] == [each.jobId for each in first.jobSummarySignals]
    assert (2, 1) == (first.JobTotalNum, second.JobTotalNum)


async def test_a_rank_table_comes_when_there_is_one_and_when_it_changes() -> None:
    """A subscription may come before the table."""
    async with scene() as (cluster, stub):
        registered = await stub.call("config.Config/Register", jobId=JOB, role="me")
        call = stub.call("config.Config/SubscribeRankTable", jobId=JOB, role="me")
        waiting = asyncio.ensure_future(read(call))
        await asyncio.sleep(0.1)
        job = cluster.find(JOB)
        assert job is not None
        cluster.put_job(replace(job, rank_table='{"status":"completed"}'))
        table = await waiting
        call.cancel()

    assert 0 == registered.code
    assert (JOB, '{"status":"completed"}') == (table.jobId, table.rankTable)


async def test_profiling_is_switched_by_file_and_by_stream() -> None:
    """Where the pods have the file it is written; who listens hears of it, and of what was set before."""
    async with scene() as (cluster, stub):
        job = cluster.find(JOB)
        assert job is not None
        cluster.put_job(replace(job, mounts_trace=True))
        path = f"default/{job.name}"
        missing = await stub.call("TrainingDataTrace/GetTrainingDataTraceSwitch", jobNsName=path)
        changed = await stub.call(
            "TrainingDataTrace/ModifyTrainingDataTraceSwitch", jobNsName=path, profilingSwitch=SWITCHES
        )
        call = stub.call("TrainingDataTrace/SubscribeDataTraceSwitch", jobId=JOB)
        before = await read(call)
        await stub.call(
            "TrainingDataTrace/ModifyTrainingDataTraceSwitch", jobNsName=path, profilingSwitch={"FP": "on"}
        )
        after = await read(call)
        found = await stub.call("TrainingDataTrace/GetTrainingDataTraceSwitch", jobNsName=path)
        call.cancel()

    assert (404, f'configmaps "data-trace-{job.name}" not found') == (missing.code, missing.message)
    assert 200 == changed.code
    assert ("on", "off") == (before.profilingSwitch.Step, before.profilingSwitch.FP)
    assert ("off", "on") == (after.profilingSwitch.Step, after.profilingSwitch.FP)
    assert found.profilingSwitch == after.profilingSwitch
    text = cluster.config_maps["default", f"data-trace-{job.name}"]["profilingSwitch"]
    assert text == (
        '{"CommunicationOperator":"off","Step":"off","SaveCheckpoint":"off","FP":"on","DataLoader":"off"}'
    )


@pytest.mark.parametrize(
    ("name", "switches", "want"),
    [
        ("no-slash", SWITCHES, (300, "the format of jobNsName is not namespace/jobName")),
        ("default/nobody", SWITCHES, (404, "there is no job default/nobody")),
        (f"default/name-{JOB}", {"Step": "ON"}, (300, "every switch is on or off, not Step='ON'")),
        (f"default/name-{JOB}", {}, (300, "no switch is given")),
        (
            f"default/name-{JOB}",
            SWITCHES,
            (404, f"job default/name-{JOB} has neither a manager that listens nor the file in its pods"),
        ),
    ],
)
async def test_profiling_that_cannot_be_switched_says_why(
    name: str, switches: dict[str, str], want: tuple[int, str]
) -> None:
    """In the body of the answer, with its code."""
    async with scene() as (_, stub):
        call = "TrainingDataTrace/ModifyTrainingDataTraceSwitch"
        answer = await stub.call(call, jobNsName=name, profilingSwitch=switches)

    assert want == (answer.code, answer.message)


async def test_public_faults_go_to_the_centre() -> None:
    """As they came, with all they hold; the centre's answer is the answer."""
    async with scene() as (cluster, stub):
        answer = await stub.call(
            "PubFault/SendPublicFault",
            id="11111111",
            timestamp=1_750_000_000_000,
            version="1.0",
            resource="CCAE",
            faults=[
                {
                    "faultId": "22222222",
                    "faultCode": "010001001",
                    "faultLocation": {"a": "b"},
                    "influence": [{"nodeName": "node-1", "deviceIds": [0, 31]}],
                }
            ],
        )

    assert 0 == answer.code
    assert ("CCAE", {"a": "b"}, (0, 31)) == (
        cluster.public[0].resource,
        cluster.public[0].faults[0].faultLocation,
        cluster.public[0].faults[0].influence[0].deviceIds,
    )
