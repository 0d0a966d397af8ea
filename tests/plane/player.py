"""A manager made of independent stubs, and a plane over loopback for it to talk to."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

from taskd.core.plane.state import Limits
from taskd.plane.server import Plane, PlaneConfig, open_plane
from taskd.testing.plane import MemoryCluster, MemoryFaults
from tests.plane.stubs import message, services

WAIT_S = 10.0


@contextlib.asynccontextmanager
async def plane_for(
    cluster: MemoryCluster, limits: Limits | None = None, address: str = "127.0.0.1:0"
) -> AsyncIterator[Plane]:
    config = PlaneConfig(address=address, insecure=True, limits=limits or Limits())
    async with open_plane(
        config,
        directory=cluster,
        centre=MemoryFaults(cluster),
        config_maps=cluster,
        hands=cluster,
        keeper=cluster,
    ) as plane:
        yield plane


class Stub:
    """Calls any method of any service, with protobuf's own messages."""

    def __init__(self, port: int) -> None:
        self.channel: Any = grpc.aio.insecure_channel(
            f"127.0.0.1:{port}", options=[("grpc.use_local_subchannel_pool", 1)]
        )

    def call(self, path: str, *, metadata: dict[str, str] | None = None, **fields: Any) -> Any:
        service, name = path.split("/")
        request, response, stream = services()[service][name]
        make = self.channel.unary_stream if stream else self.channel.unary_unary
        call = make(
            f"/{path}",
            request_serializer=lambda value: value.SerializeToString(),
            response_deserializer=response.FromString,
        )
        pairs = tuple((metadata or {}).items())
        return call(request(**fields), metadata=pairs, timeout=None if stream else WAIT_S)

    async def raw(self, path: str, data: bytes) -> bytes:
        """Send any bytes to a call."""
        answer: bytes = await self.channel.unary_unary(f"/{path}")(data, timeout=WAIT_S)
        return answer

    async def close(self) -> None:
        await self.channel.close(None)


class FakeManager:
    """What a job's manager does on the wire: a session, a stream of signals, reports."""

    def __init__(self, port: int, job_id: str, *, keeps_old: bool = False) -> None:
        self.stub = Stub(port)
        self.job_id = job_id
        self.metadata = {"taskd-keeps-old-pod": "1"} if keeps_old else {}
        self.signals: asyncio.Queue[Any] = asyncio.Queue()
        self.ended = asyncio.Event()
        self._reader: asyncio.Task[None] | None = None

    async def join(self) -> None:
        """Init, Register, Subscribe; returns when the stream is open."""
        for name in ("Init", "Register"):
            answer = await self.stub.call(f"Recover/{name}", jobId=self.job_id, role="taskd")
            assert 0 == answer.code, answer.info
        await self.subscribe()

    async def subscribe(self) -> None:
        path = "Recover/SubscribeProcessManageSignal"
        call = self.stub.call(path, metadata=self.metadata, jobId=self.job_id, role="taskd")
        self._reader = asyncio.ensure_future(self._read(call))

    async def _read(self, call: Any) -> None:
        try:
            async for signal in call:
                self.signals.put_nowait(signal)
        except (grpc.aio.AioRpcError, asyncio.CancelledError):
            pass
        finally:
            self.ended.set()
            call.cancel()

    async def next_signal(self) -> Any:
        """Return the next signal that is not a sign of life."""
        async with asyncio.timeout(WAIT_S):
            while True:
                signal = await self.signals.get()
                if signal.signalType != "keep-alive":
                    return signal

    async def report(self, name: str, *, uuid: str = "", **fields: Any) -> Any:
        metadata = {"taskd-uuid": uuid} if uuid else {}
        return await self.stub.call(f"Recover/{name}", metadata=metadata, jobId=self.job_id, **fields)

    async def hang_up(self) -> None:
        """Close the stream and wait until it is closed."""
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)

    async def close(self) -> None:
        await self.hang_up()
        await self.stub.close()


def ranks(text: str) -> list[Any]:
    """Read "8-10:1,3:0" as fault ranks of the wire."""
    found = []
    for part in filter(None, text.split(",")):
        numbers, _, kind = part.partition(":")
        first, _, last = numbers.partition("-")
        found += [message("FaultRank")(rankId=str(rank), faultType=kind) for rank in _span(first, last)]
    return found


def _span(first: str, last: str) -> list[Any]:
    return list(range(int(first), int(last) + 1)) if last else [first]
