"""Streams of news: each subscriber gets the latest of every subject, in the order in which they changed.

A slow subscriber costs memory if everything is queued, and misses something if what does not fit is dropped.
News of one subject replace each other here, so a subscriber is at most one message per subject behind and
always ends with the truth.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Generic, TypeVar

N = TypeVar("N")


class Subscription(Generic[N]):
    """What one subscriber has not got yet."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._news: dict[str, N] = {}
        self._wake = asyncio.Event()
        self._closed = False

    def tell(self, subject: str, news: N) -> None:
        """Have a subject's news sent instead of its last ones, if those are still waiting."""
        self._news[subject] = news
        self._wake.set()

    def close(self) -> None:
        """End the stream after what is waiting."""
        self._closed = True
        self._wake.set()

    async def follow(self) -> AsyncIterator[N]:
        """Yield news as they come."""
        while True:
            while self._news:
                yield self._news.pop(next(iter(self._news)))
            if self._closed:
                return
            self._wake.clear()
            await self._wake.wait()


class Topics(Generic[N]):
    """The subscriptions to one sort of news, one for each key; a new one takes the place of the old."""

    def __init__(self) -> None:
        """Begin without subscribers."""
        self._open: dict[str, Subscription[N]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def subscribe(self, key: str) -> Subscription[N]:
        """Open a subscription; the one that had the key ends."""
        before = self._open.get(key)
        if before is not None:
            before.close()
        made = self._open[key] = Subscription()
        return made

    def leave(self, key: str, mine: Subscription[N]) -> None:
        """Note that a subscriber is gone."""
        if self._open.get(key) is mine:
            del self._open[key]

    def get(self, key: str) -> Subscription[N] | None:
        """Return the subscription of a key."""
        return self._open.get(key)

    def all(self) -> list[tuple[str, Subscription[N]]]:
        """Return all subscriptions with their keys."""
        return list(self._open.items())

    def close(self) -> None:
        """End all streams."""
        for _, subscription in self.all():
            subscription.close()
