"""A pod that has done its share is not run again, whatever becomes of what is left of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskd.core.acjob.job import Slot
from taskd.core.acjob.status import Status, read
from tests.core.acjob.play import Play, raw_job

DONE, OTHER = "test-job-worker-0", "test-job-worker-1"


def half_done(**changes: object) -> Play:
    play = Play(raw_job(workers=2, **changes)).start()
    play.change(DONE, phase="Succeeded", node="node-9")
    play.reconcile()
    return play


def node_gone(play: Play) -> None:
    play.gone = frozenset({"node-9"})


def deleted(play: Play) -> None:
    play.lose(DONE)


def being_deleted(play: Play) -> None:
    play.change(DONE, deleting=True)


def deleted_unseen(play: Play) -> None:
    play.lose(DONE)
    play.crash()


@pytest.mark.parametrize("fate", [node_gone, deleted, being_deleted, deleted_unseen])
def test_a_pod_that_has_succeeded_is_not_run_again_alone(fate: Callable[[Play], None]) -> None:
    play = half_done()
    fate(play)
    play.reconcile()
    assert ("Running", 0, 3) == (play.state, play.status["restarts"], play.born)
    assert {"Master": {"active": 1}, "Worker": {"active": 1, "succeeded": 1}} == play.counts
    assert "3/3" == play.status["readyReplicas"]
    play.change(OTHER, phase="Succeeded")
    play.change("test-job-master-0", phase="Succeeded")
    play.reconcile()
    assert "Succeeded" == play.state
    assert {"Master": {"succeeded": 1}, "Worker": {"succeeded": 2}} == play.counts


def test_a_pod_that_goes_before_its_end_was_stored_is_known_by_the_news_of_its_going() -> None:
    play = Play(raw_job(workers=2)).start()
    play.change(DONE, phase="Succeeded")
    play.lose(DONE)
    play.reconcile()
    assert ("Running", 3) == (play.state, play.born)


def test_a_peer_that_fails_is_replaced_and_the_finished_one_is_not() -> None:
    play = half_done(restart="ExitCode")
    play.lose(DONE)
    play.fail(OTHER, 137)
    play.reconcile()
    play.run_all()
    play.reconcile()
    assert "Running" == play.state
    assert {OTHER, "test-job-master-0"} == set(play.pods)


def test_a_restart_of_the_whole_job_runs_everybody_again() -> None:
    """So does a job that was suspended: the others cannot begin from the start without this one."""
    play = half_done(labels={"fault-retry-times": "1"})
    play.lose(DONE)
    play.fail(OTHER, 1)
    play.reconcile()
    assert {1} == {pod.version for pod in play.pods.values()}
    assert 3 == len(play.pods)
    play = half_done()
    play.raw["spec"]["runPolicy"]["suspend"] = True
    play.reconcile()
    play.raw["spec"]["runPolicy"]["suspend"] = False
    play.reconcile()
    assert 3 == len(play.pods)
    assert "finished" not in play.status


def test_a_finished_pod_that_a_restart_removes_counts_no_more_while_it_goes() -> None:
    play = half_done(labels={"fault-retry-times": "1"})
    play.stuck = frozenset({DONE})
    play.fail(OTHER, 1)
    play.reconcile()
    assert play.pods[DONE].deleting
    assert "finished" not in play.status
    del play.pods[DONE]  # by the controller's own wish, so nobody takes it for news
    play.reconcile()
    assert 1 == play.pods[DONE].version


@given(st.frozensets(st.builds(Slot, st.sampled_from(["Master", "Worker"]), st.integers(0, 30))))
def test_places_are_read_as_they_were_written(places: frozenset[Slot]) -> None:
    assert places == read({"status": Status(finished=places).as_json()}).finished


def test_many_places_are_a_short_text() -> None:
    places = frozenset(Slot("Worker", index) for index in (*range(1000), 1003))
    assert {"Worker": "0-999,1003"} == Status(finished=places).as_json()["finished"]


def test_what_another_has_written_into_the_counts_is_taken_back() -> None:
    """Every count is written, zeros too; and a status that says so already is not written again."""
    play = Play(raw_job()).start()
    whole = {"active": 1, "pending": 0, "succeeded": 0, "failed": 0}
    assert {"Master": whole, "Worker": whole} == play.status["replicaStatuses"]
    play.status["replicaStatuses"]["Worker"]["failed"] = 7
    play.status["recoverStrategy"] = "made up"
    play.reconcile()
    assert (whole, "") == (play.status["replicaStatuses"]["Worker"], play.status["recoverStrategy"])
    writes = play.writes
    play.reconcile()
    assert writes == play.writes
