"""The service `Recover` of the reference control plane: its messages and calls, in its spelling.

The file has no package, so the calls are `/Recover/...`. `jobId` and `jobID` are both as they are there; on
the wire only the numbers count.
"""

# ruff: noqa: N815 - names of the reference's messages

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final

from taskd.wire.proto3 import Method, Service, Tag

# What only our own sides say to each other, in headers: a plane that it is one of ours, a manager which order
# it answers and that a failed hot switch leaves its old pod at work.
OURS_KEY: Final = "taskd-plane"
UUID_KEY: Final = "taskd-uuid"
KEEPS_OLD_KEY: Final = "taskd-keeps-old-pod"
ALONE_KEY: Final = "taskd-alone"
CUT_KEY: Final = "taskd-cut-pods"
PLACED_KEY: Final = "taskd-placed-pods"


@dataclass(frozen=True, slots=True)
class Status:
    """How a call went: a code and a sentence."""

    code: Annotated[int, Tag(1, bits=32)] = 0
    info: Annotated[str, Tag(2)] = ""


@dataclass(frozen=True, slots=True)
class ClientInfo:
    """Who calls, and for which job."""

    jobId: Annotated[str, Tag(1)] = ""
    role: Annotated[str, Tag(2)] = ""


@dataclass(frozen=True, slots=True)
class FaultRank:
    """A rank, and "0", "1" or "2" for the kind of its fault."""

    rankId: Annotated[str, Tag(1)] = ""
    faultType: Annotated[str, Tag(2)] = ""


@dataclass(frozen=True, slots=True)
class ProcessManageSignal:
    """An order to a job's manager."""

    uuid: Annotated[str, Tag(1)] = ""
    jobId: Annotated[str, Tag(2)] = ""
    signalType: Annotated[str, Tag(3)] = ""
    actions: Annotated[tuple[str, ...], Tag(4)] = ()
    faultRanks: Annotated[tuple[FaultRank, ...], Tag(5)] = ()
    changeStrategy: Annotated[str, Tag(6)] = ""
    timeout: Annotated[int, Tag(7)] = 0
    nodeRankIds: Annotated[tuple[str, ...], Tag(8)] = ()
    extraParams: Annotated[str, Tag(9)] = ""
    # Ours, where the reference has no numbers: who takes which place (`1=pod`), and who takes none.
    standbys: Annotated[tuple[str, ...], Tag(1001)] = ()
    shunned: Annotated[tuple[str, ...], Tag(1002)] = ()


@dataclass(frozen=True, slots=True)
class StopCompleteRequest:
    """The training stands still."""

    jobId: Annotated[str, Tag(1)] = ""
    status: Annotated[Status | None, Tag(2)] = None
    faultRanks: Annotated[tuple[FaultRank, ...], Tag(3)] = ()


@dataclass(frozen=True, slots=True)
class RecoverStrategyRequest:
    """What the training side can do about the faults."""

    jobId: Annotated[str, Tag(1)] = ""
    faultRanks: Annotated[tuple[FaultRank, ...], Tag(2)] = ()
    strategies: Annotated[tuple[str, ...], Tag(3)] = ()


@dataclass(frozen=True, slots=True)
class RecoverStatusRequest:
    """How the strategy went."""

    jobId: Annotated[str, Tag(1)] = ""
    status: Annotated[Status | None, Tag(2)] = None
    strategy: Annotated[str, Tag(3)] = ""
    isolateRankIds: Annotated[tuple[str, ...], Tag(4)] = ()


@dataclass(frozen=True, slots=True)
class ProcessFaultRequest:
    """Ranks that failed, as the training side sees it."""

    jobId: Annotated[str, Tag(1)] = ""
    faultRanks: Annotated[tuple[FaultRank, ...], Tag(2)] = ()


@dataclass(frozen=True, slots=True)
class DeviceList:
    """Devices of a node, and for each whether the standby link is wanted."""

    dev: Annotated[tuple[str, ...], Tag(1)] = ()
    op: Annotated[tuple[bool, ...], Tag(2)] = ()


