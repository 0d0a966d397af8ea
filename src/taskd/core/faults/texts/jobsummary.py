"""`job-summary-<job>`: where a job runs, for platforms outside.

Large jobs are cut into slices of at most 800 KiB, never through a server. `time` is when the job was first
seen and stays; a job that runs again after a failure loses its `deleteTime`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from taskd.core.faults.places import PodDevices
from taskd.core.gojson import compact

PREFIX: Final = "job-summary-"
LABEL: Final = "outside-job-info"
LIMIT_BYTES: Final = 800 * 1024
INITIALIZING: Final = compact({"status": "initializing"})


class JobStatus(StrEnum):
    """How the job is."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETE = "complete"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class PodFacts:
    """A pod of the job, as far as the summary is concerned."""

    name: str
    phase: str
    node: str = ""
    node_rank: int = 0
    first_rank: int = 0
    ip: str = ""
    serial: str = ""
    devices: PodDevices | None = None
    containers: Mapping[str, str] | None = None
    shared_tor: str = ""


@dataclass(frozen=True, slots=True)
class JobFacts:
    """A job, as far as the summary is concerned."""

    namespace: str
    name: str
    job_id: str
    framework: str
    wanted: int
    """The pods that it needs at least."""
    pods: tuple[PodFacts, ...] = ()
    sid: str = ""
    master: str = ""
    created: int = 0
    needs_devices: bool = True
    plain_npu: bool = False
    """Whether its devices are `huawei.com/npu`, whose readers expect another form."""


@dataclass(frozen=True, slots=True)
class Slice:
    """One ConfigMap of the summary."""

    name: str
    data: dict[str, str]


def job_status(job: JobFacts, before: JobStatus = JobStatus.PENDING) -> JobStatus:
    """How the job is, from its pods."""
    phases = [pod.phase for pod in job.pods]
    if "Failed" in phases:
        return JobStatus.FAILED
    enough = len(phases) >= job.wanted and bool(phases)
    if enough and all(phase == "Succeeded" for phase in phases):
        return JobStatus.COMPLETE
    at_work = all(phase in {"Running", "Succeeded"} for phase in phases)
    given = not job.needs_devices or any(pod.devices and pod.devices.devices for pod in job.pods)
    if enough and at_work and given:
        return JobStatus.RUNNING
    if before is JobStatus.RUNNING:
        return JobStatus.FAILED
    return before


def summary(
    job: JobFacts,
    status: JobStatus,
    ended: int | None = None,
    *,
    deleted: bool = False,
    limit: int = LIMIT_BYTES,
) -> tuple[Slice, ...]:
    """The ConfigMaps of the job; `ended` is when it ended, in seconds."""
    servers = [_server(job, pod) for pod in _placed(job)] if status is not JobStatus.PENDING else []
    parts = list(_cut(servers, limit)) or [[]]
    slices = []
    for index, part in enumerate(parts):
        data = {
            "job_name": job.name,
            "framework": job.framework,
            "job_id": job.job_id,
            "job_status": (JobStatus.FAILED if deleted and status is JobStatus.RUNNING else status).value,
            "cm_index": str(index),
            "total": str(len(parts)),
            "hccl.json": _table(job, part, len(servers), len(parts)) if part else INITIALIZING,
            "operator": "delete" if deleted else "add",
            "time": str(job.created),
            "sid": job.sid or job.job_id,
        }
        if ended is not None and (deleted or status in {JobStatus.FAILED, JobStatus.COMPLETE}):
            data["deleteTime"] = str(ended)
        if job.framework == "pytorch" and servers:
            data["sharedTorIp"] = next((pod.shared_tor for pod in job.pods if pod.shared_tor), "")
            data["masterAddr"] = job.master
        name = PREFIX + job.name + (f"-{index}" if index else "")
        slices.append(Slice(name, data))
    return tuple(slices)


def _placed(job: JobFacts) -> list[PodFacts]:
    return sorted(
        (pod for pod in job.pods if pod.devices is not None and pod.devices.devices),
        key=lambda pod: (pod.node_rank, pod.name),
    )


def _server(job: JobFacts, pod: PodFacts) -> dict[str, Any]:
    devices = pod.devices
    assert devices is not None  # noqa: S101 - chosen by `_placed`
    listed = []
    for index, device in enumerate(devices.devices):
        entry = {
            "device_id": str(device.chip),
            "device_ip": device.ip,
            "rank_id": str(pod.first_rank + index),
        }
        if device.super_device:
            entry["super_device_id"] = device.super_device
        listed.append(entry)
    nodes = [other.node for other in _placed(job)]
    alone = len(set(nodes)) == len(nodes)
    host = devices.host_ip or pod.ip
    return {
        "device": listed,
        "server_id": (host or devices.server_id) if alone else (devices.server_id or host),
        "host_ip": host,
        "super_pod_id": devices.super_pod,
        "server_name": pod.node,
        "server_sn": pod.serial,
        "pod_name": pod.name,
        "container_ids": dict(sorted((pod.containers or {}).items())),
    }


def _cut(servers: Sequence[dict[str, Any]], limit: int) -> Iterator[list[dict[str, Any]]]:
    part: list[dict[str, Any]] = []
    size = 0
    for server in servers:
        more = len(compact(server).encode())
        if part and size + more > limit:
            yield part
            part, size = [], 0
        part.append(server)
        size += more
    if part:
        yield part


def _table(job: JobFacts, servers: list[dict[str, Any]], count: int, total: int) -> str:
    table: dict[str, Any] = {
        "status": "complete",
        "server_list": servers,
        "server_count": str(count),
        "total": total,
    }
    if job.plain_npu:
        ranks = [
            {
                "rank_id": pod.first_rank + index,
                "local_id": index,
                "device_id": device.chip,
                "level_list": list(device.levels),
            }
            for pod in _placed(job)
            if pod.devices is not None
            for index, device in enumerate(pod.devices.devices)
        ]
        table |= {"version": "2.0", "rank_list": ranks, "rank_count": len(ranks)}
    return compact(table)
