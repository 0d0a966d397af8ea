"""HTTP to the API server: connections, credentials, time limits, polite repetition.

Why aiohttp and not lightkube's httpx: CPU is what bounds a controller that creates 1,000 pods beside an API
server on two cores. One POST of a 3.3 KB pod over HTTPS, decoded into a partial struct, cost here (local
server, 3,000 requests, 8 and 16 connections): aiohttp 142 and 140 µs, httpx2 780 and 789 µs, httpx 1,157 and
2,322 µs. Against a real API server on the same two busy cores (600 pods, building the manifests and the TLS
handshakes included): this client 410 and 396 µs, httpx2 1,120 and 1,129 µs. What lightkube adds to its httpx
is models that we do not use and a kubeconfig reader that prefers the service account over ``$KUBECONFIG``, so
``config`` reads the file itself.

Requests share a fixed number of kept-alive connections and queue here for one, so that a thousand waiting
requests do not spend their time limit in the queue. Watches, which hold a connection for minutes, and urgent
requests (the lease: it must not wait behind a thousand pods) have connections of their own.

A kernel that has lost its peer says nothing to somebody who only reads. Keepalive probes end such a
connection after about 25 s, and a watch is also ended by its silence limit, for the case that the kernel of
the other side answers and its process does not.
"""

import asyncio
import contextlib
import random
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from yarl import URL

import taskd
from taskd.kube.config import ClusterConfig
from taskd.kube.credentials import Credentials
from taskd.kube.errors import HTTP_SERVER_ERROR, HTTP_TOO_MANY, ApiError, ApiUnreachable, KubeError

USER_AGENT = f"taskd-controller/{taskd.__version__}"
# The API server closes a connection that was idle for 90 s; we are first, so that no request meets a
# connection that is being closed.
KEEP_ALIVE_S = 75.0
CONNECT_S = 5.0
FAREWELL_S = 0.15
HTTP_UNAUTHORIZED = 401
HTTP_OK_END = 300


@dataclass(frozen=True, slots=True)
class Limits:
    """How much we ask of the server and how long we wait for it."""

    connections: int = 16
    request_s: float = 30.0
    # 429 and 5xx with Retry-After: how often the same request is sent again, and how long in all.
    retries: int = 5
    patience_s: float = 20.0
    wait_cap_s: float = 8.0


@dataclass(frozen=True, slots=True)
class Call:
    """One answered or failed request, for metrics."""

    method: str
    resource: str
    subresource: str
    status: int  # 0: no answer
    seconds: float


def _make_socket(info: Any) -> socket.socket:  # noqa: ANN401 - aiohttp's own tuple of getaddrinfo
    family, kind, proto, *_ = info
    made = socket.socket(family, kind, proto)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 25_000)
    return made


class _GuardedBody(aiohttp.BytesPayload):
    """A body that asks once more in the moment in which it is written.

    Between the call and the bytes lie the choice of a connection and turns of the event loop, and a process
    can be stopped there for minutes. The headers wait for the first byte of the body, so a refusal here means
    that nothing was sent. What is left is the time of one write to a socket.
    """

    def __init__(self, value: bytes, content_type: str, ask: Callable[[], float]) -> None:
        super().__init__(value, content_type=content_type)
        self.refusal: KubeError | None = None
        self._ask = ask

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        """Ask, then write."""
        try:
            self._ask()
        except KubeError as error:
            self.refusal = error
            raise
        await super().write_with_length(writer, content_length)


