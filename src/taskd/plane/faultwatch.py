"""The service `fault.Fault`: others see the faults of a job, or of all jobs, and hear of each change."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping

from taskd.core.faults.view import DeviceFault, JobFaults, NodeFaults
from taskd.core.plane.names import Code
from taskd.links.services import Caller, CallRefused, Streaming, Unary
from taskd.plane.desk import fresh_uuid
from taskd.plane.surroundings import FaultCentre, Forget, JobDirectory
from taskd.plane.topics import Topics
from taskd.wire import observing as wire

CLUSTER = "-1"
MAX_SUBSCRIBERS = 10_000
_JOB_ID = re.compile(r"[^\u4e00-\u9fff]{8,128}")


class FaultWatch:
    """Answers the calls of `fault.Fault`."""

    def __init__(self, directory: JobDirectory, centre: FaultCentre) -> None:
        """Tell of the jobs in a directory what a centre says."""
        self._directory = directory
        self._centre = centre
        self._topics: Topics[wire.FaultMsgSignal] = Topics()
        self._forget: Forget = centre.listen(self._changed)

    def close(self) -> None:
        """End all streams."""
        self._forget()
        self._topics.close()

    def calls(self) -> Mapping[str, Unary | Streaming]:
        """Return every call of the service."""
        return {
            "Register": self.register,
            "SubscribeFaultMsgSignal": self.subscribe,
            "GetFaultMsgSignal": self.get,
        }

    async def register(self, request: wire.FaultClient, _caller: Caller) -> wire.FaultStatus:
        """Say whether the job can be subscribed to."""
        code, why = self._why_not(request)
        return wire.FaultStatus(code, why or "register success")

    async def subscribe(
        self, request: wire.FaultClient, _caller: Caller
    ) -> AsyncIterator[wire.FaultMsgSignal]:
        """Send what is wrong now, and every change."""
        code, why = self._why_not(request)
        if code:
            raise CallRefused(why)
        key = f"{request.jobId or CLUSTER}/{request.role}"
        mine = self._topics.subscribe(key)
        ids = [request.jobId] if request.jobId else [job.job_id for job in self._directory.jobs()]
        for job_id in sorted(ids):
            faults = self._centre.view(job_id)
            if faults.nodes:
                mine.tell(job_id, write_faults(faults))
        try:
            async for news in mine.follow():
                yield news
        finally:
            self._topics.leave(key, mine)

    async def get(self, request: wire.FaultClient, _caller: Caller) -> wire.FaultQueryResult:
        """Return what is wrong now."""
        job_id = request.jobId
        if not job_id:
            views = [self._centre.view(job.job_id) for job in self._directory.jobs()]
            nodes = {node.node: node for view in views for node in view.nodes}
            found = sorted(nodes.values(), key=lambda node: node.ip)
            signal = _signal(CLUSTER, tuple(found))
            return wire.FaultQueryResult(Code.SUCCESS, "success", signal)
        if not _JOB_ID.fullmatch(job_id):
            return wire.FaultQueryResult(
                Code.BAD_PARAMETER, "jobId has 8 to 128 characters, none of them CJK"
            )
        faults = self._centre.view(job_id)
        if self._directory.find(job_id) is None or not faults.nodes:
            return wire.FaultQueryResult(Code.SUCCESS, f"job with jobId: {job_id} not found fault info")
        return wire.FaultQueryResult(Code.SUCCESS, "success", write_faults(faults))

    def _why_not(self, request: wire.FaultClient) -> tuple[int, str]:
        if not request.role:
            return Code.BAD_PARAMETER, "request is nil or role is empty"
        if request.jobId and self._directory.find(request.jobId) is None:
            return Code.NO_SUCH_JOB, f"jobId={request.jobId} not exist and is not multi-instance"
        if len(self._topics) >= MAX_SUBSCRIBERS:
            return Code.TOO_MANY_JOBS, f"{MAX_SUBSCRIBERS} subscribers, and no more can be served"
        return Code.OK, ""

    def _changed(self, faults: JobFaults) -> None:
        for key, subscription in self._topics.all():
            if key.partition("/")[0] in {faults.job_id, CLUSTER}:
                subscription.tell(faults.job_id, write_faults(faults))


def write_faults(faults: JobFaults) -> wire.FaultMsgSignal:
    """Return a view as it goes on the wire."""
    return _signal(faults.job_id, faults.nodes)


def _signal(job_id: str, nodes: tuple[NodeFaults, ...]) -> wire.FaultMsgSignal:
    return wire.FaultMsgSignal(
        uuid=fresh_uuid(),
        jobId=job_id,
        signalType="fault" if nodes else "normal",
        nodeFaultInfo=tuple(
            wire.NodeFaultInfo(
                nodeName=node.node,
                nodeIP=node.ip,
                nodeSN=node.serial,
                faultLevel=node.health.value,
                faultDevice=tuple(_device(device) for device in node.devices),
            )
            for node in nodes
        ),
    )


def _device(device: DeviceFault) -> wire.DeviceFaultInfo:
    return wire.DeviceFaultInfo(
        deviceId=device.device_id,
        deviceType=device.device_type,
        faultCodes=device.codes,
        faultLevel=device.health.value,
        faultType=device.kinds,
        faultReason=device.reasons,
        switchFaultInfos=tuple(
            wire.SwitchFaultInfo(each.code, each.chip_id, each.port_id, each.time, each.level)
            for each in device.switches
        ),
        faultLevels=device.levels,
    )
