"""A restart: what it replaces, how it is counted, and when it is one too many."""

from __future__ import annotations

import pytest

from taskd.core.acjob import names
from tests.core.acjob.play import Killed, Play, raw_job


def versions(play: Play) -> dict[str, int]:
    return {name.removeprefix("test-job-"): pod.version for name, pod in sorted(play.pods.items())}


def test_a_lost_pod_comes_back_in_its_place() -> None:
    play = Play(raw_job(workers=3)).start()
    writes = play.writes
    play.lose("test-job-worker-1")
    play.reconcile()
    assert play.writes - writes == 2, "one pod, one status"
    assert play.state == "Restarting"
    assert play.last["reason"] == "jobRestarting"
    assert play.last["message"] == "Job test-job is restarting because Worker replica(s) failed."
    assert versions(play) == {"master-0": 0, "worker-0": 0, "worker-1": 1, "worker-2": 0}
    assert play.status["restarts"] == 1
    play.run_all()
    play.reconcile()
    assert play.state == "Running"


def test_all_pods_that_go_before_the_job_is_whole_again_are_one_restart() -> None:
    play = Play(raw_job(workers=3, policy={"backoffLimit": 1})).start()
    for name in ("worker-0", "worker-1", "worker-2", "master-0"):
        play.lose(f"test-job-{name}")
        play.reconcile()
    assert play.status["restarts"] == 1
    assert set(versions(play).values()) == {1}


def test_a_new_pod_that_is_lost_again_is_a_second_restart() -> None:
    play = Play(raw_job(policy={"backoffLimit": 1})).start()
    play.lose("test-job-worker-0")
    play.reconcile()
    play.lose("test-job-worker-0")
    play.reconcile()
    assert play.state == "Failed"
    assert play.last["reason"] == "JobFailed"
    assert (
        play.last["message"] == "Job test-job has failed because it has reached the specified backoff limit"
    )


def test_a_second_pod_lost_later_is_a_second_restart() -> None:
    play = Play(raw_job(policy={"backoffLimit": 1})).start()
    for name in ("worker-0", "master-0"):
        assert play.state == "Running"
        play.lose(f"test-job-{name}")
        play.reconcile()
        play.run_all()
        play.reconcile()
    assert play.state == "Failed"


def test_losses_while_no_controller_runs_are_counted() -> None:
    play = Play(raw_job(policy={"backoffLimit": 1})).start()
    play.lose("test-job-worker-0")
    play.crash()
    play.reconcile()
    play.run_all()
    play.reconcile()
    assert play.status["restarts"] == 1
    play.lose("test-job-worker-0")
    play.crash()
    play.reconcile()
    assert play.state == "Failed"


@pytest.mark.parametrize(
    ("code", "state"), [(1, "Failed"), (127, "Failed"), (128, "Restarting"), (137, "Restarting")]
)
def test_exit_codes_from_128_restart_the_pod_that_failed(code: int, state: str) -> None:
    play = Play(raw_job(restart="ExitCode", workers=2)).start()
    play.fail("test-job-worker-1", code)
    play.reconcile()
    assert play.state == state
    if state == "Restarting":
        assert versions(play) == {"master-0": 0, "worker-0": 0, "worker-1": 1}
        assert play.last["message"] == "Job test-job is restarting because Worker replica(s) failed."


def test_unconditional_retry_counts_down_in_the_words_of_the_seed() -> None:
    play = Play(raw_job(labels={"fault-retry-times": "3"})).start()
    for left in (3, 2, 1):
        play.fail("test-job-master-0")
        play.reconcile()
        assert play.state == "Restarting"
        assert play.last["reason"] == "jobRestarting"
        said = f"Job default/test-job is unconditional retry job and remain retry times is <{left}>."
        assert play.last["message"] == said
        assert set(versions(play)) == {"master-0", "worker-0"}
        play.run_all()
        play.reconcile()
        assert play.state == "Running"
    play.fail("test-job-master-0")
    play.reconcile()
    assert play.state == "Failed"
    assert (
        play.last["message"]
        == "Job default/test-job has failed because pod failed and remain retry times is 0."
    )


def test_retry_replaces_the_whole_job_unless_pods_are_rescheduled_alone() -> None:
    play = Play(raw_job(labels={"fault-retry-times": "1"}, workers=2)).start()
    play.fail("test-job-worker-0")
    play.reconcile()
    assert set(versions(play).values()) == {1}
    play = Play(raw_job(labels={"fault-retry-times": "1", "pod-rescheduling": "on"}, workers=2)).start()
    play.fail("test-job-worker-0")
    play.reconcile()
    assert versions(play) == {"master-0": 0, "worker-0": 1, "worker-1": 0}


def test_peers_that_fail_after_the_first_belong_to_the_same_restart() -> None:
    play = Play(raw_job(labels={"fault-retry-times": "1", "pod-rescheduling": "on"}, workers=2)).start()
    play.fail("test-job-worker-0")
    play.reconcile()
    play.fail("test-job-worker-1")
    play.fail("test-job-master-0")
    play.reconcile()
    assert play.state == "Restarting"
    assert (play.status["restarts"], play.status["retries"]) == (1, 1)
    assert set(versions(play).values()) == {1}


def test_an_evicted_pod_is_replaced_without_a_retry() -> None:
    play = Play(raw_job()).start()
    play.change("test-job-worker-0", phase="Failed", reason="Evicted", message="node was low on memory")
    play.reconcile()
    assert play.state == "Restarting"
    assert play.status["restartCauses"] == {"evicted": 1}
    assert play.status["lastFault"]["reason"] == "Evicted"


