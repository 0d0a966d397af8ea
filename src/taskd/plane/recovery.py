"""The service `Recover`: sessions, reports and signals, and the O&M calls that are not built yet.

A report is answered whatever is in it. The manager may send the uuid of the order that it answers beside the
message (`taskd-uuid`), say that it can go back to an old pod (`taskd-keeps-old-pod`), and which pods nobody
reaches (`taskd-cut-pods`), and which pods have the places of others after what it did without a plane
(`taskd-placed-pods`); a manager written for the reference control plane does nothing of it and loses
nothing but the exactness.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

from taskd.core.plane.names import Code
from taskd.core.plane.state import (
    Answer,
    FaultsReported,
    Report,
    StatusReported,
    StopReported,
    StrategiesReported,
)
from taskd.links.services import Caller, CallRefused, Streaming, Unary
from taskd.plane.office import Office
from taskd.wire import recover as wire

NOT_SUPPORTED = "is not supported by this control plane yet"
MAX_STRATEGIES = 100
MAX_PODS = 20_000
MAX_DIGITS = 10


class Recovery:
    """Answers the calls of `Recover`."""

    def __init__(self, office: Office, stopping: asyncio.Event) -> None:
        """Answer for the jobs of an office until it closes."""
        self._office = office
        self._stopping = stopping

    def calls(self) -> Mapping[str, Unary | Streaming]:
        """Return every call of the service."""
        return {
            "Init": self.init,
            "Register": self.register,
            "SubscribeProcessManageSignal": self.subscribe,
            "ReportStopComplete": self.report_stop,
            "ReportRecoverStrategy": self.report_strategies,
            "ReportRecoverStatus": self.report_status,
            "ReportProcessFault": self.report_faults,
            "HealthCheck": self.health_check,
            "SwitchNicTrack": self.switch_nics,
            "SubscribeSwitchNicSignal": self.nic_result,
            "SubscribeNotifySwitch": self.nic_orders,
            "ReplySwitchNicResult": self.reply_nics,
            "StressTest": self.stress_test,
            "SubscribeStressTestResponse": self.stress_result,
            "SubscribeNotifyExecStressTest": self.stress_orders,
            "ReplyStressTestResult": self.reply_stress,
        }

    # ---------------------------------------------------------------------------------------------- sessions

    async def init(self, request: wire.ClientInfo, _caller: Caller) -> wire.Status:
        """Read what the job allows."""
        return wire.Status(*self._office.init(request.jobId))

    async def register(self, request: wire.ClientInfo, _caller: Caller) -> wire.Status:
        """Begin to serve the job."""
        return wire.Status(*await self._office.register(request.jobId))

    def subscribe(self, request: wire.ClientInfo, caller: Caller) -> AsyncIterator[wire.ProcessManageSignal]:
        """Send the manager its orders, for as long as it listens."""
        desk = self._office.desk(request.jobId)
        if desk is None:
            raise CallRefused(f"jobId={request.jobId} not registed")
        return desk.signals(keeps_old=caller.metadata.get(wire.KEEPS_OLD_KEY) == "1")

    async def health_check(self, request: wire.ClientInfo, _caller: Caller) -> wire.Status:
        """Say that somebody is here."""
        return wire.Status(Code.OK, f"jobId={request.jobId}, receive HeathCheck")

    # ----------------------------------------------------------------------------------------------- reports

    async def report_faults(self, request: wire.ProcessFaultRequest, caller: Caller) -> wire.Status:
        """Take in ranks that failed."""
        cut = tuple(
            int(part)
            for part in caller.metadata.get(wire.CUT_KEY, "").split(",")[:MAX_PODS]
            if part.isdecimal() and len(part) < MAX_DIGITS
        )
        report = FaultsReported(_pairs(request.faultRanks), _uuid(caller), cut)
        return await self._report(request.jobId, report)

    async def report_stop(self, request: wire.StopCompleteRequest, caller: Caller) -> wire.Status:
        """Take in that the training stands still."""
        if request.status is None:
            return _no_status("ReportStopComplete", request.jobId)
        report = StopReported(request.status.code, _pairs(request.faultRanks), _uuid(caller))
        return await self._report(request.jobId, report)

    async def report_strategies(self, request: wire.RecoverStrategyRequest, caller: Caller) -> wire.Status:
        """Take in what the trainer can do."""
        if len(request.strategies) > MAX_STRATEGIES:
            return wire.Status(Code.BAD_PARAMETER, f"more than {MAX_STRATEGIES} strategies in one report")
        report = StrategiesReported(request.strategies, _pairs(request.faultRanks), _uuid(caller))
        return await self._report(request.jobId, report)

    async def report_status(self, request: wire.RecoverStatusRequest, caller: Caller) -> wire.Status:
        """Take in how an order went."""
        if request.status is None:
            return _no_status("ReportRecoverStatus", request.jobId)
        said = request.status.info if caller.metadata.get(wire.ALONE_KEY) == "1" else ""
        placed = _placed(caller.metadata.get(wire.PLACED_KEY, "")) if said else {}
        report = StatusReported(request.status.code, request.strategy, _uuid(caller), said, placed)
        return await self._report(request.jobId, report)

    async def _report(self, job_id: str, report: Report) -> wire.Status:
        desk = self._office.desk(job_id)
        if desk is None:
            return wire.Status(Code.NOT_REGISTERED, f"jobId={job_id} not registed")
        answer = await desk.feed(report)
        if not isinstance(answer, Answer):
            return wire.Status(Code.SERVER_ERROR, "the report was not answered")
        return wire.Status(int(answer.code), answer.info)

    # ------------------------------------------------------------------------------ operation and upkeep

    async def switch_nics(self, request: wire.SwitchNics, _caller: Caller) -> wire.Status:
        """Refuse to switch links."""
        return self._unsupported(request.jobID, "switching links")

    async def stress_test(self, request: wire.StressTestParam, _caller: Caller) -> wire.Status:
        """Refuse to run stress tests."""
        return self._unsupported(request.jobID, "the stress test")

    async def reply_nics(self, request: wire.SwitchResult, _caller: Caller) -> wire.Status:
        """Refuse a result that nobody asked for."""
        text = f"jobId={request.jobId}: no links are being switched; switching links {NOT_SUPPORTED}"
        return wire.Status(Code.ORDER_MIX, text)

    async def reply_stress(self, request: wire.StressTestResult, _caller: Caller) -> wire.Status:
        """Refuse a result that nobody asked for."""
        text = f"jobId={request.jobId}: no stress test is running; the stress test {NOT_SUPPORTED}"
        return wire.Status(Code.ORDER_MIX, text)

    def _unsupported(self, job_id: str, what: str) -> wire.Status:
        if self._office.directory.find(job_id) is None:
            return wire.Status(Code.BAD_OPERATION, f"job:{job_id} not exist")
        return wire.Status(Code.BAD_OPERATION, f"{what} {NOT_SUPPORTED}")

    async def nic_result(
        self, request: wire.SwitchNicRequest, _caller: Caller
    ) -> AsyncIterator[wire.SwitchNicResponse]:
        """Say once that there is no such thing yet."""
        yield wire.SwitchNicResponse(request.jobID, f"switching links {NOT_SUPPORTED}")

    async def stress_result(
        self, request: wire.StressTestRequest, _caller: Caller
    ) -> AsyncIterator[wire.StressTestResponse]:
        """Say once that there is no such thing yet."""
        yield wire.StressTestResponse(request.jobID, f"the stress test {NOT_SUPPORTED}")

    async def nic_orders(
        self, request: wire.ClientInfo, _caller: Caller
    ) -> AsyncIterator[wire.SwitchRankList]:
        """Hold the stream open: managers ask for it again and again where it ends."""
        await self._hold(request.jobId)
        return
        yield wire.SwitchRankList()

    async def stress_orders(
        self, request: wire.ClientInfo, _caller: Caller
    ) -> AsyncIterator[wire.StressTestRankParams]:
        """Hold the stream open, as that for links."""
        await self._hold(request.jobId)
        return
        yield wire.StressTestRankParams()

    async def _hold(self, job_id: str) -> None:
        if self._office.desk(job_id) is None:
            raise CallRefused(f"jobId={job_id} not registed, please wait agent register")
        await self._stopping.wait()


def _pairs(faults: tuple[wire.FaultRank, ...]) -> tuple[tuple[str, str], ...]:
    return tuple((fault.rankId, fault.faultType) for fault in faults)


def _uuid(caller: Caller) -> str:
    return caller.metadata.get(wire.UUID_KEY, "")


def _no_status(what: str, job_id: str) -> wire.Status:
    return wire.Status(Code.BAD_PARAMETER, f"jobId={job_id}, {what} has no status")


def _placed(text: str) -> dict[int, str]:
    """Which pod has which place, by its host name; what is no such pair is left out."""
    pairs = (part.partition("=") for part in text.split(",")[:MAX_PODS])
    return {
        int(rank): host for rank, _, host in pairs if rank.isdecimal() and len(rank) < MAX_DIGITS and host
    }
