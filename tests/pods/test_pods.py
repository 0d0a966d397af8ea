"""``taskd run`` in pods that have the operator's environment: they find each other, and come back.

Nothing here keeps state in memory, so ranks restart; ``test_pods_training.py`` recovers from memory.
"""

import json
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.pods.town import NEEDS, Pod, Town, cpu_job, taskd_run, town
from tests.roles.harness import eventually, wake

pytestmark = NEEDS

STEPS = str(Path(__file__).parents[1] / "roles" / "steps.py")
LONG = taskd_run(STEPS, "100000", "0.02")


def knows(pod: Pod, count: int) -> bool:
    """Tell whether a pod keeps the roster of so many."""
    files = list(pod.directory.glob("roster-*.json"))
    return bool(files) and len(json.loads(files[0].read_text())["members"]) == count


def running(pods: list[Pod], count: int) -> None:
    """Wait until all ranks do steps and every pod knows who could take over."""
    for pod in pods:
        eventually(partial(knows, pod, count), f"the roster of {count} in {pod.name}")


def manages(pod: Pod, **wanted: object) -> dict[str, Any] | None:
    """Return the status that a pod's manager wrote, once the job runs there."""
    status = pod.saved_status()
    ranks = status.get("ranks", [])
    done = status.get("phase") == "running" and bool(ranks) and all(rank["step"] >= 0 for rank in ranks)
    return status if done and wanted.items() <= status.items() else None


def stop(place: Town, manager: Pod, pods: list[Pod]) -> None:
    """Let the job end in order, and see that every pod says so."""
    os.kill(manager.init, signal.SIGINT)
    assert [130] * len(pods) == [pod.wait() for pod in pods], [pod.err for pod in place.pods]


def test_pods_find_each_other_without_a_flag(tmp_path: Path) -> None:
    """A worker that is first waits and says why; the job ends with 0 in every pod."""
    with town(tmp_path, cpu_job(1, 2), *taskd_run(STEPS, "20", "0.02")) as place:
        place.hosts.write_text("127.0.0.1 localhost\n")
        worker = place.start(1)
        eventually(lambda: "no manager answers at 10.213.0.254:9601 yet" in worker.err, "a word about it")
        master = place.start(0)
        assert [0, 0] == [master.wait(), worker.wait()], worker.err

    assert "in a pod: node 1 (RANK), of 2 (TASKD_NODES), 2 processes each (LOCAL_WORLD_SIZE)" in worker.err
    assert "declares the port 9601" in worker.err


@pytest.mark.matrix
def test_a_name_that_does_not_resolve_yet_is_waited_for(tmp_path: Path) -> None:
    """The leader may be a name; it is resolved anew at each try, so the new pod is found, not the old one."""
    words = taskd_run("--master-addr", "job-master-0.acjob-pods", STEPS, "20", "0.02")
    with town(tmp_path, cpu_job(1, 1), *words) as place:
        worker = place.start(1)
        eventually(lambda: "cannot be resolved yet" in worker.err, "a word about it")
        master = place.start(0)
        assert [0, 0] == [master.wait(), worker.wait()], worker.err


def test_a_manager_that_never_comes_ends_the_pod_in_time(tmp_path: Path) -> None:
    """With the code for it, after as long as a start may take."""
    words = taskd_run("--rdzv-conf", "timeout=3", STEPS, "20", "0.02")
    with town(tmp_path, cpu_job(1, 1), *words) as place:
        worker = place.start(1)
        assert 2 == worker.wait()

    assert "no manager was reached in time" in worker.err


def test_a_pod_that_is_created_again_joins_as_the_same_rank(tmp_path: Path) -> None:
    """It has another address and an empty home; all ranks run again."""
    with town(tmp_path, cpu_job(1, 1), *LONG) as place:
        master, worker = place.start(0), place.start(1)
        running([master, worker], 2)
        before = eventually(lambda: manages(master), "the job to run")
        worker.kill()
        again = place.start(1, version=1)
        after = eventually(
            lambda: manages(master, generation=before["generation"] + 1), "the next generation"
        )
        assert [0, 1] == [rank["rank"] for rank in after["ranks"]]
        stop(place, master, [master, again])

    assert "the agent of node 1 was replaced" in master.err or "node 1 was lost" in master.err


def test_rank_0_s_pod_is_created_again_and_manages_on(tmp_path: Path) -> None:
    """One of two cannot take over; the new pod hears from the other where the job was, and goes on."""
    with town(tmp_path, cpu_job(1, 1), *LONG) as place:
        master, worker = place.start(0), place.start(1)
        running([master, worker], 2)
        master.kill()
        place.forget_leader()
        again = place.start(0, version=1)
        status = eventually(lambda: manages(again), "the job to run under the new pod")
        assert status["generation"] > 1
        stop(place, again, [again, worker])

    assert "has come back without its processes" in again.err or "without its processes" in str(status)


