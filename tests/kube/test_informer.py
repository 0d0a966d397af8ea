"""The informer's store is what the server has, whatever happens on the way."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from taskd.kube.client import KubeClient
from taskd.kube.informer import Informer, InformerTimes
from taskd.kube.objects import Pod
from taskd.kube.resources import POD
from taskd.kube.store import Change

from .fake_api import FakeApi, pod, status

QUICK = InformerTimes(watch_s=30, silence_s=5, first_pause_s=0.01, longest_pause_s=0.05, short_s=0.0)


class Scene:
    def __init__(self, api: FakeApi, client: KubeClient, informer: Informer[Pod]) -> None:
        self.api, self.client, self.informer = api, client, informer
        self.changes: list[tuple[Change, str]] = []
        informer.add_handler(self._note)

    def _note(self, change: Change, old: Pod | None, new: Pod | None) -> None:
        known = new or old
        assert known is not None
        self.changes.append((change, known.metadata.name))

    def names(self) -> set[str]:
        return {p.metadata.name for p in self.informer.store}


@asynccontextmanager
async def scene(
    api: FakeApi | None = None, times: InformerTimes = QUICK, page: int = 500
) -> AsyncIterator[Scene]:
    api = api or FakeApi()
    async with api.serve() as config, KubeClient(config) as client:
        informer = Informer(client, POD, namespace="default", times=times, page=page)
        made = Scene(api, client, informer)
        task = asyncio.create_task(informer.run())
        try:
            async with asyncio.timeout(5):
                await informer.synced()
            yield made
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def until(holds: Callable[[], bool], limit_s: float = 5.0) -> None:
    async with asyncio.timeout(limit_s):
        while not holds():
            await asyncio.sleep(0.005)


async def test_the_store_follows_list_and_watch() -> None:
    """What was there before and what comes later is in the store, by name and by owner."""
    api = FakeApi()
    api.put(pod("a", owner="job-1"))
    async with scene(api) as s:
        assert {"a"} == s.names()

        api.put(pod("b", owner="job-1"))
        api.put(pod("a", owner="job-1", phase="Running"))
        await until(lambda: len(s.changes) == 3)

        assert [(Change.ADDED, "a"), (Change.ADDED, "b"), (Change.MODIFIED, "a")] == s.changes
        assert {"a", "b"} == {p.metadata.name for p in s.informer.owned_by("job-1")}

        api.remove("a")
        await until(lambda: len(s.changes) == 4)

        assert (Change.DELETED, "a") == s.changes[-1]
        assert {"b"} == {p.metadata.name for p in s.informer.owned_by("job-1")}


async def test_a_lost_history_is_listed_again_and_deletions_are_told() -> None:
    """After 410 the handlers hear of what disappeared while nobody watched."""
    api = FakeApi()
    api.put(pod("a"))
    api.put(pod("b"))
    async with scene(api) as s:
        await until(lambda: api.count("GET", watch=True) == 1)
        api.mute = True  # the watch misses what follows
        api.remove("a")
        api.put(pod("c"))
        api.forget()
        api.mute = False
        await api.end_watches()
        await until(lambda: s.names() == {"b", "c"})

        assert {(Change.DELETED, "a"), (Change.ADDED, "c")} == set(s.changes[2:])
        assert 2 == s.informer.stats.lists


async def test_a_connection_that_says_nothing_is_left() -> None:
    """The peer is gone without a word, or its process hangs: after the silence limit another is opened."""
    times = InformerTimes(watch_s=30, silence_s=0.3, first_pause_s=0.01, longest_pause_s=0.05)
    async with scene(times=times) as s:
        await until(lambda: s.api.count("GET", watch=True) == 1)
        s.api.mute = True
        s.api.put(pod("a"))
        await asyncio.sleep(0.1)

        assert set() == s.names()

        s.api.mute = False  # for the next watch; the old one has missed its wake-up
        await until(lambda: s.names() == {"a"}, limit_s=2)

        assert 1 == s.informer.stats.lists


async def test_a_refused_connection_is_tried_again_without_listing() -> None:
    """A server that restarts costs a pause, and no list of thousands."""
    async with scene() as s:
        await until(lambda: s.api.count("GET", watch=True) == 1)
        s.api.refusals += [web.json_response(status(500, "InternalError"), status=500) for _ in range(3)]
        await s.api.end_watches()
        s.api.put(pod("a"))
        await until(lambda: s.names() == {"a"})

        assert (1, 3) == (s.informer.stats.lists, s.informer.stats.failures)
        assert s.informer.is_healthy


async def test_a_watch_that_is_refused_for_ever_does_not_spin() -> None:
    """Even 410 after each list pauses longer and longer."""
    times = InformerTimes(watch_s=30, silence_s=5, first_pause_s=0.05, longest_pause_s=0.2)
    api = FakeApi()
    api.put(pod("a"))
    async with scene(api, times) as s:
        api.oldest = 10**9  # every watch is from before
        await api.end_watches()
        await asyncio.sleep(0.5)

        assert 2 <= s.informer.stats.lists <= 12
        assert not s.informer.is_healthy


async def test_a_bookmark_moves_the_watch_forward() -> None:
    """After a quiet time with bookmarks a compaction costs nothing."""
    api = FakeApi()
    api.put(pod("a"))
    async with scene(api) as s:
        await until(lambda: api.count("GET", watch=True) == 1)
        api.bookmark()
        await until(lambda: s.informer.stats.events == 1)
        api.forget()
        await api.end_watches()
        api.put(pod("b"))
        await until(lambda: s.names() == {"a", "b"})

        assert 1 == s.informer.stats.lists


async def test_pages_are_put_together() -> None:
    """A list of many pages is one list, also when its snapshot expires half-way."""
    api = FakeApi()
    for number in range(25):
        api.put(pod(f"p{number:02}"))
    async with scene(api, page=10) as s:
        assert 25 == len(s.informer)
        assert 3 == api.count("GET")

    api.expire_pages = True
    async with scene(api, page=10) as s:
        assert 25 == len(s.informer)


async def test_a_reconcile_sees_its_own_writes_before_the_watch_does() -> None:
    """Created, it is there; the watch's echo changes nothing and calls nobody."""
    async with scene() as s:
        await until(lambda: s.api.count("GET", watch=True) == 1)
        s.api.mute = True
        created = await s.client.create(POD, "default", pod("a", owner="job-1"))

        assert s.informer.assume(created)
        assert ["a"] == [p.metadata.name for p in s.informer.owned_by("job-1")]

        s.api.mute = False
        s.api.put(pod("b"))
        await until(lambda: s.names() == {"a", "b"})

        assert [(Change.ADDED, "b")] == s.changes

        gone = await s.client.delete(POD, "default", "a", uid=created.metadata.uid)
        s.informer.assume_deletion(created.metadata.uid, gone)

        assert {"b"} == s.names()


