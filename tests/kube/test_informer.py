"""The informer's store is what the server has, whatever happens on the way."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from taskd.kube.client import KubeClient
from taskd.kube.informer import Informer, InformerTimes
from taskd.kube.objects import Pod
from taskd.kube.resources import POD
from taskd.kube.store import Change

from .fake_api import FakeApi, pod

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
