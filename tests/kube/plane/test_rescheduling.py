"""Jobs without a recovery strategy on a real API server: the plane decides, the operator replaces pods.

Faults enter as in production: by the ConfigMap of a device plugin, by a public fault, by the condition of a
node, by the reset-config of a device plugin. Nobody plays a manager: there is none.
"""

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from taskd.core.faults.texts.reset import RankStatus, Reset, ResetRank
from taskd.links.plane import PlaneAddress, PlaneRefused, connect_plane
from taskd.testing.kube import Nodes
from taskd.testing.kube.client import STRATEGIC
from tests.core.faults.scenes import device_info, fault
from tests.kube.operator.conftest import _end
from tests.kube.operator.site import Controller, Site, until
from tests.kube.operator.small import delete_pod, small, uid, wait_settled
from tests.kube.plane.manager import find_port, managing
from tests.plane.player import Stub

PLANE = ("--no-leader-elect", "--gang", "off", "--plane", "--plane-insecure", "--plane-listen", "127.0.0.1:0")
GRACE = {"fault-scheduling": "grace", "pod-rescheduling": "on"}
MASTER, WORKER = "job-master-0", "job-worker-0"
REMOVE_AFTER = "kubelet.taskd.test/remove-after"
SLOW_CODE = "110001020"
Json = dict[str, Any]


class Stage:
    """A job of two pods on two of three nodes, and what a test does to the cluster around it."""

    def __init__(self, site: Site, nodes: Nodes, controller: Controller) -> None:
        self.site = site
        self.nodes = nodes
        self.controller = controller
        self.names = nodes.add(3)
        self._reported: set[str] = set()

    def submit(self, labels: dict[str, str], annotations: dict[str, str] | None = None, **more: Any) -> None:
        """Pods keep off each other's nodes, and off those of other tests."""
        apart = {
            "labelSelector": {"matchLabels": {"job-name": "job"}},
            "topologyKey": "kubernetes.io/hostname",
        }
        here = [
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]}
            for name in self.names
        ]
        affinity = {
            "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]},
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": here}},
        }
        job = small("job", labels=labels, annotations=annotations or {}, pod={"affinity": affinity}, **more)
        self.site.submit(job)
        self.site.wait_state("job", "Running")

    # ----------------------------------------------------------------------------------------- what happens

    def report_devices(self, node: str, *faults: Json) -> None:
        """The device plugin of a node writes its ConfigMap, with a right check code."""
        name = f"mindx-dl-deviceinfo-{node}"
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": "kube-system", "labels": {"mx-consumer-cim": "true"}},
            "data": device_info(faults),
        }
        path = "/api/v1/namespaces/kube-system/configmaps"
        if name in self._reported:
            self.site.kube.api.patch(f"{path}/{name}", {"data": body["data"]})
        else:
            self._reported.add(name)
            self.site.kube.api.create(path, body)

    async def report_public(self, node: str, assertion: str = "occur") -> None:
        """An outside sender says that a node is slow."""
        port = until(lambda: find_port(self.controller.log))
        stub = Stub(port)
        now = round(time.time() * 1000)
        entry = {
            "faultId": f"slow-{node}",
            "faultType": "Storage",
            "faultCode": SLOW_CODE,
            "faultTime": now,
            "assertion": assertion,
            "influence": [{"nodeName": node, "deviceIds": [0]}],
        }
        answer = await stub.call(
            "PubFault/SendPublicFault",
            id=f"message-{now}",
            timestamp=now,
            version="1.0",
            resource="dpcStorage",
            faults=[entry],
        )
        await stub.close()
        assert 0 == answer.code, answer.info

    def close(self) -> None:
        for name in self._reported:
            self.site.kube.api.delete(f"/api/v1/namespaces/kube-system/configmaps/{name}")

    # ---------------------------------------------------------------------------------------- what is seen

    def node(self, pod: str) -> str:
        return str(self.site.pod(pod)["spec"]["nodeName"])

    def uids(self) -> dict[str, str]:
        return {pod: uid(self.site, pod) for pod in self.site.pods("job")}

    def reset(self) -> Json:
        found = self.site.kube.api.find(
            f"/api/v1/namespaces/{self.site.namespace}/configmaps/reset-config-job"
        )
        data = (found or {}).get("data") or {}
        return {**json.loads(data.get("reset.json", "{}")), "restartType": data.get("restartType", "")}

    def isolated(self) -> list[tuple[str, str]]:
        listed = self.site.status("job").get("isolatedNodes", [])
        return [(entry["name"], entry["scope"]) for entry in listed]

    def told(self) -> list[str]:
        return [message for _, reason, message in self.site.events("job") if reason == "ProcessRecovery"]


