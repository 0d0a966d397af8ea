"""Rank tables 1.0 and 1.2: servers with their devices; 1.2 also says which servers form a super pod."""

from __future__ import annotations

from typing import Any, Final

from taskd.core.acjob import names
from taskd.core.acjob.environment import SOFT, nodes_per_block, super_pod_block
from taskd.core.acjob.job import Job
from taskd.core.acjob.rankinput import NotReady, Server, text_of

NO_ADDRESS: Final = "-1"
COMPLETED: Final = "completed"


def plain(job: Job, servers: tuple[Server, ...]) -> dict[str, Any]:
    """Table 1.0."""
    _check_addresses(servers)
    return _table(job, servers, "1.0", super_device=False)


def with_super_pods(job: Job, servers: tuple[Server, ...]) -> dict[str, Any]:
    """Table 1.2."""
    block = super_pod_block(job)
    devices = sum(len(server.devices) for server in servers)
    if block and devices // block > 1:
        # Devices of one super pod reach each other without an IP address; others do not.
        _check_addresses(servers)
    table = _table(job, servers, "1.2", super_device=True)
    groups: dict[str, list[dict[str, str]]] = {}
    for group, server in _grouped(job, servers, block):
        groups.setdefault(group, []).append({"server_id": server.server_id})
    table["super_pod_list"] = [{"super_pod_id": group, "server_list": groups[group]} for group in groups]
    return table


def _check_addresses(servers: tuple[Server, ...]) -> None:
    for server in servers:
        for device in server.devices:
            if device.get("device_ip") == NO_ADDRESS:
                number = text_of(device, "device_id")
                raise NotReady(f"device({number}) has invalid IP(-1), cannot generate ranktable")


def _table(job: Job, servers: tuple[Server, ...], version: str, *, super_device: bool) -> dict[str, Any]:
    return {
        "status": COMPLETED,
        "server_list": [_server(job, server, super_device=super_device) for server in servers],
        "server_count": str(len(servers)),
        "version": version,
    }


def _server(job: Job, server: Server, *, super_device: bool) -> dict[str, Any]:
    devices = []
    for rank, device in enumerate(server.devices, start=server.first_rank):
        entry: dict[str, Any] = {
            "device_id": text_of(device, "device_id"),
            "device_ip": text_of(device, "device_ip"),
            "rank_id": str(rank),
        }
        if super_device:
            entry["super_device_id"] = text_of(device, "super_device_id")
        if device.get("levelList"):
            entry["levelList"] = device["levelList"]
        devices.append(entry)
    found: dict[str, Any] = {"device": devices}
    hardware = server.pod.annotations.get(names.HARDWARE_TYPE)
    if job.inference and hardware:
        found["hardware_type"] = hardware
    return {
        **found,
        "server_id": server.server_id,
        "host_ip": server.host_ip,
        "container_ip": server.pod.pod_ip,
    }


def _grouped(job: Job, servers: tuple[Server, ...], block: int) -> list[tuple[str, Server]]:
    """Each server with the id of its super pod, in ascending order of the ids."""
    if job.labels.get(names.SUPER_POD_AFFINITY) == SOFT:
        return _by_annotation(servers, names.SUPER_POD_RANK)
    if job.inference:
        return _by_annotation(servers, names.SUPER_POD_ID)
    nodes = nodes_per_block(block, len(servers[0].devices))
    return [(str(place // nodes if nodes else 0), server) for place, server in enumerate(servers)]


def _by_annotation(servers: tuple[Server, ...], key: str) -> list[tuple[str, Server]]:
    found = []
    for server in servers:
        number = server.pod.annotations.get(key, "")
        if not number.isdecimal():
            raise NotReady(f"pod {server.pod.name}: annotation {key} is {number!r}, not a number")
        found.append((int(number), server))
    found.sort(key=lambda entry: entry[0])
    return [(str(number), server) for number, server in found]
