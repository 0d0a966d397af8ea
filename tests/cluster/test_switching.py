"""A pod on a slow device is replaced while it trains: reported by a device plugin, done by the plane."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from taskd.testing.cluster import ChipFault, DevicePlugins, RealNodes
from tests.cluster.conftest import Planned, UndisturbedRun
from tests.cluster.jobs import LONG, NAME, PODS, PodJob
from tests.cluster.pods import column
from tests.cluster.test_faults import RESTARTS, UID, WORKER, Before, chip_of
from tests.train.runs import assert_same

pytestmark = pytest.mark.slow

SLOW = "81B38009"
HOT_SWITCH = {"subHealthyStrategy": "hotSwitch"}
PAUSE_S = 0.2


def switching_job(cluster: RealNodes, planned: Planned, out: Path) -> PodJob:
    return PodJob(
        cluster,
        planned.site,
        out,
        pause_s=PAUSE_S,
        steps=LONG,
        plane=planned.plane,
        devices=True,
        labels=HOT_SWITCH,
        scheduling="",
        spares=1,
    )


@pytest.fixture
def scarce(cluster: RealNodes) -> DevicePlugins:
    """Devices for one pod on each node, and no more."""
    return DevicePlugins(cluster, 2)


def test_a_slow_device_is_left_while_the_job_trains(
    cluster: RealNodes,
    planned: Planned,
    devices: DevicePlugins,
    tmp_path: Path,
    long_undisturbed: UndisturbedRun,
) -> None:
    """The old ranks commit ten steps and more while the new pod starts; then both change places.

    Everybody pauses for less than a step beyond a step, and nothing is restarted.
    """
    job = switching_job(cluster, planned, tmp_path / "out")
    job.submit()
    job.wait_step(5)
    before = Before(job)
    began = job.step()
    node, chip = chip_of(job, devices, WORKER, 1)
    devices.report(node, ChipFault(chip, SLOW, "SubHealthFault"))
    cluster.wait(before.new_pods, timeout_s=90, every_s=0.1)
    job.wait_step(job.step() + 5)
    (incident,) = job.timeline()
    assert [2, 3] == before.new_processes()
    new = job.places()[1]
    assert WORKER != new
    assert (node, chip) not in {chip_of(job, devices, new, index) for index in (0, 1)}
    job.finish()

    assert ("hot-switch", "switched") == (incident["strategy"], incident["outcome"])
    assert incident["step"] - began >= 10
    gap_s = longest_gap(job, incident["step"])
    assert gap_s <= 2 * usual_step(job, incident["step"]), gap_s
    assert dict.fromkeys((PODS[0], new, PODS[2]), "0") == column(cluster, job.namespace, RESTARTS)
    assert 0 == job.status().get("restarts", 0)
    assert_same(long_undisturbed.run, job.out)
    assert any("switched" in message for message in job.events("ProcessRecovery")), job.events()


@pytest.mark.parametrize("moment", ["standby-made", "moving", "moved"])
def test_a_plane_that_dies_in_the_middle_of_a_hot_switch(
    cluster: RealNodes,
    planned: Planned,
    devices: DevicePlugins,
    tmp_path: Path,
    long_undisturbed: UndisturbedRun,
    moment: str,
) -> None:
    """Kill -9 of the controller and a new one: the ranks move once, and the old pod goes."""
    job = switching_job(cluster, planned, tmp_path / "out")
    job.submit()
    job.wait_step(5)
    before = Before(job)
    node, chip = chip_of(job, devices, WORKER, 1)
    moments: dict[str, Callable[[], bool]] = {
        "standby-made": lambda: len(column(cluster, job.namespace, UID)) == 4,
        "moving": lambda: bool(job.timeline()),
        "moved": lambda: any(each["outcome"] == "switched" for each in job.timeline()),
    }
    devices.report(node, ChipFault(chip, SLOW, "SubHealthFault"))
    cluster.wait(moments[moment], timeout_s=60, every_s=0.05)
    planned.controller.kill()
    planned.controller.start()
    cluster.wait(before.new_pods, timeout_s=90, every_s=0.1)
    job.wait_step(job.step() + 5)
    assert [2, 3] == before.new_processes()
    assert ["switched"] == [each["outcome"] for each in job.timeline()]
    job.finish()

    assert 0 == job.status().get("restarts", 0)
    assert_same(long_undisturbed.run, job.out)


def test_a_slow_device_and_no_room_elsewhere(
    cluster: RealNodes,
    planned: Planned,
    scarce: DevicePlugins,
    tmp_path: Path,
    long_undisturbed: UndisturbedRun,
) -> None:
    """The job trains on in the old pod, the standby goes, and an event says why."""
    with scarce:
        job = switching_job(cluster, planned, tmp_path / "out")
        job.submit()
        job.wait_step(5)
        before = Before(job)
        node, chip = chip_of(job, scarce, WORKER, 1)
        began = job.step()
        scarce.report(node, ChipFault(chip, SLOW, "SubHealthFault"))
        cluster.wait(lambda: len(column(cluster, job.namespace, UID)) == 4, timeout_s=20)
        told = cluster.wait(
            lambda: [each for each in job.events("ProcessRecovery") if "cancelled" in each],
            timeout_s=90,
            every_s=0.2,
        )
        cluster.wait(lambda: len(column(cluster, job.namespace, UID)) == 3, timeout_s=20)
        assert began + 20 < job.step()
        assert [] == before.new_processes()
        assert [] == before.new_pods()
        job.finish()

    assert "the standby pod was not running" in told[0]
    assert "Insufficient huawei.com/Ascend910" in told[0]
    assert dict.fromkeys(PODS, "0") == column(cluster, job.namespace, RESTARTS)
    assert [NAME, "Succeeded"] == cluster.kubectl(
        "get", "acjob", "-n", job.namespace, NAME, "--no-headers"
    ).split()[:2]
    assert_same(long_undisturbed.run, job.out)


def longest_gap(job: PodJob, around: int) -> float:
    """The longest time between two steps of any rank, near a step."""
    gaps = []
    for rank in range(job.world):
        times = job.committed(rank)
        steps = [step for step in sorted(times) if abs(step - around) <= 2]
        gaps += [times[later] - times[sooner] for sooner, later in itertools.pairwise(steps)]
    return max(gaps)


def usual_step(job: PodJob, before: int) -> float:
    """How long a step took, in the middle, before another."""
    times = job.committed(0)
    steps = [step for step in sorted(times) if step < before]
    found = sorted(times[later] - times[sooner] for sooner, later in itertools.pairwise(steps))
    return found[len(found) // 2]
