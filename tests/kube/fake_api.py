"""A small API server in the test's own process, for what a real one does not do on demand.

It keeps pods with real resource versions, pages lists and feeds watches. On top of that it can be told to
forget its history (410), to leave a connection open and say nothing more, to answer an overload, and to hold
an answer back. What a healthy server does is tested against a real one.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from taskd.kube.config import ClusterConfig

Json = dict[str, Any]


def status(code: int, reason: str, message: str = "", **details: Any) -> Json:
    return {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message} | (
        {"details": details} if details else {}
    )


def pod(name: str, *, owner: str = "", phase: str = "", namespace: str = "default") -> Json:
    meta: Json = {"name": name, "namespace": namespace}
    if owner:
        meta["ownerReferences"] = [{"uid": owner, "controller": True, "kind": "AscendJob", "name": "j"}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "status": {"phase": phase}}


@dataclass
class Seen:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


@dataclass
class FakeApi:
    objects: dict[str, Json] = field(default_factory=dict)
    history: list[tuple[int, str, Json]] = field(default_factory=list)
    oldest: int = 0  # versions below it are forgotten
    seen: list[Seen] = field(default_factory=list)
    refusals: list[web.Response] = field(default_factory=list)  # answers to the next requests, in order
    mute: bool = False  # watches stay open and say nothing
    cut: bool = False  # watches end at once
    expire_pages: bool = False
    server: str = ""

    def __post_init__(self) -> None:
        self._versions = itertools.count(1)
        self._uids = itertools.count(1)
        self._news = asyncio.Condition()
        self._tasks = set[asyncio.Task[None]]()
        self.version = 0

    # ------------------------------------------------------------------------------ changes from outside

    def _next(self) -> str:
        self.version = next(self._versions)
        return str(self.version)

    def _tell(self, kind: str, obj: Json) -> None:
        self.history.append((self.version, kind, obj))

        async def wake() -> None:
            async with self._news:
                self._news.notify_all()

        task = asyncio.ensure_future(wake())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def put(self, obj: Json) -> Json:
        name = obj["metadata"]["name"]
        old = self.objects.get(name)
        uid = old["metadata"]["uid"] if old else f"uid-{next(self._uids)}"
        new = {**obj, "metadata": {**obj["metadata"], "uid": uid, "resourceVersion": self._next()}}
        self.objects[name] = new
        self._tell("MODIFIED" if old else "ADDED", new)
        return new

    def remove(self, name: str) -> Json:
        old = self.objects.pop(name)
        gone = {**old, "metadata": {**old["metadata"], "resourceVersion": self._next()}}
        self._tell("DELETED", gone)
        return gone

    def bookmark(self) -> None:
        self._next()
        self._tell("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": str(self.version)}})

    def forget(self) -> None:
        """Compact: watches from before are refused."""
        self.oldest = self.version
        self.history.clear()

    def count(self, method: str, *, watch: bool = False) -> int:
        return sum(1 for s in self.seen if s.method == method and ("watch" in s.query) == watch)

    # ------------------------------------------------------------------------------------------- serving

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        query = dict(request.query)
        self.seen.append(Seen(request.method, request.path, query, dict(request.headers), body))
        if self.refusals:
            return self.refusals.pop(0)
        if request.method == "POST":
            obj = (await request.json()) if body else {}
            if obj["metadata"]["name"] in self.objects:
                return web.json_response(status(409, "AlreadyExists", "there is one"), status=409)
            return web.json_response(self.put(obj), status=201)
        if request.method == "DELETE":
            name = request.path.rpartition("/")[2]
            if name not in self.objects:
                return web.json_response(status(404, "NotFound"), status=404)
            self.remove(name)
            return web.json_response({"kind": "Status", "status": "Success"})
        if "watch" in query:
            return await self._watch(request, int(query["resourceVersion"]))
        return self._list(query)

    def _list(self, query: dict[str, str]) -> web.Response:
        items = sorted(self.objects.values(), key=lambda obj: str(obj["metadata"]["name"]))
        start, limit = int(query.get("continue", 0)), int(query.get("limit", 0)) or len(items) + 1
        if start and self.expire_pages:
            return web.json_response(status(410, "Expired", "the continue token is too old"), status=410)
        meta: Json = {"resourceVersion": str(self.version)}
        if start + limit < len(items):
            meta["continue"] = str(start + limit)
        return web.json_response({"kind": "PodList", "metadata": meta, "items": items[start : start + limit]})

    async def _watch(self, request: web.Request, since: int) -> web.StreamResponse:
        import msgspec

        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)

        async def send(kind: str, obj: Json) -> None:
            await response.write(msgspec.json.encode({"type": kind, "object": obj}) + b"\n")

        if since < self.oldest:
            await send("ERROR", status(410, "Expired", "too old resource version"))
            return response
        while not self.cut:
            if not self.mute:
                for version, kind, obj in [entry for entry in self.history if entry[0] > since]:
                    since = version
                    await send(kind, obj)
            async with self._news:
                await self._news.wait()
        return response

    async def end_watches(self) -> None:
        """End all watches in the ordinary way; new ones are served."""
        self.cut = True
        async with self._news:
            self._news.notify_all()
        await asyncio.sleep(0.05)
        self.cut = False

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[ClusterConfig]:
        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", self.handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        self.server = f"http://127.0.0.1:{port}"
        try:
            yield ClusterConfig(self.server)
        finally:
            self.cut = True
            async with self._news:
                self._news.notify_all()
            await runner.cleanup()
