"""Serve calls whose messages are dataclasses with protobuf tags, over gRPC.

gRPC hands over bytes, and reading them is ours: what cannot be read, and what a call fails with, is answered
in the words of the call and never ends more than the call. (gRPC itself would answer a message that it
cannot read with an internal error, and the sender would not know what is wrong with it.)
"""

from __future__ import annotations

import asyncio
import os
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


def refusal(kind: type, code: int, text: str) -> object:
    """Say no in the form of a call's own response."""
    names = {field.name for field in fields(kind)}
    words = "info" if "info" in names else "message"
    return kind(**{"code": code, words: text})


def handler(service: Service, calls: Mapping[str, Unary | Streaming], admit: Admit) -> grpc.GenericRpcHandler:
    """Bind the calls of a service; every one that the service has must be there."""
    bound: dict[str, Any] = {}
    for method in service.methods:
        call = calls[method.name]
        if method.stream:
            serve = _stream(method, cast("Streaming", call), admit)
            bound[method.name] = grpc.unary_stream_rpc_method_handler(cast("Any", serve))
        else:
            answer = _unary(method, cast("Unary", call), admit)
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


def _unary(method: Method, call: Unary, admit: Admit) -> Callable[[bytes, Context], Awaitable[bytes]]:
    async def serve(data: bytes, context: Context) -> bytes:
        caller = _caller(context)
        try:
            request = await _read(method, data)
        except ProtoError as error:
            log.warning("unreadable", call=method.name, peer=caller.peer, why=str(error))
            return encode(refusal(method.response, BAD_REQUEST, f"the message cannot be read: {error}"))
        try:
            admit(method.name, request, caller)
            await context.send_initial_metadata(((OURS_KEY, "1"),))
            return encode(await call(request, caller))
        except CallRefused as refused:
            await context.abort(refused.code, str(refused))
            raise
        except Exception as error:
            # The top of a call: whatever is wrong with it, it must not end more than itself.
            log.exception("failed", call=method.name, peer=caller.peer)
            return encode(refusal(method.response, SERVER_ERROR, f"{type(error).__name__}: {error}"))

    return serve


def _stream(method: Method, call: Streaming, admit: Admit) -> Callable[[bytes, Context], Awaitable[None]]:
    async def serve(data: bytes, context: Context) -> None:
        caller = _caller(context)
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
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"the message cannot be read: {error}")
        except CallRefused as refused:
            await context.abort(refused.code, str(refused))
        except TimeoutError:
            await context.abort(grpc.StatusCode.ABORTED, f"nothing was read for {WRITE_LIMIT_S:g} s")

    return serve


async def _read(method: Method, data: bytes) -> Any:  # noqa: ANN401 - what the method takes
    """Read a request; a big one aside, so that the others do not wait for it."""
    if len(data) > BIG_BYTES:
        return await asyncio.to_thread(decode, method.request, data)
    return decode(method.request, data)


def _caller(context: Context) -> Caller:
    metadata = {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}
    return Caller(context.peer(), metadata, identities(context.auth_context()))
