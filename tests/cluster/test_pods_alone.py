"""Faults that are answered by pods alone, or not at all, in real pods.

Where a job names no strategy there is only what the reference's scheduler and device plugins do: the words of
the reset-config, slow devices that are left, pods that are replaced. Where it has no `fault-scheduling`
nothing is done, and everybody can see why.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from taskd.core.faults.texts.reset import RankStatus, Reset, ResetRank
from taskd.testing.cluster import ChipFault, DevicePlugins, RealNodes
from taskd.testing.kube.client import Watch
from tests.cluster.conftest import Planned, UndisturbedRun
from tests.cluster.jobs import LONG, NAME, PODS, PodJob
from tests.cluster.pairs import EVERY, GRACE, MASTER, WORKER, Pair, Results, reported_device
from tests.cluster.pods import column
from tests.cluster.test_faults import BROKEN, MEMORY_ERROR, UID, Before, assert_nothing_restarted, chip_of
from tests.cluster.test_switching import SLOW
from tests.train.runs import assert_same

pytestmark = pytest.mark.slow

PAUSE_S = 0.3


class DevicePlugin:
    """What a device plugin that resets a device writes into the job's reset-config."""

    def __init__(self, job: Pair) -> None:
        self._job = job
        self._path = f"/api/v1/namespaces/{job.site.namespace}/configmaps/reset-config-j"

    def say(self, status: RankStatus | None) -> None:
        """Say how the reset of rank 1's device goes; None: it is over."""
        entry = ResetRank(1, status=status, policy="reset", initial_policy="reset") if status else None
        data = Reset((entry,) if entry else ()).data()
        self._job.cluster.api.patch(self._path, {"data": data})
        # A kubelet looks after a pod that changed at once, else within a minute or two.
        mark = f"test/looked={time.time_ns()}"
        self._job.cluster.kubectl(
            "annotate", "pod", "-n", self._job.site.namespace, "--all", "--overwrite", mark
        )


def nobody_trains(job: Pair) -> bool:
    """Tell whether no process that has trained is there any more."""
    for rank, pod in enumerate((MASTER, WORKER)):
        inside = {each.pid_inside for each in job.cluster.pids_in_pod(job.site.namespace, pod)}
        if job.entries(rank)[-1]["pid"] in inside:
            return False
    return True


@contextmanager
def deletions(cluster: RealNodes, namespace: str) -> Iterator[dict[str, int]]:
    """How many seconds each pod that is deleted meanwhile is given, by its UID; 0 is by force."""
    found: dict[str, int] = {}

    def follow(watch: Watch) -> None:
        for event in watch:
            if event.type in {"MODIFIED", "DELETED"}:
                meta = event.object["metadata"]
                given = int(meta.get("deletionGracePeriodSeconds") or 0)
                if "deletionTimestamp" in meta or event.type == "DELETED":
                    found[meta["uid"]] = max(given, found.get(meta["uid"], 0))

    watch = cluster.client(user_agent="onlooker").watch(f"/api/v1/namespaces/{namespace}/pods")
    thread = threading.Thread(target=follow, args=(watch,), daemon=True)
    thread.start()
    try:
        yield found
    finally:
        watch.close()
        thread.join(10)


