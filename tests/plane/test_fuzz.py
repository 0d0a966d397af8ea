"""Whatever comes in is answered, and the plane goes on."""

import asyncio
from typing import Any

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taskd.plane import rates
from taskd.testing.plane import MemoryCluster
from tests.plane.player import FakeManager, Stub, plane_for, ranks
from tests.plane.stubs import message, services

JOB = "job-0001"
CALLS = [
    (service, call, request, response, stream)
    for service, calls in services().items()
    for call, (request, response, stream) in calls.items()
]


async def still_works(port: int) -> None:
    """A whole recovery goes through, so nothing was harmed."""
    manager = FakeManager(port, JOB)
    await manager.join()
    answer = await manager.report("ReportProcessFault", faultRanks=ranks("1:0"))
    assert answer.code in {0, 401}
    await manager.close()


@pytest.mark.parametrize(
    ("service", "call", "request_type", "response_type", "stream"),
    CALLS,
    ids=[f"{c[0]}/{c[1]}" for c in CALLS],
)
async def test_any_bytes_are_answered(
    service: str, call: str, request_type: Any, response_type: Any, stream: bool
) -> None:
    """Random bytes, cut messages and random messages to every call: an answer or a gRPC error, no crash."""
    cluster = MemoryCluster()
    cluster.add_job(JOB)
    payloads = [b"", b"\xff" * 20, b"\x0a\xff\xff\xff\xff\x0f", b"\x12\x03\x08\x80", bytes(range(256))]
    payloads += drawn(request_type)
    async with plane_for(cluster) as plane:
        stub = Stub(plane.port)
        for payload in payloads:
            await send(stub, f"{service}/{call}", payload, response_type, stream=stream)
        await still_works(plane.port)
        await stub.close()


def drawn(request_type: Any) -> list[bytes]:
    """Messages of the type with odd content, and the same with bytes changed."""
    found: list[bytes] = []
    strange = ["", JOB, "\x00", "x" * 5000, "\uff19", "-1", "{}", "a/b/c", "🙂"]

    @given(st.data())
    @settings(max_examples=12, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    def collect(data: st.DataObject) -> None:
        made = request_type()
        fill(made, data, strange)
        raw = bytearray(made.SerializeToString())
        found.append(bytes(raw))
        if raw:
            raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
            found.append(bytes(raw))

    collect()
    return found


def fill(made: Any, data: st.DataObject, strange: list[str]) -> None:
    for field in made.DESCRIPTOR.fields:
        if data.draw(st.integers(0, 3)) == 0:
            continue
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        if is_map:
            continue
        if field.message_type is not None:
            if field.is_repeated:
                for _ in range(data.draw(st.integers(0, 3))):
                    fill(getattr(made, field.name).add(), data, strange)
            else:
                fill(getattr(made, field.name), data, strange)
        elif field.cpp_type == field.CPPTYPE_STRING:
            value = data.draw(st.sampled_from(strange))
            put(made, field, value)
        elif field.cpp_type == field.CPPTYPE_BOOL:
            put(made, field, data.draw(st.booleans()))
        else:
            put(made, field, data.draw(st.sampled_from([0, 1, -1, 2**31 - 1, -(2**31)])))


def put(made: Any, field: Any, value: Any) -> None:
    if field.is_repeated:
        getattr(made, field.name).append(value)
    else:
        setattr(made, field.name, value)


async def send(stub: Stub, path: str, payload: bytes, response_type: Any, *, stream: bool) -> None:
    try:
        if not stream:
            response_type.FromString(await stub.raw(path, payload))
            return
        call = stub.channel.unary_stream(f"/{path}")(payload)
        try:
            async with asyncio.timeout(0.02):
                await call.read()
        finally:
            call.cancel()
    except (grpc.aio.AioRpcError, TimeoutError, asyncio.CancelledError):
        pass


async def test_a_report_without_its_status_is_answered() -> None:
    """What ends a stock control plane gets 409 here, in every phase."""
    cluster = MemoryCluster()
    cluster.add_job(JOB)
    async with plane_for(cluster) as plane:
        manager = FakeManager(plane.port, JOB)
        await manager.join()
        for _ in range(2):
            stop = await manager.report("ReportStopComplete")
            status = await manager.report("ReportRecoverStatus", strategy="recover")

            assert (409, 409) == (stop.code, status.code)
            assert "has no status" in stop.info
            await manager.report("ReportProcessFault", faultRanks=ranks("1:1"))
        empty = await manager.report("ReportStopComplete", status={})
        assert 0 == empty.code
        await manager.close()


async def test_huge_lists_are_refused_or_taken_quickly() -> None:
    """Thirty thousand ranks, most of which there are not: one bad entry refuses the report."""
    cluster = MemoryCluster()
    cluster.add_job(JOB)
    many = [message("FaultRank")(rankId=str(rank), faultType="1") for rank in range(30_000)]
    async with plane_for(cluster) as plane:
        manager = FakeManager(plane.port, JOB)
        await manager.join()
        refused = await manager.report("ReportProcessFault", faultRanks=many)
        repeated = await manager.report("ReportProcessFault", faultRanks=many[:16] * 1000)
        signal = await manager.next_signal()
        strategies = await manager.report("ReportRecoverStrategy", strategies=["recover"] * 1000)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await manager.report("ReportProcessFault", faultRanks=many * 15)
        await manager.close()

    assert (409, 0, 409) == (refused.code, repeated.code, strategies.code)
    assert [str(rank) for rank in range(16)] == [each.rankId for each in signal.faultRanks]
    assert grpc.StatusCode.RESOURCE_EXHAUSTED == caught.value.code()


async def test_a_storm_of_calls_is_limited_for_its_sender_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody who calls for a job that there is not is refused; a real job's manager does not notice."""
    monkeypatch.setattr(rates, "BURST", 20.0)
    monkeypatch.setattr(rates, "PER_S", 0.001)
    cluster = MemoryCluster()
    cluster.add_job(JOB)
    async with plane_for(cluster) as plane:
        stub = Stub(plane.port)
        answers = await asyncio.gather(
            *(stub.call("Recover/Init", jobId=f"nobody-{number}") for number in range(30)),
            return_exceptions=True,
        )
        refused = [each for each in answers if isinstance(each, grpc.aio.AioRpcError)]
        await still_works(plane.port)
        await stub.close()

    assert 10 == len(refused)
    assert {"rate limited, there is too many requests, please retry later"} == {
        each.details() for each in refused
    }