@pytest.mark.matrix
def test_rank_0_s_pod_joins_a_job_that_is_managed_elsewhere(tmp_path: Path) -> None:
    """Two of three went on; rank 0's new pod begins no job of its own, though the Service leads to it."""
    with town(tmp_path, cpu_job(2, 1), *LONG) as place:
        pods = [place.start(rank) for rank in range(3)]
        running(pods, 3)
        pods[0].kill()
        place.forget_leader()
        eventually(lambda: "this one takes over" in pods[1].err + pods[2].err, "another manager")
        heir = pods[1] if "this one takes over" in pods[1].err else pods[2]
        again = place.start(0, version=1)
        status = eventually(lambda: manages(heir), "the job to run again")
        assert [0, 1, 2] == [rank["rank"] for rank in status["ranks"]]
        # A worker that comes back finds it too, and not the pod behind the leader's address.
        (other,) = (pod for pod in pods[1:] if pod is not heir)
        rank = pods.index(other)
        other.kill()
        back = place.start(rank, version=2)
        eventually(lambda: manages(heir, generation=status["generation"] + 1), "the next generation")
        stop(place, heir, [heir, again, back])

    assert "manages this job by now" in again.err


def test_a_pod_that_is_deleted_leaves_the_job_to_the_others(tmp_path: Path) -> None:
    """SIGTERM to rank 0's pod is not the end of the job: the others hear that it goes, and go on."""
    with town(tmp_path, cpu_job(2, 1), *LONG) as place:
        pods = [place.start(rank) for rank in range(3)]
        running(pods, 3)
        pods[0].terminate()
        assert 143 == pods[0].wait()
        place.forget_leader()
        eventually(lambda: "this one takes over" in pods[1].err + pods[2].err, "another manager", 20)
        heir = pods[1] if "this one takes over" in pods[1].err else pods[2]
        again = place.start(0, version=1)
        eventually(lambda: manages(heir), "the job to run again")
        stop(place, heir, [*pods[1:], again])


@pytest.mark.matrix
def test_a_pod_that_was_out_of_reach_and_comes_back_does_no_harm(tmp_path: Path) -> None:
    """Another one has its rank by then: the old one is refused, and all of it ends with code 5."""
    with town(tmp_path, cpu_job(1, 1), *LONG) as place:
        master, worker = place.start(0), place.start(1)
        running([master, worker], 2)
        frozen = worker.family()[1:]
        for process in frozen:
            process.suspend()
        again = place.start(1, version=1)
        status = eventually(lambda: manages(master, generation=2), "the job to run with the new pod")
        wake(frozen)
        assert 5 == worker.wait(), worker.err
        assert status["generation"] == master.saved_status()["generation"]
        stop(place, master, [master, again])

    assert "node 1 was started anew" in worker.err


def test_every_pod_ends_with_the_code_of_the_rank_that_failed(tmp_path: Path) -> None:
    """As the table of exit codes has it, whichever pod the rank was in."""
    script = tmp_path / "fails.py"
    script.write_text("import os, sys, time\nif os.environ['RANK'] == '1': sys.exit(7)\ntime.sleep(60)\n")
    with town(tmp_path, cpu_job(1, 1), *taskd_run("--max-restarts", "0", str(script))) as place:
        pods = [place.start(0), place.start(1)]
        assert [7, 7] == [pod.wait() for pod in pods]


def test_a_standby_pod_waits_outside_of_the_world(tmp_path: Path) -> None:
    """It has the rank of the pod that it may replace, takes no place, and ends with the job."""
    with town(tmp_path, cpu_job(1, 1), *LONG) as place:
        master, worker = place.start(0), place.start(1)
        eventually(lambda: manages(master), "the job to run")
        standby = place.start(1, name="job-worker-0-hot-ab12cd")
        nodes = eventually(lambda: _nodes(master, 3), "the standby to join")
        assert ["0", "1", "standby-job-worker-0-hot-ab12cd"] == sorted(node["node"] for node in nodes)
        assert 2 == len(master.saved_status()["ranks"])
        worker.kill()
        eventually(lambda: manages(master, generation=2), "its place to be taken")
        stop(place, master, [master, standby])


def _nodes(pod: Pod, count: int) -> list[dict[str, Any]]:
    nodes: list[dict[str, Any]] = [node for node in pod.saved_status()["nodes"] if node["connected"]]
    return nodes if len(nodes) == count else []


@pytest.mark.matrix
def test_rank_0_s_pod_is_lost_before_the_job_began(tmp_path: Path) -> None:
    """Two of three had come; nobody has anything to go on with, so the new pod begins the job."""
    with town(tmp_path, cpu_job(2, 1), *taskd_run(STEPS, "20", "0.02")) as place:
        master, worker = place.start(0), place.start(1)
        eventually(lambda: len(master.saved_status().get("nodes", ())) == 2, "the first two")
        master.kill()
        place.forget_leader()
        pods = [place.start(0, version=1), worker, place.start(2)]
        assert [0, 0, 0] == [pod.wait() for pod in pods], [pod.err for pod in pods]
