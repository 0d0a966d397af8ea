"""What a restart costs is told once and in full, whoever is there to tell it."""

from __future__ import annotations

import pytest

from tests.core.acjob.play import Killed, Play, raw_job


def test_the_first_cause_of_a_lost_pod_is_in_the_status() -> None:
    play = Play(raw_job(workers=2)).start()
    play.lose("test-job-worker-1")
    play.reconcile()
    assert play.status["lastFault"]["type"] == "pod-lost"
    assert play.status["lastFault"]["pod"] == "test-job-worker-1"
    assert play.last["message"] == "Job test-job is restarting because Worker replica(s) failed."


def test_a_loss_that_nobody_has_stored_is_told_like_any_other() -> None:
    """The controller dies after it has replaced the pod; the new pod runs before the next one looks."""
    calm, shaken = Play(raw_job()).start(), Play(raw_job()).start()
    for play in (calm, shaken):
        play.lose("test-job-worker-0")
    calm.reconcile()
    shaken.kill_at = shaken.writes + 2
    with pytest.raises(Killed):
        shaken.reconcile()
    shaken.crash()
    for play in (calm, shaken):
        play.run_all()
        play.reconcile()
    assert shaken.status == calm.status
    assert calm.status["restarts"] == 1


def test_a_replacement_that_is_lost_before_its_restart_was_stored_counts_as_well() -> None:
    """Replaced, the controller died, and the replacement goes while the next one begins: two losses."""
    play = Play(raw_job(policy={"backoffLimit": 1})).start()
    play.lose("test-job-worker-0")
    play.kill_at = play.writes + 2
    with pytest.raises(Killed):
        play.reconcile()
    play.crash()
    play.lose("test-job-worker-0")
    play.reconcile()
    assert play.state == "Failed"
    assert "backoff limit" in play.last["message"]


def test_what_was_in_the_way_of_the_pods_is_not_told_for_ever() -> None:
    play = Play(raw_job(), phase="Pending")
    play.reconcile()
    assert play.last["reason"] == "PodGroupPending"
    assert play.group is not None
    play.group = type(play.group)(phase="Running")
    play.reconcile()
    play.run_all()
    play.reconcile()
    created = play.condition("Created")
    assert created is not None
    assert (created["status"], created["reason"]) == ("True", "JobCreated")
    assert [entry["type"] for entry in play.status["conditions"]] == ["Created", "Running"]


def test_a_change_of_size_reaches_the_pods_that_survived_an_earlier_restart() -> None:
    play = Play(raw_job(workers=3)).start()
    play.lose("test-job-worker-1")
    play.reconcile()
    play.run_all()
    play.reconcile()
    play.raw["spec"]["replicaSpecs"]["Worker"]["replicas"] = 1
    play.reconcile()
    play.run_all()
    play.reconcile()
    assert {pod.annotations["taskd.io/shape"] for pod in play.pods.values()} == {
        "pytorch Master=1x1 Worker=1x1"
    }
    assert play.state == "Running"
