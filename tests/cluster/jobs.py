"""AscendJobs whose pods run `taskd run`, and what they wrote down."""

import json
from pathlib import Path
from typing import Any

from taskd.testing.cluster import PodProcess, RealNodes
from tests.kube.operator.site import ROOT, Site
from tests.train.runs import DDP

STEPS = 40
PODS = ("j-master-0", "j-worker-0", "j-worker-1")
PER_POD = 2
WORLD = len(PODS) * PER_POD
NAME = "j"

# Where a pod's own address is the master's, the master does not go through its own Service.
SCRIPT = """
if [ "$RANK" = 0 ]; then export MASTER_ADDR=$POD_IP; fi
exec taskd run --nnodes $((WORLD_SIZE / LOCAL_WORLD_SIZE)) --node-rank $RANK \
  --nproc-per-node $LOCAL_WORLD_SIZE --master-addr $MASTER_ADDR --master-port $MASTER_PORT \
  --spares {spares} {script} --out {out} --steps {steps} --pause {pause}
"""

SHORT = "exec taskd run --spares {spares} {script} --out {out} --steps {steps} --pause {pause}"


class PodJob:
    """One AscendJob of a master and two workers with two ranks each, which keep a ledger in `out`."""

    def __init__(
        self,
        cluster: RealNodes,
        site: Site,
        out: Path,
        *,
        pause_s: float = 0.05,
        spares: int = 0,
        plane: str = "",
        standbys: int = 0,
        short: bool = False,
    ) -> None:
        self.cluster = cluster
        self.site = site
        self.out = out
        self._pause_s = pause_s
        self._spares = spares  # each pod with some imports torch once more
        self._standbys = standbys
        self._script = SHORT if standbys or short else SCRIPT
        self._plane = plane  # where a control plane is, for a job that has one
        out.mkdir(parents=True, exist_ok=True)

    def submit(self, strategy: str) -> None:
        """Apply it."""
        notes = {"taskd.io/processes-per-pod": str(PER_POD), "recover-strategy": strategy}
        notes |= {"taskd.io/standby-pods": str(self._standbys)} if self._standbys else {}
        roles = {"Master": self._role(1), "Worker": self._role(len(PODS) - 1)}
        self.site.submit(
            {
                "apiVersion": "mindxdl.gitee.com/v1",
                "kind": "AscendJob",
                "metadata": {"name": NAME, "labels": self._labels(), "annotations": notes},
                "spec": {"runPolicy": {"backoffLimit": 3}, "replicaSpecs": roles},
            }
        )

    def _labels(self) -> dict[str, str]:
        return {"framework": "pytorch", **({"fault-scheduling": "force"} if self._plane else {})}

    def _role(self, count: int) -> dict[str, Any]:
        parts = self.cluster.training_volumes([self.out])
        script = self._script.format(
            script=DDP, out=self.out, steps=STEPS, pause=self._pause_s, spares=self._spares
        )
        container = parts.container("/bin/bash", "-c", script)
        container["ports"] = [
            {"containerPort": 2222, "name": "ascendjob-port"},
            {"containerPort": 9601, "name": "taskd-port"},
        ]
        if self._plane:
            container["env"] = [*container.get("env", ()), {"name": "TASKD_PLANE", "value": self._plane}]
        spec = {"containers": [container], "volumes": parts.volumes}
        return {"replicas": count, "restartPolicy": "Never", "template": {"spec": spec}}

    # ---------------------------------------------------------------------------------------- looking

    def entries(self, rank: int) -> list[dict[str, Any]]:
        """What a rank has written of its committed steps."""
        file = self.out / f"ledger-{rank}.jsonl"
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def step(self) -> int:
        """The last step that every rank has committed."""
        return min(int((self.entries(rank) or [{"step": -1}])[-1]["step"]) for rank in range(WORLD))

    def wait_step(self, step: int, timeout_s: float = 150) -> None:
        """Wait until every rank has committed a step."""

        def reached() -> bool:
            assert self.site.state(NAME) not in {"Failed", "Succeeded"}, self.words()
            return self.step() >= step

        try:
            self.cluster.wait(reached, timeout_s=timeout_s, every_s=0.05)
        except TimeoutError as error:
            raise AssertionError(f"step {self.step()}, not {step}:\n{self.words()}") from error

    def finish(self, timeout_s: float = 150) -> None:
        """Let the rest go quickly, and see that the job succeeds."""
        (self.out / "hurry").touch()

        def over() -> bool:
            state = self.site.state(NAME)
            assert state != "Failed", self.words()
            return state == "Succeeded"

        try:
            self.cluster.wait(over, timeout_s=timeout_s, every_s=0.1)
        except TimeoutError as error:
            raise AssertionError(f"{self.site.state(NAME)}, step {self.step()}:\n{self.words()}") from error

    def processes(self, pod: str) -> dict[int, PodProcess]:
        """The processes that train in a pod, by rank, found by the ids that they wrote down."""
        first = PODS.index(pod) * PER_POD
        inside = {self.entries(rank)[-1]["pid"]: rank for rank in range(first, first + PER_POD)}
        found = self.cluster.pids_in_pod(self.site.namespace, pod)
        return {inside[each.pid_inside]: each for each in found if each.pid_inside in inside}

    def all_processes(self) -> dict[int, PodProcess]:
        """The processes that train, of all pods, by rank."""
        return {rank: each for pod in PODS for rank, each in self.processes(pod).items()}

    def words(self) -> str:
        """What everybody says, for a failed test."""
        parts = [self.cluster.kubectl("get", "pods,acjob", "-n", self.site.namespace, "-o", "wide")]
        parts.append(json.dumps(self.site.status(NAME), indent=1))
        for pod in self.site.pods(NAME):
            log = self.cluster.kubectl("logs", "-n", self.site.namespace, pod, check=False)
            parts.append(f"--- {pod}\n{log[-3000:]}")
            look = 'find "$HOME/.local/state/taskd" -name "*.log" -exec tail -n 12 {} +'
            said = self.cluster.kubectl(
                "exec", "-n", self.site.namespace, pod, "--", "sh", "-c", look, check=False
            )
            parts.append(said[-6000:])
        return "\n".join(parts)


def install_definition(cluster: RealNodes) -> None:
    """Put the AscendJob type into the cluster."""
    cluster.apply_yaml((ROOT / "deploy" / "crd" / "ascendjobs.yaml").read_text())
