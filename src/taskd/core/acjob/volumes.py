"""Volumes that the operator adds to a template, and the ConfigMaps behind them.

Seeds and reference expect every user to write them by hand, and a job without them loses its recovery
silently. They are added where the template mounts nothing at (or around) that path, and each is optional, so
a pod starts whether or not the ConfigMap exists yet; the kubelet brings it in when it does.

Of the ConfigMaps the operator creates only what nobody else would: the one for recovery, when the job asks
for recovery, and the rank table's, when the job asks for a table. The control plane creates `data-trace-…`
itself at the first request. A ConfigMap that the user made is used as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from taskd.core.acjob import names
from taskd.core.acjob.job import Job, Json, mapping
from taskd.core.acjob.recoveryenv import asks_for_recovery
from taskd.core.acjob.services import owner_reference
from taskd.core.gojson import check_code, compact

HCCL_JSON: Final = "hccl.json"
VERSION: Final = "version"
CONFIG_MAP: Final = "configmap"
FILE: Final = "file"

_SWITCHES: Final = ("CommunicationOperator", "Step", "SaveCheckpoint", "FP", "DataLoader")


@dataclass(frozen=True, slots=True)
class Mount:
    """One volume of ours and the path at which a container finds it."""

    name: str
    path: str
    source: Json


def left_alone(job: Job) -> bool:
    """Whether the user wants the template exactly as it was written."""
    return job.annotations.get(names.LEAVE_TEMPLATE, "").strip().lower() == "true"


def mounts(job: Job, *, certificates: str = "", issued: str = "") -> tuple[Mount, ...]:
    """All volumes of ours.

    `certificates` names a Secret with keys for TLS that an administrator brings, where there is one, and
    `issued` the one that was made for this job. That one is not optional: a pod must not start without it.
    """
    if left_alone(job):
        return ()
    found = [
        Mount("taskd-reset-config", names.RESET_PATH, _config_map_source(names.RESET_CONFIG + job.name)),
        Mount("taskd-data-trace", names.DATA_TRACE_PATH, _config_map_source(names.DATA_TRACE + job.name)),
    ]
    if CONFIG_MAP in asked_sinks(job):
        source = _config_map_source(names.RINGS_CONFIG + job.name)
        found.append(Mount("taskd-rank-table", names.RINGS_PATH, source))
    if issued:
        found.append(issued_mount(job, issued))
    elif certificates:
        # A key that others may read is refused by most software.
        secret = {"secret": {"secretName": certificates, "optional": True, "defaultMode": 0o400}}
        found.append(Mount("taskd-certificates", names.CERTIFICATES_PATH, secret))
    return tuple(found)


def issued_mount(job: Job, secret: str) -> Mount:
    """The volume with a job's own certificates."""
    source = {"secret": {"secretName": secret, "defaultMode": _key_mode(job)}}
    return Mount("taskd-certificates", names.CERTIFICATES_PATH, source)


def has_room(job: Job, path: str) -> bool:
    """Whether no container of ours in any template has something mounted at (or around) that path."""
    return not any(
        _overlap(path, str(mount.get("mountPath", "")))
        for replicas in job.replicas
        for container in mapping(replicas.template.get("spec")).get("containers") or ()
        if container.get("name") == names.CONTAINER
        for mount in container.get("volumeMounts") or ()
    )


def with_mounts(spec: Json, added: tuple[Mount, ...]) -> Json:
    """The pod spec with our volumes in the containers named `ascend`; itself where none lacks any."""
    volumes = list(spec.get("volumes") or ())
    taken = {volume.get("name") for volume in volumes}
    used: dict[str, tuple[str, Json]] = {}
    containers = []
    for container in spec.get("containers") or ():
        wanted = [] if container.get("name") != names.CONTAINER else _missing(container, added)
        if wanted:
            existing = list(container.get("volumeMounts") or ())
            for mount in wanted:
                name, _source = used.setdefault(mount.path, (_free_name(mount.name, taken), mount.source))
                existing.append({"name": name, "mountPath": mount.path, "readOnly": True})
            container = {**container, "volumeMounts": existing}  # noqa: PLW2901 - the changed one goes on
        containers.append(container)
    if not used:
        return spec
    volumes.extend({"name": name, **source} for name, source in used.values())
    return {**spec, "containers": containers, "volumes": volumes}