@dataclass(frozen=True, slots=True)
class SwitchNics:
    """Links to switch, by node."""

    jobID: Annotated[str, Tag(1)] = ""
    nicOps: Annotated[Mapping[str, DeviceList], Tag(2)] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SwitchNicRequest:
    """Asks how a switch of links goes."""

    jobID: Annotated[str, Tag(1)] = ""


@dataclass(frozen=True, slots=True)
class SwitchNicResponse:
    """How a switch of links went, in words."""

    jobID: Annotated[str, Tag(1)] = ""
    msg: Annotated[str, Tag(2)] = ""


@dataclass(frozen=True, slots=True)
class SwitchRankList:
    """Links to switch, by rank."""

    rankID: Annotated[tuple[str, ...], Tag(1)] = ()
    op: Annotated[tuple[bool, ...], Tag(2)] = ()
    jobId: Annotated[str, Tag(3)] = ""


@dataclass(frozen=True, slots=True)
class SwitchResult:
    """Whether the ranks switched their links."""

    jobId: Annotated[str, Tag(1)] = ""
    result: Annotated[bool, Tag(2)] = False


@dataclass(frozen=True, slots=True)
class StressOpList:
    """Stress tests to run."""

    ops: Annotated[tuple[int, ...], Tag(1)] = ()


@dataclass(frozen=True, slots=True)
class StressTestParam:
    """Stress tests by node, or the same for all."""

    jobID: Annotated[str, Tag(1)] = ""
    stressParam: Annotated[Mapping[str, StressOpList], Tag(2)] = field(default_factory=dict)
    allNodesOps: Annotated[tuple[int, ...], Tag(3)] = ()


@dataclass(frozen=True, slots=True)
class StressTestRequest:
    """Asks how a stress test goes."""

    jobID: Annotated[str, Tag(1)] = ""


@dataclass(frozen=True, slots=True)
class StressTestResponse:
    """How a stress test went, in words."""

    jobID: Annotated[str, Tag(1)] = ""
    msg: Annotated[str, Tag(2)] = ""


@dataclass(frozen=True, slots=True)
class StressTestRankParams:
    """Stress tests by rank."""

    stressParam: Annotated[Mapping[str, StressOpList], Tag(1)] = field(default_factory=dict)
    jobId: Annotated[str, Tag(2)] = ""


@dataclass(frozen=True, slots=True)
class StressTestOpResult:
    """How one test of a rank went."""

    code: Annotated[str, Tag(1)] = ""
    result: Annotated[str, Tag(2)] = ""


@dataclass(frozen=True, slots=True)
class StressTestRankResult:
    """How the tests of a rank went."""

    rankResult: Annotated[Mapping[str, StressTestOpResult], Tag(1)] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StressTestResult:
    """How the tests of all ranks went."""

    jobId: Annotated[str, Tag(1)] = ""
    stressResult: Annotated[Mapping[str, StressTestRankResult], Tag(2)] = field(default_factory=dict)


RECOVER: Final = Service(
    "Recover",
    (
        Method("Init", ClientInfo, Status),
        Method("Register", ClientInfo, Status),
        Method("SubscribeProcessManageSignal", ClientInfo, ProcessManageSignal, stream=True),
        Method("ReportStopComplete", StopCompleteRequest, Status),
        Method("ReportRecoverStrategy", RecoverStrategyRequest, Status),
        Method("ReportRecoverStatus", RecoverStatusRequest, Status),
        Method("ReportProcessFault", ProcessFaultRequest, Status),
        Method("SwitchNicTrack", SwitchNics, Status),
        Method("SubscribeSwitchNicSignal", SwitchNicRequest, SwitchNicResponse, stream=True),
        Method("SubscribeNotifySwitch", ClientInfo, SwitchRankList, stream=True),
        Method("ReplySwitchNicResult", SwitchResult, Status),
        Method("HealthCheck", ClientInfo, Status),
        Method("StressTest", StressTestParam, Status),
        Method("SubscribeStressTestResponse", StressTestRequest, StressTestResponse, stream=True),
        Method("SubscribeNotifyExecStressTest", ClientInfo, StressTestRankParams, stream=True),
        Method("ReplyStressTestResult", StressTestResult, Status),
    ),
)
