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


def test_a_deleted_pod_is_replaced_as_soon_as_nothing_of_it_runs() -> None:
    """Its name is free then, whatever its kubelet has still to clear up; before, it may be saving."""
    play = Play(raw_job(workers=3)).start()
    play.change("test-job-worker-1", deleting=True, deleted_at=play.now)
    play.reconcile()
    assert versions(play)["worker-1"] == 0

    play.fail("test-job-worker-1", code=143, over=True)
    play.reconcile()

    assert versions(play) == {"master-0": 0, "worker-0": 0, "worker-1": 1, "worker-2": 0}
    assert play.status["restarts"] == 1
    assert not play.pods["test-job-worker-1"].deleting


def test_a_pod_that_is_lost_twice_while_the_job_is_not_whole_counts_twice() -> None:
    """That its remains were taken away by the controller does not make it a deletion of the controller's."""
    play = Play(raw_job(workers=3)).start()
    for _ in range(2):
        play.fail("test-job-worker-1", code=143, deleting=True, deleted_at=play.now, over=True)
        play.reconcile()

    assert play.status["restarts"] == 2


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
        play.now += 3600
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


@pytest.mark.parametrize(
    ("strategy", "alone"), [("exit", False), ("dump", False), ("dump,exit", False), ("dump,recover", True)]
)
def test_retry_replaces_a_pod_alone_only_where_its_peers_go_on(strategy: str, alone: bool) -> None:
    """After a dump, and with `exit`, the processes of the other pods end as well."""
    play = Play(
        raw_job(labels={"fault-retry-times": "1"}, annotations={"recover-strategy": strategy}, workers=2)
    ).start()
    play.fail("test-job-worker-0")
    play.reconcile()
    expected = {"master-0": 0, "worker-0": 1, "worker-1": 0} if alone else dict.fromkeys(versions(play), 1)
    assert expected == versions(play)


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
    """Nobody is there to end it: with a grace period it would stay for ever."""
    play = Play(raw_job(workers=2)).start()
    play.change("test-job-worker-0", node="node-9")
    play.gone, play.stuck = frozenset({"node-9"}), frozenset({"test-job-worker-0"})
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
    play.stuck = frozenset({"test-job-worker-0"})
    play.change("test-job-worker-0", deleting=True)
    play.reconcile()
    assert versions(play) == {"master-0": 0, "worker-0": 1}


@pytest.mark.parametrize(("label", "waits"), [("force", False), ("grace", True), ("", True)])
def test_a_failed_pod_is_given_its_time_unless_the_job_says_force(label: str, waits: bool) -> None:
    labels = {"fault-retry-times": "1"} | ({"fault-scheduling": label} if label else {})
    play = Play(raw_job(labels=labels), stuck=frozenset({"test-job-master-0"})).start()
    play.fail("test-job-worker-0")
    play.reconcile()
    assert waits == play.pods["test-job-master-0"].deleting


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
    play.raw["spec"]["replicaSpecs"]["Worker"]["replicas"] = 1
    play.reconcile()
    assert set(versions(play)) == {"master-0", "worker-0"}
    assert set(versions(play).values()) == {1}
    assert play.status["voluntaryRestarts"] == 1
    assert play.state == "Restarting"


@pytest.mark.parametrize(
    ("annotations", "labels", "specs"),
    [
        ({names.PROCESSES_PER_POD: "2"}, {}, {"Worker": 1}),
        ({}, {"framework": "tensorflow"}, {"Worker": 3}),
    ],
    ids=["fewer and larger pods", "another framework"],
)
def test_a_job_of_as_many_processes_in_another_shape_restarts_as_a_whole(
    annotations: dict[str, str], labels: dict[str, str], specs: dict[str, int]
) -> None:
    """1 + 3 pods of one process are as many as 1 + 1 of two, and none of the old ones can stay."""
    play = Play(raw_job(workers=3)).start()
    old = {pod.uid for pod in play.pods.values()}
    play.raw["metadata"]["annotations"] |= annotations
    play.raw["metadata"]["labels"] |= labels
    replicas = play.raw["spec"]["replicaSpecs"]
    replicas["Worker"]["replicas"] = specs["Worker"]
    if labels:
        replicas["Chief"] = replicas.pop("Master")
    play.reconcile()
    play.run_all()
    play.reconcile()
    assert old.isdisjoint({pod.uid for pod in play.pods.values()})
    assert 1 == len({pod.annotations[names.SHAPE] for pod in play.pods.values()})
    assert ("Running", 1, 1) == (play.state, play.status["restarts"], play.status["voluntaryRestarts"])


def test_an_inference_job_gains_and_loses_pods_without_a_restart() -> None:
    """Its pods are told nothing of each other; what is lost later is a restart as ever."""
    play = Play(raw_job(workers=2, labels={names.APP: "mindie-ms-server", names.JOB_ID: "x"})).start()
    kept = play.pods["test-job-worker-0"].uid
    for workers in (3, 1, 2):
        play.raw["spec"]["replicaSpecs"]["Worker"]["replicas"] = workers
        play.reconcile()
        assert "Restarting" != play.state
        play.run_all()
        play.reconcile()
        assert ("Running", workers + 1) == (play.state, len(play.pods))
    assert (kept, 0) == (play.pods["test-job-worker-0"].uid, play.status["restarts"])
    play.lose("test-job-worker-1")
    play.crash()
    play.reconcile()
    assert ("Restarting", 1) == (play.state, play.status["restarts"])


