"""A stand-in for a stock ClusterD: the calls of its recover service, with the manners that were observed.

Its stream ends after each episode, what is reported while nobody listens is lost, and after an episode that
went well it may still say ``exit``. How it decides is scripted; everything that it was told is written down.
"""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import grpc
import grpc.aio

from taskd.wire import recover
from taskd.wire.proto3 import decode, encode

KEEP_ALIVE_S = 5.0
FaultRanks = tuple[recover.FaultRank, ...]


@dataclass
class StockPlane:
    """One plane for one job; ``strategy`` is what it decides, with its parameter."""

    strategy: str = "recover"
    extra: str = ""
    delay_s: float = 0.0
    silent: bool = False
    ghost: bool = False
    ours: bool = False
    """It shows itself as a plane of ours; what that would say is the test's to say."""
    port: int = 0
    heard: list[tuple[str, Any]] = field(default_factory=list)
    _queue: "asyncio.Queue[recover.ProcessManageSignal | None] | None" = None
    _loop: asyncio.AbstractEventLoop | None = None
    _ranks: FaultRanks = ()
    _number: int = 0

    def calls(self) -> list[str]:
        """Return the names of the calls so far, without the way to each subscription."""
        return [name for name, _ in self.heard if name not in ("Init", "Register", "Subscribe")]

    def say(self, kind: str, **more: Any) -> None:
        """Send a signal from the test's thread."""
        signal = recover.ProcessManageSignal(f"U{self._number}", "job-1", kind, **more)
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._put, signal)

    def _put(self, signal: recover.ProcessManageSignal | None) -> None:
        if self._queue is not None:
            self._queue.put_nowait(signal)

    # --- what it answers -------------------------------------------------------------------------------

    async def _answer(self, name: str, request: Any) -> recover.Status:
        self.heard.append((name, request))
        if self.silent or self._queue is None:
            return recover.Status(0, "receive")
        match name:
            case "ReportProcessFault":
                self._number += 1
                self._ranks = tuple(sorted({*self._ranks, *request.faultRanks}, key=lambda each: each.rankId))
                self._send("stopTrain", ("stop_train",))
            case "ReportStopComplete":
                # The report is answered at once, however long it takes to decide.
                asyncio.get_running_loop().call_later(
                    self.delay_s, self._send, "globalFault", ("on_global_rank",)
                )
            case "ReportRecoverStrategy":
                actions = ("change_strategy", "fault_nodes_restart") if self.extra else ("change_strategy",)
                self._send("changeStrategy", actions, changeStrategy=self.strategy, extraParams=self.extra)
            case "ReportRecoverStatus":
                self._ranks = ()
                if self.ghost:
                    self._send(
                        "changeStrategy", ("change_strategy",), changeStrategy="exit", extraParams="dump_exit"
                    )
                self._put(None)  # the stream ends after every event
            case _:
                pass
        return recover.Status(0, f"receive {name}")

    def _send(self, kind: str, actions: tuple[str, ...], **more: str) -> None:
        uuid = f"U{self._number}"
        self._put(recover.ProcessManageSignal(uuid, "job-1", kind, actions, self._ranks, **cast("Any", more)))

    async def _subscribe(self, _request: bytes, context: Any) -> None:
        self.heard.append(("Subscribe", None))
        queue: asyncio.Queue[recover.ProcessManageSignal | None] = asyncio.Queue()
        self._queue = queue
        try:
            while (signal := await self._next(queue)) is not None:
                await context.write(encode(signal))
        finally:
            if self._queue is queue:
                self._queue = None

    async def _next(
        self, queue: "asyncio.Queue[recover.ProcessManageSignal | None]"
    ) -> "recover.ProcessManageSignal | None":
        """Return what is to be sent next: a sign of life where there was nothing for 5 s."""
        try:
            async with asyncio.timeout(KEEP_ALIVE_S):
                return await queue.get()
        except TimeoutError:
            return recover.ProcessManageSignal(f"U{self._number}", "job-1", "keep-alive")

    async def _serve(self, ready: threading.Event, over: asyncio.Event) -> None:
        def unary(name: str, kind: type) -> Any:
            async def call(data: bytes, context: Any) -> bytes:
                if self.ours:
                    await context.send_initial_metadata(((recover.OURS_KEY, "1"),))
                return encode(await self._answer(name, decode(kind, data)))

            return grpc.unary_unary_rpc_method_handler(cast("Any", call))

        handlers = {
            each.name: unary(each.name, each.request) for each in recover.RECOVER.methods if not each.stream
        }
        handlers["SubscribeProcessManageSignal"] = grpc.unary_stream_rpc_method_handler(
            cast("Any", self._subscribe)
        )
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Recover", handlers),))
        self.port = server.add_insecure_port(f"127.0.0.1:{self.port}")
        await server.start()
        ready.set()
        await over.wait()
        await server.stop(0)

    @contextlib.contextmanager
    def serving(self) -> Iterator["StockPlane"]:
        """Serve in a thread."""
        ready = threading.Event()

        async def main() -> None:
            self._loop = asyncio.get_running_loop()
            self._over = asyncio.Event()
            await self._serve(ready, self._over)

        thread = threading.Thread(target=asyncio.run, args=(main(),))
        thread.start()
        try:
            assert ready.wait(10)
            yield self
        finally:
            assert self._loop is not None
            self._loop.call_soon_threadsafe(self._over.set)
            thread.join(10)

    def environment(self) -> dict[str, str]:
        """Return what a job needs to find it."""
        return {"TASKD_PLANE": f"127.0.0.1:{self.port}", "MINDX_TASK_ID": "job-1"}
