"""Jobs whose processes nobody recovers: rules about time, and about what is not done."""

import pytest

from taskd.core.faults.texts.reset import RankStatus
from taskd.core.faults.view import Health
from taskd.core.plane.faultlists import Shape
from taskd.core.plane.machine import next_look
from taskd.core.plane.policy import read_policy, without_manager
from taskd.core.plane.state import (
    Ask,
    DevicesSeen,
    JobState,
    Phase,
    PodSeen,
    PodsSeen,
    PolicyRead,
    ResetSeen,
    SetLabel,
    Subscribed,
)
from tests.core.plane.scenes import START, Play, broken, pods

LABELS = {"fault-scheduling": "grace", "pod-rescheduling": "on"}
SWITCHES = {"subHealthyStrategy": "hotSwitch", "framework": "pytorch"}


def unattended(
    labels: dict[str, str] | None = None, annotations: dict[str, str] | None = None, size: int = 2
) -> Play:
    given = {key: value for key, value in {**LABELS, **(labels or {})}.items() if value}
    play = Play(JobState("job-1", without_manager(read_policy(given, annotations or {})), Shape(size, 8)))
    play.feed(PodsSeen(pods(size)))
    return play


def test_a_pod_that_does_not_come_back_costs_the_whole_job() -> None:
    """After 270 s, or the job's own limit, all pods are replaced; 135 s later it counts as failed."""
    play = unattended()
    play.devices(broken(9))

    assert START + 270 == next_look(play.state)
    play.wait()
    assert play.at(Phase.RESTARTING)
    assert [("replace", (1,)), ("restart-job", ())] == play.asked
    play.wait()
    assert play.at(Phase.INIT)
    assert "failed" in play.outcome


def test_a_job_that_wants_pods_only_never_loses_the_others() -> None:
    """`huawei.com/recover_policy_path: pod`: nothing but the faulty pods is ever replaced."""
    play = unattended(annotations={"huawei.com/recover_policy_path": "pod"})
    play.devices(broken(9))
    play.wait()

    assert play.at(Phase.INIT)
    assert [("replace", (1,))] == play.asked
    assert "failed: pod 1 was not replaced within 270 s" in play.outcome


def test_the_same_fault_is_answered_once() -> None:
    """A report that is repeated, or that stays while the pod comes back elsewhere, moves nothing again."""
    play = unattended()
    play.devices(broken(9))
    play.devices(broken(9))
    play.feed(PodsSeen(pods(p1="new")))
    play.feed(DevicesSeen(Health.HEALTHY))

    assert play.at(Phase.INIT)
    assert [("replace", (1,))] == play.asked
    assert ["restart-all"] == play.resets


def test_a_new_pod_on_a_broken_device_moves_again() -> None:
    """The successor is another pod, so its device is another fault."""
    play = unattended()
    play.devices(broken(9))
    play.feed(PodsSeen(pods(p1="new")))
    play.devices(broken(9))

    asks = [each for each in play.effects if isinstance(each, Ask)]
    assert ["uid-1", "new"] == [ask.origin[1] for ask in asks]


def test_nobody_is_told_to_recover_processes() -> None:
    """The switch for process recovery and the labels of pods are left as they are."""
    play = unattended({"pod-rescheduling": ""})
    play.devices(broken(9))
    play.feed(PodsSeen(pods(p0="new-0", p1="new-1")))

    assert [] == play.signals
    assert [] == [each for each in play.effects if isinstance(each, SetLabel)]
    assert "the whole job was started again" == play.outcome


def test_a_failed_pod_is_the_operators() -> None:
    """Whether another try is left says `fault-retry-times`, which the plane does not count."""
    play = unattended()
    failed = {**pods(), 1: PodSeen("job-1", "uid-1", running=False, failed=True)}
    play.feed(PodsSeen(failed))

    assert play.at(Phase.INIT)
    play.feed(PodsSeen(pods(p1="new")))
    assert [] == play.asked


def test_a_deleted_pod_is_only_followed() -> None:
    """The operator has replaced it already: nobody is asked, and the others are told to start again."""
    play = unattended()
    play.feed(PodsSeen(pods(p1="new")))

    assert [] == play.asked
    assert ["restart-all"] == play.resets
    assert "started again" == play.outcome


def test_without_pod_rescheduling_a_lost_pod_is_nothing_to_answer() -> None:
    play = unattended({"pod-rescheduling": ""})
    play.feed(PodsSeen(pods(p1="new")))

    assert ([], []) == (play.asked, play.resets)


@pytest.mark.parametrize("word", ["", "off", "gracefully"])
def test_without_fault_scheduling_nothing_is_touched(word: str) -> None:
    """Absent, off or misspelt: whatever devices, pods and device plugins say."""
    play = unattended({"fault-scheduling": word, "subHealthyStrategy": "forceExit"})
    play.devices(broken(9))
    play.feed(ResetSeen({9: RankStatus.FAILED}))
    play.feed(PodsSeen(pods(p1="new")))
    play.devices(broken(9, level="SubHealthFault"), health=Health.SUB_HEALTHY)

    assert ([], []) == (play.asked, play.resets)
    assert play.at(Phase.INIT)


def test_a_hot_switch_waits_for_a_manager() -> None:
    """Nobody could pause the training; the manager that comes finds the device still slow."""
    play = unattended(SWITCHES)
    play.devices(broken(9, level="SubHealthFault"), health=Health.SUB_HEALTHY)

    assert [] == play.asked
    play.feed(PolicyRead(read_policy({**LABELS, **SWITCHES}, {})))
    play.feed(Subscribed())
    play.devices(broken(9, level="SubHealthFault"), health=Health.SUB_HEALTHY)
    assert [("standby", (1,))] == play.asked


def test_a_reset_has_five_minutes() -> None:
    """A fault waits for the device plugin that is at work on it, and no longer than it may take."""
    play = unattended()
    play.feed(ResetSeen({9: RankStatus.UNRECOVERED}))
    play.devices(broken(9, level="RestartNPU"))

    assert [] == play.asked
    assert START + 300 == next_look(play.state)
    play.wait()
    assert [("replace", (1,))] == play.asked


def test_a_reset_that_failed_is_answered_once() -> None:
    """Its entry stays until somebody clears it."""
    play = unattended()
    play.feed(ResetSeen({9: RankStatus.FAILED}))
    play.feed(PodsSeen(pods(p1="new")))
    play.feed(ResetSeen({9: RankStatus.FAILED}))

    assert [("replace", (1,))] == play.asked
    play.feed(ResetSeen({}))
    play.feed(ResetSeen({9: RankStatus.FAILED}))
    assert [("replace", (1,)), ("replace", (1,))] == play.asked


def test_other_devices_do_not_wait_for_a_reset() -> None:
    play = unattended(size=3)
    play.feed(ResetSeen({9: RankStatus.UNRECOVERED}))
    play.devices(broken(9, level="RestartNPU"), broken(17))

    assert [("replace", (2,))] == play.asked
