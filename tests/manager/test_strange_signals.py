"""Whatever a plane sends, the manager's liaison goes on: it skips, refuses or obeys."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taskd.core.liaison import SignalKind
from taskd.links.plane import read_signal
from taskd.manager import liaison
from taskd.wire.proto3 import ProtoError, decode
from taskd.wire.recover import ProcessManageSignal
from tests.manager.played import PATIENCE_S, PlayedManager, working
from tests.manager.playedplane import SUBSCRIBE, PlayedPlane, playing, status
from tests.plane.stubs import message

STRANGE = ["", "\x00", "x" * 3000, "\uff19", "-1", "🙂", "9" * 5000]
RANKS = st.sampled_from(["0", "1", "2", "3", "1000000", *STRANGE])
ACTIONS = ["stop_train", "pause_train", "hot switch", "stop switch", "new pod running", "change_strategy", ""]
CHANGES = ["retry", "recover", "dump", "exit", "migration", "continue", "downgrade", "x", ""]
STANDBYS = ["1=a", "=", "1=", "x=y", "9" * 5000 + "=y", "1"]
LENGTH = 12


@st.composite
def signals(draw: st.DrawFn) -> Any:
    fault = st.builds(message("FaultRank"), rankId=RANKS, faultType=st.sampled_from(["0", "1", "2", "", "x"]))
    return message("ProcessManageSignal")(
        uuid=draw(st.sampled_from(["U1", "U2", *STRANGE])),
        jobId=draw(st.sampled_from(["job-0001", "other", ""])),
        signalType=draw(st.sampled_from([*SignalKind, "x", ""])),
        actions=draw(st.lists(st.sampled_from(ACTIONS), max_size=3)),
        faultRanks=draw(st.lists(fault, max_size=3)),
        changeStrategy=draw(st.sampled_from(CHANGES)),
        timeout=draw(st.sampled_from([0, -1, 33, 2**62])),
        nodeRankIds=draw(st.lists(RANKS, max_size=3)),
        extraParams=draw(st.sampled_from(["", "recover-in-place", "dump_exit", *STRANGE])),
        standbys=draw(st.lists(st.sampled_from(STANDBYS), max_size=2)),
        shunned=draw(st.lists(st.sampled_from(["a", "", "x" * 3000]), max_size=2)),
    )


@given(signals(), st.integers(0, 10**6), st.integers(0, 255))
def test_any_bytes_are_a_signal_or_none(signal: Any, place: int, value: int) -> None:
    """Numbers that cannot be ranks are left out; bytes that are no signal are refused in one way."""
    raw = bytearray(signal.SerializeToString())
    found = read_signal(decode(ProcessManageSignal, bytes(raw)))
    if raw:
        raw[place % len(raw)] = value
    with contextlib.suppress(ProtoError):
        read_signal(decode(ProcessManageSignal, bytes(raw)))

    assert all(0 <= rank < 10**9 for rank, _ in (*found.ranks, *found.standbys))
    assert all(0 <= node < 10**9 for node in found.nodes)


@contextlib.asynccontextmanager
async def listening(*, ours: bool) -> AsyncIterator[tuple[PlayedPlane, PlayedManager, asyncio.Event]]:
    """A plane that takes every report, also with codes that nobody knows, and a manager that hears it."""
    subscribed = asyncio.Event()
    codes = [0, 0, 401, 0, 599, -1]

    async def answer(plane: PlayedPlane) -> None:
        while True:
            heard = await plane.heard.get()
            if heard.name == SUBSCRIBE:
                subscribed.set()
                continue
            codes.append(codes.pop(0))
            heard.answer.set_result(status(0 if heard.name in ("Init", "Register") else codes[0]))

    async with playing(ours=ours) as plane:
        answering = asyncio.ensure_future(answer(plane))
        async with working(plane.port, "retry", "recover", "recover-in-place", "dump") as manager:
            await asyncio.wait_for(subscribed.wait(), PATIENCE_S)
            yield plane, manager, subscribed
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)


def drawn(count: int) -> list[list[Any]]:
    found: list[list[Any]] = []

    @given(st.lists(signals(), min_size=LENGTH, max_size=LENGTH))
    @settings(max_examples=count, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    def collect(sequence: list[Any]) -> None:
        found.append(sequence)

    collect()
    return found


@pytest.mark.parametrize("ours", [False, True])
async def test_no_sequence_of_signals_ends_the_liaison(
    ours: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Well-formed nonsense with a fault in the middle; then the stream ends, and it subscribes again."""
    monkeypatch.setattr(liaison, "SETTLE_S", 0.0)
    with structlog.testing.capture_logs() as logs:
        for sequence in drawn(12):
            async with listening(ours=ours) as (plane, manager, subscribed):
                for number, signal in enumerate(sequence):
                    if number == LENGTH // 2:
                        manager.killed("1")
                    plane.send(signal)
                    await asyncio.sleep(0.002)
                subscribed.clear()
                plane.end_stream()
                await asyncio.wait_for(subscribed.wait(), PATIENCE_S)

    assert [] == [each for each in logs if each["log_level"] in {"error", "critical"}]
    assert [] == [each.getMessage() for each in caplog.records if each.levelname in {"ERROR", "CRITICAL"}]


async def test_bytes_that_are_no_signal_are_skipped() -> None:
    """To break off would bring them again with the next stream; what comes after them is heard."""
    async with listening(ours=False) as (plane, manager, _):
        plane.send(b"\x0a\xff")
        doubt = message("FaultRank")(rankId="1", faultType="0")
        plane.send(message("ProcessManageSignal")(uuid="U1", signalType="stopTrain", faultRanks=[doubt]))
        await manager.until(lambda: bool(manager.orders))

    assert [(1,)] == [order.ranks for order in manager.orders]
