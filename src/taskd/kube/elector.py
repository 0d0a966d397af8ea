"""Leader election: which of several controllers acts.

``core.lease`` has the rules; here is the talking. The lease is renewed on connections of its own, so that a
thousand pods in the queue do not cost the leadership. A candidate watches the lease instead of polling it,
so that it starts at once when the holder releases it.

A process that was stopped (SIGSTOP, a frozen machine) goes on in the middle of whatever it did. Therefore
holding is not a flag but a question to a clock that also counts while the machine sleeps, and
``client.guarded(elector.check)`` asks it before each write, the last time when the bytes go to the socket.
Stopped in the microseconds after that, one write may still arrive late; nothing on this side can prevent it,
so writes carry names, UIDs or versions that make a late one harmless::

    elector = Elector(client, "taskd-system", "taskd-controller", identity)
    writer = client.guarded(elector.check)
    await elector.lead(lambda: run_controller(writer))
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

import structlog

from taskd.core.lease import (
    LeaseRecord,
    LeaseTimes,
    Sight,
    Take,
    Tenure,
    decide_candidate,
    note_sight,
)
from taskd.kube.client import KubeClient
from taskd.kube.errors import ApiError, ApiUnreachable, KubeError, NotLeader
from taskd.kube.objects import Json
from taskd.kube.resources import LEASE

log = structlog.get_logger()


class LeadershipLost(KubeError):
    """The lease could not be renewed in time, or somebody else has it."""


def now_s() -> float:
    """Return seconds by a clock that cannot be set and that also runs while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Elector:
    """One candidate; see the module's docstring.

    ``identity`` must be unique among all processes that ever run, also across restarts of a pod: use the
    pod's name and something random.
    """

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        name: str,
        identity: str,
        times: LeaseTimes | None = None,
        *,
        now: Callable[[], float] = now_s,
    ) -> None:
        if not identity:
            raise ValueError("a candidate needs a name")
        self.identity = identity
        self.times = times or LeaseTimes()
        self._client = client.urgent()
        self._namespace = namespace
        self._name = name
        self._now = now
        self._sight: Sight | None = None
        self._lease: Json = {}
        self._tenure: Tenure | None = None

    # ---------------------------------------------------------------------------------------- the answer

    def holds(self) -> bool:
        """Say whether we may begin something now."""
        return self._tenure is not None and self._now() < self._tenure.act_until

    def check(self) -> float:
        """Return how long a write that begins now may take; raise NotLeader if none may begin."""
        now = self._now()
        if self._tenure is None or now >= self._tenure.act_until:
            raise NotLeader(f"{self.identity} does not hold the lease {self._namespace}/{self._name}")
        return self._tenure.end - now

    @property
    def holder(self) -> str:
        """Return who held the lease when we last looked; empty if nobody."""
        record = self._sight.record if self._sight else None
        return record.holder if record else ""

    # ------------------------------------------------------------------------------------------ the life

    async def lead(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Wait for the lease, run ``work`` while it is ours, and release it when the work has ended.

        When the lease is lost the work is cancelled and LeadershipLost raised. When the caller is cancelled,
        so is the work, and the lease is released after it: the successor starts at once.
        """
        await self._acquire()
        log.info("leading", lease=self._name, identity=self.identity)
        working = asyncio.create_task(work())
        renewing = asyncio.create_task(self._renew())
        try:
            await asyncio.wait({working, renewing}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                self._tenure = None
                log.error("lease_lost", lease=self._name, identity=self.identity, holder=self.holder)
        finally:
            await _stop(working)  # the lease is renewed until it has cleaned up
            await _stop(renewing)
            await self._release()
        lost = None if renewing.cancelled() else renewing.exception()
        if not working.cancelled():
            working.result()
        if lost is not None:
            raise lost

    async def _acquire(self) -> None:
        while True:
            try:
                self._see(await self._read())
                while True:
                    assert self._sight is not None  # noqa: S101 - _see has just set it
                    decision = decide_candidate(self._now(), self.identity, self._sight)
                    if isinstance(decision, Take):
                        if await self._write(decision.transitions):
                            log.info("lease_taken", lease=self._name, reason=decision.reason)
                            return
                        break
                    changed = await self._wait_change(decision.until - self._now())
                    self._see(await self._read() if changed is None else changed)
            except (ApiError, ApiUnreachable) as error:
                log.warning("lease_not_taken", lease=self._name, trouble=str(error))
                await asyncio.sleep(self.times.retry_s * random.uniform(0.8, 1.2))

    async def _renew(self) -> None:
        """Renew until that fails for too long; then raise."""
        trouble = ""
        while True:
            tenure = self._tenure
            left_s = 0.0 if tenure is None else tenure.act_until - self._now()
            pause_s = self.times.retry_s if not trouble else self.times.retry_s / 4
            await asyncio.sleep(max(0.0, min(pause_s, left_s)))
            if not self.holds():
                raise LeadershipLost(f"the lease {self._name} was not renewed in time; {trouble or 'paused'}")
            try:
                if not await self._write(transitions=None):
                    current = await self._read()
                    self._see(current)
                    if self.holder != self.identity:
                        raise LeadershipLost(f"the lease {self._name} is held by {self.holder or 'nobody'}")
                trouble = ""
            except (ApiError, ApiUnreachable) as error:
                trouble = str(error)
                log.warning("lease_not_renewed", lease=self._name, trouble=trouble)

    async def _release(self) -> None:
        """Say that we are gone; if that fails the lease simply runs out."""
        if not self.holds():
            self._tenure = None
            return
        self._tenure = None
        spec = {**self._lease.get("spec", {}), "leaseDurationSeconds": 1, "renewTime": _stamp()}
        spec.pop("holderIdentity", None)
        released = {**self._lease, "spec": spec}
        try:
            async with asyncio.timeout(self.times.retry_s):
                await self._client.replace(LEASE, self._namespace, self._name, released)
        except (ApiError, ApiUnreachable, TimeoutError) as error:
            log.warning("lease_not_released", lease=self._name, trouble=str(error))

    # -------------------------------------------------------------------------------------- the messages

    async def _read(self) -> Json | None:
        try:
            async with asyncio.timeout(self.times.renew_deadline_s):
                return await self._client.get(LEASE, self._namespace, self._name)
        except TimeoutError:
            raise ApiUnreachable("reading the lease took too long") from None
        except ApiError as error:
            if error.is_not_found:
                return None
            raise

    async def _write(self, transitions: int | None) -> bool:
        """Take (with a number of transitions) or renew the lease as last seen; False if it has changed."""
        spec = dict(self._lease.get("spec") or {})
        stamp = _stamp()
        if transitions is not None:
            spec |= {"acquireTime": stamp, "leaseTransitions": transitions}
        spec |= {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": self.times.whole_duration_s,
            "renewTime": stamp,
        }
        sent_at = self._now()
        # A third, so that a connection that hangs leaves time for two more tries on fresh ones.
        limit_s = self.times.renew_deadline_s / 3
        if transitions is None and self._tenure is not None:
            limit_s = min(limit_s, self._tenure.act_until - sent_at)
        try:
            async with asyncio.timeout(limit_s):
                if self._lease:
                    lease = {**self._lease, "spec": spec}
                    written = await self._client.replace(LEASE, self._namespace, self._name, lease)
                else:
                    lease = {"metadata": {"name": self._name, "namespace": self._namespace}, "spec": spec}
                    written = await self._client.create(LEASE, self._namespace, lease)
        except TimeoutError:
            raise ApiUnreachable("writing the lease took too long") from None
        except ApiError as error:
            if error.is_conflict or error.already_exists or error.is_not_found:
                return False
            raise
        self._see(written)
        self._tenure = Tenure(sent_at, self.times)
        return True

    async def _wait_change(self, limit_s: float) -> Json | None:
        """Return the lease when it changes; None if it has to be read, e.g. because the time is up."""
        version = self._lease.get("metadata", {}).get("resourceVersion", "0")
        events = self._client.watch(
            LEASE,
            self._namespace,
            resource_version=version,
            field_selector=f"metadata.name={self._name}",
            timeout_s=max(1, round(limit_s)),
        )
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(limit_s, 0.0)), contextlib.aclosing(events) as stream:
                try:
                    async for event in stream:
                        if event.type == "DELETED":
                            return None
                        if event.object is not None:
                            return event.object
                except (ApiError, ApiUnreachable):
                    # Not allowed, or the version is too old: looking now and then does as well.
                    await asyncio.sleep(self.times.retry_s)
        return None

    def _see(self, lease: Json | None) -> None:
        self._lease = lease or {}
        record = None
        if lease is not None:
            spec = lease.get("spec") or {}
            record = LeaseRecord(
                holder=spec.get("holderIdentity") or "",
                duration_s=float(spec.get("leaseDurationSeconds") or self.times.whole_duration_s),
                transitions=int(spec.get("leaseTransitions") or 0),
                version=lease["metadata"]["resourceVersion"],
            )
        before = self.holder
        self._sight = note_sight(self._sight, record, self._now())
        if self.holder != before:
            log.info("lease_holder", lease=self._name, holder=self.holder, before=before)


async def _stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task})


def _stamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
