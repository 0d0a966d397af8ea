"""The control plane under load: `make bench-plane`.

A thousand jobs with one stream each, all over loopback from one other process; the plane runs in a process of
its own, whose memory is read. The cluster is played, and each write to it takes 5 ms (`--write-ms`), which
stand before every order, because the state is kept first. Limits: a fault reaches its manager within 100 ms
(p99), 22 jobs that fail at once have their stopTrain within 0.5 s, ReportStopComplete is answered by
globalFault within 50 ms, memory stays under 1 GB. Exits with 1 if one of them is missed.
"""

import argparse
import asyncio
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from taskd.core.faults.view import FaultKind, RankFault
from taskd.plane.server import PlaneConfig, open_plane
from taskd.testing.plane import MemoryCluster, MemoryFaults
from taskd.wire.proto3 import decode, encode
from taskd.wire.recover import (
    RECOVER,
    ClientInfo,
    FaultRank,
    ProcessFaultRequest,
    ProcessManageSignal,
    RecoverStatusRequest,
    RecoverStrategyRequest,
    Status,
    StopCompleteRequest,
)

LIMIT_FAULT_MS, LIMIT_STORM_S, LIMIT_GLOBAL_MS, LIMIT_MEMORY_MB = 100.0, 0.5, 50.0, 1000.0
STORM = 22
WAIT_S = 30.0

Channel = Any


def name(number: int) -> str:
    """Return the id of a job."""
    return f"job-{number:05}"


# ------------------------------------------------------------------------------------- the plane's process


async def serve(jobs: int, write_ms: float) -> None:
    """Serve until standard input ends; a line "break N" breaks a device of job N."""
    cluster = MemoryCluster()
    cluster.write_delay_s = write_ms / 1000
    for number in range(jobs):
        cluster.add_job(name(number), "retry,recover", pods=4)
    config = PlaneConfig(address="127.0.0.1:0", insecure=True)
    async with open_plane(
        config,
        directory=cluster,
        centre=MemoryFaults(cluster),
        config_maps=cluster,
        hands=cluster,
        keeper=cluster,
    ) as plane:
        print(plane.port, flush=True)
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
        )
        while line := (await reader.readline()).decode().split():
            number = int(line[1])
            began = time.monotonic()
            cluster.break_devices(name(number), RankFault(9, FaultKind.UCE, "RestartBusiness", f"{began}"))
            print(f"{began}", flush=True)


# ----------------------------------------------------------------------------------------------- the managers


class Manager:
    """A manager with a stream; notes when signals come."""

    def __init__(self, channel: Channel, number: int) -> None:
        """Speak for one job."""
        self.channel = channel
        self.job = name(number)
        self.signals: asyncio.Queue[tuple[float, ProcessManageSignal]] = asyncio.Queue()

    async def call(self, method: str, request: object) -> Status:
        """Make a call; it has to succeed."""
        answer = await self.channel.unary_unary(RECOVER.path(method))(encode(request), timeout=WAIT_S)
        status = decode(Status, answer)
        assert status.code == 0, status.info
        return status

    async def join(self) -> None:
        """Init, Register, Subscribe."""
        await self.call("Init", ClientInfo(self.job, "taskd"))
        await self.call("Register", ClientInfo(self.job, "taskd"))
        stream = self.channel.unary_stream(RECOVER.path("SubscribeProcessManageSignal"))
        self.task = asyncio.ensure_future(self._read(stream(encode(ClientInfo(self.job, "taskd")))))

    async def _read(self, call: AsyncIterator[bytes]) -> None:
        async for data in call:
            signal = decode(ProcessManageSignal, data)
            if signal.signalType != "keep-alive":
                self.signals.put_nowait((time.monotonic(), signal))

    async def expect(self, kind: str) -> float:
        """Return when the next signal came, which has to be this one."""
        async with asyncio.timeout(WAIT_S):
            at, signal = await self.signals.get()
        assert signal.signalType == kind, signal
        return at

    async def recover(self) -> tuple[float, float]:
        """Go through a retry; returns seconds from report to stopTrain, and from stop to globalFault."""
        began = time.monotonic()
        await self.call("ReportProcessFault", ProcessFaultRequest(self.job, (FaultRank("9", "0"),)))
        fault_s = await self.expect("stopTrain") - began
        return fault_s, await self.finish()

    async def finish(self) -> float:
        """Answer everything after stopTrain; returns seconds from the stop to globalFault."""
        began = time.monotonic()
        await self.call("ReportStopComplete", StopCompleteRequest(self.job, Status()))
        global_s = await self.expect("globalFault") - began
        await self.call("ReportRecoverStrategy", RecoverStrategyRequest(self.job, strategies=("retry",)))
        await self.expect("changeStrategy")
        await self.call("ReportRecoverStatus", RecoverStatusRequest(self.job, Status(), "retry"))
        return global_s


