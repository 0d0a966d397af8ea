"""A small cluster without machinery: carries out decisions on values, so that whole histories can be told."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from taskd.core.acjob import actions as acts
from taskd.core.acjob import job as jobs
from taskd.core.acjob import names, pods, standbys, switching
from taskd.core.acjob.avoiding import closed
from taskd.core.acjob.decide import decide
from taskd.core.acjob.job import Slot
from taskd.core.acjob.seen import Ended, Failure, Nodes, PodGroupSeen, PodSeen, ServiceSeen, Snapshot

NOW = 1_800_000_000.0


def raw_job(**changes: Any) -> dict[str, Any]:
    """A PyTorch job of one Master and `workers` Workers; `labels`, `policy` and others can be given."""
    workers = changes.get("workers", 1)
    container = {"name": "ascend", "image": "train:1"}
    spec = {
        "restartPolicy": changes.get("restart", "Never"),
        "template": {"spec": {"containers": [container]}},
    }
    replicas: dict[str, Any] = {"Master": {"replicas": 1, **spec}}
    if workers:
        replicas["Worker"] = {"replicas": workers, **copy.deepcopy(spec)}
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {
            "name": "test-job",
            "namespace": "default",
            "uid": "u-1",
            "generation": 1,
            "labels": {"framework": "pytorch", **changes.get("labels", {})},
            "annotations": changes.get("annotations", {}),
        },
        "spec": {
            "replicaSpecs": replicas,
            "runPolicy": changes.get("policy", {}),
            "successPolicy": changes.get("success", ""),
        },
    }


class Killed(Exception):
    """The controller died at this write."""


@dataclass
class Play:
    """A job, its pods, and a controller that can die at any write."""

    raw: dict[str, Any]
    gang: bool = True
    phase: str = "Running"
    pods: dict[str, PodSeen] = field(default_factory=dict)
    group: PodGroupSeen | None = None
    service: ServiceSeen | None = None
    extras: bool = False
    gone: frozenset[str] = frozenset()
    unreachable: frozenset[str] = frozenset()
    departed: dict[Slot, int] = field(default_factory=dict)
    finished: set[Slot] = field(default_factory=set)
    missing_queue: str | None = None
    now: float = NOW
    writes: int = 0
    kill_at: int | None = None
    refuse: Callable[[acts.Action], Failure | None] = lambda _action: None
    deleted: list[str] = field(default_factory=list)
    own: set[str] = field(default_factory=set)
    """The UIDs of pods that the controller itself had deleted."""
    stuck: frozenset[str] = frozenset()
    """Pods whose kubelet does not answer: deleted with a grace period, they stay."""
    deleted_job: bool = False
    born: int = 0
    wake_at: float | None = None

    # ------------------------------------------------------------------------------ the controller

    def reconcile(self) -> None:
        """Look, decide, do, until nothing is left to do."""
        failures: tuple[Failure, ...] = ()
        for _ in range(40):
            decision = decide(self.seen(failures), self.now)
            self.wake_at = decision.wake_at
            if decision.status_first:
                self._store(decision)
                if not decision.actions:
                    continue
            if not decision.actions or failures:
                self._store(decision)
                return
            done = [self._do(action) for action in decision.actions]
            failures = tuple(failure for failure in done if failure is not None)
            if self.deleted_job:
                return
        raise AssertionError("the decisions do not come to an end")

    def crash(self) -> None:
        """A new controller: it remembers nothing."""
        self.departed = {}
        self.finished = set()
        self.kill_at = None

    def seen(self, failures: tuple[Failure, ...] = ()) -> Snapshot:
        return Snapshot(
            raw=self.raw,
            pods=list(self.pods.values()),
            gang=self.gang,
            pod_group=self.group,
            service=self.service,
            extras=self.extras,
            nodes=Nodes(self.gone, self.unreachable),
            missing_queue=self.missing_queue,
            departed=dict(self.departed),
            finished=frozenset(self.finished),
            failures=failures,
        )

    def _write(self) -> None:
        self.writes += 1
        if self.kill_at is not None and self.writes == self.kill_at:
            raise Killed

    def _store(self, decision: acts.Decision) -> None:
        content = decision.status.as_json()
        theirs = {"requests", "isolatedNodes"} & self.raw.get("status", {}).keys()
        content |= {name: self.raw["status"][name] for name in theirs if self.raw["status"][name]}
        if content != self.raw.get("status"):
            self._write()
            self.raw["status"] = content
        self.finished = set()

    def _do(self, action: acts.Action) -> Failure | None:
        refused = self.refuse(action)
        if refused is not None:
            return refused
        job = jobs.read(self.raw)
        match action:
            case acts.SyncPodGroup():
                self._write()
                self.group = PodGroupSeen(phase=self.phase)
            case acts.SyncService(ip=ip):
                self._write()
                self.service = ServiceSeen(ip or f"10.0.0.{self.writes}")
            case acts.SyncExtras():
                self._write()
                self.extras = True
            case acts.CreatePods(slots=slots, version=version):
                for slot in slots:
                    self._write()
                    self._born(job.pod_name(slot), slot, version, _kept_off(action))
            case acts.CreateStandbys(numbers=numbers, version=version):
                marks = {names.POD_TYPE: names.STANDBY, **_kept_off(action)}
                for number in numbers:
                    self._write()
                    self._born(standbys.pod_name(job, number), None, version, marks)
            case acts.AssignStandby():
                self._write()
                self._mark(action.name, action.annotations)
                self.change(action.name, slot=action.slot, version=action.version)
            case acts.CreateBackup():
                self._write()
                marks = {
                    names.HOT_SWITCH: "true",
                    names.POD_TYPE: names.BACKUP,
                    names.BACKUP_SOURCE: action.source,
                }
                name = switching.backup_name(action.source, action.source_uid)
                self._born(name, action.slot, action.version, marks)
            case acts.DeletePod():
                self._write()
                self.deleted.append(action.name)
                self.own.add(action.uid)
                if action.name in self.stuck and action.grace_s != 0:
                    self.change(action.name, deleting=True, deleted_at=self.now)
                else:
                    self.pods.pop(action.name, None)
            case acts.BuryPod(name=name, uid=uid):
                self._write()
                if uid in self.own:
                    self.pods.pop(name, None)
                else:
                    self.lose(name)
            case acts.AnnotatePod():
                self._write()
                self._mark(action.name, action.annotations)
            case acts.DeletePodGroup():
                self._write()
                self.group = None
            case acts.DeleteService():
                self._write()
                self.service = None
            case acts.DeleteJob():
                self._write()
                self.deleted_job = True
        return None

    def _mark(self, name: str, annotations: Mapping[str, str | None]) -> None:
        kept = {**self.pods[name].annotations, **annotations}
        self.change(name, annotations={key: value for key, value in kept.items() if value is not None})

    def _born(self, name: str, slot: Slot | None, version: int, marks: dict[str, str]) -> None:
        assert name not in self.pods, f"{name} is created twice"
        self.born += 1
        shape = {names.SHAPE: pods.shape(jobs.read(self.raw))}
        self.pods[name] = PodSeen(name, f"uid-{self.born}", slot, version, annotations={**shape, **marks})

    # -------------------------------------------------------------------------------- the cluster

    def change(self, name: str, **changes: Any) -> None:
        self.pods[name] = replace(self.pods[name], **changes)

    def run_all(self) -> None:
        """Every pod that waits starts."""
        for name, pod in self.pods.items():
            if pod.phase == "Pending" and not pod.deleting:
                self.change(name, phase="Running", node=pod.node or "node-1")

    def fail(self, name: str, code: int = 1, **more: Any) -> None:
        self.change(name, phase="Failed", ended=(Ended("ascend", code),), **more)

    def lose(self, name: str) -> None:
        """Somebody deletes the pod, and the controller sees it go."""
        pod = self.pods.pop(name)
        if pod.slot is None:
            return  # a standby: nobody misses it
        if pod.phase == "Succeeded":
            self.finished.add(pod.slot)
        elif not pod.backup:
            self.departed[pod.slot] = pod.version

    def start(self) -> Play:
        """Bring the job to Running."""
        self.reconcile()
        self.run_all()
        self.reconcile()
        assert self.state == "Running", self.status
        return self

    # ----------------------------------------------------------------------------------- questions

    @property
    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.raw.get("status", {})
        return found

    @property
    def last(self) -> dict[str, str]:
        found: dict[str, str] = self.status["conditions"][-1]
        return found

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """The counts of pods that are not zero."""
        listed = self.status["replicaStatuses"].items()
        return {kind: {name: count for name, count in counts.items() if count} for kind, counts in listed}

    @property
    def state(self) -> str:
        return self.last["type"]

    def condition(self, kind: str) -> dict[str, str] | None:
        return next((entry for entry in self.status["conditions"] if entry["type"] == kind), None)


def _kept_off(action: acts.CreatePods | acts.CreateStandbys) -> dict[str, str]:
    """The pods here ask for no device, so they are excluded from all of these nodes."""
    nodes = closed(action.avoid, has_device=False)
    return {names.AVOIDS: ",".join(nodes)} if nodes else {}
