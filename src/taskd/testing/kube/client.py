"""A small HTTP client for the API server, for what plays outside the operator.

The stand-ins must not share code with what they test, and need little: JSON in, JSON out, connections
that are kept, a watch that goes on after a break. So it is the standard library's client and nothing else.
"""

import http.client
import json
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

# The forms in which an object or a change to one is sent.
JSON: Final = "application/json"
MERGE: Final = "application/merge-patch+json"
STRATEGIC: Final = "application/strategic-merge-patch+json"
APPLY: Final = "application/apply-patch+yaml"


_RETRY_S: Final = 0.1

Object = dict[str, Any]


class ApiError(RuntimeError):
    """The API server refused; `code` is the HTTP status and the text its message."""

    def __init__(self, code: int, message: str, reason: str = "") -> None:
        super().__init__(f"{code} {reason}: {message}")
        self.code = code
        self.reason = reason
        self.message = message


@dataclass(frozen=True)
class Event:
    """One event of a watch: ADDED, MODIFIED or DELETED (or SYNCED: the first list is complete)."""

    type: str
    object: Object


class Api:
    """Requests to one API server as one user. Safe to use from several threads."""

    def __init__(
        self,
        url: str,
        *,
        ca: str | None,
        token: str,
        user_agent: str = "taskd-testing",
        timeout_s: float = 30,
    ) -> None:
        split = urlsplit(url)
        self.url = url
        self._host, self._port = split.hostname or "127.0.0.1", split.port or 443
        self._tls = split.scheme == "https"
        self._context = ssl.create_default_context(cafile=ca) if self._tls else None
        self.headers = {"Authorization": f"Bearer {token}", "User-Agent": user_agent}
        self._timeout_s = timeout_s
        # Connections that wait for the next request. They are closed with this object at the latest.
        self._idle: list[http.client.HTTPConnection] = []
        self._closing = weakref.finalize(self, _close_all, self._idle)

    def get(self, path: str, **query: str | int) -> Object:
        """Read one object or a list."""
        return self.request("GET", path, query=query)

    def find(self, path: str) -> Object | None:
        """Read one object, or None where there is none."""
        try:
            return self.get(path)
        except ApiError as error:
            if error.code == http.client.NOT_FOUND:
                return None
            raise

    def items(self, path: str, **query: str | int) -> list[Object]:
        """Read the objects of a list."""
        found: list[Object] = self.get(path, **query)["items"]
        return found

    def create(self, path: str, body: Mapping[str, Any]) -> Object:
        """Create an object in the collection at `path`."""
        return self.request("POST", path, body)

    def replace(self, path: str, body: Mapping[str, Any]) -> Object:
        """Replace an object (PUT)."""
        return self.request("PUT", path, body)

    def patch(self, path: str, body: Mapping[str, Any], *, kind: str = MERGE) -> Object:
        """Patch an object; a JSON merge patch unless told otherwise."""
        return self.request("PATCH", path, body, content_type=kind)

    def apply(self, path: str, body: Mapping[str, Any] | str, *, manager: str = "taskd-testing") -> Object:
        """Server-side apply of an object, given as a value or as YAML text (one document)."""
        return self.request(
            "PATCH", path, body, content_type=APPLY, query={"fieldManager": manager, "force": "true"}
        )

    def delete(self, path: str, *, grace_s: int | None = None) -> Object | None:
        """Delete an object or a collection; what is gone already is no error."""
        body: Object = {"kind": "DeleteOptions", "apiVersion": "v1"}
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        try:
            return self.request("DELETE", path, body)
        except ApiError as error:
            if error.code == http.client.NOT_FOUND:
                return None
            raise

    def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | str | None = None,
        *,
        content_type: str = JSON,
        query: Mapping[str, str | int] | None = None,
    ) -> Object:
        """Send one request and return the decoded answer; `ApiError` for a refusal, OSError for no answer.

        A connection that the server has closed while it was idle is no failure: the request is sent on
        another one, as every client does.
        """
        target = f"{path}?{urlencode(query)}" if query else path
        data = None if body is None else (body if isinstance(body, str) else json.dumps(body)).encode()
        headers = {**self.headers, "Accept": JSON}
        if data is not None:
            headers["Content-Type"] = content_type
        while True:
            try:
                # The newest: the others go unused where fewer are needed. (append and pop are atomic.)
                kept = self._idle.pop()
            except IndexError:
                break
            try:
                return _answer(*self._exchange(kept, method, target, data, headers))
            except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError, ssl.SSLEOFError):
                # Closed by the server while it was idle; try the next one.
                continue
        return _answer(*self._exchange(self.connect(), method, target, data, headers))

    def watch(self, path: str, **query: str | int) -> "Watch":
        """Return the changes of a collection, as an iterator that `Watch.close` ends from any thread."""
        return Watch(self, path, query)

    def close(self) -> None:
        """Close the connections that are open and idle; the next request opens one again."""
        _close_all(self._idle)

    def wait_ready(self, *, timeout_s: float, check: Callable[[], None] | None = None) -> None:
        """Wait until the server says that it is ready; `check` is called in between and may raise."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                self.request("GET", "/readyz")
            except (OSError, http.client.HTTPException, ApiError, ValueError) as error:
                if check is not None:
                    check()
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{self.url} not ready after {timeout_s:g} s: {error}") from error
                time.sleep(0.03)
            else:
                return

    def connect(self) -> http.client.HTTPConnection:
        """Return a new connection, for a caller that keeps it to itself."""
        if self._context is not None:
            return http.client.HTTPSConnection(
                self._host, self._port, timeout=self._timeout_s, context=self._context
            )
        return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)

    def _exchange(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        target: str,
        data: bytes | None,
        headers: Mapping[str, str],
    ) -> tuple[int, bytes]:
        try:
            connection.request(method, target, data, dict(headers))
            response = connection.getresponse()
            answer = response.status, response.read()
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)
        return answer


class Watch:
    """List, then every change; goes on by itself after a break, until it is closed.

    After a break the list is read again: its objects come as ADDED, those that are gone as DELETED.
    """

    def __init__(self, api: Api, path: str, query: Mapping[str, str | int]) -> None:
        self._api = api
        self._path = path
        self._query = query
        self._closed = threading.Event()
        self._connection: http.client.HTTPConnection | None = None

    def __iter__(self) -> Iterator[Event]:
        known: dict[str, Object] = {}
        while not self._closed.is_set():
            try:
                answer = self._api.get(self._path, **self._query)
                # Items of a list do not say what they are; the list does.
                about = {"apiVersion": answer["apiVersion"], "kind": answer["kind"].removesuffix("List")}
                now = {item["metadata"]["uid"]: {**about, **item} for item in answer["items"]}
                for uid in known.keys() - now.keys():
                    yield Event("DELETED", known.pop(uid))
                known.update(now)
                for item in now.values():
                    yield Event("ADDED", item)
                yield Event("SYNCED", {})
                for event in self._stream(answer["metadata"]["resourceVersion"]):
                    uid = event.object["metadata"]["uid"]
                    if event.type == "DELETED":
                        known.pop(uid, None)
                    else:
                        known[uid] = event.object
                    yield event
            except (OSError, http.client.HTTPException, ApiError, ValueError, AttributeError):
                # AttributeError: http.client's answer to a connection that `close` took away meanwhile.
                self._closed.wait(_RETRY_S)

    def close(self) -> None:
        """End it; the iterator returns."""
        self._closed.set()
        connection = self._connection
        if connection is not None and connection.sock is not None:
            with suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)

    def _stream(self, version: str) -> Iterator[Event]:
        query = {**self._query, "watch": "true", "resourceVersion": version}
        self._connection = connection = self._api.connect()
        try:
            connection.request("GET", f"{self._path}?{urlencode(query)}", headers=self._api.headers)
            response = connection.getresponse()
            if response.status != http.client.OK:
                _answer(response.status, response.read())
            if connection.sock is not None:
                # Nothing may happen for hours. The server ends a watch now and then, and `close` does.
                connection.sock.settimeout(None)
            while not self._closed.is_set():
                line = response.readline()
                if not line:
                    return
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise ApiError(event["object"].get("code", 0), event["object"].get("message", ""))
                yield Event(event["type"], event["object"])
        finally:
            connection.close()


def _close_all(connections: list[http.client.HTTPConnection]) -> None:
    while connections:
        connections.pop().close()


def _answer(code: int, data: bytes) -> Object:
    """Decode an answer; a refusal is raised with the server's own words."""
    if code < http.client.BAD_REQUEST:
        try:
            decoded: Object = json.loads(data)
        except ValueError:
            return {"text": data.decode(errors="replace")}
        return decoded
    try:
        status = json.loads(data)
        raise ApiError(code, str(status.get("message", "")), str(status.get("reason", "")))
    except (ValueError, AttributeError):
        raise ApiError(code, data.decode(errors="replace")[:500]) from None
