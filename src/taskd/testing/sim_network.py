"""Virtual time, and links that behave as badly as real ones may.

A simulation is a heap of things that will happen. Nothing in it reads a clock or starts a thread, and all
chance comes from one seeded generator, so a seed is a whole run and can be looked at again.

A link is a connection, as TCP or a unix socket is one: it keeps its order and repeats nothing, until it
breaks. Then the end of what was under way is lost, the beginning may still arrive, possibly after a new
connection is in use, and each side learns of it when it does. Loss, repetition and reordering come of it.
"""

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from taskd.core.delivery import Packet
from taskd.wire.envelope import Message

Action = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Parcel:
    """What travels: an envelope without the bytes."""

    src: str
    dst: str
    content: Packet[Message] | Message


@dataclass(slots=True)
class Scheduler:
    """The heap: what happens when, in an order that only the seed decides."""

    rng: Random
    now: float = 0.0
    events: int = 0
    _heap: list[tuple[float, int, Action]] = field(default_factory=list)
    _number: "itertools.count[int]" = field(default_factory=itertools.count)

    def after(self, delay_s: float, action: Action) -> None:
        """Have something happen a while from now."""
        heapq.heappush(self._heap, (self.now + delay_s, next(self._number), action))

    def between(self, low_s: float, high_s: float, action: Action) -> None:
        """Have something happen after a random while."""
        self.after(self.rng.uniform(low_s, high_s), action)

    def run(self, until_s: float, over: Callable[[], bool]) -> None:
        """Let things happen until a moment, or until somebody says that it is over."""
        while self._heap and self._heap[0][0] <= until_s and not over():
            self.now, _, action = heapq.heappop(self._heap)
            self.events += 1
            action()
        if not over():
            self.now = max(self.now, until_s)


@dataclass(slots=True)
class Lane:
    """One direction of a connection."""

    scheduler: Scheduler
    delay_s: float
    deliver: Callable[[Parcel], None]
    closed: Action
    sent: int = 0
    arrived: int = 0
    kept: int | None = None
    _last: float = 0.0

    def send(self, parcel: Parcel) -> None:
        """Put a parcel on its way; on a broken lane it is lost without a word."""
        if self.kept is not None:
            return
        self._last = self._arrival()
        number = self.sent
        self.sent += 1
        self.scheduler.after(self._last - self.scheduler.now, lambda: self._arrive(number, parcel))

    def cut(self, notice_s: float, *, lossless: bool) -> None:
        """Break the lane; the receiver learns of it after what still arrives, or after ``notice_s``."""
        if self.kept is not None:
            return
        self.kept = self.sent if lossless else self.scheduler.rng.randint(self.arrived, self.sent)
        end = max(self._last, self.scheduler.now) if lossless else self.scheduler.now
        self.scheduler.after(end - self.scheduler.now + notice_s, self.closed)

    def _arrival(self) -> float:
        delay = self.scheduler.rng.expovariate(1.0 / self.delay_s)
        return max(self._last, self.scheduler.now + min(delay, 20 * self.delay_s))

    def _arrive(self, number: int, parcel: Parcel) -> None:
        if self.kept is not None and number >= self.kept:
            return
        self.arrived = number + 1
        self.deliver(parcel)


@dataclass(slots=True)
class Connection:
    """Two lanes that break together."""

    up: Lane
    down: Lane

    @property
    def broken(self) -> bool:
        """Tell whether the connection was cut, known to its ends or not."""
        return self.up.kept is not None

    def cut(self, notice_s: float, *, lossless: bool = False) -> None:
        """Break both directions."""
        self.up.cut(notice_s, lossless=lossless)
        self.down.cut(notice_s, lossless=lossless)