async def test_an_undecodable_event_is_not_taken_for_the_end() -> None:
    """Rubbish in the stream leads to a list, and the informer goes on."""
    async with scene() as s:
        await until(lambda: s.api.count("GET", watch=True) == 1)
        bad = s.api.put(pod("a"))
        s.api.history[-1] = (s.api.version, "ADDED", {"metadata": {"name": 7}})
        await until(lambda: s.informer.stats.undecodable == 1)
        await until(lambda: s.names() == {"a"})

        assert bad["metadata"]["uid"] == next(iter(s.informer.store)).metadata.uid
        assert 2 == s.informer.stats.lists


async def test_one_bad_object_does_not_hide_the_others() -> None:
    """It does not fit its view: it is left out, in the list and in the watch, and the rest is served."""
    api = FakeApi()
    api.put(pod("good"))
    api.put({**pod("bad"), "status": {"phase": 7}})
    async with scene(api) as s:
        assert {"good"} == s.names()

        api.put({**pod("worse"), "status": []})
        api.put(pod("later"))
        await until(lambda: s.names() == {"good", "later"})


async def test_a_busy_server_is_given_the_time_it_asks_for() -> None:
    """429 with Retry-After on the watch: not sooner than that."""
    async with scene() as s:
        await until(lambda: s.api.count("GET", watch=True) == 1)
        busy = web.json_response(status(429, "TooManyRequests"), status=429, headers={"Retry-After": "1"})
        s.api.refusals.append(busy)
        times = InformerTimes(first_pause_s=0.01, longest_pause_s=5, short_s=0.0)
        s.informer._times = times
        began = time.monotonic()
        await s.api.end_watches()
        await until(lambda: s.api.count("GET", watch=True) == 3)

        assert time.monotonic() - began >= 1.0
