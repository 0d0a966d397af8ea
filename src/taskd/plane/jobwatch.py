"""The services `job.Job` and `config.Config`: others see what jobs there are, and their rank tables."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping

from taskd.core.plane.jobs import JobView
from taskd.core.plane.names import Code
from taskd.links.services import Caller, CallRefused, Streaming, Unary
from taskd.plane.desk import fresh_uuid
from taskd.plane.surroundings import Forget, JobDirectory
from taskd.plane.topics import Topics
from taskd.wire import observing as wire

ROLES = ("CCAgent", "DefaultUser1", "DefaultUser2", "FdAgent")
MAX_PER_ROLE = 20
MAX_CLIENTS = 10_000
MAX_RANKS = 40_000
COMPANY_S = 0.1


class JobWatch:
    """Answers the calls of `job.Job` and `config.Config`."""

    def __init__(self, directory: JobDirectory) -> None:
        """Tell of the jobs in a directory."""
        self._directory = directory
        self._clients: dict[str, str] = {}
        self._singles: Topics[wire.JobSummarySignal] = Topics()
        self._lists: Topics[wire.JobSummarySignalList] = Topics()
        self._tables: Topics[wire.RankTableStream] = Topics()
        self._seen: dict[str, JobView] = {job.job_id: job for job in directory.jobs()}
        self._dirty: dict[str, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._forget: Forget = directory.listen(self._changed)

    def close(self) -> None:
        """End all streams."""
        self._forget()
        if self._timer is not None:
            self._timer.cancel()
        for topics in (self._singles, self._lists, self._tables):
            topics.close()

    def calls(self) -> Mapping[str, Unary | Streaming]:
        """Return every call of `job.Job`."""
        return {
            "Register": self.register,
            "SubscribeJobSummarySignal": self.subscribe,
            "SubscribeJobSummarySignalList": self.subscribe_list,
        }

    def table_calls(self) -> Mapping[str, Unary | Streaming]:
        """Return every call of `config.Config`."""
        return {"Register": self.register_table, "SubscribeRankTable": self.subscribe_table}

    async def register(self, request: wire.JobClient, _caller: Caller) -> wire.JobClientStatus:
        """Give a client of a known role a name."""
        if request.role not in ROLES:
            return wire.JobClientStatus(Code.NOT_REGISTERED, f"role:{request.role} is not in whitelist")
        if len(self._clients) >= MAX_CLIENTS:
            # Who registered and never subscribed makes room for who comes now.
            used = {key for topics in (self._singles, self._lists) for key, _ in topics.all()}
            idle = next((client for client in self._clients if client not in used), None)
            if idle is None:
                return wire.JobClientStatus(Code.RATE_LIMITED, f"{MAX_CLIENTS} clients are registered")
            del self._clients[idle]
        client = fresh_uuid()
        self._clients[client] = request.role
        return wire.JobClientStatus(Code.SUCCESS, "register success", client)

    async def subscribe(
        self, request: wire.JobClient, _caller: Caller
    ) -> AsyncIterator[wire.JobSummarySignal]:
        """Send every job as it is, and every change."""
        self._admit(request, len(self._singles))
        mine = self._singles.subscribe(request.clientId)
        for job in self._directory.jobs():
            mine.tell(job.job_id, write_summary(job, "add"))
        try:
            async for news in mine.follow():
                yield news
        finally:
            self._singles.leave(request.clientId, mine)

    async def subscribe_list(
        self, request: wire.JobClient, _caller: Caller
    ) -> AsyncIterator[wire.JobSummarySignalList]:
        """Send all jobs in a few messages, then every change."""
        self._admit(request, len(self._lists))
        mine = self._lists.subscribe(request.clientId)
        for number, batch in enumerate(_batches(list(self._directory.jobs()))):
            mine.tell(f"/{number}", batch)
        try:
            async for news in mine.follow():
                yield news
        finally:
            self._lists.leave(request.clientId, mine)

    def _admit(self, request: wire.JobClient, used: int) -> None:
        role = self._clients.get(request.clientId)
        if role is None or role != request.role:
            raise CallRefused(f"clientId:{request.clientId} is not registered for role:{request.role}")
        if used >= MAX_PER_ROLE * len(ROLES):
            raise CallRefused("rate limited, there is too many requests, please retry later")

    async def register_table(self, request: wire.ConfigClient, _caller: Caller) -> wire.ConfigStatus:
        """Accept everybody, as the reference does; the subscription says what is wrong."""
        return wire.ConfigStatus(Code.OK, f"jobId={request.jobId} register success")

    async def subscribe_table(
        self, request: wire.ConfigClient, _caller: Caller
    ) -> AsyncIterator[wire.RankTableStream]:
        """Send the rank table as soon as there is one, and whenever it changes."""
        mine = self._tables.subscribe(request.jobId)
        job = self._directory.find(request.jobId)
        if job is not None and job.rank_table:
            mine.tell(job.job_id, wire.RankTableStream(job.job_id, job.rank_table))
        try:
            async for news in mine.follow():
                yield news
        finally:
            self._tables.leave(request.jobId, mine)

    def _changed(self, job_id: str) -> None:
        """Wait a moment for more of the same: a job that starts changes once for each of its pods."""
        if not self._dirty:
            self._timer = asyncio.get_running_loop().call_later(COMPANY_S, self._tell_changed)
        self._dirty[job_id] = None

    def _tell_changed(self) -> None:
        dirty, self._dirty = self._dirty, {}
        for job_id in dirty:
            self._tell(job_id)

    def _tell(self, job_id: str) -> None:
        job = self._directory.find(job_id)
        before = self._seen.pop(job_id, None)
        if job is not None:
            self._seen[job_id] = job
        told = job or before
        if told is None or job == before:
            return
        summary = write_summary(told, "add" if job is not None else "delete")
        for _, single in self._singles.all():
            single.tell(job_id, summary)
        for _, listed in self._lists.all():
            listed.tell(job_id, _list((summary,)))
        table = self._tables.get(job_id)
        old = before.rank_table if before is not None else ""
        if table is not None and job is not None and job.rank_table not in {"", old}:
            table.tell(job_id, wire.RankTableStream(job_id, job.rank_table))


def write_summary(job: JobView, operator: str) -> wire.JobSummarySignal:
    """Return a job as it goes on the wire."""
    gone = operator == "delete" or job.status in {"failed", "complete"}
    deleted = job.deleted or int(time.time())
    return wire.JobSummarySignal(
        uuid=fresh_uuid(),
        jobId=job.job_id,
        jobName=job.name,
        namespace=job.namespace,
        frameWork=job.framework,
        jobStatus=job.status,
        time=str(job.created),
        cmIndex="0",
        total="1",
        HcclJson=job.rank_table,
        deleteTime=str(deleted) if gone else "",
        sharedTorIp=job.shared_tor_ip,
        masterAddr=job.master_addr,
        operator=operator,
        sid=job.custom_id or job.job_id,
    )


def _list(summaries: tuple[wire.JobSummarySignal, ...]) -> wire.JobSummarySignalList:
    return wire.JobSummarySignalList(summaries, str(time.time_ns() // 1_000_000), len(summaries))


def _batches(jobs: list[JobView]) -> list[wire.JobSummarySignalList]:
    """All jobs in messages of so many ranks; rank tables are left out, for a message has a limit too."""
    batches: list[list[wire.JobSummarySignal]] = [[]]
    room = MAX_RANKS
    for job in sorted(jobs, key=lambda each: each.job_id):
        if room < job.shape.world and batches[-1]:
            batches.append([])
            room = MAX_RANKS
        room -= job.shape.world
        batches[-1].append(write_summary(job, "add"))
    return [_list(tuple(batch)) for batch in batches]
