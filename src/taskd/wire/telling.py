"""Services through which others tell the plane: public faults (`PubFault`), profiling (`TrainingDataTrace`).

Neither file has a package, so their message names must differ from those of `Recover`.
"""

# ruff: noqa: N815 - names of the reference's messages

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final

from taskd.wire.proto3 import Method, Service, Tag


@dataclass(frozen=True, slots=True)
class PubFaultInfo:
    """Devices of a node that a fault concerns."""

    nodeName: Annotated[str, Tag(1)] = ""
    nodeSN: Annotated[str, Tag(2)] = ""
    deviceIds: Annotated[tuple[int, ...], Tag(3, bits=32)] = ()


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault that somebody outside saw."""

    faultId: Annotated[str, Tag(1)] = ""
    faultType: Annotated[str, Tag(2)] = ""
    faultCode: Annotated[str, Tag(3)] = ""
    faultTime: Annotated[int, Tag(4)] = 0
    assertion: Annotated[str, Tag(5)] = ""
    faultLocation: Annotated[Mapping[str, str], Tag(6)] = field(default_factory=dict)
    influence: Annotated[tuple[PubFaultInfo, ...], Tag(7)] = ()
    description: Annotated[str, Tag(8)] = ""


@dataclass(frozen=True, slots=True)
class PublicFaultRequest:
    """Faults that somebody outside saw."""

    id: Annotated[str, Tag(1)] = ""
    timestamp: Annotated[int, Tag(2)] = 0
    version: Annotated[str, Tag(3)] = ""
    resource: Annotated[str, Tag(4)] = ""
    faults: Annotated[tuple[Fault, ...], Tag(5)] = ()


@dataclass(frozen=True, slots=True)
class RespStatus:
    """How the call went."""

    code: Annotated[int, Tag(1, bits=32)] = 0
    info: Annotated[str, Tag(2)] = ""


PUB_FAULT: Final = Service("PubFault", (Method("SendPublicFault", PublicFaultRequest, RespStatus),))


@dataclass(frozen=True, slots=True)
class ProfilingClientInfo:
    """Who wants to hear when the switches of a job change."""

    jobId: Annotated[str, Tag(1)] = ""
    role: Annotated[str, Tag(2)] = ""


@dataclass(frozen=True, slots=True)
class ProfilingSwitch:
    """What is traced: "on" or "off" each."""

    CommunicationOperator: Annotated[str, Tag(1)] = ""
    Step: Annotated[str, Tag(2)] = ""
    SaveCheckpoint: Annotated[str, Tag(3)] = ""
    FP: Annotated[str, Tag(4)] = ""
    DataLoader: Annotated[str, Tag(5)] = ""


@dataclass(frozen=True, slots=True)
class DataStatusReq:
    """Asks for the switches of a job, named `namespace/job`."""

    jobNsName: Annotated[str, Tag(1)] = ""


@dataclass(frozen=True, slots=True)
class DataStatusRes:
    """The switches of a job."""

    message: Annotated[str, Tag(1)] = ""
    profilingSwitch: Annotated[ProfilingSwitch | None, Tag(2)] = None
    code: Annotated[int, Tag(3, bits=32)] = 0


@dataclass(frozen=True, slots=True)
class DataTypeReq:
    """Asks for other switches."""

    jobNsName: Annotated[str, Tag(1)] = ""
    profilingSwitch: Annotated[ProfilingSwitch | None, Tag(2)] = None


@dataclass(frozen=True, slots=True)
class DataTypeRes:
    """How the change went."""

    message: Annotated[str, Tag(1)] = ""
    code: Annotated[int, Tag(2, bits=32)] = 0


TRACE: Final = Service(
    "TrainingDataTrace",
    (
        Method("ModifyTrainingDataTraceSwitch", DataTypeReq, DataTypeRes),
        Method("GetTrainingDataTraceSwitch", DataStatusReq, DataStatusRes),
        Method("SubscribeDataTraceSwitch", ProfilingClientInfo, DataStatusRes, stream=True),
    ),
)