async def measure(port: int, plane: "subprocess.Popen[str]", jobs: int, rounds: int) -> bool:
    """Run all measurements; returns whether every limit was kept."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) for _ in range(jobs)]
    managers = [Manager(channel, number) for number, channel in enumerate(channels)]
    began = time.monotonic()
    for first in range(0, jobs, 50):
        await asyncio.gather(*(manager.join() for manager in managers[first : first + 50]))
    print(f"{jobs} jobs joined in {time.monotonic() - began:.1f} s, one connection and one stream each")

    reports, stops, devices = [], [], []
    for number in range(rounds):
        manager = managers[number * 7 % jobs]
        fault_s, global_s = await manager.recover()
        reports.append(fault_s * 1000)
        stops.append(global_s * 1000)
    for number in range(rounds):
        index = number * 11 % jobs
        at = await asyncio.to_thread(break_device, plane, index)
        devices.append((await managers[index].expect("stopTrain") - at) * 1000)
        stops.append(await managers[index].finish() * 1000)
    storms = []
    for number in range(10):
        chosen = [managers[(number * STORM + each) % jobs] for each in range(STORM)]
        began = time.monotonic()
        found = await asyncio.gather(*(manager.recover() for manager in chosen))
        storms.append(max(fault_s for fault_s, _ in found))
        assert time.monotonic() - began < WAIT_S
    memory_mb = rss_mb(plane.pid)

    kept = [
        show("report of a fault to stopTrain", reports, "ms", LIMIT_FAULT_MS),
        show("device fault to stopTrain", devices, "ms", LIMIT_FAULT_MS),
        show("ReportStopComplete to globalFault", stops, "ms", LIMIT_GLOBAL_MS),
        show(
            f"{STORM} jobs at once, the last stopTrain",
            [each * 1000 for each in storms],
            "ms",
            LIMIT_STORM_S * 1000,
        ),
        show("memory of the plane", [memory_mb], "MB", LIMIT_MEMORY_MB),
    ]
    for manager in managers:
        manager.task.cancel()
    await asyncio.gather(*(manager.task for manager in managers), return_exceptions=True)
    await asyncio.gather(*(channel.close() for channel in channels))
    return all(kept)


def break_device(plane: "subprocess.Popen[str]", number: int) -> float:
    """Break a device of a job; returns when that was."""
    assert plane.stdin is not None
    assert plane.stdout is not None
    plane.stdin.write(f"break {number}\n")
    plane.stdin.flush()
    return float(plane.stdout.readline())


def show(what: str, values: list[float], unit: str, limit: float) -> bool:
    """Print a line; returns whether the 99th percentile is within the limit."""
    ordered = sorted(values)
    p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    kept = p99 <= limit
    mark = "ok" if kept else "MISSED"
    middle = statistics.median(ordered)
    print(f"{what:40} p50 {middle:8.1f} {unit}  p99 {p99:8.1f} {unit}  limit {limit:g} {unit}  {mark}")
    return kept


def rss_mb(pid: int) -> float:
    """Return the resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def main() -> int:
    """Start a plane, measure it, end it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--write-ms", type=float, default=5.0, help="what a write to the cluster takes")
    parser.add_argument("--serve", action="store_true", help="be the plane")
    given = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 65_536)), hard))
    if given.serve:
        import logging

        import structlog

        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
        asyncio.run(serve(given.jobs, given.write_ms))
        return 0
    command = [sys.executable, __file__, "--serve", "--jobs", str(given.jobs)]
    command += ["--write-ms", str(given.write_ms)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as plane:
        assert plane.stdout is not None
        assert plane.stdin is not None
        try:
            kept = asyncio.run(measure(int(plane.stdout.readline()), plane, given.jobs, given.rounds))
        finally:
            plane.stdin.close()
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
