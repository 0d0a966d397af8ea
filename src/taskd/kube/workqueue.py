"""Which objects are to be looked at next.

Level-triggered work: a key says "look at this object", not what happened to it, so a thousand events about
one object while it waits are one piece of work. The promises, which are those of client-go:

* a key that is added while it waits is there once;
* a key that is added while a worker has it comes back after that worker is done, and no two workers ever
  have the same key;
* keys are served in the order in which they became ready, so one busy job cannot starve another;
* a delayed key comes at the earliest of the times asked for, and an immediate addition does not cancel it;
* a failing key waits twice as long each time, up to a limit, until it is forgotten.

One event loop, no threads, no locks.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, Protocol, TypeVar

K = TypeVar("K", bound=Hashable)


class QueueHooks(Protocol):
    """Where the queue reports what it does; see the metrics page."""

    def depth(self, waiting: int) -> None:
        """So many keys wait for a worker."""

    def waited(self, seconds: float) -> None:
        """A worker took a key that had waited so long."""

    def worked(self, seconds: float) -> None:
        """A worker had a key for so long."""

    def retried(self) -> None:
        """A key failed and will come back."""


class QueueClosed(Exception):
    """The queue was shut down and is empty."""


class WorkQueue(Generic[K]):
    """A queue of keys; see the module's docstring."""

    def __init__(
        self,
        *,
        base_delay_s: float = 0.005,
        longest_delay_s: float = 60.0,
        hooks: QueueHooks | None = None,
    ) -> None:
        self._base_s = base_delay_s
        self._longest_s = longest_delay_s
        self._hooks = hooks
        self._ready: deque[K] = deque()
        self._dirty: dict[K, float] = {}  # waits for a worker, or for the worker that has it: since when
        self._working: dict[K, float] = {}
        self._failures: dict[K, int] = {}
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None
        self._getters: deque[asyncio.Future[None]] = deque()
        self._closed = False

    def __len__(self) -> int:
        """Return how many keys wait for a worker now."""
        return len(self._ready)

    @property
    def load(self) -> int:
        """How many keys wait or are being worked on."""
        return len(self._ready) + len(self._working)

    @property
    def is_idle(self) -> bool:
        """Nothing waits and nobody works; delayed keys may still come."""
        return not self._dirty and not self._working

    # -------------------------------------------------------------------------------------------- adding

    def add(self, key: K) -> None:
        """Have the key looked at as soon as a worker is free."""
        if self._closed or key in self._dirty:
            return
        self._dirty[key] = self._now()
        if key not in self._working:
            self._make_ready(key)

    def add_after(self, key: K, delay_s: float) -> None:
        """Have the key looked at in ``delay_s``, or earlier if an earlier time was asked for already."""
        if self._closed:
            return
        if delay_s <= 0:
            self.add(key)
            return
        due = self._now() + delay_s
        if due >= self._due.get(key, float("inf")):
            return
        self._due[key] = due
        self._count += 1
        heapq.heappush(self._heap, (due, self._count, key))
        self._set_timer()

    def retry(self, key: K, *, at_least_s: float = 0.0) -> float:
        """Have a failed key looked at again after its back-off; return how long that is."""
        failed = self._failures.get(key, 0)
        self._failures[key] = failed + 1
        delay_s = max(at_least_s, min(self._base_s * 2.0 ** min(failed, 62), self._longest_s))
        if self._hooks is not None:
            self._hooks.retried()
        self.add_after(key, delay_s)
        return delay_s

    def forget(self, key: K) -> None:
        """The key went well: the next failure starts from the shortest back-off."""
        self._failures.pop(key, None)

    def failures(self, key: K) -> int:
        """Return how often the key failed in a row."""
        return self._failures.get(key, 0)

    def drop(self, key: K) -> None:
        """The object is gone for good: neither delay nor back-off are kept."""
        self.forget(key)
        self._due.pop(key, None)  # its entry in the heap is passed over

    # ------------------------------------------------------------------------------------------- working

    async def get(self) -> K:
        """Return the next key, which is then the caller's until :meth:`done`; QueueClosed at the end."""
        while not self._ready:
            if self._closed:
                raise QueueClosed
            getter = asyncio.get_running_loop().create_future()
            self._getters.append(getter)
            try:
                await getter
            except asyncio.CancelledError:
                if getter in self._getters:
                    self._getters.remove(getter)
                elif self._ready:  # it was woken and cancelled at once: the wake-up belongs to somebody else
                    self._wake()
                raise
        key = self._ready.popleft()
        now = self._now()
        since = self._dirty.pop(key)
        self._working[key] = now
        if self._hooks is not None:
            self._hooks.depth(len(self._ready))
            self._hooks.waited(now - since)
        return key

    def done(self, key: K) -> None:
        """Give the key back; it comes again if it was added meanwhile."""
        began = self._working.pop(key)
        if self._hooks is not None:
            self._hooks.worked(self._now() - began)
        if key in self._dirty:
            self._make_ready(key)

    async def run(self, workers: int, handle: Callable[[K], Awaitable[None]]) -> None:
        """Serve keys with so many workers until the queue is closed and empty.

        ``handle`` deals with its own failures (:meth:`retry`); what it raises ends all workers.
        """
        async with asyncio.TaskGroup() as group:
            for _ in range(workers):
                group.create_task(self._serve(handle))

    async def _serve(self, handle: Callable[[K], Awaitable[None]]) -> None:
        while True:
            try:
                key = await self.get()
            except QueueClosed:
                return
            try:
                await handle(key)
            finally:
                self.done(key)

    def shut_down(self) -> None:
        """Take nothing new and drop what is delayed; what waits is still served."""
        self._closed = True
        self._heap.clear()
        self._due.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._getters:
            self._wake()

    # ----------------------------------------------------------------------------------------- internals

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    def _make_ready(self, key: K) -> None:
        self._ready.append(key)
        if self._hooks is not None:
            self._hooks.depth(len(self._ready))
        self._wake()

    def _wake(self) -> None:
        while self._getters:
            getter = self._getters.popleft()
            if not getter.done():
                getter.set_result(None)
                return

    def _set_timer(self) -> None:
        while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)  # an earlier time was asked for, or the key was dropped
        due = self._heap[0][0] if self._heap else None
        if self._timer is not None:
            if self._timer.when() == due:
                return
            self._timer.cancel()
            self._timer = None
        if due is not None:
            self._timer = asyncio.get_running_loop().call_at(due, self._ring)

    def _ring(self) -> None:
        self._timer = None
        now = self._now()
        while self._heap and self._heap[0][0] <= now:
            due, _, key = heapq.heappop(self._heap)
            if self._due.get(key) == due:
                del self._due[key]
                self.add(key)
        self._set_timer()
