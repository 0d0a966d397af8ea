"""The states of a job, each when it should be and only then."""

from __future__ import annotations

from taskd.core.acjob import names
from taskd.core.acjob.seen import Failure, PodGroupSeen
from tests.core.acjob.play import Play, raw_job


def test_a_job_waits_for_its_pod_group_and_says_for_what() -> None:
    """Without a phase the scheduler is silent.

    Pending means that there is no room, in the scheduler's words.
    """
    play = Play(raw_job(), phase="")
    play.reconcile()
    assert (play.state, play.last["reason"]) == ("Created", "PodGroupNotInitialized")
    assert play.last["message"] == names.SCHEDULER_SILENT
    assert not play.pods
    play.group = PodGroupSeen("Pending")
    play.reconcile()
    assert play.last["reason"] == "PodGroupPending"
    assert play.last["message"] == "the cluster resource is not enough"
    play.group = PodGroupSeen("Pending", message="2/2 tasks in gang unschedulable")
    play.reconcile()
    assert play.last["message"] == "2/2 tasks in gang unschedulable"
    play.group = PodGroupSeen("Inqueue")
    play.reconcile()
    assert set(play.pods) == {"test-job-master-0", "test-job-worker-0"}
    assert (play.state, play.last["reason"]) == ("Created", "JobCreated")


def test_running_means_that_every_pod_has_started() -> None:
    play = Play(raw_job(workers=3))
    play.reconcile()
    play.change("test-job-master-0", phase="Running")
    play.reconcile()
    assert play.state == "Created"
    play.run_all()
    play.reconcile()
    assert (play.state, play.last["reason"]) == ("Running", "JobRunning")
    assert play.status["readyReplicas"] == "4/4"
    assert play.counts == {"Master": {"active": 1}, "Worker": {"active": 3}}


def test_however_fast_a_job_is_it_was_created_first() -> None:
    play = Play(raw_job())
    play.reconcile()
    del play.raw["status"]
    play.run_all()
    play.reconcile()
    assert [entry["type"] for entry in play.status["conditions"]] == ["Created", "Running"]


def test_success_means_that_every_pod_has_ended_well() -> None:
    play = Play(raw_job()).start()
    play.change("test-job-worker-0", phase="Succeeded")
    play.reconcile()
    assert play.state == "Running"
    play.change("test-job-master-0", phase="Succeeded")
    play.reconcile()
    assert (play.state, play.last["reason"]) == ("Succeeded", "JobSucceeded")
    assert play.status["completionTime"]
    assert play.group is None
    running = play.condition("Running")
    assert running is not None
    assert running["status"] == "False"


def test_all_workers_waits_for_those_that_compute() -> None:
    """A Scheduler never ends of its own accord; a Master that trains may still be saving."""
    raw = raw_job(success="AllWorkers")
    play = Play(raw).start()
    play.change("test-job-worker-0", phase="Succeeded")
    play.reconcile()
    assert play.state == "Running"
    raw = raw_job(success="AllWorkers", labels={"framework": "mindspore"})
    raw["spec"]["replicaSpecs"]["Scheduler"] = raw["spec"]["replicaSpecs"].pop("Master")
    play = Play(raw).start()
    play.change("test-job-worker-0", phase="Succeeded")
    play.reconcile()
    assert play.state == "Succeeded"
    assert play.counts["Scheduler"] == {"succeeded": 1}
    assert "test-job-scheduler-0" in play.deleted


def test_a_failed_pod_fails_the_job_in_the_words_of_the_seed() -> None:
    play = Play(raw_job()).start()
    play.fail("test-job-worker-0", 1, node="node-7")
    play.reconcile()
    assert play.state == "Failed"
    assert play.last["reason"] == "JobFailed"
    assert play.last["message"] == "Job default/test-job has failed because has pod failed."
    fault = play.status["lastFault"]
    assert (fault["pod"], fault["node"], fault["exitCode"]) == ("test-job-worker-0", "node-7", 1)
    assert fault["summary"] == "container ascend of pod test-job-worker-0 on node-7 exited with 1"


def test_the_peers_of_a_failed_pod_do_not_keep_their_devices() -> None:
    play = Play(raw_job()).start()
    play.fail("test-job-worker-0")
    play.reconcile()
    assert play.deleted == ["test-job-master-0"]
    assert set(play.pods) == {"test-job-worker-0"}
    assert play.group is None
    assert play.counts == {"Master": {}, "Worker": {"failed": 1}}


def test_an_explicit_none_leaves_them() -> None:
    play = Play(raw_job(policy={"cleanPodPolicy": "None"})).start()
    play.fail("test-job-worker-0")
    play.reconcile()
    assert not play.deleted
    assert play.group is not None
    assert play.counts["Master"] == {"active": 1}


