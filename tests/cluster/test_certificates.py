"""Certificates in real pods: the controller makes them, the operator mounts them, the plane asks for them.

Nothing is switched off here, and nothing is told to the pods: jobs find the plane by its documented name.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskd.testing.cluster import ControllerProcess, RealNodes
from tests.cluster.conftest import Planned, UndisturbedRun
from tests.cluster.jobs import LONG, PODS, PodJob
from tests.cluster.pods import column
from tests.cluster.test_faults import RESTARTS, UID, VICTIM, WORKER, Before
from tests.kube.operator.site import Site
from tests.train.runs import assert_same

pytestmark = pytest.mark.slow

SERVICE = "/api/v1/namespaces/mindx-dl/services/clusterd-grpc-svc"
# What anybody in a pod can try: speak for a job, with certificates from a directory or with none.
CALL = """\
import asyncio, os, sys
from taskd.links.plane import PlaneAddress, PlaneError, connect_plane

async def call(job, directory):
    place = PlaneAddress(os.environ["MINDX_SERVER_IP"] + ":8899", job, directory)
    try:
        async with connect_plane(place, 5) as link:
            await link.begin()
            print("taken")
    except PlaneError as error:
        print("refused:", error)

asyncio.run(call(sys.argv[1], sys.argv[2]))
"""


@pytest.fixture
def certified(cluster: RealNodes, namespace: str, definition: None, tmp_path: Path) -> Iterator[Planned]:
    """A controller with a plane to which nothing was said about certificates."""
    log = tmp_path / "controller.log"
    controller = ControllerProcess(cluster, namespace, log, plane=True, secure=True).start()
    try:
        yield Planned(Site(cluster, namespace), controller)
    finally:
        assert 0 == controller.stop(), log.read_text()
    assert "PRIVATE" not in log.read_text()


def call(job: PodJob, job_id: str, directory: str) -> str:
    """Call the plane from inside of rank 0's pod; returns what came of it."""
    words = ("python", "-c", CALL, job_id, directory)
    return job.cluster.kubectl("exec", "-n", job.namespace, PODS[0], "--", *words).strip()


def test_a_job_recovers_over_certified_connections(
    cluster: RealNodes, certified: Planned, tmp_path: Path, long_undisturbed: UndisturbedRun
) -> None:
    """A process is killed and a pod deleted: the plane decides about both, and no bit differs.

    Whoever has no certificate is not heard, and one speaks for its own job only.
    """
    job = PodJob(
        cluster,
        certified.site,
        tmp_path / "out",
        plane=certified.plane,
        secure=True,
        spares=1,
        steps=LONG,
        pause_s=0.15,
    )
    job.submit("recover-in-place,recover")
    job.wait_step(5)
    pod = cluster.api.get(f"/api/v1/namespaces/{job.namespace}/pods/{PODS[0]}")
    (container,) = pod["spec"]["containers"]
    env = {each["name"]: each.get("value") for each in container["env"]}
    assert "TASKD_PLANE" not in env
    assert cluster.api.get(SERVICE)["spec"]["clusterIP"] == env["MINDX_SERVER_IP"]
    own = str(env["TASKD_CERTIFICATES"])
    assert own in {mount["mountPath"] for mount in container["volumeMounts"]}

    before = Before(job)
    os.kill(job.all_processes()[VICTIM].pid, signal.SIGKILL)
    job.wait_step(job.step() + 5)
    assert [VICTIM] == before.new_processes()
    assert [] == before.new_pods()

    between = Before(job)
    cluster.kubectl("delete", "pod", "-n", job.namespace, WORKER, "--wait=false")
    cluster.wait(lambda: column(cluster, job.namespace, UID).get(WORKER) and between.new_pods(), timeout_s=60)
    job.wait_step(job.step() + 10)
    assert [2, 3] == between.new_processes()
    assert [WORKER] == between.new_pods()

    stranger = call(job, str(env["MINDX_TASK_ID"]), "")
    other = "00000000-0000-4000-8000-000000000000"
    neighbour = call(job, other, own)
    incidents = job.timeline()
    job.finish()

    assert stranger.startswith("refused:"), stranger
    assert "PERMISSION_DENIED" in neighbour, neighbour
    assert f"does not speak for job {other}" in neighbour
    # A pod that is made again is its node come back; `recover` names what comes up on another one.
    assert ["recover-in-place"] * 2 == [each["strategy"] for each in incidents]
    assert all("the control plane decided" in each["reason"] for each in incidents), incidents
    assert dict.fromkeys(PODS, "0") == column(cluster, job.namespace, RESTARTS)
    assert_same(long_undisturbed.run, job.out, (2, 3, VICTIM))
    assert job.events("ProcessRecovery")
