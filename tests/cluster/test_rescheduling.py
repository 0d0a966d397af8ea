"""Pod-level rescheduling in real pods, without any recovery strategy: a device fails, and only its pod moves.

The fault is a device plugin's ConfigMap. The processes in the other pod are started again, from their last
checkpoint, by the manager that the plane has refused to speak with.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from taskd.testing.cluster import RealNodes
from tests.cluster.conftest import Planned, controlled
from tests.cluster.pods import column
from tests.core.faults.scenes import device_info, fault
from tests.kube.operator.site import Site, until
from tests.train.runs import DDP

pytestmark = pytest.mark.slow

STEPS, EVERY = 60, 5
MASTER, WORKER = "j-master-0", "j-worker-0"
MOUNTED = "/user/restore/reset/config/reset.json"
GRACE = {"fault-scheduling": "grace", "pod-rescheduling": "on"}
SCRIPT = (
    "exec taskd run {script} --out {out} --steps {steps} --pause 0.1 --checkpoint {out}/checkpoints:{every}"
)


class Pair:
    """A job of two pods with one rank each, on two of three nodes."""

    def __init__(self, cluster: RealNodes, site: Site, out: Path, plane: str = "") -> None:
        self.cluster = cluster
        self.site = site
        self.out = out
        self._plane = plane
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
        script = SCRIPT.format(script=DDP, out=self.out, steps=STEPS, every=EVERY)
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

    def run(self) -> dict[int, tuple[dict[int, str], str]]:
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
def broken_device(cluster: RealNodes, node: str) -> Iterator[None]:
    """A device plugin reports a device of a node as out, with a right check code."""
    path = "/api/v1/namespaces/kube-system/configmaps"
    metadata = {"name": f"mindx-dl-deviceinfo-{node}", "labels": {"mx-consumer-cim": "true"}}
    reported = device_info((fault(3, "80E18005", "SeparateNPU"),))
    cluster.api.create(path, {"metadata": metadata, "data": reported})
    try:
        yield
    finally:
        cluster.api.delete(f"{path}/{metadata['name']}")


def test_only_the_pod_on_the_broken_device_moves(
    cluster: RealNodes,
    planned: Planned,
    tmp_path: Path,
) -> None:
    """S2-2: the other pod keeps its UID and restarts its process once; the bits are those of a calm run."""
    site, plane = planned.site, planned.plane
    with cluster.namespace("calm") as namespace, controlled(cluster, namespace, tmp_path) as calm:
        quiet = Pair(cluster, calm, tmp_path / "calm")
        quiet.submit({})
        quiet.finish()
    job = Pair(cluster, site, tmp_path / "out", plane)
    job.submit(GRACE)
    job.wait_step(2 * EVERY)
    uids = column(cluster, site.namespace, ".metadata.uid")
    node = column(cluster, site.namespace, ".spec.nodeName")[WORKER]
    with broken_device(cluster, node):
        job.wait(lambda: len(job.lives(0)) == len(job.lives(1)) == 2, "new processes in both pods")
        isolated = [entry["name"] for entry in site.status("j").get("isolatedNodes", [])]
    until(lambda: json.loads(job.exec(MASTER, "cat", MOUNTED))["RetryTime"] == 1, 120)
    until(lambda: not site.status("j").get("isolatedNodes"))
    first_again = job.lives(0)[1][0]["step"]
    job.wait_step(job.entries(0)[-1]["step"] + 3)
    incidents = json.loads(job.exec(MASTER, "taskd", "timeline", "--output", "json"))
    now = column(cluster, site.namespace, ".metadata.uid")
    nodes = column(cluster, site.namespace, ".spec.nodeName")
    job.finish()

    assert [WORKER] == [pod for pod in uids if uids[pod] != now[pod]]
    assert node != nodes[WORKER]
    assert [node] == isolated
    assert dict.fromkeys(uids, "0") == column(
        cluster, site.namespace, ".status.containerStatuses[0].restartCount"
    )
    assert ([2, 2], 1) == ([len(job.lives(0)), len(job.lives(1))], len(incidents)), incidents
    assert 0 < first_again, "from the last checkpoint, not from the beginning"
    assert quiet.run() == job.run()
    assert (1, 1) == (site.status("j")["restarts"], site.status("j")["voluntaryRestarts"])
    told = [message for _, reason, message in site.events("j") if reason == "ProcessRecovery"]
    assert any("device fault" in message for message in told), told
