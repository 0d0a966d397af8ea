"""One job's desk: it feeds the job's machine, one event at a time, and has done what the machine says.

The order of doing is the order of what matters. First the state is kept, so that a new plane knows of every
order that was given; then the order goes to the manager and the report is answered; what is to be written
into the cluster follows in a queue of the job's own, with patience, so that neither a slow API server nor
another job delays an order.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Coroutine, Mapping
from dataclasses import replace
from typing import assert_never

import msgspec
import structlog

from taskd.core.faults.reading import Refused
from taskd.core.faults.texts.reset import RankStatus, read_reset
from taskd.core.plane.jobs import JobView, faults_here, ready_standbys
from taskd.core.plane.machine import next_look, step
from taskd.core.plane.names import ON, RECOVER_SWITCH, SignalType
from taskd.core.plane.policy import Policy, SubHealth, read_policy, without_manager
from taskd.core.plane.resuming import kept, repeat
from taskd.core.plane.state import (
    Answer,
    Ask,
    DevicesSeen,
    Effect,
    Event,
    Handed,
    JobGone,
    JobState,
    Moment,
    PodsSeen,
    PolicyRead,
    RecordIncident,
    ResetSeen,
    SaveState,
    SendSignal,
    SetAnnotation,
    SetLabel,
    Signal,
    Subscribed,
    Ticked,
    Unsubscribed,
    WriteReset,
)
from taskd.plane.chores import Chores, insist
from taskd.plane.surroundings import FaultCentre, Keeper
from taskd.wire.recover import FaultRank, ProcessManageSignal

KEEP_ALIVE_S = 5.0
SAVE_LIMIT_S = 1.0

log = structlog.get_logger("taskd.plane")


class Clock:
    """Seconds since the epoch that never jump: a deadline must not be met because somebody set the clock."""

    def __init__(self) -> None:
        """Begin with the machine's clock as it is now."""
        self._offset = time.time() - time.monotonic()

    def now(self) -> float:
        """Return the time."""
        return self._offset + time.monotonic()


def fresh_uuid() -> str:
    """Make a name for an event, in the form of the reference: time, then chance."""
    return f"{time.time_ns():X}-{secrets.token_hex(16)}"


class Stream:
    """The stream of one subscriber; None in it says that another one has taken over."""

    def __init__(self) -> None:
        """Begin with nothing to send."""
        self.queue: asyncio.Queue[Signal | None] = asyncio.Queue()


