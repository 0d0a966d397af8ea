"""A cluster in memory for the control plane: jobs, faults, ConfigMaps, and whoever does what is asked.

It does what a cluster does and no more: nothing happens to a pod until a test, or `obey`, makes it happen.
Everything that the plane had done to it is kept in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from taskd.core.acjob.names import RESET_CONFIG
from taskd.core.faults.isolating import Scope
from taskd.core.faults.view import Health, JobFaults, NodeFaults, RankFault
from taskd.core.plane.faultlists import Shape
from taskd.core.plane.jobs import JobView, PodView
from taskd.core.plane.state import Ask, RecordIncident, SetAnnotation, SetLabel, Wish
from taskd.wire.telling import PublicFaultRequest


class MemoryCluster:
    """Jobs, faults, ConfigMaps, hands and keeper of a plane, all in one."""

    def __init__(self) -> None:
        """Make an empty cluster."""
        self._jobs: dict[str, JobView] = {}
        self.faults: dict[str, JobFaults] = {}
        self.isolated: dict[str, Scope] = {}
        self._job_listeners: list[Callable[[str], None]] = []
        self.fault_listeners: list[Callable[[JobFaults], None]] = []
        self.reset_listeners: list[Callable[[str, str, Mapping[str, str]], None]] = []
        self._born = 0
        self.config_maps: dict[tuple[str, str], dict[str, str]] = {}
        self.states: dict[str, bytes] = {}
        self.asks: list[tuple[str, Ask]] = []
        self.labels: list[tuple[str, SetLabel]] = []
        self.annotations: list[tuple[str, SetAnnotation]] = []
        self.incidents: list[tuple[str, RecordIncident]] = []
        self.public: list[PublicFaultRequest] = []
        self.obedient = False
        """Do at once what is asked for: replaced pods run, standbys run, old pods go."""
        self.write_delay_s = 0.0

    # ------------------------------------------------------------------------------------ what a test does

    def add_job(
        self,
        job_id: str,
        strategies: str = "recover",
        *,
        pods: int = 2,
        ranks_per_pod: int = 8,
        labels: Mapping[str, str] | None = None,
    ) -> JobView:
        """Add a job whose pods all run, each on a node of its own."""
        name = f"name-{job_id}"
        given = {"fault-scheduling": "grace", "framework": "pytorch", **(labels or {})}
        job = JobView(
            job_id=job_id,
            name=name,
            namespace="default",
            shape=Shape(pods, ranks_per_pod),
            labels={key: value for key, value in given.items() if value},
            annotations={"recover-strategy": strategies} if strategies else {},
            pods={rank: self._new_pod(name, rank) for rank in range(pods)},
            pod_group=f"group-{job_id}",
            framework="pytorch",
            status="running",
        )
        self.put_job(job)
        return job

    def put_job(self, job: JobView) -> None:
        """Add or change a job."""
        self._jobs[job.job_id] = job
        self._tell_job(job.job_id)

    def remove_job(self, job_id: str) -> None:
        """Delete a job."""
        del self._jobs[job_id]
        self._tell_job(job_id)

    def replace_pods(self, job_id: str, pods: Iterable[int] | None = None) -> None:
        """Have pods replaced by new ones that run on other nodes; all pods if none are named."""
        job = self._jobs[job_id]
        ranks = range(job.shape.pods) if pods is None else pods
        new = {rank: self._new_pod(job.name, rank) for rank in ranks}
        self.put_job(replace(job, pods={**job.pods, **new}))

    def lose_pods(self, job_id: str, pods: Iterable[int]) -> None:
        """Have pods gone."""
        job = self._jobs[job_id]
        gone = set(pods)
        self.put_job(replace(job, pods={rank: pod for rank, pod in job.pods.items() if rank not in gone}))

    def stand_by(self, job_id: str, pod: int) -> None:
        """Have a standby of a pod run."""
        job = self._jobs[job_id]
        self._born += 1
        standby = replace(job.pods[pod], standby=f"uid-{self._born}", standby_running=True)
        self.put_job(replace(job, pods={**job.pods, pod: standby}))

    def drop_standby(self, job_id: str, pod: int) -> None:
        """Have the standby of a pod gone."""
        job = self._jobs[job_id]
        self.put_job(
            replace(job, pods={**job.pods, pod: replace(job.pods[pod], standby="", standby_running=False)})
        )

    def break_devices(self, job_id: str, *faults: RankFault, health: Health = Health.UNHEALTHY) -> None:
        """Have these faults, and no others, on the nodes where the ranks are now."""
        job = self._jobs[job_id]
        names = sorted({job.pods[job.shape.pod_of(fault.rank)].node for fault in faults})
        nodes = tuple(NodeFaults(name, "", "", health, ()) for name in names)
        view = JobFaults(job_id, health if faults else Health.HEALTHY, nodes, tuple(faults))
        self.faults[job_id] = view
        for listener in list(self.fault_listeners):
            listener(view)

    def _new_pod(self, name: str, rank: int) -> PodView:
        self._born += 1
        return PodView(f"{name}-{rank}", f"uid-{self._born}", f"node-{self._born}")

    def _tell_job(self, job_id: str) -> None:
        for listener in list(self._job_listeners):
            listener(job_id)

    # ------------------------------------------------------------------------------ directory and ConfigMaps

    def find(self, job_id: str) -> JobView | None:
        """Return a job by its id."""
        return self._jobs.get(job_id)

    def named(self, namespace: str, name: str) -> JobView | None:
        """Return a job by its name."""
        found = (job for job in self._jobs.values() if (job.namespace, job.name) == (namespace, name))
        return next(found, None)

    def jobs(self) -> Iterable[JobView]:
        """Return all jobs."""
        return list(self._jobs.values())

    def listen(self, listener: Callable[[str], None]) -> Callable[[], None]:
        """Have a listener told of changed jobs."""
        self._job_listeners.append(listener)
        return lambda: self._job_listeners.remove(listener)

    async def read(self, namespace: str, name: str) -> Mapping[str, str] | None:
        """Return the data of a ConfigMap."""
        return self.config_maps.get((namespace, name))

    async def write(self, job: JobView, name: str, data: Mapping[str, str]) -> None:
        """Write a ConfigMap, as late as the cluster is slow."""
        await asyncio.sleep(self.write_delay_s)
        self.put_config_map(job, name, data)

    def resets(self, namespace: str, job: str) -> Mapping[str, str]:
        """Return what a job's reset-config says."""
        return self.config_maps.get((namespace, f"{RESET_CONFIG}{job}"), {})

    def listen_for_resets(
        self, listener: Callable[[str, str, Mapping[str, str]], None]
    ) -> Callable[[], None]:
        """Have a listener told of changed reset-configs."""
        self.reset_listeners.append(listener)
        return lambda: self.reset_listeners.remove(listener)

    def put_config_map(self, job: JobView, name: str, data: Mapping[str, str]) -> None:
        """Write a ConfigMap, as a device plugin does."""
        self.config_maps.setdefault((job.namespace, name), {}).update(data)
        if name.startswith(RESET_CONFIG):
            for listener in list(self.reset_listeners):
                listener(job.namespace, job.name, self.config_maps[job.namespace, name])

    # --------------------------------------------------------------------------------------- hands and keeper

    async def ask(self, job: JobView, ask: Ask) -> None:
        """Note a wish, and fulfil it if the cluster is obedient."""
        self.asks.append((job.job_id, ask))
        if not self.obedient or job.job_id not in self._jobs:
            return
        match ask.wish:
            case Wish.REPLACE | Wish.REMOVE_OLD:
                pods = self._jobs[job.job_id].pods
                self.replace_pods(
                    job.job_id, [rank for rank in ask.pods if pods[rank].uid == ask.origin.get(rank)]
                )
            case Wish.RESTART_JOB:
                self.replace_pods(job.job_id)
            case Wish.STANDBY:
                self.stand_by(job.job_id, ask.pods[0])
            case Wish.DROP_STANDBY:
                self.drop_standby(job.job_id, ask.pods[0])
            case Wish.KEEP:
                pass

    async def hurry(self, job: JobView) -> None:
        """Nothing here reads ConfigMaps late."""

    async def set_label(self, job: JobView, label: SetLabel) -> None:
        """Note a label."""
        self.labels.append((job.job_id, label))

    async def set_annotation(self, job: JobView, annotation: SetAnnotation) -> None:
        """Note an annotation."""
        self.annotations.append((job.job_id, annotation))

    async def record(self, job: JobView, incident: RecordIncident) -> None:
        """Note an incident."""
        self.incidents.append((job.job_id, incident))

    async def load(self) -> Mapping[str, bytes]:
        """Return the kept states."""
        return dict(self.states)

    async def save(self, job_id: str, state: bytes) -> None:
        """Keep a state, as late as the cluster is slow."""
        await asyncio.sleep(self.write_delay_s)
        self.states[job_id] = state

    async def forget(self, job_id: str) -> None:
        """Drop a state."""
        self.states.pop(job_id, None)


class MemoryFaults:
    """The fault centre of a cluster in memory."""

    def __init__(self, cluster: MemoryCluster) -> None:
        """Tell of the faults that tests make."""
        self._cluster = cluster

    def view(self, job_id: str) -> JobFaults:
        """Return the faults of a job."""
        return self._cluster.faults.get(job_id, JobFaults(job_id, Health.HEALTHY, (), ()))

    def isolated(self, nodes: Iterable[str], *, ignores_sub_health: bool) -> Mapping[str, Scope]:  # noqa: ARG002 - the plane asks so
        """Return those of the nodes that a test has isolated."""
        return {node: self._cluster.isolated[node] for node in nodes if node in self._cluster.isolated}

    def listen(self, listener: Callable[[JobFaults], None]) -> Callable[[], None]:
        """Have a listener told of changed views."""
        listeners = self._cluster.fault_listeners
        listeners.append(listener)
        return lambda: listeners.remove(listener)

    def send_public(self, request: PublicFaultRequest) -> tuple[int, str]:
        """Note public faults."""
        self._cluster.public.append(request)
        return 0, ""