@pytest.fixture
def stage(site: Site, nodes: Nodes, tmp_path: Path) -> Iterator[Stage]:
    """Three nodes and a controller that is a plane too."""
    log = tmp_path / "controller.log"
    process = Controller(site.kube.kubeconfig, site.namespace, log, *PLANE).start()
    found = Stage(site, nodes, process)
    yield found
    found.close()
    _end(process)


@pytest.mark.parametrize("killed", [False, True], ids=["", "the plane dies in between"])
def test_only_the_faulty_pod_is_replaced_and_elsewhere(stage: Stage, killed: bool) -> None:
    """S2-2, pod-rescheduling: another node, one restart, the others keep their UID and are told to restart.

    The node with the broken device is named in the status until the device is well.
    """
    marks = {REMOVE_AFTER: "2s"} if killed else {}
    stage.submit(GRACE, marks=marks)
    before, node = stage.uids(), stage.node(WORKER)
    stage.report_devices(node, fault(3, "80E18005", "SeparateNPU"))
    if killed:
        until(lambda: stage.site.status("job").get("handledRequests"))
        stage.controller.kill()
        stage.controller.start()
    wait_settled(stage.site, "job", 1)
    until(lambda: stage.reset()["RetryTime"] == 1, say=lambda: str(stage.reset()))
    after = stage.uids()

    assert [WORKER] == [pod for pod in before if before[pod] != after[pod]]
    assert node != stage.node(WORKER)
    assert ("podReschedule", []) == (stage.reset()["restartType"], stage.reset()["RankList"])
    assert 1 == stage.site.status("job")["voluntaryRestarts"]
    assert [(node, "device")] == stage.isolated()
    assert any("device fault: rank 1" in message for message in stage.told()), stage.told()
    stage.report_devices(node)
    until(lambda: stage.isolated() == [], say=lambda: str(stage.isolated()))
    assert 1 == stage.site.status("job")["restarts"]


def test_without_pod_rescheduling_all_pods_are_replaced(stage: Stage) -> None:
    """Job-level rescheduling, with force: pods that would take long to end are gone at once."""
    stage.submit({"fault-scheduling": "force"}, marks={REMOVE_AFTER: "300s"})
    before, node = stage.uids(), stage.node(WORKER)
    stage.report_devices(node, fault(3, "80E18005", "SeparateNPU"))
    wait_settled(stage.site, "job", 1)
    after = stage.uids()

    assert {MASTER, WORKER} == {pod for pod in before if before[pod] != after[pod]}
    assert node not in {stage.node(MASTER), stage.node(WORKER)}
    until(lambda: any("the whole job was started again" in message for message in stage.told()))


@pytest.mark.parametrize("labels", [{}, {"fault-scheduling": "off"}], ids=["absent", "off"])
async def test_without_fault_scheduling_no_pod_is_touched(stage: Stage, labels: dict[str, str]) -> None:
    """S2-12, S2-14, S3-2: the strategies are refused, with the reason in status, Event and answer."""
    stage.submit({"pod-rescheduling": "on", **labels}, {"recover-strategy": "recover,retry,recover-in-place"})
    before = stage.uids()
    stage.report_devices(stage.node(WORKER), fault(3, "80E18005", "SeparateNPU"))
    job_id = stage.site.job("job")["metadata"]["uid"]
    port = until(lambda: find_port(stage.controller.log))
    async with connect_plane(PlaneAddress(f"127.0.0.1:{port}", job_id), 10.0) as link:
        with pytest.raises(PlaneRefused, match="fault-scheduling is absent or off"):
            await link.begin()
    await asyncio.sleep(2.0)

    assert before == stage.uids()
    assert "fault-scheduling is absent or off" in stage.site.status("job")["recoverRefused"]
    assert "RecoveryRefused" in {reason for _, reason, _ in stage.site.events("job")}
    assert [] == stage.isolated()