class Desk:
    """What the plane does for one registered job."""

    def __init__(
        self, job: JobView, state: JobState, keeper: Keeper, centre: FaultCentre, chores: Chores, clock: Clock
    ) -> None:
        """Take over a job with its state."""
        self.job = job
        self.state = state
        self._keeper = keeper
        self._centre = centre
        self._chores = chores
        self._clock = clock
        self._order = asyncio.Lock()
        self._stream: Stream | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._errands: set[asyncio.Task[object]] = set()
        self._saving: asyncio.Task[None] | None = None
        self._closed = False
        self.attended = not state.policy.refusal
        """A manager has registered; without one, faults are answered by pods alone."""

    async def open(self, *, again: bool) -> None:
        """Begin to work; ``again`` if the state is that of a plane before us."""
        await self.look(self.job)
        if again:
            await self._carry_out(repeat(self.state, self._clock.now()))
            await self.feed(Ticked())
        elif self.attended:
            await self._save()

    async def attend(self, policy: Policy) -> None:
        """Begin to listen to a manager of the job."""
        self.attended = True
        self._chores.add(self.job, SetLabel("", RECOVER_SWITCH, ON))
        await self.feed(PolicyRead(policy))
        await self._save()

    async def close(self) -> None:
        """Stop working; the state stays where it is kept, and nothing is written any more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._stream is not None:
            self._stream.queue.put_nowait(None)
        tasks = [*self._errands, *([self._saving] if self._saving is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._chores.close()

    # ------------------------------------------------------------------------------------------- what happens

    async def feed(self, event: Event, stream: Stream | None = None) -> Answer | None:
        """Let something happen to the job; returns the answer, where it is a report.

        A new subscriber's stream takes the place of the old one in the same moment as the machine hears of
        it: a signal in between would come twice, or on neither.
        """
        async with self._order:
            if self._closed:
                return None
            if stream is not None:
                if self._stream is not None:
                    self._stream.queue.put_nowait(None)
                self._stream = stream
            self._look_at_standbys()
            moment = Moment(self._clock.now(), fresh_uuid())
            before = self.state.phase
            self.state, effects = step(self.state, event, moment)
            if self.state.phase is not before:
                log.info("phase", job=self.job.job_id, was=before, now=self.state.phase, uuid=self.state.uuid)
            answer = await self._carry_out(effects)
            self._set_timer()
        return answer

    def _look_at_standbys(self) -> None:
        """See which standbys may take a place now: a node that breaks may have one of the job's pods too."""
        ignores = self.state.policy.sub_health is SubHealth.IGNORE
        nodes = {each.node for each in self.job.standbys}
        isolated = self._centre.isolated(nodes, ignores_sub_health=ignores) if nodes else {}
        ready, unfit = ready_standbys(self.job, isolated)
        if (ready, unfit) != (self.state.ready, self.state.unfit):
            self.state = replace(self.state, ready=ready, unfit=unfit)

    def feed_soon(self, event: Event) -> None:
        """Let something happen as soon as it can."""
        if not self._closed:
            self._run(self.feed(event))

    async def look(self, job: JobView | None) -> None:
        """See how the job is in the cluster now."""
        if job is None:
            await self.feed(JobGone("the job was deleted"))
            return
        changed = (job.labels, job.annotations) != (self.job.labels, self.job.annotations)
        self.job = job
        if changed:
            policy = read_policy(job.labels, job.annotations)
            if not self.attended:
                policy = without_manager(policy)
            if policy != self.state.policy:
                await self.feed(PolicyRead(policy))
        await self.feed(PodsSeen(job.pods_seen(), job.ending))
        await self.look_at_devices()

    async def look_at_devices(self) -> None:
        """See how the job's devices are now."""
        faults = self._centre.view(self.job.job_id)
        await self.feed(DevicesSeen(faults.health, faults_here(self.job, faults)))

    async def look_at_resets(self, data: Mapping[str, str]) -> None:
        """See what device plugins say in the job's reset-config."""
        found = read_reset(data)
        if isinstance(found, Refused):
            log.warning("reset_config_unreadable", job=self.job.job_id, why=found.reason)
            return
        ranks = {entry.rank: entry.status for entry in found.ranks if entry.status is not RankStatus.FAULT}
        ranks = {rank: status for rank, status in ranks.items() if 0 <= rank < self.job.shape.world}
        if ranks != self.state.resets:
            await self.feed(ResetSeen(ranks))

    # --------------------------------------------------------------------------------------------- the stream

    async def signals(self, *, keeps_old: bool) -> AsyncIterator[ProcessManageSignal]:
        """Yield what the manager is to do, and a sign of life whenever there was nothing for a while."""
        mine = Stream()
        try:
            await self.feed(Subscribed(keeps_old), mine)
            while not self._closed:
                signal: Signal | None = None
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(KEEP_ALIVE_S):
                        signal = await mine.queue.get()
                        if signal is None:
                            return
                if signal is None:
                    yield self._keep_alive()
                    continue
                await self.feed(Handed(signal))
                yield write_signal(self.job.job_id, signal)
        finally:
            if self._stream is mine:
                self._stream = None
                self.feed_soon(Unsubscribed())

    def _keep_alive(self) -> ProcessManageSignal:
        kind = SignalType.KEEP_ALIVE.value
        return ProcessManageSignal(uuid=self.state.uuid, jobId=self.job.job_id, signalType=kind)

    # ------------------------------------------------------------------------------------------- what is done

    async def _carry_out(self, effects: tuple[Effect, ...]) -> Answer | None:
        answer: Answer | None = None
        for effect in effects:
            match effect:
                case SaveState():
                    await self._save()
                case SendSignal():
                    if self._stream is not None:
                        self._stream.queue.put_nowait(effect.signal)
                case Answer():
                    answer = effect
                case WriteReset() | Ask() | SetLabel() | SetAnnotation() | RecordIncident():
                    self._chores.add(self.job, effect)
                case _:
                    assert_never(effect)
        return answer

    async def _save(self) -> None:
        """Keep the state; if that takes long, go on and keep trying, for the job cannot wait."""
        if self._saving is not None:
            self._saving.cancel()
        self._saving = asyncio.ensure_future(self._save_until_done(msgspec.json.encode(kept(self.state))))
        done, _ = await asyncio.wait({self._saving}, timeout=SAVE_LIMIT_S)
        if not done:
            log.error("not_kept", job=self.job.job_id, limit_s=SAVE_LIMIT_S, phase=self.state.phase)

    async def _save_until_done(self, data: bytes) -> None:
        await insist(lambda: self._keeper.save(self.job.job_id, data), "save", self.job.job_id)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = next_look(self.state)
        if due:
            loop = asyncio.get_running_loop()
            delay_s = max(due - self._clock.now(), 0.0) + 0.001
            self._timer = loop.call_later(delay_s, self.feed_soon, Ticked())

    def _run(self, work: Coroutine[object, object, object]) -> None:
        task = asyncio.ensure_future(work)
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)


def write_signal(job_id: str, signal: Signal) -> ProcessManageSignal:
    """Return a signal as it goes on the wire."""
    return ProcessManageSignal(
        uuid=signal.uuid,
        jobId=job_id,
        signalType=signal.kind.value,
        actions=tuple(action.value for action in signal.actions),
        faultRanks=tuple(FaultRank(str(rank), kind.value) for rank, kind in signal.faults.items()),
        changeStrategy=signal.change.value,
        timeout=signal.timeout_s,
        nodeRankIds=tuple(map(str, signal.nodes)),
        extraParams=signal.extra,
        standbys=tuple(f"{rank}={name}" for rank, name in signal.standbys.items()),
        shunned=signal.shunned,
    )
