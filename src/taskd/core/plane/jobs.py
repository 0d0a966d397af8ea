"""A job as the plane sees it: what its labels allow, which pods it has, and what others are told of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from taskd.core.faults.isolating import Scope
from taskd.core.faults.view import JobFaults, RankFault
from taskd.core.plane.faultlists import Shape
from taskd.core.plane.state import PodSeen


@dataclass(frozen=True, slots=True)
class PodView:
    """A pod of a job. `standby` is the UID of the pod that stands by for it."""

    name: str
    uid: str
    node: str = ""
    running: bool = True
    standby: str = ""
    standby_running: bool = False
    failed: bool = False
    standby_waits: str = ""
    standby_name: str = ""


@dataclass(frozen=True, slots=True)
class StandbyView:
    """A pod that is kept ready beside a job and runs."""

    name: str
    node: str


@dataclass(frozen=True, slots=True)
class JobView:
    """A job; `pods` by pod rank, without those that are not there now."""

    job_id: str
    name: str
    namespace: str
    shape: Shape
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    pods: Mapping[int, PodView] = field(default_factory=dict)
    pod_group: str = ""
    framework: str = ""
    status: str = "pending"
    suspended: bool = False
    created: int = 0
    deleted: int = 0
    rank_table: str = ""
    master_addr: str = ""
    shared_tor_ip: str = ""
    custom_id: str = ""
    mounts_trace: bool = False
    """Every pod has the profiling switches as a file."""
    standbys: tuple[StandbyView, ...] = ()
    """In the order of their numbers."""
    has_devices: bool = True
    """Its pods ask for devices, so that a device plugin keeps broken ones from them."""

    @property
    def ending(self) -> bool:
        """Tell whether pods go because they are not needed any more.

        A status of `failed` is no sign of it: it says that a pod has failed, which is what is to be answered.
        A job that has failed is not in the directory.
        """
        return self.suspended or self.deleted > 0 or self.status == "complete"

    def pods_seen(self) -> dict[int, PodSeen]:
        """The pods as the machine takes them."""
        return {
            rank: PodSeen(
                pod.name,
                pod.uid,
                pod.running,
                pod.standby,
                pod.standby_running,
                pod.failed,
                pod.standby_waits,
                pod.node,
                pod.standby_name,
            )
            for rank, pod in sorted(self.pods.items())
        }


def ready_standbys(job: JobView, isolated: Mapping[str, Scope]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The standbys that may take a place, in the order in which they do, and those that may not.

    The operator has the same order and the same rule (`core.acjob.relief`), from what its status says.
    """
    closed = {node for node, scope in isolated.items() if scope is Scope.NODE or not job.has_devices}
    ready = [each for each in job.standbys if each.node not in closed]
    ready.sort(key=lambda each: each.node in isolated)
    unfit = (each.name for each in job.standbys if each.node in closed)
    return tuple(each.name for each in ready), tuple(unfit)


def faults_here(job: JobView, faults: JobFaults) -> tuple[RankFault, ...]:
    """The faults of ranks that are where the fault is: a pod that has moved left its faults behind."""
    nodes = {node.node for node in faults.nodes}
    found = []
    for fault in faults.ranks:
        pod = job.pods.get(job.shape.pod_of(fault.rank))
        if 0 <= fault.rank < job.shape.world and pod is not None and (not pod.node or pod.node in nodes):
            found.append(fault)
    return tuple(found)