async def test_force_exit_leaves_a_slow_node_at_once(stage: Stage) -> None:
    """S1-23: the pod gets no time to end although the job says grace, and the slow node is closed to it."""
    stage.submit({**GRACE, "subHealthyStrategy": "forceExit"}, marks={REMOVE_AFTER: "300s"})
    before, node = stage.uids(), stage.node(WORKER)
    await stage.report_public(node)
    wait_settled(stage.site, "job", 1)
    after = stage.uids()

    assert [WORKER] == [pod for pod in before if before[pod] != after[pod]]
    assert node != stage.node(WORKER)
    assert [(node, "node")] == stage.isolated()
    await stage.report_public(node, "recover")
    until(lambda: stage.isolated() == [], say=lambda: str(stage.isolated()))


async def test_grace_exit_has_processes_end_first(stage: Stage) -> None:
    """S1-23: GracefulExit is 1 until the pod is another one; it has its time although the job says force."""
    labels = {**GRACE, "fault-scheduling": "force", "subHealthyStrategy": "graceExit"}
    stage.submit(labels, marks={REMOVE_AFTER: "3s"})
    before, node = stage.uids(), stage.node(WORKER)
    await stage.report_public(node)
    until(lambda: stage.reset().get("GracefulExit") == 1, say=lambda: str(stage.reset()))
    assert stage.site.pod(WORKER)["metadata"].get("deletionGracePeriodSeconds", 30) > 0
    wait_settled(stage.site, "job", 1)
    until(lambda: stage.reset()["GracefulExit"] == 0, say=lambda: str(stage.reset()))

    assert [WORKER] == [pod for pod in before if before[pod] != stage.uids()[pod]]
    assert (1, node != stage.node(WORKER)) == (stage.reset()["RetryTime"], True)


async def test_a_slow_node_is_ignored_where_nothing_else_is_said(stage: Stage) -> None:
    stage.submit(GRACE)
    before = stage.uids()
    await stage.report_public(stage.node(WORKER))
    await asyncio.sleep(2.0)

    assert before == stage.uids()


def test_a_reset_that_failed_moves_the_pod(stage: Stage) -> None:
    """`unrecovered` waits, `failed` reschedules, and what the device plugin wrote is cleared."""
    stage.submit(GRACE)
    before, node = stage.uids(), stage.node(WORKER)
    path = f"/api/v1/namespaces/{stage.site.namespace}/configmaps/reset-config-job"
    entry = ResetRank(1, status=RankStatus.UNRECOVERED, policy="reset", initial_policy="reset")
    stage.site.kube.api.patch(path, {"data": Reset((entry,)).data()})
    stage.report_devices(node, fault(3, "80E18005", "RestartNPU"))
    time.sleep(2.0)
    assert before == stage.uids()
    failed = ResetRank(1, status=RankStatus.FAILED, policy="reset", initial_policy="reset")
    stage.site.kube.api.patch(path, {"data": Reset((failed,)).data()})
    wait_settled(stage.site, "job", 1)
    until(lambda: stage.reset()["RetryTime"] == 1, say=lambda: str(stage.reset()))

    assert [WORKER] == [pod for pod in before if before[pod] != stage.uids()[pod]]
    assert [] == stage.reset()["RankList"]


def test_a_deleted_pod_is_told_to_the_others(stage: Stage) -> None:
    """The operator replaces it alone; the count in the reset-config is one higher once."""
    stage.submit(GRACE)
    before = stage.uids()
    delete_pod(stage.site, WORKER)
    wait_settled(stage.site, "job", 1)
    until(lambda: stage.reset()["RetryTime"] == 1, say=lambda: str(stage.reset()))

    assert [WORKER] == [pod for pod in before if before[pod] != stage.uids()[pod]]
    assert [] == stage.isolated()


def test_a_node_that_is_out_of_service_loses_its_pod(stage: Stage) -> None:
    """A condition of the node, as node problem detectors set it: the pod moves, the node is closed."""
    stage.submit(GRACE)
    before, node = stage.uids(), stage.node(WORKER)
    condition = {"type": "KernelDeadlock", "status": "True", "reason": "DockerHung", "message": "hung"}
    stage.site.kube.api.patch(
        f"/api/v1/nodes/{node}/status", {"status": {"conditions": [condition]}}, kind=STRATEGIC
    )
    wait_settled(stage.site, "job", 1)

    assert [WORKER] == [pod for pod in before if before[pod] != stage.uids()[pod]]
    assert node != stage.node(WORKER)
    assert [(node, "node")] == stage.isolated()
    condition["status"] = "False"
    stage.site.kube.api.patch(
        f"/api/v1/nodes/{node}/status", {"status": {"conditions": [condition]}}, kind=STRATEGIC
    )
    until(lambda: stage.isolated() == [], say=lambda: str(stage.isolated()))