def test_a_pod_whose_node_is_gone_is_forced_away() -> None:
    play = Play(raw_job(workers=2)).start()
    play.change("test-job-worker-0", node="node-9")
    play.gone = frozenset({"node-9"})
    play.reconcile()
    assert play.deleted == ["test-job-worker-0"]
    assert versions(play) == {"master-0": 0, "worker-0": 1, "worker-1": 0}
    assert play.status["lastFault"]["node"] == "node-9"
    assert play.status["restartCauses"] == {"node-lost": 1}


def test_an_unreachable_node_keeps_its_pod_until_the_cluster_gives_it_up() -> None:
    play = Play(raw_job()).start()
    play.change("test-job-worker-0", node="node-9")
    play.unreachable = frozenset({"node-9"})
    play.reconcile()
    assert play.state == "Running"
    play.change("test-job-worker-0", deleting=True)
    play.reconcile()
    assert versions(play) == {"master-0": 0, "worker-0": 1}


def test_a_terminating_predecessor_is_waited_for() -> None:
    play = Play(raw_job()).start()
    play.change("test-job-worker-0", deleting=True)
    play.reconcile()
    assert play.state == "Restarting"
    assert play.pods["test-job-worker-0"].deleting
    play.lose("test-job-worker-0")
    play.reconcile()
    assert versions(play) == {"master-0": 0, "worker-0": 1}
    assert play.status["restarts"] == 1


def test_a_pod_group_that_vanishes_holds_no_lost_pod_up() -> None:
    play = Play(raw_job()).start()
    play.group, play.phase = None, ""
    play.lose("test-job-worker-0")
    play.reconcile()
    assert set(play.pods) == {"test-job-master-0", "test-job-worker-0"}


def test_a_service_that_vanishes_comes_back_with_its_address() -> None:
    play = Play(raw_job()).start()
    assert play.service is not None
    address = play.service.ip
    play.service = None
    play.reconcile()
    assert play.service is not None
    assert play.service.ip == address


def test_a_job_that_is_made_smaller_restarts_with_the_right_size() -> None:
    play = Play(raw_job(workers=3, policy={"backoffLimit": 1})).start()
    for name in list(play.pods):
        play.change(name, annotations={names.WORLD_SIZE: "4"})
    play.raw["spec"]["replicaSpecs"]["Worker"]["replicas"] = 1
    play.reconcile()
    assert set(versions(play)) == {"master-0", "worker-0"}
    assert set(versions(play).values()) == {1}
    assert play.status["voluntaryRestarts"] == 1
    assert play.state == "Restarting"


def test_a_request_moves_the_pods_that_it_names_once() -> None:
    play = Play(raw_job(workers=2)).start()
    play.raw["status"]["requests"] = [
        {"id": "r1", "pods": ["test-job-worker-1"], "reason": "device 3 of node-4 is faulty"}
    ]
    play.reconcile()
    play.run_all()
    play.reconcile()
    assert versions(play) == {"master-0": 0, "worker-0": 0, "worker-1": 1}
    assert play.status["restarts"] == 1
    assert "device 3 of node-4" in play.status["lastFault"]["summary"]
    play.reconcile()
    assert play.status["restarts"] == 1


def test_hot_switch_keeps_place_and_count() -> None:
    play = Play(raw_job(workers=2)).start()
    source = play.pods["test-job-worker-1"]
    play.change(source.name, annotations={names.HOT_SWITCH: "true", names.ASK_OPERATOR: "create"})
    play.reconcile()
    (standby,) = [pod for pod in play.pods.values() if pod.backup]
    assert standby.slot == source.slot
    assert play.pods[source.name].annotations[names.BACKUP_NEW] == standby.name
    assert play.status["replicaStatuses"]["Worker"] == {"active": 2}
    play.run_all()
    play.lose(source.name)
    play.reconcile()
    assert len(play.pods) == 3
    assert not play.pods[standby.name].backup
    assert (play.state, play.status["restarts"]) == ("Running", 0)


def test_a_standby_that_is_not_wanted_leaves_no_trace() -> None:
    play = Play(raw_job(workers=1)).start()
    play.change("test-job-worker-0", annotations={names.HOT_SWITCH: "true", names.ASK_OPERATOR: "create"})
    play.reconcile()
    (standby,) = [pod for pod in play.pods.values() if pod.backup]
    play.change(standby.name, annotations={**standby.annotations, names.ASK_OPERATOR: "delete"})
    play.reconcile()
    assert standby.name not in play.pods
    assert not play.pods["test-job-worker-0"].annotations
    assert play.status["restarts"] == 0


SCENES = {
    "lost": lambda play: play.lose("test-job-worker-0"),
    "retry": lambda play: play.fail("test-job-worker-0"),
    "evicted": lambda play: play.change("test-job-worker-0", phase="Failed", reason="Evicted"),
    "switch": lambda play: play.change(
        "test-job-worker-0", annotations={names.HOT_SWITCH: "true", names.ASK_OPERATOR: "create"}
    ),
}


@pytest.mark.parametrize("scene", SCENES)
def test_a_controller_killed_at_any_write_ends_at_the_same_point(scene: str) -> None:
    def run(kill_at: int | None) -> tuple[int, object]:
        play = Play(
            raw_job(workers=2, labels={"fault-retry-times": "2", "pod-rescheduling": "on"}), kill_at=kill_at
        )

        def look() -> None:
            try:
                play.reconcile()
            except Killed:
                play.crash()
                play.reconcile()

        look()
        play.run_all()
        look()
        SCENES[scene](play)
        look()
        play.run_all()
        look()
        end = {key: value for key, value in play.status.items() if key not in {"lastFault", "masterAddr"}}
        return play.writes, (end, versions(play))

    writes, wanted = run(None)
    assert writes > 5
    for at in range(1, writes + 1):
        _, end = run(at)
        assert end == wanted, f"killed at write {at}"
