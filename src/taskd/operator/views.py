"""From what the caches hold to what decisions look at."""

from __future__ import annotations

from taskd.core.acjob import job as jobs
from taskd.core.acjob import names
from taskd.core.acjob.job import Slot
from taskd.core.acjob.seen import FAILED, SUCCEEDED, Ended, PodGroupSeen, PodSeen
from taskd.core.acjob.status import moment
from taskd.kube.objects import ContainerStatus, Node, Pod, PodGroup

UNREACHABLE = "node.kubernetes.io/unreachable"


def slot_of(pod: Pod) -> Slot | None:
    """The place that the pod's labels name, if they name one."""
    return jobs.slot_of(pod.metadata.labels)


def version_of(pod: Pod) -> int:
    """The generation of restarts that made the pod."""
    text = pod.metadata.labels.get(names.POD_VERSION, "")
    return int(text) if text.isdecimal() else 0


def see_pod(pod: Pod) -> PodSeen:
    """What a decision needs to know of a pod."""
    status = pod.status
    conditions = {condition.type: condition.status for condition in status.conditions}
    return PodSeen(
        name=pod.metadata.name,
        uid=pod.metadata.uid,
        slot=slot_of(pod),
        version=version_of(pod),
        phase=status.phase or "Pending",
        deleting=pod.metadata.is_terminating,
        deleted_at=_deleted_at(pod),
        over=_is_over(pod),
        node=pod.spec.node_name,
        ip=status.pod_ip,
        ready=conditions.get("Ready") == "True",
        reason=status.reason,
        message=status.message,
        disrupted=conditions.get("DisruptionTarget") == "True",
        ended=tuple(
            ended
            for container in (*status.container_statuses, *status.init_container_statuses)
            if (ended := _ended(container)) is not None
        ),
        annotations=pod.metadata.annotations,
    )


def _deleted_at(pod: Pod) -> float | None:
    """The stamp on a pod is the end of its time; one without any time left is not asked again."""
    grace_s = pod.metadata.deletion_grace_period_seconds
    ends = moment(pod.metadata.deletion_timestamp) if pod.metadata.deletion_timestamp else None
    return ends - grace_s if ends is not None and grace_s else None


def _is_over(pod: Pod) -> bool:
    """Whether its kubelet has said that all of it has ended, and only has to clear up.

    The phase alone does not say so: the cluster sets it for pods of nodes that it has lost.
    """
    containers = (*pod.status.container_statuses, *pod.status.init_container_statuses)
    states = [container.state.terminated for container in containers]
    has_ended = pod.status.phase in {FAILED, SUCCEEDED} and bool(states) and None not in states
    return has_ended and _deleted_at(pod) is not None and not pod.metadata.finalizers


def _ended(container: ContainerStatus) -> Ended | None:
    state = container.state.terminated
    if state is None:
        return None
    return Ended(
        container=container.name,
        exit_code=state.exit_code,
        signal=state.signal,
        reason=state.reason,
        message=state.message,
        at=state.finished_at or "",
    )


def see_group(group: PodGroup, applied: str) -> PodGroupSeen:
    """What a decision needs to know of a PodGroup; `applied` marks what the job asks for now."""
    unschedulable = [c for c in group.status.conditions if c.type == "Unschedulable" and c.status == "True"]
    return PodGroupSeen(
        phase=group.status.phase,
        message=unschedulable[-1].message if unschedulable else "",
        current=group.metadata.annotations.get(names.APPLIED) == applied,
    )


def is_unreachable(node: Node) -> bool:
    """Whether the cluster has lost touch with the node."""
    return any(taint.key == UNREACHABLE for taint in node.spec.taints)