def test_a_lost_node_costs_one_restart(stage: Stage) -> None:
    """Its kubelet says nothing any more: plane and operator both see it, and the pod is replaced once."""
    stage.submit(GRACE)
    before, node = stage.uids(), stage.node(WORKER)
    stage.nodes.lose(node)
    wait_settled(stage.site, "job", 1)
    until(lambda: stage.reset()["RetryTime"] == 1, say=lambda: str(stage.reset()))

    assert [WORKER] == [pod for pod in before if before[pod] != stage.uids()[pod]]
    assert node != stage.node(WORKER)
    stage.nodes.restore(node)
    until(lambda: stage.isolated() == [], say=lambda: str(stage.isolated()))
    assert 1 == stage.site.status("job")["restarts"]


@pytest.mark.slow
@pytest.mark.matrix
def test_a_pod_without_room_costs_the_whole_job(stage: Stage) -> None:
    """The fall-back after the job's own limit; both restarts are counted, and neither against the limit."""
    stage.submit(GRACE, {"wait-reschedule-timeout": "30"}, policy={"backoffLimit": 1})
    before, node = stage.uids(), stage.node(WORKER)
    (free,) = set(stage.names) - {node, stage.node(MASTER)}
    stage.site.kube.api.patch(f"/api/v1/nodes/{free}", {"spec": {"unschedulable": True}})
    stage.report_devices(node, fault(3, "80E18005", "SeparateNPU"))
    until(lambda: stage.site.status("job").get("restarts") == 2, 90, lambda: str(stage.site.status("job")))
    stage.site.kube.api.patch(f"/api/v1/nodes/{free}", {"spec": {"unschedulable": None}})
    wait_settled(stage.site, "job", 2)

    assert {MASTER, WORKER} == {pod for pod in before if before[pod] != stage.uids()[pod]}
    assert node not in {stage.node(MASTER), stage.node(WORKER)}
    assert {"requested": 2} == stage.site.status("job")["restartCauses"]
    assert any("was not replaced within 30 s" in message for message in stage.told()), stage.told()


async def test_force_exit_with_process_recovery_on(stage: Stage) -> None:
    """S1-23: the trainer is told to leave without being asked anything, and the pod goes at once."""
    labels = {"fault-scheduling": "grace", "subHealthyStrategy": "forceExit"}
    stage.submit(labels, {"recover-strategy": "recover,dump"}, marks={REMOVE_AFTER: "300s"})
    before, node = stage.uids(), stage.node(WORKER)
    async with managing(stage.controller.log, stage.site.job("job")["metadata"]["uid"]) as manager:
        await stage.report_public(node)
        order = await manager.hears("changeStrategy")
        await asyncio.to_thread(wait_settled, stage.site, "job", 1)

    assert ("exit", (1,)) == (order.strategy, order.nodes)
    assert [WORKER] == [pod for pod in before if before[pod] != stage.uids()[pod]]
    assert node != stage.node(WORKER)


async def test_grace_exit_with_process_recovery_on(stage: Stage) -> None:
    """S1-23: the state is saved before the pod goes, in its own time although the job says force."""
    labels = {"fault-scheduling": "force", "subHealthyStrategy": "graceExit"}
    stage.submit(labels, {"recover-strategy": "dump"}, marks={REMOVE_AFTER: "2s"})
    before, node = stage.uids(), stage.node(WORKER)
    async with managing(stage.controller.log, stage.site.job("job")["metadata"]["uid"]) as manager:
        await stage.report_public(node)
        save = await manager.hears("saveAndExit")
        assert before == stage.uids(), "nobody goes before the state is saved"
        await manager.link.report_outcome(0, "saved", "dump")
        order = await manager.hears("changeStrategy")
        gone = await asyncio.to_thread(until, lambda: _deletion(stage))
        await asyncio.to_thread(wait_settled, stage.site, "job", 1)

    assert ((1,), "exit") == (save.nodes, order.strategy)
    assert gone > 0, "it has time to end"
    assert [WORKER] == [pod for pod in before if before[pod] != stage.uids()[pod]]
    assert node != stage.node(WORKER)


def _deletion(stage: Stage) -> int:
    """The time that the worker's pod has to end, once it is being deleted."""
    metadata = stage.site.pod(WORKER)["metadata"]
    return int(metadata["deletionGracePeriodSeconds"]) if "deletionTimestamp" in metadata else 0
