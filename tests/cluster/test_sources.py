"""Where faults come from, in real pods: a sender outside, a node's condition, a kubelet, a container's end.

Device plugins' ConfigMaps are in `test_faults`. However it comes, the pod is replaced on another node, all
other processes stay, and the bits are those of a calm run.
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from taskd.testing.cluster import DevicePlugins, RealCluster, RealNodes
from taskd.testing.kube.client import STRATEGIC
from tests.cluster.conftest import Planned, UndisturbedRun
from tests.cluster.jobs import LONG, PODS, PodJob
from tests.cluster.pods import column
from tests.cluster.test_faults import NODE, RESTARTS, Before, chip_of
from tests.plane.stubs import services
from tests.train.runs import assert_same

pytestmark = pytest.mark.slow

WORKER = PODS[2]
LOST = (4, 5)
PAUSE_S = 0.3
OFF_THE_BUS = "NVXID0079"


def training_job(cluster: RealNodes, planned: Planned, out: Path, **more: Any) -> PodJob:
    """A job that trains, with its worker on a node where no other pod of it is."""
    job = PodJob(cluster, planned.site, out, plane=planned.plane, pause_s=PAUSE_S, steps=LONG, **more)
    job.submit("recover")
    job.wait_step(3)
    where = column(cluster, job.namespace, NODE)
    assert 1 == list(where.values()).count(where[WORKER]), where
    return job


def assert_moved(job: PodJob, before: Before, node: str) -> None:
    """See that the worker is elsewhere, with new processes, and nothing else is new."""
    assert [*LOST] == before.new_processes()
    assert [WORKER] == before.new_pods()
    assert node != column(job.cluster, job.namespace, NODE)[WORKER]
    assert 1 == job.status()["restarts"]


def assert_ended_well(job: PodJob, run: UndisturbedRun) -> None:
    """Let it train to its end, and compare."""
    job.finish()
    assert dict.fromkeys(PODS, "0") == column(job.cluster, job.namespace, RESTARTS)
    assert_same(run.run, job.out, LOST)


def send_public_fault(plane: str, node: str, chip: int, assertion: str) -> None:
    """`SendPublicFault`, by whoever has seen that a device has fallen off the bus."""
    request, response, _ = services()["PubFault"]["SendPublicFault"]
    now = round(time.time() * 1000)
    fault = {
        "faultId": f"lost-{node}-{chip}",
        "faultType": "NPU",
        "faultCode": OFF_THE_BUS,
        "faultTime": now,
        "assertion": assertion,
        "influence": [{"nodeName": node, "deviceIds": [chip]}],
    }
    said = {"id": f"message-{now}", "timestamp": now, "version": "1.0", "resource": "nvidia"}
    with grpc.insecure_channel(plane) as channel:
        call: Any = channel.unary_unary(
            "/PubFault/SendPublicFault",
            request_serializer=lambda value: value.SerializeToString(),
            response_deserializer=response.FromString,
        )
        answer = call(request(**said, faults=[fault]), timeout=10)
    assert 0 == answer.code, answer.info


def test_a_fault_that_a_sender_outside_reports(
    cluster: RealNodes,
    planned: Planned,
    devices: DevicePlugins,
    tmp_path: Path,
    long_undisturbed: UndisturbedRun,
) -> None:
    """Over the wire; it counts until the sender says that it is over."""
    job = training_job(cluster, planned, tmp_path / "out", devices=True)
    before = Before(job)
    node, chip = chip_of(job, devices, WORKER, 1)
    send_public_fault(planned.plane, node, chip, "occur")
    try:
        cluster.wait(before.new_pods, timeout_s=60, every_s=0.1)
        job.wait_step(job.step() + 5)
        isolated = [entry["name"] for entry in job.status().get("isolatedNodes", [])]
    finally:
        send_public_fault(planned.plane, node, chip, "recover")

    assert [*LOST] == before.new_processes()
    assert [WORKER] == before.new_pods()
    assert [node] == isolated
    assert 1 == job.status()["restarts"]
    assert "device fault" in job.status()["lastFault"]["summary"]
    cluster.wait(lambda: not job.status().get("isolatedNodes"), timeout_s=30)
    assert_ended_well(job, long_undisturbed)


@contextmanager
def condition(cluster: RealNodes, node: str, kind: str) -> Iterator[None]:
    """A condition of a node, as node problem detectors set it."""

    def put(status: str) -> None:
        said = {"type": kind, "status": status, "reason": "ByTheTest", "message": "so says the test"}
        path = f"/api/v1/nodes/{node}/status"
        cluster.api.patch(path, {"status": {"conditions": [said]}}, kind=STRATEGIC)

    put("True")
    try:
        yield
    finally:
        put("False")


def test_a_condition_of_a_node(
    cluster: RealNodes, planned: Planned, tmp_path: Path, long_undisturbed: UndisturbedRun
) -> None:
    """A kernel that is stuck, as a node problem detector says: the pod leaves the node, which is closed."""
    job = training_job(cluster, planned, tmp_path / "out")
    before = Before(job)
    node = column(cluster, job.namespace, NODE)[WORKER]
    with condition(cluster, node, "KernelDeadlock"):
        cluster.wait(before.new_pods, timeout_s=60, every_s=0.1)
        job.wait_step(job.step() + 5)
        isolated = [(entry["name"], entry["scope"]) for entry in job.status().get("isolatedNodes", [])]
        assert_moved(job, before, node)

    assert [(node, "node")] == isolated
    cluster.wait(lambda: not job.status().get("isolatedNodes"), timeout_s=30)
    assert_ended_well(job, long_undisturbed)


def test_a_kubelet_that_died(
    cluster: RealNodes, planned: Planned, tmp_path: Path, long_undisturbed: UndisturbedRun
) -> None:
    """Its pods train on, and nobody can end them: the node is given up, and the ranks go on elsewhere.

    What is left on the node does no harm, also when the kubelet is back.
    """
    if not isinstance(cluster, RealCluster):
        pytest.skip("the kubelet of a cluster that somebody else has started is not ours to kill")
    job = training_job(cluster, planned, tmp_path / "out")
    before = Before(job)
    node = column(cluster, job.namespace, NODE)[WORKER]
    kubelet = cluster.machines[node].kubelet
    kubelet.kill()
    try:
        cluster.wait(lambda: not cluster.node_ready(node), timeout_s=60, every_s=0.1)
        cluster.wait(before.new_pods, timeout_s=90, every_s=0.1)
        job.wait_step(job.step() + 5)
        assert_moved(job, before, node)
    finally:
        kubelet.start()
    cluster.wait(lambda: cluster.node_ready(node), timeout_s=90, every_s=0.2)
    job.wait_step(job.step() + 5)
    assert_moved(job, before, node)
    assert_ended_well(job, long_undisturbed)


@pytest.mark.parametrize("how", ["signal", "code"])
def test_a_container_that_fails(
    cluster: RealNodes, planned: Planned, tmp_path: Path, long_undisturbed: UndisturbedRun, how: str
) -> None:
    """With `fault-retry-times` the pod is made again as the same rank, and its peers go on.

    The status says which pod it was; that its launcher is gone the manager tells before the kubelet does.
    """
    # A shell in between has the container end with a code of its own.
    start = "taskd run --spares {spares} {command} || exit 41"
    more = {"start": start} if how == "code" else {}
    job = training_job(cluster, planned, tmp_path / "out", labels={"fault-retry-times": "3"}, **more)
    before = Before(job)
    (launcher,) = [
        each
        for each in cluster.pids_in_pod(job.namespace, WORKER)
        if "run" in each.command and any(part.endswith("taskd") for part in each.command)
    ]
    os.kill(launcher.pid, signal.SIGKILL)
    cluster.wait(before.new_pods, timeout_s=60, every_s=0.1)
    job.wait_step(job.step() + 5)
    assert [*LOST] == before.new_processes()
    assert [WORKER] == before.new_pods()
    fault = job.status()["lastFault"]
    code = 41 if how == "code" else 137
    assert (WORKER, code) == (fault["pod"], fault.get("exitCode", code)), fault
    assert 1 == job.status()["restarts"]
    assert_ended_well(job, long_undisturbed)