class Transport:
    """Sends requests; use it as an async context manager."""

    def __init__(
        self,
        config: ClusterConfig,
        limits: Limits | None = None,
        *,
        observe: Callable[[Call], None] | None = None,
    ) -> None:
        self.config = config
        self.limits = limits or Limits()
        self._observe = observe
        self._ssl = config.ssl_context()
        self._credentials = Credentials(config, time.monotonic)
        self._pool: aiohttp.ClientSession | None = None
        self._side: aiohttp.ClientSession | None = None
        self._slots = asyncio.Semaphore(self.limits.connections)

    async def __aenter__(self) -> Self:
        self._pool = self._session(self.limits.connections)
        self._side = self._session(0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for session in (self._pool, self._side):
            if session is not None:
                await session.close()
        self._pool = self._side = None
        # A request that was given up says farewell by TLS; without this moment it would outlive its loop.
        await asyncio.sleep(FAREWELL_S if self._ssl is not None else 0)

    def _session(self, limit: int) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=limit,
                ssl=self._ssl if self._ssl is not None else False,
                keepalive_timeout=KEEP_ALIVE_S,
                socket_factory=_make_socket,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": USER_AGENT, "Accept": "application/json"},
            # In a cluster the network is faster than gzip.
            skip_auto_headers=("Accept-Encoding",),
            auto_decompress=True,
        )

    def _open_session(self, *, side: bool) -> aiohttp.ClientSession:
        session = self._side if side else self._pool
        if session is None:
            raise RuntimeError("the Kubernetes client is not open; use `async with`")
        return session

    async def request(
        self,
        method: str,
        target: str,
        body: bytes | None = None,
        content_type: str = "application/json",
        *,
        label: tuple[str, str] = ("", ""),
        accept: str = "",
        urgent: bool = False,
        limit_s: Callable[[], float] | None = None,
    ) -> tuple[int, bytes]:
        """Send one request and return the status (2xx) and the body.

        ``limit_s`` is asked before each sending and again in the moment of writing: it may raise to forbid it
        (a KubeError), or return how many seconds the request may take at most. It needs a body.
        """
        headers = {"Content-Type": content_type} if body is not None else {}
        if accept:
            headers["Accept"] = accept
        waited = 0.0
        for attempt in range(self.limits.retries + 1):
            if urgent:
                failure = await self._once(method, target, body, headers, label, limit_s, side=True)
            else:
                async with self._slots:
                    failure = await self._once(method, target, body, headers, label, limit_s, side=False)
            if isinstance(failure, tuple):
                return failure
            if failure.status_code == HTTP_UNAUTHORIZED and attempt == 0 and self._credentials.refused():
                continue
            pause = _pause_s(failure, self.limits)
            if pause is None or urgent or attempt == self.limits.retries:
                raise failure
            waited += pause
            if waited > self.limits.patience_s:
                raise failure
            await asyncio.sleep(pause)
        raise AssertionError("unreachable")

    async def _once(
        self,
        method: str,
        target: str,
        body: bytes | None,
        given: Mapping[str, str],
        label: tuple[str, str],
        limit_s: Callable[[], float] | None,
        *,
        side: bool,
    ) -> tuple[int, bytes] | ApiError:
        headers = dict(given)
        if (auth := await self._credentials.header()) is not None:
            headers["Authorization"] = auth
        total = self.limits.request_s if limit_s is None else min(self.limits.request_s, limit_s())
        data = (
            body if body is None or limit_s is None else _GuardedBody(body, headers["Content-Type"], limit_s)
        )
        began, status = time.monotonic(), 0
        try:
            async with self._open_session(side=side).request(
                method,
                self._url(target),
                data=data,
                headers=headers,
                allow_redirects=False,
                server_hostname=self.config.tls_server_name,
                timeout=aiohttp.ClientTimeout(total=total, sock_connect=min(CONNECT_S, total)),
            ) as response:
                content = await response.read()
                status = response.status
                after = _retry_after(response.headers.get("Retry-After"))
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            if isinstance(data, _GuardedBody) and data.refusal is not None:
                raise data.refusal from None
            raise _unreachable(method, target, error) from error
        finally:
            if self._observe is not None:
                self._observe(Call(method, label[0], label[1], status, time.monotonic() - began))
        if status < HTTP_OK_END:
            return status, content
        return ApiError.from_response(status, content, retry_after=after)

    @contextlib.asynccontextmanager
    async def stream(
        self, target: str, *, silence_s: float, label: tuple[str, str] = ("", "")
    ) -> AsyncIterator[aiohttp.StreamReader]:
        """Open a watch; reading raises ApiUnreachable when nothing came for ``silence_s``."""
        headers = {}
        if (auth := await self._credentials.header()) is not None:
            headers["Authorization"] = auth
        began, status = time.monotonic(), 0
        try:
            async with self._open_session(side=True).get(
                self._url(target),
                headers=headers,
                allow_redirects=False,
                server_hostname=self.config.tls_server_name,
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_connect=min(CONNECT_S, silence_s), sock_read=silence_s
                ),
            ) as response:
                status = response.status
                if self._observe is not None:
                    self._observe(Call("WATCH", label[0], label[1], status, time.monotonic() - began))
                if status >= HTTP_OK_END:
                    if status == HTTP_UNAUTHORIZED:
                        self._credentials.refused()
                    after = _retry_after(response.headers.get("Retry-After"))
                    raise ApiError.from_response(status, await response.read(), retry_after=after)
                try:
                    yield response.content
                finally:
                    # A watch that is left early is cut. A farewell by TLS would outlive the client, which
                    # does not wait for it.
                    if (connection := response.connection) is not None and connection.transport is not None:
                        connection.transport.abort()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise _unreachable("WATCH", target, error) from error

    def _url(self, target: str) -> URL:
        return URL(self.config.server + target, encoded=True)


def _unreachable(method: str, target: str, error: BaseException) -> ApiUnreachable:
    path = target.partition("?")[0]
    what = "no answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
    return ApiUnreachable(f"{method} {path}: {what}")


def _retry_after(text: str | None) -> float | None:
    if text is None or not text.strip().isdecimal():
        return None
    return float(text)


def _pause_s(error: ApiError, limits: Limits) -> float | None:
    """Return how long to wait before the same request; None: it is not to be repeated."""
    if error.retry_after is None:
        return None
    if error.status_code != HTTP_TOO_MANY and error.status_code < HTTP_SERVER_ERROR:
        return None
    # Whoever was refused at the same moment must not come back at the same moment.
    return min(error.retry_after, limits.wait_cap_s) * random.uniform(0.8, 1.2)
