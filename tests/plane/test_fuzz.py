"""Whatever comes in is answered, and the plane goes on."""

import asyncio
from typing import Any

import grpc
import pytest
import structlog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taskd.core.faults.view import FaultKind, Health, RankFault
from taskd.links import services as services_
from taskd.links.services import SERVER_ERROR
from taskd.plane import rates
from taskd.testing.plane import MemoryCluster
from tests.plane.player import WAIT_S, FakeManager, Stub, plane_for, ranks
from tests.plane.stubs import message, services

JOB = "job-0001"
CALLS = [
    (service, call, request, response, stream)
    for service, calls in services().items()
    for call, (request, response, stream) in calls.items()
]


# Jobs in all kinds of phases: what each allows and offers, and how many reports bring it there.
SCENES = {
    "init": ("recover", "recover", 0),
    "stopping": ("recover", "recover", 1),
    "asking": ("recover-in-place", "recover", 2),
    "recovering": ("recover", "recover", 3),
    "retrying": ("retry,recover", "retry", 3),
    "dumping": ("recover,dump", "dump", 3),
    "rescheduling": ("recover", "exit", 3),
    "standby": ("", "", 0),
    "pausing": ("", "", 0),
}
STRANGE = ["", "\x00", "x" * 5000, "\uff19", "-1", "{}", "a/b/c", "🙂", "9" * 5000]
WORDS = {
    "jobId": [*SCENES, "nobody"],
    "jobID": [*SCENES],
    "jobNsName": [f"default/name-{scene}" for scene in SCENES],
    "rankId": ["0", "1", "9", "15", "16"],
    "faultType": ["0", "1", "2", "3"],
    "strategy": ["retry", "recover", "dump", "exit", "migration", "continue"],
    "strategies": ["retry", "recover", "dump", "exit", "migration", "downgrade"],
    "role": ["taskd", "CCAgent"],
}
NUMBERS = [0, 1, -1, 200, 201, 404, 405, 406, 499, 2**31 - 1, -(2**31)]
BESIDE = {
    "taskd-uuid": ["0-stale", "x" * 2000],
    "taskd-cut-pods": ["0", "1", "0,1", "7", "-1", ",,,", "9" * 3000, "x"],
    "taskd-placed-pods": ["1=job-standby-0", "0=a,0=b", "=", "1=", "9999=x", "9" * 3000 + "=x", "1"],
    "taskd-alone": ["1", "0", "x"],
    "taskd-keeps-old-pod": ["1", "x"],
}


async def bring_to(cluster: MemoryCluster, port: int, scene: str) -> FakeManager:
    """Register a job and have it come into a phase; its manager goes on listening."""
    strategies, offered, reports = SCENES[scene]
    cluster.add_job(scene, strategies, labels={} if strategies else {"subHealthyStrategy": "hotSwitch"})
    manager = FakeManager(port, scene)
    await manager.join()
    for name, fields in (
        ("ReportProcessFault", {"faultRanks": ranks("9:0" if offered == "retry" else "9:1")}),
        ("ReportStopComplete", {"status": {}}),
        ("ReportRecoverStrategy", {"strategies": [offered]}),
    )[:reports]:
        answer = await manager.report(name, **fields)
        assert 0 == answer.code, answer.info
        await manager.next_signal()
    if not strategies:
        fault = RankFault(9, FaultKind.NORMAL, "SubHealthFault", "80E18401")
        cluster.break_devices(scene, fault, health=Health.SUB_HEALTHY)
        await manager.next_signal()
        if scene == "pausing":
            cluster.stand_by(scene, 1)
            await manager.next_signal()
    return manager


async def still_works(port: int) -> None:
    """A whole recovery goes through, so nothing was harmed."""
    manager = FakeManager(port, JOB)
    await manager.join()
    answer = await manager.report("ReportProcessFault", faultRanks=ranks("1:0"))
    assert 0 == answer.code, answer.info
    await manager.close()


async def test_the_scenes_are_what_they_say() -> None:
    """Each job is in the phase after which it is called."""
    cluster = MemoryCluster()
    async with plane_for(cluster) as plane:
        managers = [await bring_to(cluster, plane.port, scene) for scene in SCENES]
        found = [plane.office.desk(scene).state.phase.value for scene in SCENES]  # type: ignore[union-attr]
        for manager in managers:
            await manager.close()

    assert list(SCENES) == found


