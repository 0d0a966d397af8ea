"""The control plane is killed before and after it keeps each phase of each kind of fault, in real pods.

A job has one fault after the other. The first is undisturbed and shows the course; in each of the others the
plane is killed with -9 at another phase, and another one is started at once. Whoever was to be replaced is,
nobody else, nothing is restarted more than without it, and the job ends with the bits of a calm run.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest

from taskd.testing.cluster import ChipFault, DevicePlugins, RealNodes
from tests.cluster.conftest import UndisturbedRun
from tests.cluster.deaths import AFTER, BEFORE, INIT, MortalPlane
from tests.cluster.jobs import LONG, PER_POD, PODS, PodJob
from tests.cluster.pods import column
from tests.cluster.test_faults import (
    BROKEN,
    FAILED_COLLECTIVE,
    MEMORY_ERROR,
    RESTARTS,
    Before,
    chip_of,
)
from tests.cluster.test_switching import HOT_SWITCH, SLOW
from tests.kube.operator.site import Site
from tests.train.runs import assert_same

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PAUSE_S = 0.3
LONG_PAUSE_S = 0.5  # where the job trains while something is waited for
HEALED_AFTER_S = 6.0  # longer than a plane needs to start again


@pytest.fixture
def plane(cluster: RealNodes, namespace: str, definition: None, tmp_path: Path) -> Iterator[MortalPlane]:
    """A plane that can be killed at a phase."""
    with MortalPlane(cluster, namespace, tmp_path) as found:
        yield found


class ApartJob(PodJob):
    """A job whose workers are on different nodes."""

    def manifest(self) -> dict[str, Any]:
        """Return the job as it is applied."""
        made = super().manifest()
        labels = {"job-name": self.form.name, "replica-type": "worker"}
        apart = {"labelSelector": {"matchLabels": labels}, "topologyKey": "kubernetes.io/hostname"}
        affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}}
        made["spec"]["replicaSpecs"]["Worker"]["template"]["spec"]["affinity"] = affinity
        return made


@dataclass
class Fault:
    """A kind of fault: how it comes, how one sees that it is over, and what it may change."""

    course: ClassVar[tuple[str, ...]] = ("stopping", "asking", "recovering", INIT)
    form: ClassVar[dict[str, Any]] = {}
    job_type: ClassVar[type[PodJob]] = PodJob
    strategy: ClassVar[str] = "recover-in-place,recover"
    ranks: ClassVar[tuple[int, ...]] = (0, 1)
    """Those of the pod that have new processes."""
    replaces_pod: ClassVar[bool] = True
    restarts: ClassVar[int] = 1

    job: PodJob
    devices: DevicePlugins
    place: int = 1
    """Of the pod to which it happens."""
    count: int = 0
    """How many times it came."""
    lost: list[int] = field(default_factory=list)
    """The ranks that died, as often as they did."""

    def strike(self) -> None:
        """Let it come."""
        raise NotImplementedError

    def wait_over(self, before: Before, step: int) -> None:
        """Wait until the job trains on, after it."""
        self.job.wait_step(step + 5)

    def mend(self) -> None:
        """Leave no trace of it."""

    def once(self) -> None:
        """Let it come, and note what it may cost."""
        self.count += 1
        self.strike()
        self.lost += self.hurt

    @property
    def hurt(self) -> list[int]:
        """The ranks whose processes are others afterwards."""
        return [self.place * PER_POD + rank for rank in self.ranks]

    def assert_answered(self, before: Before) -> None:
        """See that what had to be replaced was, and no more."""
        assert self.hurt == before.new_processes()
        assert ([PODS[self.place]] if self.replaces_pod else []) == before.new_pods()
        assert self.count * self.restarts == self.job.status().get("restarts", 0)


class Killed(Fault):
    """A process is killed: a new one in the same pod."""

    form: ClassVar[dict[str, Any]] = {"spares": 1}
    ranks: ClassVar[tuple[int, ...]] = (1,)
    replaces_pod: ClassVar[bool] = False
    restarts: ClassVar[int] = 0

    def strike(self) -> None:
        (victim,) = self.hurt
        os.kill(self.job.processes(self.place)[victim].pid, signal.SIGKILL)


class Reported(Fault):
    """A device plugin reports what a repeated step answers: nobody is replaced."""

    code: ClassVar[str] = MEMORY_ERROR
    answer: ClassVar[str] = "retry"
    course: ClassVar[tuple[str, ...]] = ("stopping", "asking", "retrying", INIT)
    form: ClassVar[dict[str, Any]] = {"devices": True}
    strategy: ClassVar[str] = "retry,recover"
    ranks: ClassVar[tuple[int, ...]] = ()
    replaces_pod: ClassVar[bool] = False
    restarts: ClassVar[int] = 0

    def strike(self) -> None:
        self._known = len(self.job.timeline())
        self._node, chip = chip_of(self.job, self.devices, PODS[self.place], 1)
        self.devices.report(self._node, ChipFault(chip, self.code, "RestartBusiness"))

    def wait_over(self, before: Before, step: int) -> None:
        def over() -> bool:
            found = [(each["strategy"], each["outcome"]) for each in self.job.timeline()]
            assert {(self.answer, "recovered")} >= {each for each in found if each[1] != "recovering"}, found
            return len(found) > self._known and found[-1][1] == "recovered"

        self.job.cluster.wait(over, timeout_s=60, every_s=0.5)
        self.mend()
        self.job.wait_step(self.job.step() + 3)

    def mend(self) -> None:
        self.devices.report(self._node)


class Network(Reported):
    """A failed collective: the network is given a moment first."""

    code: ClassVar[str] = FAILED_COLLECTIVE
    course: ClassVar[tuple[str, ...]] = ("stopping", "asking", "converging", "retrying", INIT)


class Healing(Reported):
    """A broken device that comes back: a new process in the same pod, once it is.

    A job that answers it by itself while no plane is there may have to do so again, since it is broken still.
    """

    course: ClassVar[tuple[str, ...]] = ("noticing", "stopping", "healing", "asking", "recovering", INIT)
    form: ClassVar[dict[str, Any]] = {"devices": True, "spares": 1}
    code: ClassVar[str] = BROKEN
    strategy: ClassVar[str] = "recover-in-place"
    answer: ClassVar[str] = "recover-in-place"
    ranks: ClassVar[tuple[int, ...]] = (1,)

    def strike(self) -> None:
        super().strike()
        threading.Timer(HEALED_AFTER_S, self.mend).start()
        self.lost += self.hurt


class Deleted(Fault):
    """A pod is deleted: another one as the same rank."""

    def strike(self) -> None:
        pod = self.job.places()[self.place]
        self.job.cluster.kubectl("delete", "pod", "-n", self.job.namespace, pod, "--wait=false")


class Cut(Fault):
    """The link of a node is cut: the pod is replaced on another one."""

    form: ClassVar[dict[str, Any]] = {"pause_s": LONG_PAUSE_S}
    job_type: ClassVar[type[PodJob]] = ApartJob
    strategy: ClassVar[str] = "recover"

    def strike(self) -> None:
        job = self.job
        where = column(job.cluster, job.namespace, ".spec.nodeName")
        # Workers keep off each other's nodes, so one of them at least is not with the master.
        self.place = next(place for place in (1, 2) if where[PODS[place]] != where[PODS[0]])
        self._node = where[PODS[self.place]]
        job.cluster.cut_link(self._node)

    def mend(self) -> None:
        cluster = self.job.cluster
        cluster.mend_link(self._node)
        cluster.wait(lambda: all(map(cluster.node_ready, cluster.node_names)), timeout_s=90, every_s=0.2)


class Switched(Fault):
    """A slow device: the ranks move to another pod while they train."""

    course: ClassVar[tuple[str, ...]] = ("standby", "pausing", "migrating", "parting", INIT)
    form: ClassVar[dict[str, Any]] = {
        "devices": True, "labels": HOT_SWITCH, "scheduling": "", "spares": 1, "pause_s": LONG_PAUSE_S,
    }  # fmt: skip
    strategy: ClassVar[str] = ""
    restarts: ClassVar[int] = 0

    def strike(self) -> None:
        self._old = self.job.places()[self.place]
        self._node, chip = chip_of(self.job, self.devices, self._old, 1)
        self.devices.report(self._node, ChipFault(chip, SLOW, "SubHealthFault"))

    def wait_over(self, before: Before, step: int) -> None:
        pods = "/api/v1/namespaces/{}/pods/{}"
        path = pods.format(self.job.namespace, self._old)
        self.job.cluster.wait(lambda: self.job.cluster.api.find(path) is None, timeout_s=90, every_s=0.1)
        self.job.wait_step(self.job.step() + 3)

    def mend(self) -> None:
        self.devices.report(self._node)

    def assert_answered(self, before: Before) -> None:
        assert self.hurt == before.new_processes()
        assert [self._old] == before.new_pods()
        assert 0 == self.job.status().get("restarts", 0)
        assert ["switched"] * self.count == [each["outcome"] for each in self.job.timeline()]


KINDS: dict[str, type[Fault]] = {
    "killed": Killed,
    "memory": Reported,
    "network": Network,
    "healing": Healing,
    "deleted": Deleted,
    "cut": Cut,
    "switched": Switched,
}


def kept_phase(job: PodJob) -> str:
    """The phase that a new plane would begin with."""
    (found,) = [
        each
        for each in job.cluster.api.items(f"/api/v1/namespaces/{job.namespace}/configmaps")
        if each["metadata"]["name"].startswith("taskd-plane-")
    ]
    return str(json.loads(found["data"]["state"])["phase"])


def reset_list(job: PodJob) -> list[Any]:
    """The ranks that the job's reset-config names."""
    path = f"/api/v1/namespaces/{job.namespace}/configmaps/reset-config-{job.form.name}"
    listed: list[Any] = json.loads(job.cluster.api.get(path)["data"]["reset.json"])["RankList"]
    return listed