def test_a_request_that_names_nobody_is_answered_without_a_restart() -> None:
    play = Play(raw_job(workers=2, policy={"backoffLimit": 1})).start()
    play.raw["status"]["requests"] = [{"id": "r1", "pods": ["nobody"], "reason": "gone"}, {"id": "r2"}]
    play.reconcile()
    assert ("Running", 0) == (play.state, play.status["restarts"])
    assert {"r1": 0, "r2": 0} == play.status["handledRequests"]
    assert not play.deleted


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
    assert play.counts["Worker"] == {"active": 2}
    play.run_all()
    play.lose(source.name)
    play.reconcile()
    assert len(play.pods) == 3
    assert not play.pods[standby.name].backup
    assert (play.state, play.status["restarts"]) == ("Running", 0)


def test_a_pod_stays_until_its_standby_is_alive() -> None:
    """The scheduler may ask for the switch early; a pod that works is not given up for one that waits."""
    play = Play(raw_job(workers=1)).start()
    source = "test-job-worker-0"
    play.change(source, annotations={names.HOT_SWITCH: "true", names.ASK_OPERATOR: "create"})
    play.reconcile()
    play.change(source, annotations={**play.pods[source].annotations, names.ASK_VOLCANO: "delete"})
    play.reconcile()
    assert source not in play.deleted
    play.run_all()
    play.reconcile()
    assert [source] == play.deleted
    assert ("Running", 0) == (play.state, play.status["restarts"])


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


def ask(play: Play, **request: object) -> None:
    play.raw["status"]["requests"] = [{"id": "r1", "reason": "a device", "voluntary": True, **request}]
    play.reconcile()


def test_a_pod_that_was_replaced_already_is_not_replaced_for_the_same_reason() -> None:
    """A node that dies is seen by plane and operator; the second to speak names a pod that is gone."""
    worker = "test-job-worker-0"
    play = Play(raw_job()).start()
    play.lose(worker)
    play.reconcile()
    play.run_all()
    play.reconcile()
    assert "uid-3" == play.pods[worker].uid
    ask(play, pods=[worker], uids=["uid-2"])

    assert ("uid-3", 1) == (play.pods[worker].uid, play.status["restarts"])
    assert {"r1": 1} == play.status["handledRequests"]


@pytest.mark.parametrize(
    ("label", "force", "waits"),
    [
        ("grace", None, True),
        ("grace", False, True),
        ("grace", True, False),
        ("force", None, False),
        ("force", False, True),
        ("force", True, False),
    ],
)
@pytest.mark.parametrize("whole", [False, True])
def test_a_request_may_say_how_its_pods_end(label: str, force: bool | None, waits: bool, whole: bool) -> None:
    """`graceExit` and `forceExit` say it; otherwise the job's label counts."""
    worker = "test-job-worker-0"
    play = Play(raw_job(labels={"fault-scheduling": label}), stuck=frozenset({worker})).start()
    wish: dict[str, object] = {"scope": "job"} if whole else {"pods": [worker]}
    ask(play, **wish, **({} if force is None else {"force": force}))

    assert waits == (play.pods[worker].uid == "uid-2")


def test_with_grace_a_pod_that_does_not_end_is_forced_after_900_s() -> None:
    """Not a second earlier; and the look at that moment is asked for."""
    worker = "test-job-worker-0"
    play = Play(raw_job(labels={"fault-scheduling": "grace"}), stuck=frozenset({worker})).start()
    begun = play.now
    ask(play, pods=[worker])
    assert play.pods[worker].deleting
    assert begun + 900 == play.wake_at
    play.now = begun + 899
    play.reconcile()
    assert ("uid-2", [worker]) == (play.pods[worker].uid, play.deleted)
    play.now = begun + 900
    play.reconcile()
    assert "uid-3" == play.pods[worker].uid
    assert 1 == play.status["restarts"]


def test_without_the_label_a_pod_that_does_not_end_is_waited_for() -> None:
    worker = "test-job-worker-0"
    play = Play(raw_job(), stuck=frozenset({worker})).start()
    ask(play, pods=[worker])
    play.now += 10_000
    play.reconcile()

    assert "uid-2" == play.pods[worker].uid
    assert play.wake_at is None


@pytest.mark.parametrize(
    ("labels", "annotations", "refused"),
    [
        ({}, {"recover-strategy": "recover"}, True),
        ({"fault-scheduling": "off"}, {"recover-strategy": "retry"}, True),
        ({"fault-scheduling": "off", "subHealthyStrategy": "hotSwitch"}, {}, True),
        ({"fault-scheduling": "grace"}, {"recover-strategy": "recover-in-place"}, False),
        ({"fault-scheduling": "force"}, {"recover-strategy": "dump"}, False),
        ({"subHealthyStrategy": "hotSwitch"}, {}, False),
        ({}, {"recover-strategy": "exit"}, False),
        ({}, {}, False),
    ],
)
def test_strategies_without_fault_scheduling_are_refused_in_the_status(
    labels: dict[str, str], annotations: dict[str, str], refused: bool
) -> None:
    play = Play(raw_job(labels=labels, annotations=annotations)).start()

    assert refused == ("fault-scheduling is absent or off" in play.status.get("recoverRefused", ""))
