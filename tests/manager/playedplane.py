"""A control plane made of independent stubs: it sends what it is told to, and holds every call for a test.

It decides nothing. What comes in waits in a queue until the test has looked at it and says with which code it
is answered, so the test sees the order in which a manager calls.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from tests.plane.stubs import message, services

SUBSCRIBE = "SubscribeProcessManageSignal"


@dataclass
class Heard:
    """One call; nobody waits for the answer to a subscription."""

    name: str
    request: Any
    metadata: dict[str, str]
    answer: "asyncio.Future[Any]"


class PlayedPlane:
    """Serves one job on a port that it keeps over a death; ``ours`` as our own planes show themselves."""

    def __init__(self, *, ours: bool) -> None:
        self.heard: asyncio.Queue[Heard] = asyncio.Queue()
        self.port = 0
        self._ours = ours
        self._stream: asyncio.Queue[Any] = asyncio.Queue()
        self._server: Any = None

    async def serve(self) -> None:
        """Begin, or begin again."""
        handlers = {}
        for name, (request, _, stream) in services()["Recover"].items():
            make = grpc.unary_stream_rpc_method_handler if stream else grpc.unary_unary_rpc_method_handler
            handlers[name] = make(
                self._listened if stream else self._called(name),
                request_deserializer=request.FromString,
                response_serializer=_written,
            )
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Recover", handlers),))
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        await self._server.start()

    async def die(self) -> None:
        """Break off everything."""
        await self._server.stop(0)
        self.heard = asyncio.Queue()

    def send(self, signal: Any) -> None:
        """Send a signal, or any bytes, on the last stream."""
        self._stream.put_nowait(signal)

    def end_stream(self) -> None:
        """End the last stream with the status OK, as a ClusterD does after every event."""
        self._stream.put_nowait(None)

    def _called(self, name: str) -> Any:
        async def call(request: Any, context: Any) -> Any:
            if self._ours:
                await context.send_initial_metadata((("taskd-plane", "1"),))
            return await self._note(name, request, context).answer

        return call

    async def _listened(self, request: Any, context: Any) -> None:
        stream = self._stream = asyncio.Queue()
        self._note(SUBSCRIBE, request, context)
        while (signal := await stream.get()) is not None:
            await context.write(signal)

    def _note(self, name: str, request: Any, context: Any) -> Heard:
        metadata = dict(context.invocation_metadata() or ())
        heard = Heard(name, request, metadata, asyncio.get_running_loop().create_future())
        self.heard.put_nowait(heard)
        return heard


@contextlib.asynccontextmanager
async def playing(*, ours: bool) -> AsyncIterator[PlayedPlane]:
    """A plane that serves meanwhile."""
    plane = PlayedPlane(ours=ours)
    await plane.serve()
    try:
        yield plane
    finally:
        await plane.die()


def _written(answer: Any) -> bytes:
    """What goes out; bytes go as they are, to say what is no message."""
    return answer if isinstance(answer, bytes) else bytes(answer.SerializeToString())


def status(code: int) -> Any:
    """An answer."""
    return message("Status")(code=code, info=f"answered with {code}")
