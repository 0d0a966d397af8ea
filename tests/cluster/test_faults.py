"""Faults of devices, reported as a device plugin does, in jobs that train in pods under a control plane.

The report is the only thing that happens: nobody tells the job, and nothing breaks. What follows is the
plane's word.
"""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from taskd.testing.cluster import ChipFault, DevicePlugins, RealNodes
from tests.cluster.conftest import Planned, UndisturbedRun
from tests.cluster.jobs import LONG, NAME, PODS, WORLD, PodJob
from tests.cluster.pods import column
from tests.train.runs import assert_same

pytestmark = pytest.mark.slow

RESTARTS = ".status.containerStatuses[0].restartCount"
NODE = ".spec.nodeName"
UID = ".metadata.uid"
WORKER = "j-worker-0"
VICTIM = 3  # its second rank
# For a job that is not to end while somebody looks at it.
TRAINS_ON: dict[str, Any] = {"steps": LONG, "pause_s": 0.15}
MEMORY_ERROR, FAILED_COLLECTIVE, BROKEN = "80E01801", "8C1F860B", "80E18005"


class Before:
    """What kubectl and the machine show of a job before something happens to it."""

    def __init__(self, job: PodJob) -> None:
        self._job = job
        self._uids = column(job.cluster, job.namespace, UID)
        self._processes = job.all_processes()

    def new_pods(self) -> list[str]:
        """The pods that are others now."""
        now = column(self._job.cluster, self._job.namespace, UID)
        return sorted(pod for pod in self._uids if now.get(pod) != self._uids[pod])

    def new_processes(self) -> list[int]:
        """The ranks that have another process now."""
        now = self._job.all_processes()
        return [rank for rank in range(WORLD) if self._processes[rank].identity != now[rank].identity]


def assert_nothing_restarted(job: PodJob) -> None:
    restarts = column(job.cluster, job.namespace, RESTARTS)
    assert dict.fromkeys(PODS, "0") == restarts
    assert "0" == str(job.status().get("restarts", 0))


def chip_of(job: PodJob, devices: DevicePlugins, pod: str, index: int) -> tuple[str, int]:
    """The node and the device of a process of a pod."""
    found = job.cluster.api.get(f"/api/v1/namespaces/{job.namespace}/pods/{pod}")
    return str(found["spec"]["nodeName"]), devices.chips_of(found)[index]


@pytest.mark.parametrize(
    ("code", "level", "kind"),
    [(MEMORY_ERROR, "RestartBusiness", "uce"), (FAILED_COLLECTIVE, "RestartBusiness", "network")],
    ids=["memory", "network"],
)
def test_a_reported_fault_that_a_repeated_step_answers(
    cluster: RealNodes,
    planned: Planned,
    devices: DevicePlugins,
    tmp_path: Path,
    undisturbed: UndisturbedRun,
    code: str,
    level: str,
    kind: str,
) -> None:
    """Retry: pods and all processes stay, the step is repeated, and the bits are those of a calm run."""
    job = PodJob(cluster, planned.site, tmp_path / "out", plane=planned.plane, devices=True, pause_s=0.3)
    job.submit("retry,recover")
    job.wait_step(5)
    before = Before(job)
    node, chip = chip_of(job, devices, WORKER, 1)
    devices.report(node, ChipFault(chip, code, level))
    cluster.wait(lambda: any(each["outcome"] == "recovered" for each in job.timeline()), timeout_s=30)
    devices.report(node)
    job.wait_step(job.step() + 5)
    incidents = job.timeline()
    assert [] == before.new_processes()
    assert [] == before.new_pods()
    job.finish()

    assert [(kind, "retry")] == [(each["kind"], each["strategy"]) for each in incidents]
    assert "the control plane decided: retry" in incidents[0]["reason"]
    assert_nothing_restarted(job)
    assert_same(undisturbed.run, job.out)
    assert any("retry" in message for message in job.events("ProcessRecovery")), job.events()


def test_memory_errors_that_the_environment_asks_for(
    cluster: RealNodes, planned: Planned, tmp_path: Path, undisturbed: UndisturbedRun
) -> None:
    """RAISE_UCE_ERROR_STEP_AND_RANK: bits are broken in two ranks, and both get them back from the others."""
    env = {"RAISE_UCE_ERROR_STEP_AND_RANK": "{3:1,10:0}"}
    job = PodJob(cluster, planned.site, tmp_path / "out", plane=planned.plane, env=env)
    job.submit("retry")
    job.wait_step(2)
    before = Before(job)
    job.wait_step(15)
    incidents = job.timeline()
    assert [] == before.new_processes()
    assert [] == before.new_pods()
    job.finish()

    wanted = [("uce", "retry", 1, 3), ("uce", "retry", 0, 10)]
    assert wanted == [(each["kind"], each["strategy"], each["rank"], each["step"]) for each in incidents]
    assert_nothing_restarted(job)
    assert_same(undisturbed.run, job.out)


def test_a_device_that_comes_back(
    cluster: RealNodes,
    planned: Planned,
    devices: DevicePlugins,
    tmp_path: Path,
    long_undisturbed: UndisturbedRun,
) -> None:
    """Recover-in-place: the plane waits for it, then its rank alone gets a new process in the same pod."""
    job = PodJob(
        cluster, planned.site, tmp_path / "out", plane=planned.plane, devices=True, spares=1, **TRAINS_ON
    )
    job.submit("recover-in-place")
    job.wait_step(5)
    before = Before(job)
    node, chip = chip_of(job, devices, WORKER, 1)
    devices.report(node, ChipFault(chip, BROKEN, "RestartBusiness"))
    with pytest.raises(TimeoutError):
        cluster.wait(lambda: any(job.timeline()), timeout_s=4, every_s=0.5)
    devices.report(node)
    job.wait_step(job.step() + 5)
    incidents = job.timeline()
    assert [VICTIM] == before.new_processes()
    assert [] == before.new_pods()
    job.finish()

    assert ["recover-in-place"] == [each["strategy"] for each in incidents]
    assert "the control plane decided: recover-in-place" in incidents[0]["reason"]
    assert_nothing_restarted(job)
    assert_same(long_undisturbed.run, job.out, (VICTIM,))


