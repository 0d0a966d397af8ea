"""The link between nodes: gRPC, one two-way stream per proxy and one call for the command line.

The payload is our own envelope, so no generated code stands between the machines and the wire; gRPC brings
flow control, keepalive and TLS. The defaults of gRPC do not notice a silent partition at all (measured: not
within 12 s), so keepalive is set on both sides.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import grpc
import grpc.aio

from taskd.kit.papers import NO_PAPERS, JobPapers, PapersError, read_papers
from taskd.links.tls import from_directory, is_of_job, open_channel, server_credentials

SERVICE = "taskd.Manager"
JOIN = f"/{SERVICE}/Join"
CALL = f"/{SERVICE}/Call"
TOKEN_KEY = "taskd-token"  # noqa: S105 - the name of a header, not a secret

KEEPALIVE = [
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", 8 * 1024 * 1024),
]
SERVER_OPTIONS = [
    *KEEPALIVE,
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
]
CLIENT_OPTIONS = [
    *KEEPALIVE,
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
]


class AddressInUse(OSError):
    """Somebody else listens there."""

    def __init__(self, address: str) -> None:
        """Say what to do about it."""
        super().__init__(f"{address} is in use; stop what listens there or choose another port")


class ServerStream:
    """A proxy's stream, seen from the manager."""

    def __init__(self, context: "grpc.aio.ServicerContext[bytes, bytes]") -> None:
        """Wrap the context of a running stream."""
        self._context = context
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue()

    def send(self, data: bytes) -> None:
        """Queue a message; the writer task sends in order."""
        self._queue.put_nowait(data)

    def close(self) -> None:
        """End the stream after what is queued."""
        self._queue.put_nowait(None)

    async def receive(self) -> bytes | None:
        """Return the next message; None when the proxy is gone."""
        data: object = await self._context.read()
        return data if isinstance(data, bytes) else None

    async def write_queued(self) -> None:
        """Send what is queued until the stream is closed."""
        while (data := await self._queue.get()) is not None:
            await self._context.write(data)


async def serve_rpc(
    address: str,
    token: str,
    on_stream: Callable[[ServerStream], Awaitable[None]],
    on_call: Callable[[bytes], Awaitable[bytes]],
    *,
    reserved: bool = False,
    papers: JobPapers = NO_PAPERS,
) -> tuple[grpc.aio.Server, int]:
    """Serve the manager's two methods; returns the server and the port it got.

    With certificates, both sides show that they are of the same job; PapersError if there is none to show.

    Two managers on one port would each see half of the job, so the second must fail to bind; except where the
    launcher holds the port for its manager, which is then the only one that comes.
    """

    async def authorise(context: "grpc.aio.ServicerContext[bytes, bytes]") -> None:
        sent = dict(context.invocation_metadata() or ()).get(TOKEN_KEY, "")
        if token and sent != token:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the token is not that of this job")
        if papers and not is_of_job(papers, cast("Any", context.auth_context())):
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "the certificate is not of this job")

    async def join(_requests: object, context: "grpc.aio.ServicerContext[bytes, bytes]") -> None:
        await authorise(context)
        stream = ServerStream(context)
        writer = asyncio.ensure_future(stream.write_queued())
        reader = asyncio.ensure_future(_consume(on_stream, stream))
        try:
            await asyncio.wait({writer, reader}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (writer, reader):
                task.cancel()
            await asyncio.gather(writer, reader, return_exceptions=True)

    async def call(request: bytes, context: "grpc.aio.ServicerContext[bytes, bytes]") -> bytes:
        await authorise(context)
        return await on_call(request)

    handlers: dict[str, Any] = {
        "Join": grpc.stream_stream_rpc_method_handler(cast("Any", join)),
        "Call": grpc.unary_unary_rpc_method_handler(cast("Any", call)),
    }
    server = grpc.aio.server(options=[*SERVER_OPTIONS, ("grpc.so_reuseport", int(reserved))])
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    try:
        if papers:
            port = server.add_secure_port(address, server_credentials(from_directory(papers.directory)))
        else:
            port = server.add_insecure_port(address)
    except RuntimeError as error:
        raise AddressInUse(address) from error
    if port == 0:
        raise AddressInUse(address)
    await server.start()
    return server, port


async def _consume(on_stream: Callable[[ServerStream], Awaitable[None]], stream: ServerStream) -> None:
    await on_stream(stream)


class ClientStream:
    """A proxy's stream to its manager, seen from the proxy."""

    def __init__(self, call: "grpc.aio.StreamStreamCall[bytes, bytes]") -> None:
        """Wrap an open call."""
        self._call = call

    async def send(self, data: bytes) -> None:
        """Send a message; raises ConnectionError when the manager is gone."""
        try:
            await self._call.write(data)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            raise ConnectionResetError("the manager is gone") from error

    async def receive(self) -> bytes | None:
        """Return the next message; None when the manager is gone."""
        try:
            data: object = await self._call.read()
        except grpc.aio.AioRpcError:
            return None
        return data if isinstance(data, bytes) else None


@contextlib.asynccontextmanager
async def connect_rpc(
    address: str, token: str, timeout_s: float, papers: JobPapers = NO_PAPERS
) -> AsyncIterator[ClientStream]:
    """Open a stream to a manager; raises ConnectionError if it cannot be reached in time."""
    try:
        shown = read_papers(papers.directory) if papers else None
    except PapersError as error:
        raise ConnectionRefusedError(str(error)) from error
    async with open_channel(address, shown, timeout_s, CLIENT_OPTIONS, name=papers.identity) as channel:
        call: Any = channel.stream_stream(JOIN)(metadata=((TOKEN_KEY, token),))
        try:
            yield ClientStream(call)
        finally:
            call.cancel()
