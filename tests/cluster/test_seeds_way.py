"""The seeds' way in real pods: `manager.py &` and a patched torchrun, started by `train_start.sh`."""

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from taskd.testing.cluster import ChipFault, DevicePlugins, RealNodes
from tests.cluster.conftest import Planned, UndisturbedRun
from tests.cluster.jobs import LONG, PODS, STEPS, PodJob
from tests.cluster.pods import column
from tests.cluster.test_faults import RESTARTS, UID, VICTIM, WORKER, Before, chip_of
from tests.cluster.test_switching import HOT_SWITCH, PAUSE_S, SLOW
from tests.compat.conftest import REPOSITORY, OwnTorch, own_torch, patched, wheel
from tests.train.runs import DDP, assert_same

__all__ = ["own_torch", "patched", "wheel"]

pytestmark = pytest.mark.slow


def seeds_job(
    cluster: RealNodes,
    planned: Planned,
    home: Path,
    torch: OwnTorch,
    *,
    steps: int = STEPS,
    pause_s: float = 0.05,
    spares: int = 0,
    **more: Any,
) -> PodJob:
    """A job whose pods start as the guides say, in an environment made as the guides say."""
    code, out = home / "code", home / "out"
    shutil.copytree(REPOSITORY / "examples" / "scripts", code / "scripts")
    shutil.copy(DDP, code / "main.py")
    path = f"{torch.bin}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
    arguments = f"--out {out} --steps {steps} --pause {pause_s}"
    start = f"cd {code} && exec bash scripts/train_start.sh {code} {out} main.py {arguments}"
    return PodJob(
        cluster,
        planned.site,
        out,
        plane=planned.plane,
        start=start,
        env={"PATH": path, "PYTHONPATH": "", "TASKD_SPARES": str(spares)},
        writable=(code, torch.root),
        **more,
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


@pytest.mark.parametrize("place", [1, 0], ids=["a-worker", "rank-0"])
def test_a_pod_on_a_slow_device_is_switched(
    cluster: RealNodes,
    planned: Planned,
    devices: DevicePlugins,
    tmp_path: Path,
    long_undisturbed: UndisturbedRun,
    patched: OwnTorch,
    place: int,
) -> None:
    """The new pod stands by beside the old one, takes its ranks over while they train, and nothing restarts.

    The manager of a job started so is in rank 0's pod: where that goes, the one of the new pod begins.
    """
    job = seeds_job(
        cluster,
        planned,
        tmp_path,
        patched,
        steps=LONG,
        pause_s=PAUSE_S,
        spares=1,
        devices=True,
        labels=HOT_SWITCH,
        scheduling="",
    )
    job.submit()
    job.wait_step(5)
    before = Before(job)
    began = job.step()
    old = PODS[place]
    node, chip = chip_of(job, devices, old, 1)
    devices.report(node, ChipFault(chip, SLOW, "SubHealthFault"))
    cluster.wait(before.new_pods, timeout_s=120, every_s=0.1)
    job.wait_step(job.step() + 5)
    assert [2 * place, 2 * place + 1] == before.new_processes()
    new = job.places()[place]
    assert old != new
    assert began + 10 <= job.step()
    cluster.wait(lambda: manages(job, job.places()[0]), timeout_s=60, every_s=0.5)
    job.finish()

    others = [pod for pod in PODS if pod != old]
    assert dict.fromkeys((*others, new), "0") == column(cluster, job.namespace, RESTARTS)
    assert 0 == job.status().get("restarts", 0)
    assert_same(long_undisturbed.run, job.out)
    assert any("switched" in message for message in job.events("ProcessRecovery")), job.events()


def manages(job: PodJob, pod: str) -> bool:
    """Tell whether the job's manager is in a pod, and knows all ranks."""
    command = ("taskd", "status", "--output", "json")
    said = job.cluster.kubectl("exec", "-n", job.namespace, pod, "--", *command, check=False)
    return said.startswith("{") and len(json.loads(said)["ranks"]) == job.world