def test_a_broken_device_moves_its_pod(
    cluster: RealNodes,
    planned: Planned,
    devices: DevicePlugins,
    tmp_path: Path,
    long_undisturbed: UndisturbedRun,
) -> None:
    """Recover: the pod is made again on other devices; all other processes, and the bits, stay."""
    job = PodJob(cluster, planned.site, tmp_path / "out", plane=planned.plane, devices=True, **TRAINS_ON)
    job.submit("recover")
    job.wait_step(5)
    before = Before(job)
    node, chip = chip_of(job, devices, WORKER, 1)
    devices.report(node, ChipFault(chip, BROKEN, "SeparateNPU"))
    cluster.wait(before.new_pods, timeout_s=30)
    job.wait_step(job.step() + 10)
    assert [2, 3] == before.new_processes()
    assert [WORKER] == before.new_pods()
    assert (node, chip) not in {chip_of(job, devices, WORKER, index) for index in (0, 1)}
    job.finish()

    assert dict.fromkeys(PODS, "0") == column(cluster, planned.site.namespace, RESTARTS)
    assert_same(long_undisturbed.run, job.out, (2, 3))
    assert 1 == job.status()["restarts"]
    assert "device fault" in job.status()["lastFault"]["summary"]
    devices.report(node)


def test_a_second_fault_while_the_first_is_answered(
    cluster: RealNodes, planned: Planned, tmp_path: Path, undisturbed: UndisturbedRun
) -> None:
    """A process dies elsewhere while a deleted pod is made again: both are recovered, and nothing else."""
    job = PodJob(cluster, planned.site, tmp_path / "out", plane=planned.plane, spares=1)
    job.submit("recover-in-place,recover")
    job.wait_step(5)
    before = Before(job)
    last = job.all_processes()[5]
    cluster.kubectl("delete", "pod", "-n", planned.site.namespace, WORKER, "--wait=false")
    cluster.wait(before.new_pods, timeout_s=30)
    os.kill(last.pid, signal.SIGKILL)
    job.wait_step(job.step() + 10)
    assert [2, 3, 5] == before.new_processes()
    assert [WORKER] == before.new_pods()
    job.finish()

    assert 1 == job.status()["restarts"]
    assert_same(undisturbed.run, job.out, (2, 3, 5))


def test_a_drained_node(
    cluster: RealNodes, planned: Planned, tmp_path: Path, long_undisturbed: UndisturbedRun
) -> None:
    """`kubectl drain`: the pod comes up elsewhere as the same rank, and the others train on with it."""
    job = PodJob(cluster, planned.site, tmp_path / "out", plane=planned.plane, **TRAINS_ON)
    job.submit("recover")
    job.wait_step(5)
    before = Before(job)
    node = column(cluster, planned.site.namespace, NODE)["j-worker-1"]
    drain = ("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=60s")
    on_it = [pod for pod, where in column(cluster, planned.site.namespace, NODE).items() if where == node]
    try:
        cluster.kubectl(*drain)
        job.wait_step(job.step() + 10)
        assert sorted(on_it) == before.new_pods()
        lost = [rank for rank in range(WORLD) if PODS[rank // 2] in on_it]
        assert lost == before.new_processes()
        assert node not in column(cluster, planned.site.namespace, NODE).values()
        job.finish()
    finally:
        cluster.kubectl("uncordon", node)

    assert dict.fromkeys(PODS, "0") == column(cluster, planned.site.namespace, RESTARTS)
    assert_same(long_undisturbed.run, job.out, tuple(lost))


@pytest.mark.parametrize("after_s", [0.0, 0.3, 1.5], ids=lambda after: f"{after}s")
def test_a_plane_that_dies_in_the_middle_of_a_recovery(
    cluster: RealNodes, planned: Planned, tmp_path: Path, long_undisturbed: UndisturbedRun, after_s: float
) -> None:
    """Kill -9 of the controller at some moment of the recovery of a deleted pod, and a new one: same end."""
    job = PodJob(cluster, planned.site, tmp_path / "out", plane=planned.plane, spares=1, **TRAINS_ON)
    job.submit("recover-in-place,recover")
    job.wait_step(5)
    before = Before(job)
    cluster.kubectl("delete", "pod", "-n", planned.site.namespace, WORKER, "--wait=false")
    with pytest.raises(TimeoutError):
        cluster.wait(lambda: False, timeout_s=after_s)
    planned.controller.kill()
    planned.controller.start()
    job.wait_step(job.step() + 10)
    assert [2, 3] == before.new_processes()
    assert [WORKER] == before.new_pods()
    # A plane that is back answers the next fault as ever.
    os.kill(job.all_processes()[VICTIM].pid, signal.SIGKILL)
    job.wait_step(job.step() + 5)
    job.finish()

    assert [NAME, "Succeeded"] == cluster.kubectl(
        "get", "acjob", "-n", planned.site.namespace, NAME, "--no-headers"
    ).split()[:2]
    assert_same(long_undisturbed.run, job.out, (2, 3, VICTIM))
