"""AscendJobs whose pods run `taskd run`, and what they wrote down."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from taskd.testing.cluster import JobForm, RealNodes
from taskd.testing.cluster import PodJob as AnyPodJob
from tests.kube.operator.site import ROOT, Site
from tests.train.runs import DDP

STEPS = 40
LONG = 300  # where a job trains while a pod is made
PODS = ("j-master-0", "j-worker-0", "j-worker-1")
PER_POD = 2
WORLD = len(PODS) * PER_POD
NAME = "j"


class PodJob(AnyPodJob):
    """One AscendJob of a master and two workers with two ranks each, which keep a ledger in `out`.

    pause_s: how long a step takes until the job is told to hurry. more: other fields of a `JobForm`.
    """

    def __init__(
        self,
        cluster: RealNodes,
        site: Site,
        out: Path,
        *,
        pause_s: float = 0.05,
        steps: int = STEPS,
        **more: Any,
    ) -> None:
        command = f"{DDP} --out {out} --steps {steps} --pause {pause_s}"
        super().__init__(cluster, site.namespace, out, JobForm(command, **more))

    def submit(self, strategy: str = "") -> None:
        """Apply it, with a strategy."""
        self.form = replace(self.form, strategy=strategy)
        super().submit()


def install_definition(cluster: RealNodes) -> None:
    """Put the AscendJob type into the cluster."""
    cluster.apply_yaml((ROOT / "deploy" / "crd" / "ascendjobs.yaml").read_text())
