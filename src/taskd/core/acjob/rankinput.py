"""What the rank table is made from: the devices that device plugin and scheduler wrote onto each pod."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from taskd.core.acjob import names
from taskd.core.acjob.devices import ASCEND, World, requested, world
from taskd.core.acjob.job import Job, Json, Replicas, Slot, mapping


@dataclass(frozen=True, slots=True)
class SeenPod:
    """A pod of the job as the cluster shows it."""

    name: str
    uid: str
    slot: Slot
    annotations: Mapping[str, str]
    pod_ip: str
    node: str
    terminating: bool = False


@dataclass(frozen=True, slots=True)
class Server:
    """One pod with devices, in its place among the ranks."""

    pod: SeenPod
    first_rank: int
    server_id: str
    host_ip: str
    devices: tuple[Json, ...]


class NotReady(Exception):
    """The table cannot be made from what is there; the text says what is missing."""


def servers(job: Job, pods: Iterable[SeenPod]) -> tuple[Server, ...]:
    """The pods with devices in the order of their ranks; raises NotReady.

    Ranks are counted by adding up the devices of all pods before, so pods of different size fit together. A
    leader that has no device must be there and then plays no part.
    """
    sizes = world(job)
    kinds = frozenset(replicas.kind for replicas in job.replicas if _asks_for_devices(replicas))
    present = _one_per_slot(job, kinds, pods)
    with_devices = [pod for pod in present if pod.slot.kind in kinds]
    if not with_devices:
        raise NotReady("no replica requests a huawei.com device")
    nodes = [pod.node for pod in present]
    alone = len(set(nodes)) == len(nodes)
    ordered = sorted(with_devices, key=lambda pod: _rank(sizes, pod))
    ranks = [_rank(sizes, pod) for pod in ordered]
    for pod, rank, following in zip(ordered, ranks, ranks[1:], strict=False):
        if rank == following:
            raise NotReady(f"pod {pod.name} and another have the same {names.RANK_INDEX} {rank}")
    found, first = [], 0
    for pod in ordered:
        server = _server(pod, first, alone=alone)
        found.append(server)
        first += len(server.devices)
    return tuple(found)


def _one_per_slot(job: Job, kinds: frozenset[str], pods: Iterable[SeenPod]) -> list[SeenPod]:
    """The pod of every place; a standby pod has no place of its own until it takes over."""
    placed: dict[Slot, SeenPod] = {}
    for pod in sorted(pods, key=lambda pod: pod.name):
        if not pod.terminating and pod.annotations.get(names.POD_TYPE) != names.BACKUP:
            placed.setdefault(pod.slot, pod)
    present = [placed[slot] for slot in job.slots() if slot in placed]
    ready = [pod for pod in present if pod.slot.kind not in kinds or _written(pod)]
    if len(ready) < job.total or not ready:
        raise NotReady(f"{len(ready)} of {job.total} pods have their devices")
    return ready


def _asks_for_devices(replicas: Replicas) -> bool:
    request = requested(replicas.template)
    return request is not None and request.resource.startswith(ASCEND)


def _written(pod: SeenPod) -> str:
    return pod.annotations.get(names.DEVICES_910) or pod.annotations.get(names.DEVICES_NPU) or ""


def _rank(sizes: World, pod: SeenPod) -> int:
    text = pod.annotations.get(names.RANK_INDEX)
    if text is None:
        return sizes.node_rank(pod.slot)
    if not text.isdecimal():
        raise NotReady(f"pod {pod.name}: {names.RANK_INDEX} is {text!r}, not a number")
    return int(text)


def _server(pod: SeenPod, first_rank: int, *, alone: bool) -> Server:
    if not pod.pod_ip:
        raise NotReady(f"pod {pod.name} has no IP address yet")
    try:
        written = json.loads(_written(pod))
    except ValueError as error:
        raise NotReady(f"pod {pod.name}: its devices are not JSON: {error}") from error
    content = mapping(written)
    listed = content.get("devices")
    devices = tuple(mapping(device) for device in listed) if isinstance(listed, list) else ()
    if not devices or not all(text_of(device, "device_id") for device in devices):
        raise NotReady(f"pod {pod.name}: its annotation lists no devices, or one without device_id")
    host, server = text_of(content, "host_ip"), text_of(content, "server_id")
    # The address says more than an id, but only where it is not shared with another pod.
    return Server(pod, first_rank, (host or server) if alone else (server or host), host, devices)


def text_of(content: Json, name: str) -> str:
    """A field as text; empty where it is missing."""
    value: Any = content.get(name)
    return "" if value is None else str(value)
