"""Jobs of two pods with one rank each, which keep checkpoints: for what is answered by pods alone."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from taskd.testing.cluster import RealNodes
from tests.core.faults.scenes import device_info, fault
from tests.kube.operator.site import Site
from tests.train.runs import DDP

STEPS, EVERY = 60, 5
MASTER, WORKER = "j-master-0", "j-worker-0"
MOUNTED = "/user/restore/reset/config/reset.json"
GRACE = {"fault-scheduling": "grace", "pod-rescheduling": "on"}
SCRIPT = (
    "exec taskd run {script} --out {out} --steps {steps} --pause {pause}"
    " --checkpoint {out}/checkpoints:{every}"
)

Results = dict[int, tuple[dict[int, str], str]]


class Pair:
    """A job of two pods with one rank each, on two of three nodes; `pause_s` is what a step takes."""

    def __init__(
        self, cluster: RealNodes, site: Site, out: Path, plane: str = "", *, pause_s: float = 0.1
    ) -> None:
        self.cluster = cluster
        self.site = site
        self.out = out
        self._plane = plane
        self._pause_s = pause_s
        out.mkdir(parents=True)

    def submit(self, labels: dict[str, str]) -> None:
        """Apply it, and wait until it trains."""
        self.site.submit(
            {
                "apiVersion": "mindxdl.gitee.com/v1",
                "kind": "AscendJob",
                "metadata": {"name": "j", "labels": {"framework": "pytorch", **labels}},
                "spec": {"replicaSpecs": {"Master": self._role(), "Worker": self._role()}},
            }
        )

    def _role(self) -> dict[str, Any]:
        parts = self.cluster.training_volumes([self.out])
        script = SCRIPT.format(script=DDP, out=self.out, steps=STEPS, every=EVERY, pause=self._pause_s)
        container = parts.container("/bin/bash", "-c", script)
        container["ports"] = [{"containerPort": 9601, "name": "taskd-port"}]
        if self._plane:
            container["env"] = [*container["env"], {"name": "TASKD_PLANE", "value": self._plane}]
        apart = {
            "labelSelector": {"matchLabels": {"job-name": "j"}},
            "topologyKey": "kubernetes.io/hostname",
        }
        affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}}
        spec = {"affinity": affinity, "containers": [container], "volumes": parts.volumes}
        return {"replicas": 1, "restartPolicy": "Never", "template": {"spec": spec}}

    def entries(self, rank: int) -> list[dict[str, Any]]:
        file = self.out / f"ledger-{rank}.jsonl"
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def wait(self, holds: Any, what: str, limit_s: float = 150) -> None:
        def asked() -> bool:
            assert self.site.state("j") != "Failed", self.words()
            return bool(holds())

        try:
            self.cluster.wait(asked, timeout_s=limit_s, every_s=0.1)
        except TimeoutError as error:
            raise AssertionError(f"waited for {what}:\n{self.words()}") from error

    def wait_step(self, step: int) -> None:
        self.wait(
            lambda: all((self.entries(r) or [{"step": -1}])[-1]["step"] >= step for r in (0, 1)),
            f"step {step}",
        )

    def finish(self) -> None:
        (self.out / "hurry").touch()
        self.wait(lambda: self.site.state("j") == "Succeeded", "its end")

    def run(self) -> Results:
        """What each rank computed at each step, the last time it did, and what it ended with."""
        return {
            rank: (
                {entry["step"]: entry["loss"] for entry in self.entries(rank)},
                (self.out / f"digest-{rank}.txt").read_text(),
            )
            for rank in (0, 1)
        }

    def lives(self, rank: int) -> list[list[dict[str, Any]]]:
        """What each process of a rank wrote down, one after the other.

        Two pods may give their processes the same number, so a step that comes again begins a new one too.
        """
        found: list[list[dict[str, Any]]] = []
        for entry in self.entries(rank):
            last = found[-1][-1] if found else None
            if last is None or entry["pid"] != last["pid"] or entry["step"] <= last["step"]:
                found.append([])
            found[-1].append(entry)
        return found

    def reset(self) -> dict[str, Any]:
        """What the job's reset-config says in the cluster."""
        path = f"/api/v1/namespaces/{self.site.namespace}/configmaps/reset-config-j"
        found: dict[str, Any] = json.loads(self.cluster.api.get(path)["data"]["reset.json"])
        return found

    def exec(self, pod: str, *command: str) -> str:
        return self.cluster.kubectl("exec", "-n", self.site.namespace, pod, "--", *command)

    def words(self) -> str:
        parts = [self.cluster.kubectl("get", "pods,acjob", "-n", self.site.namespace, "-o", "wide")]
        parts.append(json.dumps(self.site.status("j"), indent=1))
        for pod in self.site.pods("j"):
            said = self.cluster.kubectl("logs", "-n", self.site.namespace, pod, check=False)
            parts.append(f"--- {pod}\n{said[-3000:]}")
        return "\n".join(parts)


@contextmanager
def reported_device(
    cluster: RealNodes, node: str, code: str = "80E18005", level: str = "SeparateNPU"
) -> Iterator[None]:
    """A device plugin reports a device of a node as out, or slow, with a right check code."""
    path = "/api/v1/namespaces/kube-system/configmaps"
    metadata = {"name": f"mindx-dl-deviceinfo-{node}", "labels": {"mx-consumer-cim": "true"}}
    reported = device_info((fault(3, code, level),))
    cluster.api.create(path, {"metadata": metadata, "data": reported})
    try:
        yield
    finally:
        cluster.api.delete(f"{path}/{metadata['name']}")
