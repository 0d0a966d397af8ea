"""What was seen of a job's objects, reduced to what decisions need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from taskd.core.acjob import names
from taskd.core.acjob.job import Job, Json, Slot
from taskd.core.acjob.validation import Problem

PENDING: Final = "Pending"
RUNNING: Final = "Running"
SUCCEEDED: Final = "Succeeded"
FAILED: Final = "Failed"

# A kubelet or a controller ended the pod; the program in it did nothing wrong.
DISRUPTIONS: Final = frozenset({
    "Evicted", "NodeLost", "NodeShutdown", "Terminated", "Shutdown", "Preempting", "NodeAffinity",
    "UnexpectedAdmissionError", "OutOfcpu", "OutOfmemory", "OutOfpods",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ended:
    """How a container of a pod ended."""

    container: str
    exit_code: int
    signal: int = 0
    reason: str = ""
    message: str = ""
    at: str = ""


@dataclass(frozen=True, slots=True)
class PodSeen:
    """A pod that the job owns, by UID."""

    name: str
    uid: str
    slot: Slot | None
    version: int = 0
    phase: str = PENDING
    deleting: bool = False
    deleted_at: float | None = None
    """When somebody asked for its deletion, where it may take its time to end."""
    over: bool = False
    """Whether it is being deleted and nothing of it runs any more, by the word of its kubelet."""
    node: str = ""
    ip: str = ""
    ready: bool = False
    reason: str = ""
    message: str = ""
    disrupted: bool = False
    ended: tuple[Ended, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def backup(self) -> bool:
        """Whether it stands by for another pod, in a hot switch."""
        return self.annotations.get(names.POD_TYPE) == names.BACKUP

    @property
    def standby(self) -> bool:
        """Whether it is kept ready beside the job and has no place."""
        return self.annotations.get(names.POD_TYPE) == names.STANDBY

    @property
    def alive(self) -> bool:
        """Whether it takes part in the job's work, or has done its share."""
        return not self.deleting and self.phase in {RUNNING, SUCCEEDED}

    @property
    def failed(self) -> bool:
        """Whether it has failed; a pod that is being deleted is not counted any more."""
        return self.phase == FAILED and not self.deleting

    @property
    def evicted(self) -> bool:
        """Whether it failed for a reason outside of itself."""
        return self.disrupted or self.reason in DISRUPTIONS

    def main_end(self) -> Ended | None:
        """How the training ended in it; where that ended well, the container that ended badly first."""
        training = next((ended for ended in self.ended if ended.container == names.CONTAINER), None)
        if training is not None and training.exit_code:
            return training
        bad = [ended for ended in self.ended if ended.exit_code]
        return min(bad, key=lambda ended: ended.at or "9", default=training)


@dataclass(frozen=True, slots=True)
class PodGroupSeen:
    """The job's PodGroup."""

    phase: str = ""
    message: str = ""
    """What the scheduler says of it, where it cannot be placed."""
    current: bool = True
    """Whether it is what the job asks for now."""


@dataclass(frozen=True, slots=True)
class ServiceSeen:
    """The leader's Service."""

    ip: str
    current: bool = True


@dataclass(frozen=True, slots=True)
class Nodes:
    """The nodes that cannot be counted on."""

    gone: frozenset[str] = frozenset()
    unreachable: frozenset[str] = frozenset()

    def took(self, pod: PodSeen) -> bool:
        """Whether the pod went with its node.

        A node that cannot be reached may still run it: the cluster decides when to give it up, by deleting
        it.
        """
        if pod.phase == SUCCEEDED:
            return False  # it has done its share, wherever its remains are
        return pod.node in self.gone or (pod.deleting and pod.node in self.unreachable)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that a decision looks at."""

    raw: Json
    pods: Sequence[PodSeen] = ()
    gang: bool = True
    pod_group: PodGroupSeen | None = None
    service: ServiceSeen | None = None
    needs_service: bool = True
    extras: bool = True
    """Whether the objects that only help (the namespace's headless Service, ConfigMaps) are there."""
    missing_queue: str | None = None
    nodes: Nodes = Nodes()
    departed: Mapping[Slot, int] = field(default_factory=dict)
    """The generation of the pod that was last seen to leave a place, while this process watched."""
    finished: frozenset[Slot] = frozenset()
    """The places whose pods had ended well when they were seen to leave."""
    gone: frozenset[Slot] = frozenset()
    """The places that are done and have no pod any more; a current PodGroup is one without them."""
    failures: tuple[Failure, ...] = ()
    job: Job | None = None
    """The job as `job.read` reads it, where somebody has done so already."""
    problems: tuple[Problem, ...] | None = None
    """What `validation.validate` says of it, queue apart, where somebody has asked already."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A write that the API server refused: the reason for the condition, and what was said."""

    reason: str
    message: str


@dataclass(slots=True)
class Roster:
    """The pods of a job by their places."""

    regular: dict[Slot, PodSeen]
    backups: dict[str, PodSeen]
    """Pods that stand by, by the name of the pod they stand by for."""
    surplus: list[PodSeen]
    """Pods in places that the job does not have (any more), and doubles."""
    standbys: list[PodSeen] = field(default_factory=list)
    """Pods that are kept ready for whatever place is lost."""
    empty: tuple[Slot, ...] = ()
    """The places that no pod has and that need one."""
    finished: frozenset[Slot] = frozenset()
    """The places whose pods have done their share, there or gone."""

    def finish(self, slots: Iterable[Slot]) -> None:
        """These places need no pod any more."""
        self.finished = frozenset(slots)
        self.empty = tuple(slot for slot in self.empty if slot not in self.finished)

    def idle(self) -> list[Slot]:
        """The places where nobody works: neither the pod nor one that takes over from it."""
        waiting = (slot for slot, pod in self.regular.items() if not self._at_work(pod))
        return [*self.empty, *(slot for slot in waiting if slot not in self.finished)]

    def _at_work(self, pod: PodSeen) -> bool:
        return pod.alive or self.relieved(pod)

    def relieved(self, pod: PodSeen) -> bool:
        """Whether the pod goes because another has taken its place over, in a hot switch."""
        standby = self.backups.get(pod.name)
        return pod.deleting and standby is not None and standby.alive


def roster(job: Job, pods: Sequence[PodSeen]) -> Roster:
    """Put the pods in their places."""
    counts = {replicas.kind: replicas.count for replicas in job.replicas}
    found = Roster({}, {}, [])
    for pod in sorted(pods, key=lambda pod: (pod.deleting, -pod.version, pod.name)):
        if pod.standby:
            found.standbys.append(pod)
        elif pod.backup:
            found.backups[pod.annotations.get(names.BACKUP_SOURCE, "")] = pod
        elif pod.slot is None or pod.slot.index >= counts.get(pod.slot.kind, 0) or pod.slot in found.regular:
            found.surplus.append(pod)
        else:
            found.regular[pod.slot] = pod
    # A pod that stands by for one that is gone is the regular one from here on.
    for source, pod in list(found.backups.items()):
        if (
            pod.slot is not None
            and pod.slot not in found.regular
            and pod.slot.index < counts.get(pod.slot.kind, 0)
        ):
            found.regular[pod.slot] = pod
            del found.backups[source]
    if len(found.regular) < job.total:
        found.empty = tuple(slot for slot in job.slots() if slot not in found.regular)
    return found
