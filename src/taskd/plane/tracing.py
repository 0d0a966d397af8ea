"""The services `TrainingDataTrace` and `PubFault`: others switch profiling, and tell of faults they saw."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import fields

import msgspec
import structlog

from taskd.core.plane.jobs import JobView
from taskd.links.services import Caller, CallRefused, Streaming, Unary
from taskd.plane.surroundings import ConfigMaps, FaultCentre, JobDirectory
from taskd.plane.topics import Topics
from taskd.wire import telling as wire

DATA_TRACE = "data-trace-"
SWITCH_KEY = "profilingSwitch"
OK, BAD, NOT_FOUND, FAILED = 200, 300, 404, 500
NAMES = tuple(field.name for field in fields(wire.ProfilingSwitch))

log = structlog.get_logger("taskd.plane")


class Tracing:
    """Answers the calls of `TrainingDataTrace` and `PubFault`."""

    def __init__(self, directory: JobDirectory, centre: FaultCentre, config_maps: ConfigMaps) -> None:
        """Switch the profiling of jobs in a directory."""
        self._directory = directory
        self._centre = centre
        self._config_maps = config_maps
        self._topics: Topics[wire.DataStatusRes] = Topics()

    def close(self) -> None:
        """End all streams."""
        self._topics.close()

    def calls(self) -> Mapping[str, Unary | Streaming]:
        """Return every call of `TrainingDataTrace`."""
        return {
            "ModifyTrainingDataTraceSwitch": self.modify,
            "GetTrainingDataTraceSwitch": self.get,
            "SubscribeDataTraceSwitch": self.subscribe,
        }

    def fault_calls(self) -> Mapping[str, Unary | Streaming]:
        """Return every call of `PubFault`."""
        return {"SendPublicFault": self.send_public}

    async def modify(self, request: wire.DataTypeReq, _caller: Caller) -> wire.DataTypeRes:
        """Change the switches: in the file of the pods where they have one, and by the manager's stream."""
        job, code, why = self._find(request.jobNsName)
        if job is None:
            return wire.DataTypeRes(why, code)
        switch = request.profilingSwitch or wire.ProfilingSwitch()
        values = {name: getattr(switch, name) for name in NAMES}
        bad = [f"{name}={value!r}" for name, value in values.items() if value not in {"on", "off", ""}]
        if bad or not any(values.values()):
            text = f"every switch is on or off, not {', '.join(bad)}" if bad else "no switch is given"
            return wire.DataTypeRes(text, BAD)
        subscriber = self._topics.get(job.job_id)
        if subscriber is None and not job.mounts_trace:
            text = f"job {request.jobNsName} has neither a manager that listens nor the file in its pods"
            return wire.DataTypeRes(text, NOT_FOUND)
        complete = wire.ProfilingSwitch(**{name: value or "off" for name, value in values.items()})
        if job.mounts_trace:
            data = {SWITCH_KEY: _text(complete)}
            try:
                await self._config_maps.write(job, f"{DATA_TRACE}{job.name}", data)
            except Exception as error:  # noqa: BLE001 - whatever the cluster answers, the caller hears it
                log.warning("trace_not_written", job=job.job_id, why=str(error))
                return wire.DataTypeRes(f"the ConfigMap was not written: {error}", FAILED)
        if subscriber is not None:
            subscriber.tell(job.job_id, wire.DataStatusRes("", complete, OK))
        return wire.DataTypeRes("success", OK)

    async def get(self, request: wire.DataStatusReq, _caller: Caller) -> wire.DataStatusRes:
        """Return the switches as they were written."""
        job, code, why = self._find(request.jobNsName)
        if job is None:
            return wire.DataStatusRes(why, None, code)
        name = f"{DATA_TRACE}{job.name}"
        data = await self._config_maps.read(job.namespace, name)
        if data is None:
            return wire.DataStatusRes(f'configmaps "{name}" not found', None, NOT_FOUND)
        switch = _switch(data.get(SWITCH_KEY, ""))
        if switch is None:
            return wire.DataStatusRes(f'configmaps "{name}" holds no switches', None, FAILED)
        return wire.DataStatusRes("success", switch, OK)

    async def subscribe(
        self, request: wire.ProfilingClientInfo, _caller: Caller
    ) -> AsyncIterator[wire.DataStatusRes]:
        """Send the switches as they are, and every change."""
        job = self._directory.find(request.jobId)
        if job is None:
            raise CallRefused("notify subscribe err no such job")
        mine = self._topics.subscribe(job.job_id)
        data = await self._config_maps.read(job.namespace, f"{DATA_TRACE}{job.name}")
        switch = _switch((data or {}).get(SWITCH_KEY, ""))
        if switch is not None:
            mine.tell(job.job_id, wire.DataStatusRes("", switch, OK))
        try:
            async for news in mine.follow():
                yield news
        finally:
            self._topics.leave(job.job_id, mine)

    async def send_public(self, request: wire.PublicFaultRequest, _caller: Caller) -> wire.RespStatus:
        """Take in faults that somebody outside saw."""
        return wire.RespStatus(*self._centre.send_public(request))

    def _find(self, text: str) -> tuple[JobView | None, int, str]:
        namespace, slash, name = text.partition("/")
        if not (slash and namespace and name) or "/" in name:
            return None, BAD, "the format of jobNsName is not namespace/jobName"
        job = self._directory.named(namespace, name)
        return job, NOT_FOUND, f"there is no job {text}"


def _text(switch: wire.ProfilingSwitch) -> str:
    return msgspec.json.encode({name: getattr(switch, name) for name in NAMES}).decode()


def _switch(text: str) -> wire.ProfilingSwitch | None:
    try:
        found = msgspec.json.decode(text or "null", type=dict[str, str] | None)
    except msgspec.MsgspecError:
        return None
    if found is None:
        return None
    return wire.ProfilingSwitch(**{name: found.get(name, "off") for name in NAMES})
