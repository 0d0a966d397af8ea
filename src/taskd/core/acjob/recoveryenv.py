"""The switches that tell a framework which ways of recovery the job allows.

The reference turns some of them on for `exit`, which means the opposite, and hands out empty lists for a
strategy that it does not know. Here a job that asks for no recovery gets no switch at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from taskd.core.acjob import names
from taskd.core.acjob.job import Job, once
from taskd.core.plane.policy import read_policy

PROCESS_RECOVER: Final = "PROCESS_RECOVER"
ELASTIC: Final = "ELASTIC_PROCESS_RECOVER_ENABLE"
IN_PLACE: Final = "ENABLE_RESTART_FAULT_PROCESS"
HIGH_AVAILABILITY: Final = "HIGH_AVAILABILITY"
ASYNC_ERRORS: Final = "HCCL_ASYNC_ERROR_HANDLING"
TFT: Final = "MS_ENABLE_TFT"
MINDIO: Final = "MINDIO_FOR_MINDSPORE"
THM: Final = "MS_ENABLE_THM"
RAW: Final = "TASKD_RECOVER_STRATEGY"

_PYTORCH: Final[Mapping[str, str]] = {
    "recover": "recover",
    "retry": "retry",
    "dump": "dump",
    "recover-in-place": "recover",
    "elastic-training": "elastic-training",
}
_MINDSPORE: Final[Mapping[str, tuple[str, ...]]] = {
    "recover": ("ARF:1",),
    "retry": ("UCE:1", "HCCE:1"),
    "dump": ("TTP:1",),
    "recover-in-place": ("ARF:1",),
}
_DUMP: Final = "dump"
_KEEP: Final = frozenset(names.STRATEGIES) - {_DUMP, "exit"}
_ON: Final = "on"
_HOT_SWITCH: Final = "hotSwitch"
_LEAVES: Final = frozenset(names.SUB_HEALTHY_VALUES) - {"ignore"}
_RESCHEDULES: Final = frozenset(names.FAULT_SCHEDULING_VALUES) - {"off"}


def raw_strategy(job: Job) -> dict[str, str]:
    """The strategies as they were asked for, which even a job without any device is told."""
    listed = job.strategies()
    return {RAW: ",".join(listed)} if listed else {}


def switches(job: Job, *, ascend: bool) -> dict[str, str]:
    """The framework's switches. What only HCCL understands is left out where there is no Ascend device."""
    if job.framework == "pytorch":
        return _pytorch(job, ascend=ascend)
    if job.framework == "mindspore":
        return _mindspore(job, ascend=ascend)
    return {}


def keeps_processes(job: Job) -> bool:
    """Whether the processes that survive a fault go on; after a dump, and with `exit`, they end."""
    return not _KEEP.isdisjoint(job.strategies())


@once
def refused(job: Job) -> str:
    """Why the strategies that the job asks for are not in force; empty where they are, or none is asked."""
    asks = keeps_processes(job) or _DUMP in job.strategies() or _hot_switch(job)
    return read_policy(job.labels, job.annotations).refusal if asks else ""


def asks_for_recovery(job: Job) -> bool:
    """Whether anything about the job says that it is to go on after a fault; an unknown value does not."""
    scheduling = job.labels.get(names.FAULT_SCHEDULING, "")
    return (
        keeps_processes(job)
        or _DUMP in job.strategies()
        or job.labels.get(names.POD_RESCHEDULING) == _ON
        or job.labels.get(names.SUB_HEALTHY) in _LEAVES
        or scheduling in _RESCHEDULES
        or scheduling.startswith(names.FAULT_SCHEDULING_PREFIXES)
    )


def _pytorch(job: Job, *, ascend: bool) -> dict[str, str]:
    strategies = job.strategies()
    means = {_PYTORCH[strategy] for strategy in strategies if strategy in _PYTORCH}
    found: dict[str, str] = {}
    if means:
        found[PROCESS_RECOVER] = _ON
        if means != {"elastic-training"}:
            found[ELASTIC] = "1"
        if "recover-in-place" in strategies:
            found[IN_PLACE] = _ON
        if ascend:
            found[ASYNC_ERRORS] = "0"
    if _hot_switch(job):
        means.add("recover")
        found |= {PROCESS_RECOVER: _ON, ELASTIC: "1"}
    if means:
        found[HIGH_AVAILABILITY] = ",".join(sorted(means))
    return found


def _mindspore(job: Job, *, ascend: bool) -> dict[str, str]:
    strategies = job.strategies()
    means = {mean for strategy in strategies for mean in _MINDSPORE.get(strategy, ())}
    found: dict[str, str] = {}
    if means:
        found |= {PROCESS_RECOVER: _ON, ELASTIC: "1"}
        if "recover-in-place" in strategies:
            found[IN_PLACE] = _ON
        found[MINDIO] = "1"
        if ascend:
            found[THM] = "{HCCL_WATCHDOG:0}"
    if _hot_switch(job):
        means.add("ARF:1")
        found |= {PROCESS_RECOVER: _ON, ELASTIC: "1", MINDIO: "1"}
    if job.labels.get(names.POD_RESCHEDULING) == _ON:
        means.add("RSC:1")
    if means:
        found[TFT] = "{" + ",".join(sorted(means)) + "}"
    return found


def _hot_switch(job: Job) -> bool:
    return job.labels.get(names.SUB_HEALTHY) == _HOT_SWITCH