@pytest.mark.parametrize("way", [BEFORE, AFTER])
@pytest.mark.parametrize("kind", KINDS)
def test_a_plane_that_dies_at_a_phase(
    cluster: RealNodes,
    site_of_plane: Site,
    plane: MortalPlane,
    devices: DevicePlugins,
    tmp_path: Path,
    long_undisturbed: UndisturbedRun,
    kind: str,
    way: str,
) -> None:
    """Same end as without a death, whatever phase the plane was in."""
    chosen = KINDS[kind]
    job = chosen.job_type(
        cluster, site_of_plane, tmp_path / "out", steps=LONG,
        plane=plane.controller.plane, backoff=20, **{"pause_s": PAUSE_S, **chosen.form},
    )  # fmt: skip
    fault = chosen(job, devices)
    job.submit(chosen.strategy)
    job.wait_step(3)
    for phase in ("", *chosen.course):
        before, step = Before(job), job.step()
        if phase:
            plane.arm(phase, way)
        else:
            plane.watch()
        try:
            fault.once()
            if phase:
                plane.fell()
            fault.wait_over(before, step)
        finally:
            fault.mend()
        try:
            cluster.wait(lambda: kept_phase(job) == INIT and reset_list(job) == [], timeout_s=30)
        except TimeoutError as error:
            said = f"killed {way} {phase}, and it is {kept_phase(job)} still: {reset_list(job)}"
            raise AssertionError(f"{said}\n{job.words()}") from error
        if not phase:
            assert list(chosen.course) == plane.course
        fault.assert_answered(before)
    job.finish()

    if kind != "switched":
        assert dict.fromkeys(PODS, "0") == column(cluster, job.namespace, RESTARTS)
    assert_same(long_undisturbed.run, job.out, () if kind == "switched" else tuple(fault.lost))


@pytest.fixture
def site_of_plane(cluster: RealNodes, namespace: str) -> Site:
    """The jobs of the test's namespace."""
    return Site(cluster, namespace)
