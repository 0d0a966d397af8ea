"""The rank table: which devices the job has, and which rank each of them is.

Pure: pods in, content out, or the reason why there is none yet. What is written is decided here too, from
what the sink holds: nothing where nothing changed, and a higher version at exactly the write that changes
the content. While a pod is missing the list is empty; a reader never sees devices that are gone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from taskd.core.acjob import names
from taskd.core.acjob.devices import each_container
from taskd.core.acjob.job import Job, mapping
from taskd.core.acjob.rankinput import NotReady, SeenPod, Server, servers
from taskd.core.acjob.ranktable_v1 import COMPLETED, plain, with_super_pods
from taskd.core.acjob.ranktable_v2 import flat
from taskd.core.acjob.volumes import HCCL_JSON, VERSION
from taskd.core.gojson import compact

INITIALIZING: Final = "initializing"
CONFIG_MAP_LIMIT: Final = 1_000_000
"""The API server refuses a ConfigMap above 1 MiB; a larger table goes to the file only."""

_NPU: Final = "huawei.com/npu"
_SUPER_POD_POLICIES: Final = ("chip2-node16-sp", "chip2-node8-sp", "multilevel")
_ACCELERATOR: Final = "accelerator-type"
_SUPER_POD_NODES: Final = ("module-a3-16-super-pod", "module-a3-8-super-pod")
_MAKERS: Final[Mapping[str, Callable[[Job, tuple[Server, ...]], dict[str, Any]]]] = {
    "1.0": plain,
    "1.2": with_super_pods,
    "2.0": flat,
}


@dataclass(frozen=True, slots=True)
class RankTable:
    """A complete table."""

    content: dict[str, Any]


@dataclass(frozen=True, slots=True)
class NotYet:
    """There is no table yet, and this is why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Written:
    """What a sink holds: the table and its number, which readers watch."""

    text: str
    version: int = 0

    def data(self) -> dict[str, str]:
        """As a ConfigMap holds it, and as two files do."""
        return {HCCL_JSON: self.text, VERSION: str(self.version)}

    @property
    def fits_config_map(self) -> bool:
        """Whether a ConfigMap can hold it."""
        return len(self.text.encode()) <= CONFIG_MAP_LIMIT


def read_written(data: Mapping[str, str] | None) -> Written | None:
    """What a sink holds; None where it holds no table at all."""
    if not data or HCCL_JSON not in data:
        return None
    version = (data.get(VERSION) or "").strip()
    return Written(data[HCCL_JSON], int(version) if version.isdecimal() else 0)


def table_version(job: Job) -> str:
    """Which form of the table the job's hardware understands: 1.0, 1.2 or 2.0."""
    for replicas in job.replicas:
        for _path, container in each_container(replicas):
            resources = mapping(container.get("resources"))
            if any(_NPU in mapping(resources.get(which)) for which in ("requests", "limits")):
                return "2.0"
    policy = job.annotations.get(names.SCHEDULE_POLICY)
    if policy is not None:
        return "1.2" if policy in _SUPER_POD_POLICIES else "1.0"
    if names.SP_BLOCK in job.annotations:
        return "1.2"
    for replicas in job.replicas:
        selector = mapping(mapping(replicas.template.get("spec")).get("nodeSelector"))
        if selector.get(_ACCELERATOR) in _SUPER_POD_NODES:
            return "1.2"
    return "1.0"


def rank_table(job: Job, pods: Iterable[SeenPod]) -> RankTable | NotYet:
    """The table of these pods, or why there is none yet."""
    try:
        return RankTable(_MAKERS[table_version(job)](job, servers(job, pods)))
    except NotReady as error:
        return NotYet(str(error))


def initializing(job: Job) -> dict[str, Any]:
    """The content while a pod is missing: no devices at all, rather than those of before."""
    version = table_version(job)
    if version == "2.0":
        return {"status": INITIALIZING, "version": version, "rank_list": [], "rank_count": 0}
    table: dict[str, Any] = {"status": INITIALIZING, "server_list": [], "server_count": "0"}
    if version == "1.2":
        table["super_pod_list"] = []
    return {**table, "version": version}


def next_write(job: Job, result: RankTable | NotYet, held: Written | None) -> Written | None:
    """What has to be written to a sink that holds `held`; None where it is up to date."""
    if isinstance(result, NotYet):
        if held is not None and _empty(held.text):
            return None
        content = initializing(job)
    else:
        content = result.content
    text = compact(content)
    if held is None:
        return Written(text)
    return None if held.text == text else Written(text, held.version + 1)


def _empty(text: str) -> bool:
    """Whether that is an unfinished table without devices, in whatever way a user may have written it."""
    try:
        content = mapping(json.loads(text))
    except ValueError:
        return False
    listed = content.get("server_list") or content.get("rank_list")
    return content.get("status") != COMPLETED and not listed
