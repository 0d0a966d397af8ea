"""Restarts that do not help come ever more slowly; the first one, and one after good work, at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from taskd.core.acjob import backoff, telling
from taskd.core.acjob.status import Status, read
from tests.core.acjob.play import Play, raw_job

POD = "test-job-worker-0"


def crash(play: Play) -> None:
    """The pods start, the job runs whole, and one of them falls over at once."""
    play.run_all()
    play.reconcile()
    play.fail(POD, 137)


def reject(play: Play) -> None:
    """The node takes the pod, and its kubelet refuses it: it never runs."""
    play.change(POD, phase="Failed", reason="UnexpectedAdmissionError")


def lose(play: Play) -> None:
    """Somebody deletes each pod before it has started."""
    play.lose(POD)


def waits(play: Play, harm: Callable[[Play], None], times: int) -> list[float]:
    """How long the pod is away each time."""
    found = []
    for _ in range(times):
        harm(play)
        began = play.now
        play.reconcile()
        while POD not in play.pods:
            assert play.wake_at is not None
            play.now = play.wake_at
            play.reconcile()
        found.append(play.now - began)
    return found


@pytest.mark.parametrize("harm", [crash, reject, lose])
def test_restarts_in_a_row_wait_twice_as_long_each_time(harm: Callable[[Play], None]) -> None:
    play = Play(raw_job(restart="ExitCode")).start()
    assert [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300] == waits(play, harm, 12)
    assert 12 == play.status["restarts"]


def test_a_crash_after_good_work_begins_from_zero() -> None:
    play = Play(raw_job(restart="ExitCode")).start()
    waits(play, crash, 4)
    play.run_all()
    play.reconcile()
    play.now += 60
    assert [0, 1] == waits(play, crash, 2)


def test_a_pod_that_is_taken_from_a_job_that_is_whole_comes_back_at_once() -> None:
    """However often: whoever drains ten nodes in a row does not wait for a job that runs in between."""
    play = Play(raw_job(restart="ExitCode")).start()
    for _ in range(5):
        assert [0] == waits(play, lose, 1)
        play.run_all()
        play.reconcile()


def test_a_controller_that_comes_anew_keeps_the_wait() -> None:
    play = Play(raw_job(restart="ExitCode")).start()
    waits(play, crash, 3)
    crash(play)
    play.reconcile()
    play.crash()
    play.reconcile()
    assert POD not in play.pods
    assert play.now + 4 == play.wake_at


def test_the_wait_is_told_and_the_sentence_of_the_cause_stays() -> None:
    play = Play(raw_job(restart="ExitCode")).start()
    waits(play, crash, 2)
    before = read(play.raw)
    crash(play)
    play.reconcile()
    assert "Job test-job is restarting because Worker replica(s) failed." == play.last["message"]
    (note,) = [note for note in telling.notes(before, read(play.raw)) if note.reason == "BackOff"]
    assert note.warning
    assert "This is restart 3 in a row: its pods are started after 2 s." == note.message


def test_a_deadline_does_not_wait_for_a_restart() -> None:
    play = Play(raw_job(restart="ExitCode", policy={"activeDeadlineSeconds": 20})).start()
    waits(play, crash, 5)
    crash(play)
    play.reconcile()
    assert play.wake_at is not None
    play.now = play.wake_at
    play.reconcile()
    assert "Failed" == play.state


def test_a_job_that_restarts_for_ever_has_a_bounded_wait() -> None:
    assert backoff.LONGEST_S == backoff.delay_s(10_000)
    assert replace(Status(), row=10_000) == read({"status": {"restartsInARow": 10_000}})


def test_a_resumed_job_starts_and_does_not_restart() -> None:
    """What it went through before it was suspended is counted, but nothing of it is under way any more."""
    play = Play(raw_job(restart="ExitCode")).start()
    waits(play, crash, 4)
    play.raw["spec"]["runPolicy"]["suspend"] = True
    play.reconcile()
    assert ("Created", "JobSuspended") == (play.state, play.last["reason"])
    play.raw["spec"]["runPolicy"]["suspend"] = False
    play.reconcile()
    assert POD in play.pods
    assert ("Created", "JobCreated") == (play.state, play.last["reason"])
    play.run_all()
    play.reconcile()
    assert ("Running", 4) == (play.state, play.status["restarts"])
    assert [0] == waits(play, crash, 1)
