"""A pod that is lost before the job has run whole is counted, whoever looks next."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from taskd.core.acjob.job import Slot
from taskd.core.acjob.status import read
from tests.core.acjob.play import Killed, Play, raw_job

LOST = "test-job-worker-0"


def starting(**changes: object) -> Play:
    """A job whose pods are there and do not run yet."""
    play = Play(raw_job(workers=2, **changes))
    play.reconcile()
    return play


def watched(play: Play) -> None:
    play.lose(LOST)


def unseen(play: Play) -> None:
    play.lose(LOST)
    play.crash()


def killed_at_the_next_write(play: Play) -> None:
    play.lose(LOST)
    play.kill_at = play.writes + 1
    with pytest.raises(Killed):
        play.reconcile()
    play.crash()


@pytest.mark.parametrize("fate", [watched, unseen, killed_at_the_next_write])
def test_a_pod_lost_while_the_job_starts_is_one_restart(fate: Callable[[Play], None]) -> None:
    """A controller that dies in between changes nothing about it."""
    play = starting()
    fate(play)
    play.reconcile()
    play.run_all()
    play.reconcile()

    assert ("Running", 1, {"pod-lost": 1}) == (
        play.state,
        play.status["restarts"],
        play.status["restartCauses"],
    )
    assert {"test-job-master-0": 0, LOST: 1, "test-job-worker-1": 0} == {
        name: pod.version for name, pod in play.pods.items()
    }


@pytest.mark.parametrize("fate", [watched, unseen])
def test_a_pod_of_an_older_generation_belongs_to_the_restart_under_way(fate: Callable[[Play], None]) -> None:
    play = starting().start()
    play.lose("test-job-worker-1")
    play.reconcile()
    fate(play)
    play.reconcile()

    assert 1 == play.status["restarts"]


def test_it_is_told_until_the_job_has_run_whole() -> None:
    """From then on every empty place was lost, and nothing has to be told of each."""
    play = starting()
    every = frozenset({Slot("Master", 0), Slot("Worker", 0), Slot("Worker", 1)})
    assert ({"Master": "0", "Worker": "0-1"}, every) == (play.status["filled"], read(play.raw).filled)

    play.run_all()
    play.reconcile()
    assert "filled" not in play.status


@pytest.mark.parametrize("crashes", [False, True])
def test_a_suspended_job_has_lost_nobody(crashes: bool) -> None:
    play = starting()
    for wish in (True, False):
        play.raw["spec"]["runPolicy"]["suspend"] = wish
        play.reconcile()
        if crashes:
            play.crash()
    play.start()

    assert 0 == play.status["restarts"]


@pytest.mark.parametrize("crashes", [False, True])
def test_a_restart_of_the_whole_job_has_lost_nobody_more(crashes: bool) -> None:
    """Its old pods go on purpose."""
    play = starting(labels={"fault-retry-times": "3"})
    play.fail("test-job-worker-1")
    for write in range(1, 12):
        play.kill_at = play.writes + 1 + write % 2 if crashes else None
        try:
            play.reconcile()
        except Killed:
            play.crash()
    play.kill_at = None
    play.start()

    assert (1, {"pod-failed": 1}) == (play.status["restarts"], play.status["restartCauses"])


def test_a_pod_that_is_made_anew_because_a_node_is_free_again_was_not_lost() -> None:
    play = starting()
    isolated = {"name": "node-7", "scope": "node", "reason": "broken"}
    play.raw["status"]["isolatedNodes"] = [isolated]
    play.lose(LOST)
    play.reconcile()
    assert "node-7" == play.pods[LOST].annotations["taskd.io/avoids"]
    assert {} == play.status.get("filled", {})

    del play.raw["status"]["isolatedNodes"]
    play.reconcile()
    play.crash()
    play.start()
    assert 1 == play.status["restarts"]
