"""All registered jobs: who may have a desk, and which desk hears what happens in the cluster.

A job is initialised, then registered, then its manager subscribes; the texts and codes are those of the
reference. What differs: the labels are read again at each Init and whenever they change, a job whose state
was kept by a plane before us is registered already, and its manager finds everything where it was.

A job whose pods may be replaced and whose processes may not be recovered has a desk without a manager: its
faults are answered by pods alone. So has one whose manager is not there for a while after a fault. Such a
desk is not spoken with.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import replace

import msgspec
import structlog

from taskd.core.faults.view import JobFaults
from taskd.core.plane import names
from taskd.core.plane.jobs import JobView
from taskd.core.plane.names import Code
from taskd.core.plane.policy import Policy, read_policy, without_manager
from taskd.core.plane.resuming import resumed, why_absurd
from taskd.core.plane.state import JobState, Limits, Phase, SetLabel
from taskd.plane.chores import Chores, insist
from taskd.plane.desk import Clock, Desk
from taskd.plane.surroundings import ConfigMaps, FaultCentre, Forget, Hands, JobDirectory, Keeper

MAX_JOBS = 10_000
RESUMED_AT_ONCE = 50

log = structlog.get_logger("taskd.plane")


class Office:
    """The desks of all jobs."""

    def __init__(
        self,
        *,
        directory: JobDirectory,
        centre: FaultCentre,
        config_maps: ConfigMaps,
        hands: Hands,
        keeper: Keeper,
        limits: Limits,
    ) -> None:
        """Make an office without desks; ``open`` brings back those that there were."""
        self.directory = directory
        self.centre = centre
        self._config_maps = config_maps
        self._hands = hands
        self._keeper = keeper
        self._limits = limits
        self._clock = Clock()
        self._initialised: dict[str, Policy] = {}
        self._desks: dict[str, Desk] = {}
        self._doors: dict[str, asyncio.Lock] = {}
        self._awaited: set[str] = set()
        self._errands: set[asyncio.Task[object]] = set()
        self._unseen: set[str] = set()
        self._forget: list[Forget] = []

    async def open(self) -> None:
        """Go on with every job whose state was kept, and listen to the cluster."""
        kept = await self._keeper.load()
        turns = asyncio.Semaphore(RESUMED_AT_ONCE)

        async def resume(job_id: str, data: bytes) -> None:
            async with turns:
                await self._resume(job_id, data)

        await asyncio.gather(*(resume(job_id, data) for job_id, data in kept.items()))
        self._forget = [
            self.directory.listen(self._job_changed),
            self.centre.listen(self._faults_changed),
            self._config_maps.listen_for_resets(self._reset_changed),
        ]
        for job in self.directory.jobs():
            self._job_changed(job.job_id)

    async def close(self) -> None:
        """Stop; the states stay where they are kept. Closing twice is closing once."""
        while self._forget:
            self._forget.pop()()
        for task in self._errands:
            task.cancel()
        await asyncio.gather(*self._errands, return_exceptions=True)
        await asyncio.gather(*(desk.close() for desk in self._desks.values()))

    def desk(self, job_id: str) -> Desk | None:
        """Return the desk of a registered job."""
        desk = self._desks.get(job_id)
        return desk if desk is not None and desk.attended else None

    # -------------------------------------------------------------------------------------------- sessions

    def init(self, job_id: str) -> tuple[Code, str]:
        """Look whether a job may be recovered, and how."""
        job = self.directory.find(job_id)
        if job is None or not (job.name and job.namespace and job.pod_group):
            return Code.POD_GROUP_FAILED, f"job(uid={job_id}) one of jobName, pgName, ns is empty"
        policy = read_policy(job.labels, job.annotations)
        if policy.refusal:
            return Code.RECOVERY_OFF, f"job(uid={job_id}) process recover enable not open: {policy.refusal}"
        for problem in policy.problems:
            log.warning("policy", job=job_id, problem=problem)
        self._initialised[job_id] = policy
        text = f"job(uid={job_id}) init success"
        return Code.OK, "; ".join([text, *policy.problems])

    async def register(self, job_id: str) -> tuple[Code, str]:
        """Give a job a desk, if it has none."""
        if self.desk(job_id) is not None:
            return Code.OK, "register success"
        policy = self._initialised.get(job_id)
        if policy is None:
            return Code.NOT_INITIALISED, f"jobId={job_id} not inited"
        job = self.directory.find(job_id)
        if job is None or not job.pod_group:
            return Code.NO_SUCH_JOB, f"jobId={job_id} not exist, reuse registry"
        if job.shape.world <= 0:
            return Code.BAD_PARAMETER, f"jobId={job_id} has no ranks: {job.shape}"
        if sum(desk.attended for desk in self._desks.values()) >= MAX_JOBS:
            return Code.TOO_MANY_JOBS, f"{MAX_JOBS} jobs are registered, and no more can be"
        async with self._door(job_id):
            desk = self._desks.get(job_id)
            if desk is not None:
                await desk.attend(policy)
            else:
                state = JobState(job_id, policy, job.shape, self._limits, absent_since=self._clock.now())
                await self._add(job, state, again=False)
        return Code.OK, "register success"

    async def _add(self, job: JobView, state: JobState, *, again: bool) -> None:
        chores = Chores(self._config_maps, self._hands)
        desk = Desk(job, state, self._keeper, self.centre, chores, self._clock)
        self._desks[job.job_id] = desk
        if desk.attended and state.phase is not Phase.RESTARTING:
            chores.add(job, SetLabel("", names.RECOVER_SWITCH, names.ON))
        await desk.open(again=again)
        await desk.look_at_resets(self._config_maps.resets(job.namespace, job.name))

    def _door(self, job_id: str) -> asyncio.Lock:
        """One at a time gives a job its desk."""
        return self._doors.setdefault(job_id, asyncio.Lock())

    async def _watch(self, job_id: str) -> None:
        """Give a job whose pods may be replaced a desk before a manager has registered."""
        async with self._door(job_id):
            job = self.directory.find(job_id)
            if job is None or job_id in self._desks or job.shape.world <= 0:
                return
            policy = without_manager(read_policy(job.labels, job.annotations))
            if policy.reschedules:
                state = JobState(job_id, policy, job.shape, self._limits, absent_since=self._clock.now())
                await self._add(job, state, again=False)

    async def _resume(self, job_id: str, data: bytes) -> None:
        job = self.directory.find(job_id)
        if job is None:
            await insist(lambda: self._keeper.forget(job_id), "forget", job_id)
            return
        now = self._clock.now()
        policy = read_policy(job.labels, job.annotations)
        try:
            state = msgspec.json.decode(data, type=JobState)
            why = why_absurd(state, job_id, job.shape, now)
        except msgspec.MsgspecError as error:
            why = str(error)
        if why:
            # Registered it was, so it is again; what was under way begins anew with the next report.
            log.error("state_unreadable", job=job_id, why=why)
            if job.shape.world > 0 and not policy.refusal:
                state = JobState(job_id, policy, job.shape, self._limits, absent_since=now)
                await self._add(job, state, again=False)
            return
        if state.policy.refusal and not policy.refusal:
            policy = without_manager(policy)
        state = replace(resumed(state, now), policy=policy, limits=self._limits)
        log.info("resumed", job=job_id, phase=state.phase, uuid=state.uuid)
        await self._add(job, state, again=True)

    # ---------------------------------------------------------------------------------- what the cluster says

    def _job_changed(self, job_id: str) -> None:
        desk = self._desks.get(job_id)
        if desk is None:
            if self.directory.find(job_id) is None:
                self._initialised.pop(job_id, None)
                self._doors.pop(job_id, None)
            else:
                self._watch_if_needed(job_id)
            return
        # A big job's pods come and go by the hundred: one look takes in all that is waiting.
        if job_id not in self._unseen:
            self._unseen.add(job_id)
            self._run(self._look(desk, job_id))

    def _watch_if_needed(self, job_id: str) -> None:
        """Look after a job that no manager speaks for; a manager that may yet come is given a moment."""
        job = self.directory.find(job_id)
        if job is None:
            return
        policy = read_policy(job.labels, job.annotations)
        if policy.unattended:
            self._run(self._watch(job_id))
        elif policy.reschedules and job_id not in self._awaited and self.centre.view(job_id).ranks:
            self._awaited.add(job_id)
            self._run(self._watch_later(job_id))

    async def _watch_later(self, job_id: str) -> None:
        await asyncio.sleep(self._limits.absent_s)
        self._awaited.discard(job_id)
        if self.centre.view(job_id).ranks:
            await self._watch(job_id)

    async def _look(self, desk: Desk, job_id: str) -> None:
        self._unseen.discard(job_id)
        job = self.directory.find(job_id)
        await desk.look(job)
        if job is None and self._desks.get(job_id) is desk:
            del self._desks[job_id]
            self._initialised.pop(job_id, None)
            self._doors.pop(job_id, None)
            await desk.close()
            await insist(lambda: self._keeper.forget(job_id), "forget", job_id)

    def _faults_changed(self, faults: JobFaults) -> None:
        desk = self._desks.get(faults.job_id)
        if desk is not None:
            self._run(desk.look_at_devices())
        else:
            self._watch_if_needed(faults.job_id)

    def _reset_changed(self, namespace: str, name: str, data: Mapping[str, str]) -> None:
        job = self.directory.named(namespace, name)
        desk = self._desks.get(job.job_id) if job is not None else None
        if desk is not None:
            self._run(desk.look_at_resets(data))

    def _run(self, work: Coroutine[object, object, object]) -> None:
        task = asyncio.ensure_future(work)
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)
