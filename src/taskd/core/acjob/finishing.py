"""The end of a job: when it has succeeded, what is cleaned up, and when it is forgotten."""

from __future__ import annotations

from dataclasses import replace

from taskd.core.acjob import conditions, devices, names
from taskd.core.acjob.actions import Action, Decision, DeleteJob, DeletePod, DeletePodGroup, DeleteService
from taskd.core.acjob.job import WORKER, Job
from taskd.core.acjob.seen import PENDING, RUNNING, SUCCEEDED, PodSeen, Roster, Snapshot, roster
from taskd.core.acjob.status import Status, moment


def has_succeeded(job: Job, found: Roster) -> bool:
    """Whether the job has done its work.

    Without a policy every pod must have ended well. With AllWorkers it is those that compute: a coordinator
    that never ends of its own accord is not waited for, a Master that trains (and may still be saving) is.
    """
    must = [replicas.kind for replicas in job.replicas]
    if job.success_policy == "AllWorkers" and WORKER in must:
        per_pod = devices.world(job).per_pod
        must = [kind for kind in must if kind == WORKER or per_pod[kind]]
    return not any(slot.kind in must for slot in found.empty) and all(
        pod.phase == SUCCEEDED or slot in found.finished
        for slot, pod in found.regular.items()
        if slot.kind in must
    )


def deadline_at(job: Job, status: Status) -> float | None:
    """When the job must have ended; as with a Job of Kubernetes, 0 is the moment at which it begins."""
    began = moment(status.start_time) if status.start_time else None
    if began is None or job.deadline_s is None or job.deadline_s < 0:
        return None
    return began + job.deadline_s


def clean_up(job: Job, seen: Snapshot, status: Status, now: float) -> Decision:
    """What is left to do for a job that has ended."""
    completed = moment(status.completion_time)
    expires = completed + job.ttl_s if completed is not None and job.ttl_s is not None else None
    if expires is not None and now >= expires:
        return Decision(status, (DeleteJob(),))
    actions: list[Action] = [
        DeletePod(pod.name, pod.uid, None, "the job has ended")
        for pod in seen.pods
        if not pod.deleting and _unwanted(job, pod)
    ]
    active = [pod for pod in seen.pods if pod.phase in {RUNNING, PENDING}]
    if seen.gang and seen.pod_group is not None and not active:
        actions.append(DeletePodGroup())
    if seen.service is not None and not active and job.clean_pod_policy != "None":
        actions.append(DeleteService())
    return Decision(_final_counts(job, seen, status), tuple(actions), wake_at=expires)


def _unwanted(job: Job, pod: PodSeen) -> bool:
    match job.clean_pod_policy:
        case "All":
            return True
        case "None":
            # Honoured for what runs. A pod that has not started would start for nothing.
            return pod.phase == PENDING and not pod.node
        case _:
            return pod.phase in {RUNNING, PENDING}


def _final_counts(job: Job, seen: Snapshot, status: Status) -> Status:
    """Pods that were stopped because the job succeeded are counted as having succeeded with it."""
    if not conditions.find(status.conditions, names.SUCCEEDED):
        failed = {
            kind: {k: v for k, v in counts.items() if k != "pending"}
            for kind, counts in status.replicas.items()
        }
        alive = [
            pod
            for pod in roster(job, seen.pods).regular.values()
            if pod.phase == RUNNING and not pod.deleting
        ]
        kinds = [pod.slot.kind for pod in alive if pod.slot]
        replicas = {
            kind: {
                **{name: count for name, count in counts.items() if name != "active"},
                **({"active": kinds.count(kind)} if kinds.count(kind) else {}),
            }
            for kind, counts in failed.items()
        }
        return replace(status, replicas=replicas, ready=f"{len(alive)}/{job.total}")
    folded = {}
    for kind, counts in status.replicas.items():
        done = counts.get("succeeded", 0) + counts.get("active", 0)
        rest = {
            name: count for name, count in counts.items() if name not in {"active", "pending", "succeeded"}
        }
        folded[kind] = {**rest, **({"succeeded": done} if done else {})}
    return replace(status, replicas=folded)
