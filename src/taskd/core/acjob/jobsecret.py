"""Which jobs are given certificates of their own, and the Secret that has them.

All pods of a job, or none: a part that speaks TLS and one that does not cannot meet. So a pod that comes
later does as the pods that are there, whatever the controller's settings are by now.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from taskd.core.acjob import names
from taskd.core.acjob.job import Job
from taskd.core.acjob.seen import FAILED, SUCCEEDED, PodSeen
from taskd.core.acjob.services import owner_reference
from taskd.core.acjob.volumes import has_room, left_alone


def secret_name(job: Job) -> str:
    """The name of the job's Secret."""
    return names.CERTIFICATES + job.name


def identity(job: Job) -> str:
    """The name in the job's certificate, under which the control plane knows it.

    The UID and nothing else: whatever a user may choose (a name, a label) could be another's.
    """
    return job.uid


def wants_certificates(job: Job) -> bool:
    """Whether the job is given certificates, if any job is.

    Not where the template is to stay as it is, or has something at that place already; and not a part of an
    inference service, which has no manager.
    """
    return not (left_alone(job) or job.inference) and has_room(job, names.CERTIFICATES_PATH)


def of_next_pod(job: Job, pods: Iterable[PodSeen], *, issuing: bool) -> str:
    """The Secret that the job's next pods are given; empty for none."""
    others = [pod for pod in pods if not pod.deleting and pod.phase not in {SUCCEEDED, FAILED}]
    if others:
        return next((pod.annotations[names.CERTIFIED] for pod in others if _certified(pod)), "")
    return secret_name(job) if issuing and wants_certificates(job) else ""


def job_secret(job: Job, labels: Mapping[str, str], data: Mapping[str, str]) -> dict[str, Any]:
    """The Secret; it goes with the job."""
    return {
        "metadata": {
            "name": secret_name(job),
            "namespace": job.namespace,
            "labels": {**labels, names.JOB_NAME: job.name},
            "ownerReferences": [owner_reference(job)],
        },
        "type": "kubernetes.io/tls",
        "data": dict(data),
    }


def _certified(pod: PodSeen) -> bool:
    return bool(pod.annotations.get(names.CERTIFIED))
