"""The time that a job may take, and what still holds for a job with mistakes."""

from __future__ import annotations

import pytest

from tests.core.acjob.play import Play, raw_job


def test_the_time_runs_from_the_moment_the_pods_may_be_made() -> None:
    """Also for pods that never start: whoever made them is woken when their time is over."""
    play = Play(raw_job(policy={"activeDeadlineSeconds": 100}), phase="Pending")
    play.reconcile()
    assert play.wake_at is None, "waiting for room is not being active"
    assert play.group is not None
    play.group = type(play.group)(phase="Running")
    play.now += 1000
    play.reconcile()
    assert play.now + 100 == play.wake_at
    play.now += 100
    play.reconcile()
    assert ("Failed", "JobFailed") == (play.state, play.last["reason"])
    assert not play.pods


def test_the_time_begins_anew_when_a_job_is_resumed() -> None:
    play = Play(raw_job(policy={"activeDeadlineSeconds": 100})).start()
    play.raw["spec"]["runPolicy"]["suspend"] = True
    play.reconcile()
    play.now += 1000
    play.reconcile()
    assert ("Created", None) == (play.state, play.wake_at)
    play.raw["spec"]["runPolicy"]["suspend"] = False
    play.reconcile()
    assert play.now + 100 == play.wake_at


def test_a_deadline_of_nothing_ends_the_job_before_it_has_pods() -> None:
    """As for a Job of Kubernetes: 0 is a limit, and no limit is to leave the field out."""
    play = Play(raw_job(policy={"activeDeadlineSeconds": 0}))
    play.reconcile()
    assert ("Failed", "JobFailed", 0) == (play.state, play.last["reason"], play.born)
    assert "deadline of 0 s" in play.last["message"]


def spoil(play: Play) -> None:
    play.raw["spec"]["replicaSpecs"]["Worker"]["restartPolicy"] = "Nver"


def test_a_job_with_mistakes_can_be_halted() -> None:
    """Its devices come back; what is wrong with it stays told, and nothing is written twice."""
    play = Play(raw_job()).start()
    spoil(play)
    play.raw["spec"]["runPolicy"]["suspend"] = True
    play.reconcile()
    assert ({}, None) == (play.pods, play.group)
    assert ("Failed", "JobValidFailed") == (play.state, play.last["reason"])
    writes = play.writes
    play.now += 10
    play.reconcile()
    assert writes == play.writes
    play.raw["spec"]["replicaSpecs"]["Worker"]["restartPolicy"] = "Never"
    play.raw["spec"]["runPolicy"]["suspend"] = False
    play.start()
    assert 0 == play.status["restarts"]


def test_the_time_of_a_job_with_mistakes_runs_on() -> None:
    play = Play(raw_job(policy={"activeDeadlineSeconds": 100})).start()
    spoil(play)
    play.reconcile()
    assert ("JobValidFailed", play.now + 100) == (play.last["reason"], play.wake_at)
    assert 2 == len(play.pods)
    play.now += 100
    play.reconcile()
    assert "JobFailed" == play.last["reason"]
    assert not play.pods


def test_a_queue_that_goes_takes_nothing_from_a_job_that_has_had_its_turn() -> None:
    play = Play(raw_job())
    play.missing_queue = "team"
    play.reconcile()
    assert ("JobValidFailed", {}) == (play.last["reason"], play.pods)
    play.missing_queue = None
    play.start()
    play.missing_queue = "team"
    play.reconcile()
    assert "Running" == play.state
    for name in list(play.pods):
        play.lose(name)
    play.reconcile()
    assert ("Restarting", 2) == (play.state, len(play.pods))


@pytest.mark.parametrize("framework", ["mindspore", "pytorch"])
def test_a_job_in_which_nobody_works_has_a_mistake(framework: str) -> None:
    """It would have succeeded before it began: no pods at all, or AllWorkers without one that computes."""
    raw = raw_job(labels={"framework": framework})
    replicas = raw["spec"]["replicaSpecs"]
    replicas["Worker"]["replicas"] = 0
    if framework == "mindspore":
        del replicas["Master"]
    else:
        raw["spec"]["successPolicy"] = "AllWorkers"
        main = replicas["Worker"]["template"]["spec"]["containers"][0]
        main["resources"] = {"limits": {"huawei.com/Ascend910": 8}}
    play = Play(raw)
    play.reconcile()
    assert ("Failed", "JobValidFailed") == (play.state, play.last["reason"])


def test_a_master_that_trains_alone_is_waited_for() -> None:
    raw = raw_job(success="AllWorkers")
    raw["spec"]["replicaSpecs"]["Worker"]["replicas"] = 0
    play = Play(raw).start()
    play.change("test-job-master-0", phase="Succeeded")
    play.reconcile()
    assert "Succeeded" == play.state
