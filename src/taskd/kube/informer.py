"""Keeps a store equal to what the API server has, for as long as it runs.

List, then watch from the version of the list; when the watch ends, watch again from where it ended. Only when
the server no longer has that version (410) is everything listed again, and what disappeared meanwhile is
told as deletions. Any other trouble waits a little (twice as long each time, with jitter, so that a fleet
does not return at once) and goes on from where it was.

::

    pods = Informer(client, POD, label_selector="training.kubeflow.org/operator-name")
    pods.store.add_handler(lambda change, old, new: queue.add(key_of(new or old)))
    group.create_task(pods.run())
    await pods.synced()
    mine = pods.owned_by(job_uid)
    pods.assume(await client.create(POD, namespace, manifest))
"""

import asyncio
import contextlib
import random
from collections.abc import Collection
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

import msgspec
import structlog

from taskd.kube.client import PAGE, SILENCE_S, WATCH_S, Deletion, KubeClient, WatchEvent
from taskd.kube.errors import ApiError, ApiUnreachable
from taskd.kube.objects import HasMeta, Json, resource_version, version_number
from taskd.kube.resources import Resource
from taskd.kube.store import Handler, Store

T = TypeVar("T")
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class InformerTimes:
    """How long a watch lasts and how an informer waits after trouble."""

    watch_s: int = WATCH_S
    silence_s: float = SILENCE_S
    first_pause_s: float = 0.1
    longest_pause_s: float = 10.0
    # A watch that the server ends sooner than this, without a word, is trouble and not a normal end.
    short_s: float = 1.0


@dataclass(slots=True)
class InformerStats:
    """Counters for the metrics page."""

    lists: int = 0
    watches: int = 0
    events: int = 0
    failures: int = 0
    undecodable: int = 0


class Informer(Generic[T]):
    """A cache of one resource, fed by list and watch; see the module's docstring."""

    def __init__(
        self,
        client: KubeClient,
        resource: Resource[T],
        *,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
        times: InformerTimes | None = None,
        page: int = PAGE,
    ) -> None:
        self.resource = resource
        self.store: Store[T] = Store()
        self.stats = InformerStats()
        self._client = client
        self._namespace = namespace
        self._labels = label_selector
        self._fields = field_selector
        self._times = times or InformerTimes()
        self._page = page
        self._synced = asyncio.Event()
        self._watching_from: str | None = None
        self._failures = 0
        self._gone_in_row = 0

    # ---------------------------------------------------------------------------------------- the reader

    def add_handler(self, handler: Handler[T]) -> None:
        """Call ``handler(change, old, new)`` at each change; it must return at once and not raise."""
        self.store.add_handler(handler)

    async def synced(self) -> None:
        """Return when the first list is in the store."""
        await self._synced.wait()

    @property
    def is_synced(self) -> bool:
        """The first list is in the store."""
        return self._synced.is_set()

    @property
    def is_healthy(self) -> bool:
        """The last try to list or watch did not fail."""
        return self._failures == 0

    def __len__(self) -> int:
        return len(self.store)

    def get(self, namespace: str, name: str) -> T | None:
        """Return the object of that name."""
        return self.store.get(namespace, name)

    def owned_by(self, uid: str) -> Collection[T]:
        """Return the objects whose controller has that UID."""
        return self.store.owned_by(uid)

    # ---------------------------------------------------------------------------------------- the writer

    def assume(self, obj: T) -> bool:
        """Put the answer to a create or a patch of ours into the store, if it is newer.

        Only for objects that the selector chooses: the watch says nothing of others, so one of them would
        stay here until the next list.
        """
        return self.store.assume(obj)

    def assume_deleted(self, uid: str) -> bool:
        """Take an object out of the store that is known not to exist any more."""
        return self.store.assume_deleted(uid)

    def assume_deletion(self, uid: str, deletion: Deletion[T]) -> None:
        """Put the answer to a delete of ours into the store."""
        if deletion.gone:
            self.store.assume_deleted(uid)
        elif deletion.object is not None:
            self.store.assume(deletion.object)

    # ------------------------------------------------------------------------------------------ the loop

    async def run(self) -> None:
        """List and watch until cancelled."""
        while True:
            at_least_s = 0.0
            try:
                if self._watching_from is None:
                    await self._list()
                trouble = await self._watch()
            except ApiError as error:
                trouble, at_least_s = str(error), error.retry_after or 0.0
                if error.is_gone:
                    self._watching_from = None
                    self._gone_in_row += 1
                    if self._gone_in_row == 1:
                        continue  # normal after a pause: list at once, but only once
            except ApiUnreachable as error:
                trouble = str(error)
            except msgspec.DecodeError as error:
                # The event cannot be skipped without losing track, so what it was about is listed instead.
                trouble = f"undecodable: {error}"
                self.stats.undecodable += 1
                self._watching_from = None
            if trouble:
                await self._pause(trouble, at_least_s)

    async def _list(self) -> None:
        number = self.store.begin_list()
        self.stats.lists += 1
        listing = await self._client.list(
            self.resource,
            self._namespace,
            label_selector=self._labels,
            field_selector=self._fields,
            page=self._page,
        )
        self.store.replace(listing.items, version_number(listing.resource_version), number)
        self._watching_from = listing.resource_version
        self._synced.set()

    async def _watch(self) -> str:
        """Follow one watch to its end; return what was wrong with it, if anything."""
        loop = asyncio.get_running_loop()
        began, seen = loop.time(), 0
        self.stats.watches += 1
        # Watches that began together must not all end together.
        limit_s = int(self._times.watch_s * random.uniform(1.0, 1.25)) + 1
        events = self._client.watch(
            self.resource,
            self._namespace,
            resource_version=self._watching_from or "0",
            label_selector=self._labels,
            field_selector=self._fields,
            timeout_s=limit_s,
            silence_s=self._times.silence_s,
        )
        try:
            # The server ends the watch. Should it not, although it is not silent, we do.
            async with (
                asyncio.timeout(limit_s + self._times.silence_s),
                contextlib.aclosing(events) as stream,
            ):
                async for event in stream:
                    seen += 1
                    self._take(event)
        except TimeoutError:
            return "the server did not end the watch in time"
        if seen == 0 and loop.time() - began < self._times.short_s:
            return "the watch ended at once"
        self._failures = self._gone_in_row = 0
        return ""

    def _take(self, event: WatchEvent[T]) -> None:
        self._failures = self._gone_in_row = 0
        self.stats.events += 1
        if event.object is None:
            self.store.advance(version_number(event.bookmark))
            self._watching_from = event.bookmark
            return
        if event.type == "DELETED":
            self.store.deleted(event.object)
        else:
            self.store.changed(event.object)
        self._watching_from = resource_version(cast("HasMeta | Json", event.object))

    async def _pause(self, trouble: str, at_least_s: float) -> None:
        self._failures += 1
        self.stats.failures += 1
        doubled_s = self._times.first_pause_s * 2 ** min(self._failures - 1, 16)
        pause_s = min(doubled_s, self._times.longest_pause_s) * random.uniform(0.5, 1.0)
        pause_s += min(at_least_s, self._times.longest_pause_s)
        log.warning(
            "informer_pauses", resource=self.resource.plural, trouble=trouble, pause_s=round(pause_s, 2)
        )
        await asyncio.sleep(pause_s)
