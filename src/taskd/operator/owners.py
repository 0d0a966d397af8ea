"""Whose an object is that has the name of one of ours."""

from __future__ import annotations

from taskd.core.acjob import names
from taskd.core.acjob.job import Job
from taskd.kube.objects import ObjectMeta

MANAGER = "taskd-operator"
"""Who we are to the API server where it notes which fields are whose."""


def is_predecessors(metadata: ObjectMeta, job: Job) -> bool:
    """Whether it belongs to a job of the same name that is gone, and will go with it.

    It must not be taken for one that a user made: garbage collection removes it shortly.
    """
    return metadata.is_terminating or any(
        owner.kind == names.KIND
        and owner.api_version == names.API_VERSION
        and owner.name == job.name
        and owner.uid != job.uid
        for owner in metadata.owner_references
    )
