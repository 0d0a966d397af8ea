"""What the API server was asked, by whom: its own audit log.

A promise such as "no writes while idle" is checked where nobody can cheat: the server writes a line for
every request, with user, agent, verb, object and answer.
"""

import json
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from taskd.testing.kube.client import Api

POLICY: Final = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    # One line per request, when its answer is complete (a watch: also when it begins).
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}

WRITES: Final = frozenset({"create", "update", "patch", "delete", "deletecollection"})


@dataclass(frozen=True)
class Request:
    """One request that was answered."""

    verb: str
    resource: str
    subresource: str
    namespace: str
    name: str
    user: str
    user_agent: str
    code: int
    received_at: str
    uri: str
    answered_at: str = ""

    @property
    def write(self) -> bool:
        """Whether it meant to change something."""
        return self.verb in WRITES


class AuditLog:
    """The audit log of one control plane. `mark` a place, then count what came after it."""

    def __init__(self, path: Path, api: Api) -> None:
        self._path = path
        self._api = api

    def mark(self) -> int:
        """Return the place after every request that has been answered by now."""
        self._settle()
        return self._path.stat().st_size

    def requests(
        self,
        *,
        since: int = 0,
        user: str | None = None,
        user_agent: str | None = None,
        namespace: str | None = None,
        resource: str | None = None,
    ) -> list[Request]:
        """Return the requests after a mark; `user` and `user_agent` are beginnings of what must match."""
        self._settle()
        return [
            request
            for request in self._read(since)
            if (user is None or request.user.startswith(user))
            and (user_agent is None or request.user_agent.startswith(user_agent))
            and (namespace is None or request.namespace == namespace)
            and (resource is None or request.resource == resource)
        ]

    def writes(
        self,
        *,
        since: int = 0,
        user: str | None = None,
        user_agent: str | None = None,
        namespace: str | None = None,
        resource: str | None = None,
    ) -> list[Request]:
        """Return those of `requests` that meant to change something, refused ones included."""
        found = self.requests(
            since=since, user=user, user_agent=user_agent, namespace=namespace, resource=resource
        )
        return [request for request in found if request.write]

    def follow(self, since: int) -> tuple[list[Request], int]:
        """Return what has been written after a place, and the next place; for those who look often."""
        with self._path.open("rb") as file:
            file.seek(since)
            whole = file.read().rpartition(b"\n")[0]
        return [*_parse(whole.splitlines())], since + len(whole) + bool(whole)

    def _settle(self) -> None:
        """Wait until the log has caught up.

        The server answers first and writes its line right after, so the line of the last answer may be some
        microseconds away. A request of our own, made now and found in the log, comes after all of those.
        """
        path = f"/apis/taskd-audit-mark-{uuid.uuid4().hex}"
        self._api.find(path)
        deadline = time.monotonic() + 10
        while path.encode() not in self._tail():
            if time.monotonic() > deadline:
                raise TimeoutError(f"the audit log {self._path} does not grow")
            time.sleep(0.005)

    def _tail(self) -> bytes:
        with self._path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - 200_000))
            return file.read()

    def _read(self, since: int) -> Iterator[Request]:
        with self._path.open("rb") as file:
            file.seek(since)
            yield from _parse(line for line in file if line.endswith(b"\n"))


def _parse(lines: Iterable[bytes]) -> Iterator[Request]:
    for line in lines:
        entry = json.loads(line)
        if entry.get("stage") == "ResponseComplete" or entry.get("verb") == "watch":
            yield _request(entry)


def _request(entry: dict[str, Any]) -> Request:
    subject = entry.get("objectRef") or {}
    return Request(
        verb=entry.get("verb", ""),
        resource=subject.get("resource", ""),
        subresource=subject.get("subresource", ""),
        namespace=subject.get("namespace", ""),
        name=subject.get("name", ""),
        user=(entry.get("user") or {}).get("username", ""),
        user_agent=entry.get("userAgent", ""),
        code=(entry.get("responseStatus") or {}).get("code", 0),
        received_at=entry.get("requestReceivedTimestamp", ""),
        uri=entry.get("requestURI", ""),
        answered_at=entry.get("stageTimestamp", ""),
    )
