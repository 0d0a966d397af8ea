"""What becomes of the pods that are kept ready: they are made, they relieve a lost pod, they are made anew.

The job's manager gives the ranks of a lost pod to a standby by itself, at once; here the pod is given the
place that goes with them. That is one write, of labels and annotations, so a controller that dies has either
done it or not.

Standbys are made once the job runs whole, so they never take the room that the job itself needs. How they
fare is nobody's restart. Where none of the job's own pods is left there is no state to go on with, and nobody
who could tell a standby that it is needed: then all pods are made anew.

A standby on a node that new pods are kept off would carry the job back there. It gets no place, and is made
anew elsewhere; on a node with a broken device, which may not be its own, it stays and is the last choice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from taskd.core.acjob import avoiding, devices, names
from taskd.core.acjob.actions import Action, AssignStandby, CreateStandbys, DeletePod
from taskd.core.acjob.avoiding import Avoided
from taskd.core.acjob.job import Job, Slot
from taskd.core.acjob.pods import shape
from taskd.core.acjob.seen import PENDING, RUNNING, PodSeen, Roster
from taskd.core.acjob.standbys import kind_of, pod_name, wanted
from taskd.core.acjob.status import Status, moment
from taskd.core.podplace import is_host_of

AGAIN_S: Final = 30.0
"""How long the remains of a standby that ended are left: one that always fails is not made all the time."""
_NUMBER: Final = re.compile(r"-(\d+)$")


@dataclass(frozen=True, slots=True)
class Unfit:
    """The nodes on which a pod that is kept ready is of little use."""

    unreached: frozenset[str] = frozenset()
    """Nobody reaches what is there, so it is not waited for either."""
    closed: frozenset[str] = frozenset()
    """Isolated: nothing new is placed there."""
    last: frozenset[str] = frozenset()
    """A device there is isolated."""

    def __contains__(self, node: str) -> bool:
        return node in self.unreached or node in self.closed


def unfit(job: Job, avoided: Iterable[Avoided], unreached: frozenset[str]) -> Unfit:
    """What is unfit for the standbys of a job, whose pods are kept off these nodes."""
    avoided = tuple(avoided)
    if not avoided:
        return Unfit(unreached)
    has_device = devices.requested(job.of_kind(kind_of(job)).template) is not None
    closed = frozenset(avoiding.closed(avoided, has_device=has_device))
    return Unfit(unreached, closed - unreached, frozenset(each.node for each in avoided) - closed)


def running(found: Roster, status: Status, nodes: Unfit) -> list[PodSeen]:
    """Those that could take a place now, in the order in which they do."""
    return [pod for pod in _in_turn(found, status, nodes) if pod.phase == RUNNING]


def choose(
    found: Roster, slots: Iterable[Slot], status: Status, nodes: Unfit, assigned: Mapping[Slot, str]
) -> dict[Slot, PodSeen]:
    """Which standby takes which of the places that are empty.

    The one that somebody has `assigned` to it, and the job's manager was told the same. For the others in the
    order of ranks and of numbers, as the manager does it too. One that runs comes first; one that waits for a
    node takes a place as well, for it would be in the way of the pod that is made instead.
    """
    if not any(pod.alive for pod in found.regular.values()):
        return {}
    usable = _in_turn(found, status, nodes)
    meant = {slot: pod for slot, host in assigned.items() for pod in usable if is_host_of(host, pod.name)}
    spoken_for = {pod.uid for pod in meant.values()}
    free = iter([pod for pod in usable if pod.uid not in spoken_for])
    chosen = {slot: meant.get(slot) or next(free, None) for slot in slots}
    return {slot: pod for slot, pod in chosen.items() if pod is not None}


def _in_turn(found: Roster, status: Status, nodes: Unfit) -> list[PodSeen]:
    usable = [pod for pod in found.standbys if _usable(pod, status) and pod.node not in nodes]
    return sorted(usable, key=lambda pod: (pod.phase != RUNNING, pod.node in nodes.last, number_of(pod.name)))


def assign(chosen: Mapping[Slot, PodSeen], version: int) -> tuple[Action, ...]:
    """Give them their places."""
    return tuple(
        AssignStandby(pod.name, pod.uid, slot, version, {names.POD_TYPE: None})
        for slot, pod in chosen.items()
    )


def upkeep(
    job: Job, found: Roster, status: Status, now: float, nodes: Unfit, *, whole: bool
) -> tuple[tuple[Action, ...], float | None]:
    """What is done about the standbys themselves, and when to look again."""
    count = wanted(job)
    removed: list[Action] = []
    kept: list[PodSeen] = []
    again: list[float] = []
    for pod in sorted(found.standbys, key=lambda pod: number_of(pod.name)):
        if pod.deleting:
            continue
        why = _why_remove(job, pod, status, nodes)
        if why is None and len(kept) >= count:
            why = "the job wants fewer standby pods"
        if why is not None:
            removed.append(DeletePod(pod.name, pod.uid, 0 if pod.node in nodes.unreached else None, why))
            continue
        kept.append(pod)
        if pod.phase not in {RUNNING, PENDING}:
            ended = moment(max((each.at for each in pod.ended), default="")) or 0.0
            if now < ended + AGAIN_S:
                again.append(ended + AGAIN_S)
            else:
                removed.append(DeletePod(pod.name, pod.uid, None, "a standby pod that ended"))
    missing = count - len(kept)
    actions = tuple(removed)
    if whole and missing > 0 and not found.finished:
        numbers = tuple(_free_numbers(job, found, missing))
        actions += (CreateStandbys(numbers, status.restarts),)
    return actions, min(again, default=None)


def _why_remove(job: Job, pod: PodSeen, status: Status, nodes: Unfit) -> str | None:
    if status.whole_job and pod.version < status.restarts:
        return "the whole job is started again"
    if pod.annotations.get(names.SHAPE) != shape(job):
        return "it was made for another shape of the job"
    if pod.node in nodes.unreached:
        return "its node is out of reach"
    if pod.node in nodes.closed:
        return "its node is isolated"
    return None


def _usable(pod: PodSeen, status: Status) -> bool:
    if pod.deleting or (status.whole_job and pod.version < status.restarts):
        return False
    return pod.phase == RUNNING or (pod.phase == PENDING and not pod.node)


def _free_numbers(job: Job, found: Roster, count: int) -> Iterable[int]:
    """Numbers that no pod of the job has, also not one that is being deleted."""
    pods = [*found.standbys, *found.regular.values(), *found.backups.values(), *found.surplus]
    taken = {pod.name for pod in pods}
    free = (number for number in range(len(taken) + count) if pod_name(job, number) not in taken)
    return (number for number, _ in zip(free, range(count), strict=False))


def number_of(name: str) -> int:
    """The number in a standby's name, by which they have their turn."""
    found = _NUMBER.search(name)
    return int(found[1]) if found else 0