def test_none_does_not_leave_pods_that_would_start_for_nothing() -> None:
    """A pod without a node would be placed after the end of its job; one that a node has taken stays."""
    play = Play(raw_job(workers=3, policy={"cleanPodPolicy": "None"}))
    play.reconcile()
    play.change("test-job-worker-0", phase="Pending", node="node-1")
    play.change("test-job-master-0", phase="Running", node="node-1")
    play.fail("test-job-worker-1")
    play.reconcile()
    assert ("Failed", ["test-job-worker-2"]) == (play.state, play.deleted)


def test_all_removes_also_what_has_ended() -> None:
    play = Play(raw_job(policy={"cleanPodPolicy": "All"})).start()
    play.fail("test-job-worker-0")
    play.reconcile()
    assert sorted(play.deleted) == ["test-job-master-0", "test-job-worker-0"]


def test_a_finished_job_is_forgotten_after_its_time() -> None:
    play = Play(raw_job(policy={"ttlSecondsAfterFinished": 60}, workers=0)).start()
    play.change("test-job-master-0", phase="Succeeded")
    play.reconcile()
    assert play.wake_at == play.now + 60
    play.now += 59
    play.reconcile()
    assert not play.deleted_job
    play.now += 1
    play.reconcile()
    assert play.deleted_job


def test_a_job_that_is_active_too_long_fails() -> None:
    play = Play(raw_job(policy={"activeDeadlineSeconds": 100})).start()
    assert play.wake_at == play.now + 100
    play.now += 100
    play.reconcile()
    assert play.state == "Failed"
    assert play.last["reason"] == "JobFailed"
    assert "deadline of 100 s" in play.last["message"]
    assert not play.pods


def test_a_suspended_job_gives_everything_back_and_comes_again() -> None:
    play = Play(raw_job(policy={"backoffLimit": 1})).start()
    play.raw["spec"]["runPolicy"]["suspend"] = True
    play.reconcile()
    assert not play.pods
    play.reconcile()
    assert play.group is None
    assert (play.state, play.last["reason"]) == ("Created", "JobSuspended")
    assert {entry["type"] for entry in play.status["conditions"]} <= {"Created", "Running"}
    play.raw["spec"]["runPolicy"]["suspend"] = False
    play.start()
    assert play.status["restarts"] == 0


def test_every_problem_is_told_at_once_and_mending_clears_it() -> None:
    raw = raw_job(annotations={"recover-strategy": "retry, bogus"})
    raw["spec"]["replicaSpecs"]["Worker"]["replicas"] = -1
    raw["spec"]["successPolicy"] = "Most"
    play = Play(raw)
    play.reconcile()
    assert (play.state, play.last["reason"]) == ("Failed", "JobValidFailed")
    message = play.last["message"]
    order = [message.index(word) for word in ("bogus", "successPolicy", "spec.replicaSpecs.Worker.replicas")]
    assert order == sorted(order)
    assert not play.pods
    assert "completionTime" not in play.status
    raw["spec"]["replicaSpecs"]["Worker"]["replicas"] = 1
    raw["spec"]["successPolicy"] = ""
    raw["metadata"]["annotations"] = {}
    play.start()
    failed = play.condition("Failed")
    assert failed is not None
    assert failed["status"] == "False"


def test_a_job_that_has_ended_is_not_judged_again() -> None:
    play = Play(raw_job(workers=0)).start()
    play.change("test-job-master-0", phase="Succeeded")
    play.reconcile()
    play.raw["spec"]["successPolicy"] = "Most"
    play.reconcile()
    assert play.state == "Succeeded"
    assert [entry["type"] for entry in play.status["conditions"] if entry["status"] == "True"] == [
        "Created",
        "Succeeded",
    ]


def test_what_the_server_refuses_is_the_reason() -> None:
    for kind, reason in (
        ("SyncPodGroup", "SyncPodGroupFailed"),
        ("SyncService", "SyncServiceFailed"),
        ("CreatePods", "PodCreateFailed"),
    ):
        play = Play(raw_job())
        play.refuse = lambda action, kind=kind, reason=reason: (  # type: ignore[misc]
            Failure(reason, "forbidden") if type(action).__name__ == kind else None
        )
        play.reconcile()
        assert (play.state, play.last["reason"], play.last["message"]) == ("Created", reason, "forbidden")
        play.refuse = lambda _action: None
        play.start()
        created = play.condition("Created")
        assert created is not None
        assert created["reason"] == "JobCreated" or created["reason"] == reason


def test_a_job_without_gang_scheduling_needs_no_pod_group() -> None:
    play = Play(raw_job(), gang=False).start()
    assert play.group is None


def test_the_newest_condition_is_last_and_each_type_is_there_once() -> None:
    play = Play(raw_job(labels={"fault-retry-times": "2"})).start()
    play.fail("test-job-worker-0")
    play.reconcile()
    play.run_all()
    play.reconcile()
    types = [entry["type"] for entry in play.status["conditions"]]
    assert types[-1] == "Running"
    assert len(types) == len(set(types))


def test_nothing_is_written_when_nothing_changes() -> None:
    play = Play(raw_job(workers=3)).start()
    before = play.writes
    for _ in range(5):
        play.now += 10
        play.reconcile()
    assert play.writes == before
