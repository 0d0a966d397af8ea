"""What began a restart: something outside of the job, or an error of its own; and which container it was."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from taskd.core.acjob.seen import Ended, PodSeen
from tests.core.acjob.play import Play, raw_job

MASTER, FIRST, SECOND = "test-job-master-0", "test-job-worker-0", "test-job-worker-1"


def deleted_with_grace(play: Play) -> None:
    play.change(FIRST, deleting=True)


def evicted(play: Play) -> None:
    play.change(FIRST, phase="Failed", reason="Evicted", ended=(Ended("ascend", 137),))


def node_gone(play: Play) -> None:
    play.change(FIRST, node="node-9")
    play.gone = frozenset({"node-9"})


def gone_at_once(play: Play) -> None:
    play.lose(FIRST)


def asked_to_move(play: Play) -> None:
    play.raw["status"]["requests"] = [{"id": "r1", "pods": [FIRST], "reason": "device 3 is faulty"}]


OUTSIDE = {
    "pod-lost": (deleted_with_grace, gone_at_once),
    "evicted": (evicted,),
    "node-lost": (node_gone,),
    "requested": (asked_to_move,),
}


@pytest.mark.parametrize(("cause", "harm"), [(cause, harm) for cause in OUTSIDE for harm in OUTSIDE[cause]])
def test_peers_that_fail_because_a_pod_was_taken_belong_to_that_restart(
    cause: str, harm: Callable[[Play], None]
) -> None:
    """One look may show both: the pod that was taken away, and a peer that exits 1 because of it."""
    play = Play(raw_job(workers=2, policy={"backoffLimit": 1})).start()
    harm(play)
    play.fail(SECOND, 1)
    play.reconcile()
    assert ("Restarting", {cause: 1}) == (play.state, play.status["restartCauses"])
    assert FIRST == play.status["lastFault"]["pod"]
    play.fail(MASTER, 1)
    play.reconcile()
    if FIRST in play.pods and play.pods[FIRST].deleting:
        play.lose(FIRST)
        play.reconcile()
    play.run_all()
    play.reconcile()
    assert ("Running", 1) == (play.state, play.status["restarts"])
    assert {1} == {pod.version for pod in play.pods.values()}


def test_an_error_of_its_own_still_ends_a_job() -> None:
    play = Play(raw_job(workers=2)).start()
    play.fail(SECOND, 1)
    play.reconcile()
    assert "Failed" == play.state


def test_a_pod_that_goes_in_a_hot_switch_excuses_nobody() -> None:
    """Its going is no cause: the standby has taken over, and a peer's error is its own."""
    play = Play(raw_job(workers=2)).start()
    marks = {"inHotSwitchFlow": "true", "needOperatorOpe": "create"}
    play.change(FIRST, annotations={**play.pods[FIRST].annotations, **marks})
    play.reconcile()
    play.run_all()
    play.change(FIRST, deleting=True)
    play.fail(SECOND, 1)
    play.reconcile()
    assert "Failed" == play.state


@pytest.mark.parametrize(
    ("ended", "culprit"),
    [
        ((Ended("ascend", 1), Ended("logs", 137)), "ascend"),
        ((Ended("ascend", 0), Ended("logs", 137)), "logs"),
        ((Ended("logs", 1, at="2026-01-01T00:00:02Z"), Ended("init", 3, at="2026-01-01T00:00:01Z")), "init"),
        ((Ended("ascend", 0),), "ascend"),
    ],
)
def test_the_container_that_is_blamed_ended_badly(ended: tuple[Ended, ...], culprit: str) -> None:
    """The training if it failed; otherwise whichever failed first, such as a sidecar without memory."""
    end = PodSeen("pod", "uid", None, ended=ended).main_end()
    assert end is not None
    assert culprit == end.container
