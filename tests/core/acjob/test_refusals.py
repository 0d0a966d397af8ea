"""What the API server refuses is told where it matters, and a job that runs stays a job that runs."""

from __future__ import annotations

from taskd.core.acjob import actions as acts
from taskd.core.acjob import names
from taskd.core.acjob.seen import Failure
from tests.core.acjob.play import Play, raw_job

QUOTA = Failure(names.POD_CREATE_FAILED, "pods is forbidden: exceeded quota")
POD = "test-job-worker-0"


def test_a_standby_that_is_refused_takes_nothing_from_the_job() -> None:
    play = Play(raw_job()).start()
    play.refuse = lambda action: QUOTA if isinstance(action, acts.CreateBackup) else None
    play.change(POD, annotations={**play.pods[POD].annotations, names.ASK_OPERATOR: "create"})
    before = play.status
    play.reconcile()
    assert before == play.status


def test_a_pod_group_that_cannot_be_changed_takes_nothing_from_a_job_that_runs() -> None:
    play = Play(raw_job()).start()
    assert play.group is not None
    play.group = type(play.group)(phase="Running", current=False)
    refusal = Failure(names.SYNC_POD_GROUP_FAILED, "forbidden")
    play.refuse = lambda action: refusal if isinstance(action, acts.SyncPodGroup) else None
    play.reconcile()
    assert "Running" == play.state


def test_a_service_that_cannot_be_made_again_is_told_even_while_the_pods_run() -> None:
    """They do not reach their leader without it."""
    play = Play(raw_job()).start()
    play.service = None
    refusal = Failure(names.SYNC_SERVICE_FAILED, "provided IP is already allocated")
    play.refuse = lambda action: refusal if isinstance(action, acts.SyncService) else None
    play.reconcile()
    assert ("Created", "SyncServiceFailed") == (play.state, play.last["reason"])


def test_a_replacement_that_is_refused_keeps_the_job_restarting() -> None:
    """The state says what goes on, and its message what is in the way, for as long as it is."""
    play = Play(raw_job()).start()
    play.refuse = lambda action: QUOTA if isinstance(action, acts.CreatePods) else None
    play.lose(POD)
    play.reconcile()
    cause = "Job test-job is restarting because Worker replica(s) failed."
    refused = f"{cause} Refused: PodCreateFailed: {QUOTA.message}"
    assert ("Restarting", "jobRestarting", refused) == (
        play.state,
        play.last["reason"],
        play.last["message"],
    )
    play.reconcile()
    assert (refused, 1) == (play.last["message"], play.status["restarts"])
    play.refuse = lambda _action: None
    play.reconcile()
    assert cause == play.last["message"]
    play.run_all()
    play.reconcile()
    assert "Running" == play.state
