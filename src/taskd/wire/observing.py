"""The services that tell others: faults (`fault.Fault`), jobs (`job.Job`) and rank tables (`config.Config`).

Each has its own package on the wire, so `ClientInfo` and `Status` exist once for each; here the class has
the service in its name.
"""

# ruff: noqa: N815 - names of the reference's messages

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from taskd.wire.proto3 import Method, Service, Tag


@dataclass(frozen=True, slots=True)
class FaultClient:
    """Who wants to know the faults of a job; of all jobs where it names none."""

    jobId: Annotated[str, Tag(1)] = ""
    role: Annotated[str, Tag(2)] = ""


@dataclass(frozen=True, slots=True)
class FaultStatus:
    """How a call went."""

    code: Annotated[int, Tag(1, bits=32)] = 0
    info: Annotated[str, Tag(2)] = ""


@dataclass(frozen=True, slots=True)
class SwitchFaultInfo:
    """One port of a node's bus switch."""

    faultCode: Annotated[str, Tag(1)] = ""
    switchChipId: Annotated[str, Tag(2)] = ""
    switchPortId: Annotated[str, Tag(3)] = ""
    faultTime: Annotated[str, Tag(4)] = ""
    faultLevel: Annotated[str, Tag(5)] = ""


@dataclass(frozen=True, slots=True)
class DeviceFaultInfo:
    """All faults of one device."""

    deviceId: Annotated[str, Tag(1)] = ""
    deviceType: Annotated[str, Tag(2)] = ""
    faultCodes: Annotated[tuple[str, ...], Tag(3)] = ()
    faultLevel: Annotated[str, Tag(4)] = ""
    faultType: Annotated[tuple[str, ...], Tag(5)] = ()
    faultReason: Annotated[tuple[str, ...], Tag(6)] = ()
    switchFaultInfos: Annotated[tuple[SwitchFaultInfo, ...], Tag(7)] = ()
    faultLevels: Annotated[tuple[str, ...], Tag(8)] = ()


@dataclass(frozen=True, slots=True)
class NodeFaultInfo:
    """A node with faults."""

    nodeName: Annotated[str, Tag(1)] = ""
    nodeIP: Annotated[str, Tag(2)] = ""
    nodeSN: Annotated[str, Tag(3)] = ""
    faultLevel: Annotated[str, Tag(4)] = ""
    faultDevice: Annotated[tuple[DeviceFaultInfo, ...], Tag(5)] = ()


@dataclass(frozen=True, slots=True)
class FaultMsgSignal:
    """All faults of one job."""

    uuid: Annotated[str, Tag(1)] = ""
    jobId: Annotated[str, Tag(2)] = ""
    signalType: Annotated[str, Tag(3)] = ""
    nodeFaultInfo: Annotated[tuple[NodeFaultInfo, ...], Tag(4)] = ()


@dataclass(frozen=True, slots=True)
class FaultQueryResult:
    """The faults that were asked for."""

    code: Annotated[int, Tag(1, bits=32)] = 0
    info: Annotated[str, Tag(2)] = ""
    faultSignal: Annotated[FaultMsgSignal | None, Tag(3)] = None


FAULT: Final = Service(
    "fault.Fault",
    (
        Method("Register", FaultClient, FaultStatus),
        Method("SubscribeFaultMsgSignal", FaultClient, FaultMsgSignal, stream=True),
        Method("GetFaultMsgSignal", FaultClient, FaultQueryResult),
    ),
)


@dataclass(frozen=True, slots=True)
class JobClient:
    """Who wants to know about jobs. There is no field 2."""

    role: Annotated[str, Tag(1)] = ""
    clientId: Annotated[str, Tag(3)] = ""


@dataclass(frozen=True, slots=True)
class JobClientStatus:
    """How a call went, and the name to subscribe with."""

    code: Annotated[int, Tag(1, bits=32)] = 0
    info: Annotated[str, Tag(2)] = ""
    clientId: Annotated[str, Tag(3)] = ""


@dataclass(frozen=True, slots=True)
class JobSummarySignal:
    """What is known of a job; the times are seconds, as text."""

    uuid: Annotated[str, Tag(1)] = ""
    jobId: Annotated[str, Tag(2)] = ""
    jobName: Annotated[str, Tag(3)] = ""
    namespace: Annotated[str, Tag(4)] = ""
    frameWork: Annotated[str, Tag(5)] = ""
    jobStatus: Annotated[str, Tag(6)] = ""
    time: Annotated[str, Tag(7)] = ""
    cmIndex: Annotated[str, Tag(8)] = ""
    total: Annotated[str, Tag(9)] = ""
    HcclJson: Annotated[str, Tag(10)] = ""
    deleteTime: Annotated[str, Tag(11)] = ""
    sharedTorIp: Annotated[str, Tag(12)] = ""
    masterAddr: Annotated[str, Tag(13)] = ""
    operator: Annotated[str, Tag(14)] = ""
    sid: Annotated[str, Tag(15)] = ""


@dataclass(frozen=True, slots=True)
class JobSummarySignalList:
    """Several jobs at once."""

    jobSummarySignals: Annotated[tuple[JobSummarySignal, ...], Tag(1)] = ()
    ReportTime: Annotated[str, Tag(2)] = ""
    JobTotalNum: Annotated[int, Tag(3, bits=32)] = 0


JOB: Final = Service(
    "job.Job",
    (
        Method("Register", JobClient, JobClientStatus),
        Method("SubscribeJobSummarySignal", JobClient, JobSummarySignal, stream=True),
        Method("SubscribeJobSummarySignalList", JobClient, JobSummarySignalList, stream=True),
    ),
)


@dataclass(frozen=True, slots=True)
class ConfigClient:
    """Who wants the rank table of a job."""

    jobId: Annotated[str, Tag(1)] = ""
    role: Annotated[str, Tag(2)] = ""


@dataclass(frozen=True, slots=True)
class ConfigStatus:
    """How a call went."""

    code: Annotated[int, Tag(1, bits=32)] = 0
    info: Annotated[str, Tag(2)] = ""


@dataclass(frozen=True, slots=True)
class RankTableStream:
    """The rank table of a job, as JSON."""

    jobId: Annotated[str, Tag(1)] = ""
    rankTable: Annotated[str, Tag(2)] = ""


CONFIG: Final = Service(
    "config.Config",
    (
        Method("Register", ConfigClient, ConfigStatus),
        Method("SubscribeRankTable", ConfigClient, RankTableStream, stream=True),
    ),
)
