"""An AscendJob that trains in pods and keeps a ledger, and what there is to see of it.

A fault comes from outside: a process is killed by the machine, a pod is deleted, a device is reported. What
became of it is read as a user would, with kubectl, and from what the ranks wrote down.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from taskd.testing.cluster.devices import RESOURCE
from taskd.testing.cluster.real_nodes import PodProcess, RealNodes
from taskd.testing.kube.client import Object

JOBS: Final = "/apis/mindxdl.gitee.com/v1/namespaces/{}/ascendjobs"
ENDED: Final = frozenset({"Failed", "Succeeded"})
SHORT_WAY: Final = "exec taskd run --spares {spares} {command}"
"""How a pod starts: everything else is in the environment that the operator gives it."""


@dataclass(frozen=True)
class JobForm:
    """What a job looks like. ``command`` is what `taskd run` starts; ``start`` may be another shell line."""

    command: str
    strategy: str = ""
    pods: int = 3
    per_pod: int = 2
    spares: int = 0
    """Warm processes in each pod; each of them has imported torch."""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    plane: str = ""
    """Where the control plane is, for a job that has one."""
    secure: bool = False
    """The plane asks for certificates and has its documented name: pods know what the operator tells them."""
    devices: bool = False
    """Ask for a device for each process."""
    start: str = SHORT_WAY
    writable: Sequence[Path] = ()
    name: str = "j"
    backoff: int = 3
    scheduling: str = "grace"
    """Its label `fault-scheduling`, where it has a control plane; none if empty."""
    grace_s: int = 5
    """How long its pods may take to end once they are told to."""


class PodJob:
    """One AscendJob of a master and workers whose ranks write ``ledger-<rank>.jsonl`` into `out`."""

    def __init__(self, cluster: RealNodes, namespace: str, out: Path, form: JobForm) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.out = out
        self.form = form
        self.world = form.pods * form.per_pod
        self.pods = [f"{form.name}-master-0", *(f"{form.name}-worker-{n}" for n in range(form.pods - 1))]
        out.mkdir(parents=True, exist_ok=True)

    # --------------------------------------------------------------------------------------- submitting

    def manifest(self) -> Object:
        """Return the job as it is applied."""
        form = self.form
        labels = {"framework": "pytorch"}
        if form.plane and form.scheduling:
            labels["fault-scheduling"] = form.scheduling
        notes = {} if form.devices else {"taskd.io/processes-per-pod": str(form.per_pod)}
        if form.strategy:
            notes["recover-strategy"] = form.strategy
        roles = {"Master": self._role(1), "Worker": self._role(form.pods - 1)}
        return {
            "apiVersion": "mindxdl.gitee.com/v1",
            "kind": "AscendJob",
            "metadata": {
                "name": form.name,
                "namespace": self.namespace,
                "labels": {**labels, **form.labels},
                "annotations": {**notes, **form.annotations},
            },
            "spec": {"runPolicy": {"backoffLimit": form.backoff}, "replicaSpecs": roles},
        }

    def submit(self) -> None:
        """Apply it."""
        self.cluster.apply_yaml(json.dumps(self.manifest()))

    def _role(self, count: int) -> Object:
        form = self.form
        parts = self.cluster.training_volumes([self.out, *form.writable])
        shell = form.start.format(spares=form.spares, command=form.command)
        container = parts.container("/bin/bash", "-c", shell)
        container["ports"] = [
            {"containerPort": 2222, "name": "ascendjob-port"},
            {"containerPort": 9601, "name": "taskd-port"},
        ]
        told = {"TASKD_PLANE": form.plane} if form.plane and not form.secure else {}
        env = {**told, **form.env}
        container["env"] = [*container["env"], *({"name": name, "value": env[name]} for name in env)]
        if form.devices:
            amount = {RESOURCE: str(form.per_pod)}
            requests = {**container["resources"]["requests"], **amount}
            container["resources"] = {"limits": amount, "requests": requests}
        spec = {
            "terminationGracePeriodSeconds": form.grace_s,
            "containers": [container],
            "volumes": parts.volumes,
        }
        return {"replicas": count, "restartPolicy": "Never", "template": {"spec": spec}}

    # ------------------------------------------------------------------------------------------ looking

    def status(self) -> Object:
        """Return the job's status."""
        found = self.cluster.api.get(f"{JOBS.format(self.namespace)}/{self.form.name}")
        return found.get("status") or {}

    def state(self) -> str:
        """Return the type of its newest condition."""
        conditions = self.status().get("conditions") or [{"type": ""}]
        return str(conditions[-1]["type"])

    def events(self, reason: str = "") -> list[str]:
        """Return what `kubectl describe` shows of the job, of one reason or of all."""
        found = self.cluster.api.items(f"/api/v1/namespaces/{self.namespace}/events")
        return [
            event["message"]
            for event in found
            if event["involvedObject"]["kind"] == "AscendJob"
            and event["involvedObject"]["name"] == self.form.name
            and reason in {"", event["reason"]}
        ]

    def timeline(self) -> list[dict[str, Any]]:
        """Return the incidents as the job tells them, in whichever pod its manager is."""
        for pod in self.cluster.api.items(f"/api/v1/namespaces/{self.namespace}/pods"):
            command = ("taskd", "timeline", "--output", "json")
            name = str(pod["metadata"]["name"])
            said = self.cluster.kubectl("exec", "-n", self.namespace, name, "--", *command, check=False)
            with suppress(ValueError):
                found: list[dict[str, Any]] = json.loads(said)
                return found
        return []

    def entries(self, rank: int) -> list[dict[str, Any]]:
        """Return what a rank has written of its committed steps."""
        file = self.out / f"ledger-{rank}.jsonl"
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def step(self) -> int:
        """Return the last step that every rank has committed."""
        return min(int((self.entries(rank) or [{"step": -1}])[-1]["step"]) for rank in range(self.world))

    def committed(self, rank: int) -> dict[int, float]:
        """Return when a rank committed each of its steps, by this machine's monotonic clock."""
        return {int(entry["step"]): float(entry["at"]) for entry in self.entries(rank)}

    def next_step_at(self, after: float) -> float | None:
        """Return when the last rank committed the first step that all began after a moment; None if not yet.

        Of two steps around the moment the first may have been committed by some before it.
        """
        times = [self.committed(rank) for rank in range(self.world)]
        whole = set.intersection(*(set(each) for each in times))
        young = [max(each[step] for each in times) for step in whole if min(t[step] for t in times) > after]
        return min(young, default=None)

    def wait_step(self, step: int, timeout_s: float = 150) -> None:
        """Wait until every rank has committed a step."""

        def reached() -> bool:
            if self.state() in ENDED:
                raise AssertionError(self.words())
            return self.step() >= step

        self._wait(reached, timeout_s, f"step {step}")

    def finish(self, timeout_s: float = 150) -> None:
        """Let the rest go quickly, and see that the job succeeds."""
        (self.out / "hurry").touch()

        def over() -> bool:
            state = self.state()
            if state == "Failed":
                raise AssertionError(self.words())
            return state == "Succeeded"

        self._wait(over, timeout_s, "the end")

    def _wait(self, what: Callable[[], bool], timeout_s: float, name: str) -> None:
        try:
            self.cluster.wait(what, timeout_s=timeout_s, every_s=0.05)
        except TimeoutError as error:
            said = f"{name} was not reached; {self.state()}, step {self.step()}:\n{self.words()}"
            raise AssertionError(said) from error

    # ---------------------------------------------------------------------------------------- processes

    def places(self) -> dict[int, str]:
        """Return which pod has each place now, by the rank of the pod."""
        found = {}
        for pod in self.cluster.api.items(f"/api/v1/namespaces/{self.namespace}/pods"):
            notes = pod["metadata"].get("annotations") or {}
            if pod["metadata"].get("deletionTimestamp") or notes.get("podType") in {"backup", "standby"}:
                continue
            found[int(notes["hccl/rankIndex"])] = str(pod["metadata"]["name"])
        return found

    def processes(self, place: int) -> dict[int, PodProcess]:
        """Return the processes that train in a pod, by rank, found by the ids that they wrote down."""
        first = place * self.form.per_pod
        inside = {self.entries(rank)[-1]["pid"]: rank for rank in range(first, first + self.form.per_pod)}
        found = self.cluster.pids_in_pod(self.namespace, self.places()[place])
        return {inside[each.pid_inside]: each for each in found if each.pid_inside in inside}

    def all_processes(self) -> dict[int, PodProcess]:
        """Return the processes that train, of all pods, by rank."""
        return {rank: each for place in range(self.form.pods) for rank, each in self.processes(place).items()}

    def words(self) -> str:
        """Return what everybody says, for a failed test."""
        parts = [self.cluster.kubectl("get", "pods,acjob", "-n", self.namespace, "-o", "wide")]
        parts.append(json.dumps(self.status(), indent=1))
        parts.append("\n".join(self.events()))
        for pod in self.cluster.api.items(f"/api/v1/namespaces/{self.namespace}/pods"):
            name = str(pod["metadata"]["name"])
            log = self.cluster.kubectl("logs", "-n", self.namespace, name, check=False)
            parts.append(f"--- {name}\n{log[-3000:]}")
            look = 'find "$HOME/.local/state/taskd" -name "*.log" -exec tail -n 30 {} +'
            said = self.cluster.kubectl(
                "exec", "-n", self.namespace, name, "--", "sh", "-c", look, check=False
            )
            parts.append(said[-9000:])
        return "\n".join(parts)
