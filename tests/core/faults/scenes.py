"""Builders: ConfigMaps as device plugin and node daemon write them, jobs, and a centre with a clock."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from typing import Any

from taskd.core.faults.centre import next_deadline, observe, observe_all
from taskd.core.faults.codes import PublicTable
from taskd.core.faults.deviceinfo import read_device_info
from taskd.core.faults.events import Changes, DeviceInfoSeen, Event, JobSeen, PublicReported, TimePassed
from taskd.core.faults.places import JobSight, PodPlace
from taskd.core.faults.public import PublicReport, read_public
from taskd.core.faults.state import State
from taskd.core.faults.view import JobFaults
from taskd.core.gojson import check_code, compact

R = "huawei.com/Ascend910"
T0 = 1_800_000_000.0
"""When every scene begins."""
NODE, OTHER = "node-1", "node-2"


def fault(
    chip: int = 0,
    code: str = "81B38009",
    level: str = "RestartNPU",
    at: float | None = T0,
    kind: str = "CardUnhealthy",
) -> dict[str, Any]:
    """One entry of the list of faults; several codes with commas share time and level."""
    times = {} if at is None else {c: {"fault_time": round(at * 1000), "fault_level": level} for c in [code]}
    return {
        "fault_type": kind,
        "npu_name": f"Ascend910-{chip}",
        "large_model_fault_level": level,
        "fault_level": level,
        "fault_handling": level,
        "fault_code": code,
        "fault_time_and_level_map": times,
    }


def device_info(
    faults: Iterable[dict[str, Any]] = (),
    *,
    chips: int = 8,
    unhealthy: Iterable[int] | None = None,
    separated: Iterable[int] | None = None,
    switch: str | None = None,
    update_time: int = 1_800_000_000,
) -> dict[str, str]:
    """The data of `mindx-dl-deviceinfo-<node>`."""
    listed = list(faults)
    bad = set(unhealthy) if unhealthy is not None else {_chip(item) for item in listed if _lists(item)}
    names = [f"Ascend910-{chip}" for chip in range(chips)]
    info = {
        "DeviceList": {
            R: ",".join(name for chip, name in enumerate(names) if chip not in bad),
            f"{R}-Fault": compact(listed),
            f"{R}-NetworkUnhealthy": "",
            f"{R}-Unhealthy": ",".join(names[chip] for chip in sorted(bad)),
        },
        "UpdateTime": update_time,
    }
    outer = {"DeviceInfo": info, "SuperPodID": -2, "ServerIndex": -2, "CheckCode": check_code(compact(info))}
    data = {"DeviceInfoCfg": json.dumps(outer)}
    if separated is not None:
        data["ManuallySeparateNPU"] = ",".join(names[chip] for chip in separated)
    if switch is not None:
        data["SwitchInfoCfg"] = switch
    return data


def _chip(item: dict[str, Any]) -> int:
    return int(item["npu_name"].rpartition("-")[2])


def _lists(item: dict[str, Any]) -> bool:
    mild = {"NotHandleFault", "SubHealthFault"}
    return item["fault_type"] == "CardUnhealthy" and item["fault_level"] not in mild


def switch_info(code: str = "[0x08520003,na,L2,na]", level: str = "NotHandle", at: float = T0) -> str:
    """The part about the bus switch, with one fault."""
    entry = {
        "EventType": 5,
        "AssembledFaultCode": code,
        "PeerPortDevice": 1,
        "PeerPortId": 0,
        "SwitchChipId": 2,
        "SwitchPortId": 7,
        "Severity": 1,
        "Assertion": 1,
        "AlarmRaisedTime": round(at * 1000),
    }
    times = {f"{code}_2_7": {"fault_time": round(at * 1000), "fault_level": level}}
    outer = {
        "FaultCode": [json.dumps(entry)],
        "FaultLevel": level,
        "UpdateTime": 1,
        "NodeStatus": "Healthy",
        "FaultTimeAndLevelMap": times,
    }
    return json.dumps(outer)


def pod(index: int = 0, node: str = NODE, chips: int = 8, **more: Any) -> PodPlace:
    """The pod of that number with all chips of its node."""
    return PodPlace(
        f"job-{index}", f"uid-{index}", node, index, index * chips, chips, tuple(range(chips)), **more
    )


def job(job_id: str = "job-a", pods: Iterable[PodPlace] | None = None, **more: Any) -> JobSight:
    """A job with one pod on each of two nodes."""
    return JobSight(job_id, tuple(pods) if pods is not None else (pod(0), pod(1, OTHER)), **more)


def message(
    code: str = "220001001", assertion: str = "occur", chips: Iterable[int] = (0,), **more: Any
) -> dict[str, Any]:
    """A public fault message with one fault."""
    entry = {
        "faultId": "fault-0001",
        "faultType": "NPU",
        "faultCode": code,
        "faultTime": round(T0 * 1000),
        "assertion": assertion,
        "faultLocation": {},
        "influence": [{"nodeName": NODE, "nodeSN": "", "deviceIds": list(chips)}],
        "description": "",
        **more,
    }
    return {
        "id": "message-1",
        "timestamp": round(T0 * 1000),
        "version": "1.0",
        "resource": "CCAE",
        "faults": [entry],
    }


class Centre:
    """A centre and its clock."""

    def __init__(self, *jobs: JobSight, state: State | None = None) -> None:
        self.state = state or State()
        self.now = T0
        self.told: list[JobFaults] = []
        self.last = Changes()
        for one in jobs:
            self.take(JobSeen(one))

    def take(self, *events: Event, after: float = 0.0) -> Changes:
        """Let time pass, answering each moment that the centre asked for, then let it have the events.

        Returns what changed in all that.
        """
        end = self.now + after
        self.last = Changes()
        while (moment := next_deadline(self.state)) is not None and moment <= end:
            self.now = max(self.now, moment)
            self._observe(TimePassed())
        self.now = end
        self._observe(*events)
        return self.last

    def _observe(self, *events: Event) -> None:
        before = self.state
        if len(events) == 1:
            self.state, changes = observe(before, events[0], self.now)
        else:
            self.state, changes = observe_all(before, events, self.now)
        self.told += changes.jobs
        self.last = Changes(
            *(mine + theirs for mine, theirs in zip(_parts(self.last), _parts(changes), strict=True))
        )
        moment = next_deadline(self.state)
        assert moment is None or moment > self.now, "a moment that has passed would be waited for in a circle"

    def devices(self, *faults: dict[str, Any], node: str = NODE, after: float = 0.0, **more: Any) -> Changes:
        """The device plugin of a node writes its ConfigMap."""
        info = read_device_info(device_info(faults, **more))
        return self.take(DeviceInfoSeen(node, info), after=after)

    def public(self, value: dict[str, Any], after: float = 0.0) -> Changes:
        """Somebody reports a public fault."""
        report = read_public(value, PublicTable(), {})
        assert isinstance(report, PublicReport), report
        return self.take(PublicReported(report), after=after)

    def view(self, job_id: str = "job-a") -> JobFaults:
        return self.state.jobs[job_id].view

    def ranks(self, job_id: str = "job-a") -> list[tuple[int, str, str]]:
        return [(rank.rank, rank.kind.value, rank.code) for rank in self.view(job_id).ranks]

    def hidden(self, node: str = NODE) -> set[str]:
        """Codes of which the scheduler does not hear."""
        return {found.code for found in self.state.nodes[node].faults if found.hidden}


def _parts(changes: Changes) -> list[Any]:
    return [getattr(changes, part.name) for part in dataclasses.fields(Changes)]
