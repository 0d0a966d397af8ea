"""Pods that are kept ready beside a job: how many, of which template, under which names.

A standby is a pod of the job's own image whose `taskd run` waits outside of the world with warm processes.
When it gets a place it keeps its name, and the next standby gets another number: names say how a pod began,
labels what it is. `relief` says what becomes of them.
"""

from __future__ import annotations

from taskd.core.acjob import devices, names
from taskd.core.acjob.job import WORKER, Job, once


def wanted(job: Job) -> int:
    """How many are kept ready."""
    return int(job.annotations.get(names.STANDBY_PODS, "0")) if can_have(job) else 0


@once
def can_have(job: Job) -> bool:
    """Whether a pod that waits has a meaning in the job: it needs processes that `taskd run` starts."""
    return job.framework == "pytorch" and not job.inference and devices.world(job).leader_computes


def kind_of(job: Job) -> str:
    """The replica type whose template standbys have: the one with the most processes, so that it fits all."""
    sizes = devices.world(job)
    return max(job.replicas, key=lambda each: (sizes.per_pod[each.kind], each.kind == WORKER)).kind


def pod_name(job: Job, number: int) -> str:
    """The name of a standby."""
    return f"{job.name}-{names.STANDBY}-{number}".replace("/", "-")


def all_names(job: Job) -> list[str]:
    """The names of all that there can be at a time, those among them that have a place by now."""
    count = wanted(job)
    return [pod_name(job, number) for number in range(count + job.total)] if count else []
