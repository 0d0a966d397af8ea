"""Serve calls whose messages are dataclasses with protobuf tags, over gRPC.

gRPC hands over bytes, and reading them is ours: what cannot be read, and what a call fails with, is answered
in the words of the call and never ends more than the call. (gRPC itself would answer a message that it
cannot read with an internal error, and the sender would not know what is wrong with it.)
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, cast

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import grpc
import grpc.aio
import structlog

from taskd.links.rpc import AddressInUse
from taskd.links.tls import identities
from taskd.wire.proto3 import Method, ProtoError, Service, decode, encode
from taskd.wire.recover import OURS_KEY

MAX_RECEIVE_BYTES = 4 * 1024 * 1024
MAX_SEND_BYTES = 8 * 1024 * 1024
WRITE_LIMIT_S = 30.0
BIG_BYTES = 64 * 1024
OPTIONS = [
    ("grpc.max_receive_message_length", MAX_RECEIVE_BYTES),
    ("grpc.max_send_message_length", MAX_SEND_BYTES),
    ("grpc.max_concurrent_streams", 1024),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.so_reuseport", 0),
]
BAD_REQUEST, SERVER_ERROR = 409, 599
FINE = (0, 200)
# Whoever is refused may call as often as it likes; the log must not grow with it.
REFUSALS_AT_ONCE, REFUSALS_PER_S = 100.0, 10.0
LONGEST_REASON = 300

log = structlog.get_logger("taskd.services")
Context = Any


class CallRefused(Exception):
    """A call that ends with a gRPC error; the text is for the caller."""

    def __init__(self, text: str, code: grpc.StatusCode = grpc.StatusCode.UNKNOWN) -> None:
        """Refuse with a text; the reference refuses streams with UNKNOWN."""
        super().__init__(text)
        self.code = code


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls: an address, what came beside the message, and the names that a certificate proves."""

    peer: str
    metadata: Mapping[str, str]
    identities: tuple[str, ...] = ()

    @property
    def host(self) -> str:
        """The address without the port."""
        return self.peer.rsplit(":", 1)[0]


Unary = Callable[[Any, Caller], Awaitable[Any]]
Streaming = Callable[[Any, Caller], AsyncIterator[Any]]
Admit = Callable[[str, Any, Caller], None]
"""Raises CallRefused for a call that must not be answered: method, request, caller."""


class Refusals:
    """Tells of each call that was refused in one line, as long as there are not too many."""

    def __init__(self) -> None:
        """Begin with nobody refused."""
        self._left = REFUSALS_AT_ONCE
        self._at = time.monotonic()
        self._untold = 0

    def tell(self, call: str, caller: Caller, request: object, code: object, why: str) -> None:
        """Say who was refused what and why; ``untold`` are those before that nobody was told of."""
        now = time.monotonic()
        self._left = min(REFUSALS_AT_ONCE, self._left + (now - self._at) * REFUSALS_PER_S)
        self._at = now
        if self._left < 1.0:
            self._untold += 1
            return
        self._left -= 1.0
        job = str(getattr(request, "jobId", "") or getattr(request, "jobID", ""))
        log.warning(
            "refused",
            call=call,
            peer=caller.peer,
            job=job[:LONGEST_REASON],
            code=code,
            why=why[:LONGEST_REASON],
            **({"untold": self._untold} if self._untold else {}),
        )
        self._untold = 0


def refusal(kind: type, code: int, text: str) -> object:
    """Say no in the form of a call's own response."""
    names = {field.name for field in fields(kind)}
    words = "info" if "info" in names else "message"
    return kind(**{"code": code, words: text})


def handler(service: Service, calls: Mapping[str, Unary | Streaming], admit: Admit) -> grpc.GenericRpcHandler:
    """Bind the calls of a service; every one that the service has must be there."""
    bound: dict[str, Any] = {}
    refusals = Refusals()
    for method in service.methods:
        call = calls[method.name]
        if method.stream:
            serve = _stream(method, cast("Streaming", call), admit, refusals)
            bound[method.name] = grpc.unary_stream_rpc_method_handler(cast("Any", serve))
        else:
            answer = _unary(method, cast("Unary", call), admit, refusals)
            bound[method.name] = grpc.unary_unary_rpc_method_handler(cast("Any", answer))
    return grpc.method_handlers_generic_handler(service.name, bound)


async def listen(
    address: str,
    handlers: tuple[grpc.GenericRpcHandler, ...],
    credentials: grpc.ServerCredentials | None,
) -> tuple[grpc.aio.Server, int]:
    """Serve; returns the server and the port it got. Somebody else on the port is an error."""
    server = grpc.aio.server(options=OPTIONS)
    server.add_generic_rpc_handlers(handlers)
    try:
        if credentials is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise AddressInUse(address) from error
    if port == 0:
        raise AddressInUse(address)
    await server.start()
    return server, port


def _unary(
    method: Method, call: Unary, admit: Admit, refusals: Refusals
) -> Callable[[bytes, Context], Awaitable[bytes]]:
    async def serve(data: bytes, context: Context) -> bytes:
        caller = _caller(context)
        request: Any = None
        try:
            request = await _read(method, data)
            admit(method.name, request, caller)
            await context.send_initial_metadata(((OURS_KEY, "1"),))
            answer = await call(request, caller)
        except ProtoError as error:
            answer = refusal(method.response, BAD_REQUEST, f"the message cannot be read: {error}")
        except CallRefused as refused:
            refusals.tell(method.name, caller, request, refused.code.name, str(refused))
            await context.abort(refused.code, str(refused))
            raise
        except Exception as error:
            # The top of a call: whatever is wrong with it, it must not end more than itself.
            log.exception("failed", call=method.name, peer=caller.peer)
            return encode(refusal(method.response, SERVER_ERROR, f"{type(error).__name__}: {error}"))
        if getattr(answer, "code", 0) not in FINE:
            refusals.tell(method.name, caller, request, int(answer.code), _words(answer))
        return encode(answer)

    return serve


def _stream(
    method: Method, call: Streaming, admit: Admit, refusals: Refusals
) -> Callable[[bytes, Context], Awaitable[None]]:
    async def serve(data: bytes, context: Context) -> None:
        caller = _caller(context)
        request: Any = None

        async def refuse(code: grpc.StatusCode, why: str) -> None:
            refusals.tell(method.name, caller, request, code.name, why)
            await context.abort(code, why)

        try:
            request = await _read(method, data)
            admit(method.name, request, caller)
            messages = call(request, caller)
            try:
                async for message in messages:
                    async with asyncio.timeout(WRITE_LIMIT_S):
                        await context.write(encode(message))
            finally:
                await cast("Any", messages).aclose()
        except ProtoError as error:
            await refuse(grpc.StatusCode.INVALID_ARGUMENT, f"the message cannot be read: {error}")
        except CallRefused as refused:
            await refuse(refused.code, str(refused))
        except TimeoutError:
            await refuse(grpc.StatusCode.ABORTED, f"nothing was read for {WRITE_LIMIT_S:g} s")

    return serve


def _words(answer: object) -> str:
    return str(getattr(answer, "info", "") or getattr(answer, "message", ""))


async def _read(method: Method, data: bytes) -> Any:  # noqa: ANN401 - what the method takes
    """Read a request; a big one aside, so that the others do not wait for it."""
    if len(data) > BIG_BYTES:
        return await asyncio.to_thread(decode, method.request, data)
    return decode(method.request, data)


def _caller(context: Context) -> Caller:
    metadata = {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}
    return Caller(context.peer(), metadata, identities(context.auth_context()))