@pytest.mark.parametrize(
    ("service", "call", "request_type", "response_type", "stream"),
    CALLS,
    ids=[f"{c[0]}/{c[1]}" for c in CALLS],
)
async def test_whatever_comes_is_answered(
    service: str,
    call: str,
    request_type: Any,
    response_type: Any,
    stream: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Random bytes, cut messages and random messages to every call, about jobs in every phase.

    Each is answered, none with an error of the plane's own; each refusal is one line in the log.
    """
    monkeypatch.setattr(services_, "REFUSALS_AT_ONCE", 1000.0)
    cluster = MemoryCluster()
    cluster.add_job(JOB)
    payloads = [b"", b"\xff" * 20, b"\x0a\xff\xff\xff\xff\x0f", b"\x12\x03\x08\x80", bytes(range(256))]
    sent: list[tuple[bytes, dict[str, str]]] = [(payload, {}) for payload in payloads]
    sent += drawn(request_type)
    refused = 0
    with structlog.testing.capture_logs() as logs:
        async with plane_for(cluster) as plane:
            managers = [await bring_to(cluster, plane.port, scene) for scene in SCENES]
            stub = Stub(plane.port)
            logs.clear()
            for payload, beside in sent:
                code = await send(stub, f"{service}/{call}", payload, beside, response_type, stream=stream)
                assert SERVER_ERROR != code, logs[-1:]
                refused += code not in services_.FINE
            told = [each for each in logs if each["event"] == "refused"]
            await still_works(plane.port)
            await asyncio.gather(stub.close(), *(manager.close() for manager in managers))

    # Of a stream it may be known to the plane alone: the other side waits for a moment only.
    assert refused <= len(told) if stream else refused == len(told)
    assert all(each["why"] and each["call"] == call for each in told)
    assert [] == [each for each in logs if each["log_level"] in {"error", "critical"}]
    assert [] == [each.getMessage() for each in caplog.records if each.levelname in {"ERROR", "CRITICAL"}]


def drawn(request_type: Any) -> list[tuple[bytes, dict[str, str]]]:
    """Messages of the type with odd content and odd headers, and the same with bytes changed."""
    found: list[tuple[bytes, dict[str, str]]] = []

    @given(st.data())
    @settings(max_examples=30, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    def collect(data: st.DataObject) -> None:
        made = request_type()
        fill(made, data)
        keys = data.draw(st.sets(st.sampled_from(sorted(BESIDE)), max_size=2))
        beside = {key: data.draw(st.sampled_from(BESIDE[key])) for key in sorted(keys)}
        raw = bytearray(made.SerializeToString())
        found.append((bytes(raw), beside))
        if raw:
            raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
            found.append((bytes(raw), beside))

    collect()
    return found


def fill(made: Any, data: st.DataObject) -> None:
    for field in made.DESCRIPTOR.fields:
        if data.draw(st.integers(0, 3)) == 0:
            continue
        values = st.sampled_from([*WORDS.get(field.name, []) * 4, *STRANGE])
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            for key in data.draw(st.lists(values, max_size=2)):
                if field.message_type.fields_by_name["value"].message_type is None:
                    getattr(made, field.name)[key] = data.draw(values)
                else:
                    fill(getattr(made, field.name)[key], data)
        elif field.message_type is not None:
            if field.is_repeated:
                for _ in range(data.draw(st.integers(0, 3))):
                    fill(getattr(made, field.name).add(), data)
            else:
                getattr(made, field.name).SetInParent()
                fill(getattr(made, field.name), data)
        elif field.cpp_type == field.CPPTYPE_STRING:
            put(made, field, data.draw(values))
        elif field.cpp_type == field.CPPTYPE_BOOL:
            put(made, field, data.draw(st.booleans()))
        else:
            put(made, field, data.draw(st.sampled_from(NUMBERS)))


def put(made: Any, field: Any, value: Any) -> None:
    if field.is_repeated:
        getattr(made, field.name).append(value)
    else:
        setattr(made, field.name, value)


async def send(
    stub: Stub, path: str, payload: bytes, beside: dict[str, str], response_type: Any, *, stream: bool
) -> object:
    """Make a call; returns its code, that of gRPC where it is an error, and 0 where there is none."""
    headers = tuple(beside.items())
    try:
        if not stream:
            answer = await stub.channel.unary_unary(f"/{path}")(payload, timeout=WAIT_S, metadata=headers)
            return getattr(response_type.FromString(answer), "code", 0)
        call = stub.channel.unary_stream(f"/{path}")(payload, metadata=headers)
        try:
            async with asyncio.timeout(0.02):
                await call.read()
        finally:
            call.cancel()
    except grpc.aio.AioRpcError as error:
        return error.code()
    except (TimeoutError, asyncio.CancelledError):
        pass
    return 0


async def test_a_storm_of_refusals_does_not_fill_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was left out is counted in the next line."""
    monkeypatch.setattr(services_, "REFUSALS_AT_ONCE", 3.0)
    monkeypatch.setattr(services_, "REFUSALS_PER_S", 0.0)
    cluster = MemoryCluster()
    with structlog.testing.capture_logs() as logs:
        async with plane_for(cluster) as plane:
            stub = Stub(plane.port)
            for _ in range(10):
                await stub.call("Recover/Init", jobId="nobody" * 1000)
            monkeypatch.setattr(services_, "REFUSALS_PER_S", 1e6)
            await stub.call("Recover/Init", jobId="nobody")
            await stub.close()

    told = [each for each in logs if each["event"] == "refused"]
    assert [None, None, None, 7] == [each.get("untold") for each in told]
    assert services_.LONGEST_REASON >= max(len(each["why"]) for each in told)


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