def test_a_device_that_is_reset_and_one_that_cannot_be(
    cluster: RealNodes, planned: Planned, tmp_path: Path, calm_pair: Results
) -> None:
    """S2-2: `unrecovered` ends all processes, `recovered` starts them in the same pods, `failed` moves a pod.

    Each time they go on from the last checkpoint, and the bits are those of a calm run.
    """
    job = Pair(cluster, planned.site, tmp_path / "out", planned.plane, pause_s=PAUSE_S)
    job.submit(GRACE)
    job.wait_step(2 * EVERY)
    plugin, uids = DevicePlugin(job), column(cluster, job.site.namespace, UID)

    plugin.say(RankStatus.UNRECOVERED)
    job.wait(lambda: nobody_trains(job), "the end of all processes")
    stood_at = [job.entries(rank)[-1]["step"] for rank in (0, 1)]
    time.sleep(3.0)
    assert stood_at == [job.entries(rank)[-1]["step"] for rank in (0, 1)]
    assert [1, 1] == [len(job.lives(rank)) for rank in (0, 1)]

    plugin.say(RankStatus.RECOVERED)
    job.wait(lambda: len(job.lives(0)) == len(job.lives(1)) == 2, "new processes in both pods")
    plugin.say(None)
    job.wait_step(job.lives(0)[1][0]["step"] + EVERY)
    assert uids == column(cluster, job.site.namespace, UID)
    assert [2, 2] == [len(job.lives(rank)) for rank in (0, 1)]

    plugin.say(RankStatus.FAILED)
    job.wait(lambda: len(job.lives(0)) == len(job.lives(1)) == 3, "new processes, one in a new pod")
    now = column(cluster, job.site.namespace, UID)
    assert [WORKER] == [pod for pod in uids if uids[pod] != now[pod]]
    job.wait(lambda: (job.reset()["RankList"], job.reset()["RetryTime"]) == ([], 1), "a clear list")
    job.finish()

    assert [3, 3] == [len(job.lives(rank)) for rank in (0, 1)]
    assert all(life[0]["step"] > 0 for rank in (0, 1) for life in job.lives(rank)[1:])
    assert calm_pair == job.run()
    assert (1, 1) == tuple(job.site.status("j")[name] for name in ("restarts", "voluntaryRestarts"))


@pytest.mark.parametrize(
    ("strategy", "scheduling", "code"),
    [
        ("recover", "", BROKEN),
        ("recover", "off", BROKEN),
        ("recover-in-place", "", BROKEN),
        ("recover-in-place", "off", BROKEN),
        ("retry", "", MEMORY_ERROR),
        ("retry", "off", MEMORY_ERROR),
    ],
)
def test_without_fault_scheduling_nothing_is_touched(
    cluster: RealNodes,
    planned: Planned,
    devices: DevicePlugins,
    tmp_path: Path,
    undisturbed: UndisturbedRun,
    strategy: str,
    scheduling: str,
    code: str,
) -> None:
    """S2-12, S2-14, S3-2: a fault is reported, and pods, processes and bits are as if it were not.

    The job's status and an event say why.
    """
    job = PodJob(
        cluster, planned.site, tmp_path / "out", plane=planned.plane,
        devices=True, scheduling=scheduling, pause_s=PAUSE_S,
    )  # fmt: skip
    job.submit(strategy)
    job.wait_step(3)
    before = Before(job)
    node, chip = chip_of(job, devices, PODS[1], 1)
    devices.report(node, ChipFault(chip, code, "RestartBusiness"))
    job.wait_step(job.step() + 15)
    assert [] == before.new_processes()
    assert [] == before.new_pods()
    assert [] == job.timeline()
    devices.report(node)
    job.finish()

    assert "fault-scheduling is absent or off" in job.status()["recoverRefused"]
    assert any("fault-scheduling is absent or off" in each for each in job.events("RecoveryRefused"))
    assert [] == job.events("ProcessRecovery")
    assert_nothing_restarted(job)
    assert_same(undisturbed.run, job.out)


