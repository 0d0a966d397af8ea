"""Events: what ``kubectl describe`` shows under an object.

They are for people, so they must never cost the controller anything: recording puts a note into a bounded
queue and returns. One task sends them. The same event on the same object within a period is one Event whose
count grows, and the count is written at most each few seconds, so a loop that fails a thousand times a second
does not make a thousand requests. When the queue is full the note is dropped and counted.
"""

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import structlog

from taskd.kube.client import KubeClient
from taskd.kube.errors import ApiError, ApiUnreachable, KubeError
from taskd.kube.objects import Json
from taskd.kube.resources import EVENT

log = structlog.get_logger()

LONGEST_MESSAGE = 1024  # what the API server takes
TRIES = 3
KEPT = 4096

Severity = Literal["Normal", "Warning"]


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """The object that an event is about."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str

    @classmethod
    def of(cls, obj: Json) -> "ObjectRef":
        """Refer to a raw object, which knows its kind."""
        meta = obj["metadata"]
        return cls(obj["apiVersion"], obj["kind"], meta.get("namespace", ""), meta["name"], meta["uid"])


@dataclass(frozen=True, slots=True)
class _Subject:
    about: ObjectRef
    severity: Severity
    reason: str
    message: str


@dataclass(slots=True)
class _Series:
    """One Event object in the cluster, or one to be."""

    first: str
    last: str
    began: float
    count: int = 0
    sent: int = 0
    begun_at: float | None = None
    name: str = ""
    queued: bool = False


@dataclass(slots=True)
class RecorderStats:
    """Counters for the metrics page."""

    recorded: int = 0
    written: int = 0
    dropped: int = 0


class EventRecorder:
    """Records events; run :meth:`run` in a task."""

    def __init__(
        self,
        client: KubeClient,
        *,
        component: str = "taskd-controller",
        instance: str = "",
        queue_size: int = 1000,
        period_s: float = 600.0,
        update_s: float = 5.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.stats = RecorderStats()
        self._client = client
        self._component = component
        self._instance = instance
        self._period_s = period_s
        self._update_s = update_s
        self._now = now
        self._held: dict[_Subject, asyncio.TimerHandle] = {}
        self._series: OrderedDict[_Subject, _Series] = OrderedDict()
        self._queue: asyncio.Queue[_Subject] = asyncio.Queue(queue_size)

    def normal(self, about: ObjectRef, reason: str, message: str) -> None:
        """Record that something expected happened."""
        self._record(_Subject(about, "Normal", reason, _cut(message)))

    def warning(self, about: ObjectRef, reason: str, message: str) -> None:
        """Record that something is wrong."""
        self._record(_Subject(about, "Warning", reason, _cut(message)))

    def _record(self, subject: _Subject) -> None:
        self.stats.recorded += 1
        now, stamp = self._now(), datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        series = self._series.get(subject)
        if series is None or (now - series.began > self._period_s and not series.queued):
            series = self._series[subject] = _Series(stamp, stamp, now)
            self._series.move_to_end(subject)
            self._trim()
        series.count += 1
        series.last = stamp
        if series.queued:
            return
        hold_s = 0.0 if series.begun_at is None else series.begun_at + self._update_s - now
        if hold_s > 0:
            self._held[subject] = asyncio.get_running_loop().call_later(hold_s, self._let_go, subject)
            series.queued = True
        else:
            series.queued = self._put(subject)
            if not series.queued:
                series.count -= 1

    def _let_go(self, subject: _Subject) -> None:
        """Queue a count that has waited long enough."""
        if self._held.pop(subject, None) is not None and (series := self._series.get(subject)) is not None:
            series.queued = self._put(subject)

    def _put(self, subject: _Subject) -> bool:
        try:
            self._queue.put_nowait(subject)
        except asyncio.QueueFull:
            self.stats.dropped += 1
            return False
        return True

    def _trim(self) -> None:
        if len(self._series) > KEPT:
            subject, series = self._series.popitem(last=False)
            if series.queued:  # it waits to be sent; the queue bounds how many of these there are
                self._series[subject] = series

    async def run(self) -> None:
        """Send what was recorded, until cancelled."""
        while True:
            subject = await self._queue.get()
            try:
                await self._send(subject)
            finally:
                self._queue.task_done()

    async def flush(self, limit_s: float = 2.0) -> None:
        """Wait until everything recorded was sent, but no longer than that."""
        for subject, timer in list(self._held.items()):
            timer.cancel()
            self._let_go(subject)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._queue.join()

    async def _send(self, subject: _Subject) -> None:
        series = self._series.get(subject)
        if series is None:
            return
        for attempt in range(TRIES):
            series.queued = False  # what is recorded while this one is under way is sent after it
            count, series.begun_at = series.count, self._now()
            if count == series.sent:
                return
            try:
                if not series.name:
                    await self._create(subject, series, count)
                elif not await self._update(subject, series, count):
                    series.name = ""
                    continue
            except ApiUnreachable as error:
                trouble: Exception = error
                await asyncio.sleep(0.2 * 4**attempt)
            except KubeError as error:  # the namespace is going away, or we may not, or do not lead
                trouble = error
                break
            else:
                series.sent = count
                self.stats.written += 1
                return
        else:
            trouble = ApiUnreachable("given up")
        self.stats.dropped += 1
        series.sent = series.count
        log.info("event_dropped", reason=subject.reason, about=subject.about.name, trouble=str(trouble))

    async def _create(self, subject: _Subject, series: _Series, count: int) -> None:
        about = subject.about
        name = f"{about.name[:230]}.{time.time_ns():x}"
        event: dict[str, Any] = {
            "metadata": {"name": name, "namespace": about.namespace or "default"},
            "involvedObject": {
                "apiVersion": about.api_version,
                "kind": about.kind,
                "namespace": about.namespace,
                "name": about.name,
                "uid": about.uid,
            },
            "type": subject.severity,
            "reason": subject.reason,
            "message": subject.message,
            "count": count,
            "firstTimestamp": series.first,
            "lastTimestamp": series.last,
            "source": {"component": self._component},
            "reportingComponent": self._component,
            "reportingInstance": self._instance,
        }
        await self._client.create(EVENT, about.namespace or "default", event)
        series.name = name

    async def _update(self, subject: _Subject, series: _Series, count: int) -> bool:
        """Raise the count; False if the server no longer has the event (they live for an hour)."""
        namespace = subject.about.namespace or "default"
        patch = {"count": count, "lastTimestamp": series.last}
        try:
            await self._client.patch(EVENT, namespace, series.name, patch)
        except ApiError as error:
            if error.is_not_found:
                return False
            raise
        return True


def _cut(message: str) -> str:
    raw = message.encode()
    if len(raw) <= LONGEST_MESSAGE:
        return message
    return raw[: LONGEST_MESSAGE - 3].decode(errors="ignore") + "..."