def asked_sinks(job: Job, *, config_map_exists: bool = False) -> frozenset[str]:
    """Where the rank table is wanted: `file`, `configmap`, both or neither.

    A job asks by the annotation; by a volume named `ranktable`, as in the reference; by a volume that shows
    the ConfigMap; or by bringing the ConfigMap itself, which is what `config_map_exists` says.
    """
    wanted = {part.strip().lower() for part in job.annotations.get(names.RANK_TABLE, "").split(",")}
    found = wanted & {FILE, CONFIG_MAP}
    if config_map_exists:
        found.add(CONFIG_MAP)
    for volume in _volumes(job):
        if volume.get("name") == names.RANK_TABLE_VOLUME:
            found.add(FILE)
        if names.RINGS_CONFIG + job.name in set(_shown_config_maps(volume)):
            found.add(CONFIG_MAP)
    return frozenset(found)


def config_maps(job: Job) -> tuple[dict[str, Any], ...]:
    """The ConfigMaps that the operator creates where they are missing, as they are at first."""
    found = []
    if asks_for_recovery(job):
        found.append(reset_config(job))
    if CONFIG_MAP in asked_sinks(job):
        found.append(rings_config(job))
    return tuple(found)


def reset_config(job: Job) -> dict[str, Any]:
    """`reset-config-<job>` when nothing has happened yet."""
    text = compact(
        {
            "RankList": [],
            "UpdateTime": 0,
            "RetryTime": 0,
            "FaultFlushing": False,
            "GracefulExit": 0,
            "RestartFaultProcess": False,
        }
    )
    data = {"reset.json": text, "checkCode": check_code(text)}
    return _config_map(job, names.RESET_CONFIG, {names.RESET_LABEL: "true"}, data)


def data_trace(job: Job, on: frozenset[str] = frozenset()) -> dict[str, Any]:
    """`data-trace-<job>` with those switches on and the others off."""
    switches = {name: "on" if name in on else "off" for name in _SWITCHES}
    data = {"profilingSwitch": compact(switches)}
    return _config_map(job, names.DATA_TRACE, {names.RESET_LABEL: "true"}, data)


def rings_config(job: Job) -> dict[str, Any]:
    """`rings-config-<job>` before the first table."""
    labels = {names.ATLAS: job.labels[names.ATLAS]} if names.ATLAS in job.labels else {}
    data = {HCCL_JSON: compact({"status": "initializing"}), VERSION: "0"}
    return _config_map(job, names.RINGS_CONFIG, labels, data)


def _config_map(job: Job, prefix: str, labels: dict[str, str], data: dict[str, str]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": prefix + job.name,
            "namespace": job.namespace,
            "labels": labels,
            "ownerReferences": [owner_reference(job)],
        },
        "data": data,
    }


def _config_map_source(name: str) -> Json:
    return {"configMap": {"name": name, "optional": True}}


def _key_mode(job: Job) -> int:
    """For the owner alone, who is root; or for all in the pod, where its processes are somebody else.

    A group of the pod's own (fsGroup) is let in by the kubelet.
    """
    for replicas in job.replicas:
        spec = mapping(replicas.template.get("spec"))
        pod = mapping(spec.get("securityContext"))
        for container in spec.get("containers") or ():
            own = {**pod, **mapping(container.get("securityContext"))}
            other = own.get("runAsUser") or (own.get("runAsNonRoot") and own.get("runAsUser") is None)
            if container.get("name") == names.CONTAINER and other and pod.get("fsGroup") is None:
                return 0o444
    return 0o400


def _missing(container: Json, added: tuple[Mount, ...]) -> list[Mount]:
    present = [str(mount.get("mountPath", "")) for mount in container.get("volumeMounts") or ()]
    return [mount for mount in added if not any(_overlap(mount.path, path) for path in present)]


def _overlap(one: str, other: str) -> bool:
    """Whether one path is the other or lies in it: a user who mounts there has arranged it already.

    A mount at the root directory is not possible, so it needs no thought.
    """
    first, second = one.rstrip("/") + "/", other.rstrip("/") + "/"
    return first.startswith(second) or second.startswith(first)


def _free_name(name: str, taken: set[Any]) -> str:
    free, number = name, 1
    while free in taken:
        number += 1
        free = f"{name}-{number}"
    taken.add(free)
    return free


def _volumes(job: Job) -> Iterator[Json]:
    for replicas in job.replicas:
        for volume in mapping(replicas.template.get("spec")).get("volumes") or ():
            yield mapping(volume)


def _shown_config_maps(volume: Json) -> Iterator[str]:
    yield str(mapping(volume.get("configMap")).get("name", ""))
    for source in mapping(volume.get("projected")).get("sources") or ():
        yield str(mapping(mapping(source).get("configMap")).get("name", ""))
