"""The seeds' way in real pods: `manager.py &` and a patched torchrun, started by `train_start.sh`."""

import os
import shutil
import signal
from pathlib import Path

import pytest

from taskd.testing.cluster import RealNodes
from tests.cluster.conftest import Planned, UndisturbedRun
from tests.cluster.jobs import PODS, STEPS, PodJob
from tests.cluster.pods import column
from tests.cluster.test_faults import RESTARTS, UID, VICTIM, WORKER, Before
from tests.compat.conftest import REPOSITORY, OwnTorch, own_torch, patched, wheel
from tests.train.runs import DDP, assert_same

__all__ = ["own_torch", "patched", "wheel"]

pytestmark = pytest.mark.slow


def seeds_job(cluster: RealNodes, planned: Planned, home: Path, torch: OwnTorch) -> PodJob:
    """A job whose pods start as the guides say, in an environment made as the guides say."""
    code, out = home / "code", home / "out"
    shutil.copytree(REPOSITORY / "examples" / "scripts", code / "scripts")
    shutil.copy(DDP, code / "main.py")
    path = f"{torch.bin}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
    arguments = f"--out {out} --steps {STEPS} --pause 0.05"
    start = f"cd {code} && exec bash scripts/train_start.sh {code} {out} main.py {arguments}"
    return PodJob(
        cluster,
        planned.site,
        out,
        plane=planned.plane,
        start=start,
        env={"PATH": path, "PYTHONPATH": ""},
        writable=(code, torch.root),
    )


def test_a_process_is_killed_and_a_pod_deleted(
    cluster: RealNodes, planned: Planned, tmp_path: Path, undisturbed: UndisturbedRun, patched: OwnTorch
) -> None:
    """Each is recovered as the plane decides, with the bits of an undisturbed run."""
    job = seeds_job(cluster, planned, tmp_path, patched)
    job.submit("recover-in-place,recover")
    job.wait_step(5)
    before = Before(job)
    os.kill(job.all_processes()[VICTIM].pid, signal.SIGKILL)
    job.wait_step(job.step() + 5)
    assert [VICTIM] == before.new_processes()
    assert [] == before.new_pods()

    between = Before(job)
    cluster.kubectl("delete", "pod", "-n", job.namespace, WORKER, "--wait=false")
    cluster.wait(lambda: column(cluster, job.namespace, UID).get(WORKER) and between.new_pods(), timeout_s=60)
    job.wait_step(job.step() + 5)
    assert [2, 3] == between.new_processes()
    assert [WORKER] == between.new_pods()
    job.finish()

    assert dict.fromkeys(PODS, "0") == column(cluster, job.namespace, RESTARTS)
    assert_same(undisturbed.run, job.out, (2, 3, VICTIM))
    assert job.events("ProcessRecovery")