@pytest.mark.parametrize(("wish", "scheduling"), [("graceExit", "force"), ("forceExit", "grace")])
def test_a_slow_device_is_left_without_a_strategy(
    cluster: RealNodes, planned: Planned, tmp_path: Path, calm_pair: Results, wish: str, scheduling: str
) -> None:
    """S1-23: the pod moves, by force or with its time to end, whatever `fault-scheduling` says.

    With `graceExit` all processes are told to end first, and until the pod is there.
    """
    job = Pair(cluster, planned.site, tmp_path / "out", planned.plane, pause_s=PAUSE_S)
    job.submit({**GRACE, "fault-scheduling": scheduling, "subHealthyStrategy": wish})
    job.wait_step(2 * EVERY)
    uids = column(cluster, job.site.namespace, UID)
    node = column(cluster, job.site.namespace, ".spec.nodeName")[WORKER]
    with (
        deletions(cluster, job.site.namespace) as given,
        reported_device(cluster, node, SLOW, "SubHealthFault"),
    ):
        if wish == "graceExit":
            job.wait(lambda: job.reset()["GracefulExit"] == 1, "the wish to leave")
        job.wait(lambda: len(job.lives(0)) == len(job.lives(1)) == 2, "new processes in both pods")
        job.wait(lambda: uids[WORKER] in given, "the end of the old pod")
    now = column(cluster, job.site.namespace, UID)
    moved = column(cluster, job.site.namespace, ".spec.nodeName")[WORKER]
    job.wait(lambda: (job.reset()["GracefulExit"], job.reset()["RetryTime"]) == (0, 1), "a new count")
    job.finish()

    assert [WORKER] == [pod for pod in uids if uids[pod] != now[pod]]
    assert (wish == "graceExit") == (given[uids[WORKER]] > 0), given
    assert node != moved
    assert [2, 2] == [len(job.lives(rank)) for rank in (0, 1)]
    assert all(job.lives(rank)[1][0]["step"] > 0 for rank in (0, 1))
    assert calm_pair == job.run()
    assert 1 == job.site.status(NAME)["restarts"]


@pytest.mark.parametrize(
    ("wish", "scheduling", "strategy"), [("graceExit", "force", "dump"), ("forceExit", "grace", "recover")]
)
def test_a_slow_device_is_left_with_a_manager(
    cluster: RealNodes,
    planned: Planned,
    devices: DevicePlugins,
    tmp_path: Path,
    long_undisturbed: UndisturbedRun,
    wish: str,
    scheduling: str,
    strategy: str,
) -> None:
    """S1-23: the state is saved and no step is lost, or nothing is saved; then the pod is another one."""
    out = tmp_path / "out"
    saved = {
        "graceExit": f"exec taskd run --dump-dir {out}/dumps {{command}}",
        "forceExit": f"exec taskd run {{command}} --checkpoint {out}/checkpoints:{EVERY}",
    }
    job = PodJob(
        cluster, planned.site, out, plane=planned.plane, devices=True, scheduling=scheduling,
        labels={"subHealthyStrategy": wish}, start=saved[wish], pause_s=0.15, steps=LONG,
    )  # fmt: skip
    job.submit(strategy)
    job.wait_step(2 * EVERY)
    before = Before(job)
    old = column(cluster, job.namespace, UID)[PODS[1]]
    node, chip = chip_of(job, devices, PODS[1], 1)
    with deletions(cluster, job.namespace) as given:
        devices.report(node, ChipFault(chip, SLOW, "SubHealthFault"))
        cluster.wait(lambda: PODS[1] in before.new_pods(), timeout_s=60, every_s=0.1)
        job.wait_step(job.step() + 2 * EVERY)
    places = {chip_of(job, devices, PODS[1], index) for index in (0, 1)}
    ranks = before.new_processes()
    told = job.events("ProcessRecovery")
    job.finish()

    assert (node, chip) not in places
    if wish == "graceExit":
        assert list(range(job.world)) == ranks
        assert_same(long_undisturbed.run, job.out)
    else:
        assert {2, 3} <= set(ranks)
        assert 0 == given[old]
        last = {rank: {each["step"]: each["loss"] for each in job.entries(rank)} for rank in range(job.world)}
        digests = {rank: (job.out / f"digest-{rank}.txt").read_text() for rank in range(job.world)}
        assert long_undisturbed.run == {rank: (last[rank], digests[rank]) for rank in last}
    assert any("sub-healthy" in each for each in told), told
