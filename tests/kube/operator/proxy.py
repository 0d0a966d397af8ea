"""A way to the API server that counts what a controller writes and strikes at a chosen write.

It speaks plain HTTP on loopback to the controller, whose kubeconfig names it, and passes everything on to the
real server. `strike` decides about each write by its number (leases and events are not counted: they come
when they like). What it can do:

* ``BEFORE``: the controller is killed, and the write never reaches the server;
* ``AFTER``: the write is done, and the controller is killed before it learns so;
* a number: that status code is answered and nothing is done;
* None: nothing.

`blind` does the same for what is read, by its path, with status codes alone.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from taskd.testing.kube import Cluster

BEFORE, AFTER = "before", "after"
Strike = Callable[[int, str], str | int | None]
_UNCOUNTED = ("/leases", "/events")


def _nothing(_number: int, _what: str) -> None:
    return None


def _sees(_path: str) -> None:
    return None


class Proxy:
    """One way to the API server, for one controller."""

    def __init__(self, cluster: Cluster, home: Path) -> None:
        self._cluster = cluster
        self.strike: Strike = _nothing
        self.blind: Callable[[str], int | None] = _sees
        self.kill: Callable[[], None] = lambda: None
        self.cut: set[socket.socket] = set()
        self.upstreams: set[http.client.HTTPConnection] = set()
        self._idle = threading.Event()
        self.writes: list[str] = []
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        host, port = self._server.server_address[:2]
        self.kubeconfig = home / "proxy.kubeconfig"
        self.kubeconfig.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "test", "cluster": {"server": f"http://{host!s}:{port}"}}],
                    "users": [{"name": "admin", "user": {"token": cluster.token}}],
                    "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin"}}],
                    "current-context": "test",
                }
            )
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        for upstream in list(self.upstreams):
            if upstream.sock is not None:
                with suppress(OSError):
                    upstream.sock.shutdown(socket.SHUT_RDWR)
        self._idle.wait(5)

    def cut_watches(self) -> None:
        """Break every watch that is open."""
        for connection in list(self.cut):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def connect(self) -> http.client.HTTPConnection:
        """A connection to the real server."""
        target = urlsplit(self._cluster.url)
        ca = str(self._cluster.ca) if self._cluster.ca else None
        context = ssl.create_default_context(cafile=ca)
        made = http.client.HTTPSConnection(
            target.hostname or "127.0.0.1", target.port, context=context, timeout=30
        )
        self._idle.clear()
        self.upstreams.add(made)
        return made

    def disconnect(self, upstream: http.client.HTTPConnection | None) -> None:
        """Give a connection to the real server up."""
        if upstream is not None:
            upstream.close()
            self.upstreams.discard(upstream)
        if not self.upstreams:
            self._idle.set()

    def judge(self, method: str, path: str, body: bytes | None) -> str | int | None:
        """What happens to this request; one that strikes by what is written has the content too."""
        plain = path.partition("?")[0]
        if method == "GET":
            return self.blind(path)
        if any(part in plain for part in _UNCOUNTED):
            return None
        with self._lock:
            self.writes.append(f"{method} {plain}")
            return self.strike(len(self.writes), self.writes[-1])


def _handler(proxy: Proxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        upstream: http.client.HTTPConnection | None = None

        def _pass_on(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length) if length else None
            verdict = proxy.judge(self.command, self.path, body)
            if verdict == BEFORE:
                proxy.kill()
                self.close_connection = True
                return
            if isinstance(verdict, int):
                self._answer(verdict, {}, b'{"kind":"Status","message":"struck","reason":"Struck"}')
                return
            headers = {
                name: value
                for name, value in self.headers.items()
                if name.lower() not in {"host", "connection", "accept-encoding"}
            }
            try:
                response = self._ask(body, headers)
                if "watch=1" in self.path:
                    self._stream(response)
                    return
                content = response.read()
            except (OSError, http.client.HTTPException):
                self._let_go()
                self.close_connection = True  # as the server does that is away: no answer
                return
            if verdict == AFTER:
                proxy.kill()
                self.close_connection = True
                return
            self._answer(response.status, dict(response.getheaders()), content)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _pass_on  # noqa: N815 - http.server's names

        def _ask(self, body: bytes | None, headers: dict[str, str]) -> http.client.HTTPResponse:
            for attempt in (0, 1):
                if self.upstream is None:
                    self.upstream = proxy.connect()
                try:
                    self.upstream.request(self.command, self.path, body, headers)
                    return self.upstream.getresponse()
                except (http.client.RemoteDisconnected, BrokenPipeError):
                    self._let_go()
                    if attempt:
                        raise
            raise AssertionError("unreachable")

        def _answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
            with suppress(OSError):
                self.send_response_only(status)
                for name in ("Content-Type", "Retry-After"):
                    if name in headers:
                        self.send_header(name, headers[name])
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        def _stream(self, response: http.client.HTTPResponse) -> None:
            self.close_connection = True
            proxy.cut.add(self.connection)
            try:
                self.send_response_only(response.status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Connection", "close")
                self.end_headers()
                while chunk := response.read1(65536):
                    self.wfile.write(chunk)
                    self.wfile.flush()
            except (OSError, http.client.HTTPException, ValueError):
                pass
            finally:
                proxy.cut.discard(self.connection)
                response.close()
                self._let_go()

        def _let_go(self) -> None:
            proxy.disconnect(self.upstream)
            self.upstream = None

        def handle(self) -> None:
            with suppress(OSError):  # the controller was killed
                super().handle()

        def finish(self) -> None:
            self._let_go()
            with suppress(OSError):
                super().finish()

        def log_message(self, *_args: object) -> None:
            pass

    return Handler
