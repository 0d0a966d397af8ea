"""The fault centre: what each rule does to a job's view, to the scheduler's, and when."""

import pytest

from taskd.core.faults.codes import AIC, HCCL_RETRY, LINK_DOWN, SWITCH_LINK_DOWN, UCE, xid_code
from taskd.core.faults.deviceinfo import DeviceInfo, read_device_info
from taskd.core.faults.events import (
    DeviceInfoSeen,
    GivenUp,
    JobGone,
    JobSeen,
    NodeInfoSeen,
    NodeSeen,
    RetryEnded,
    RetryReported,
    StressTest,
    TimePassed,
)
from taskd.core.faults.levels import Level, NodeLevel
from taskd.core.faults.nodeinfo import Hardware, HardwareFault
from taskd.core.faults.nodesight import Condition, NodeSight, see_node
from taskd.core.faults.places import JobSight, PodPlace
from taskd.core.faults.policy import Filters, Strategy
from taskd.core.faults.reading import Refused
from taskd.core.faults.view import DeviceFault, Health, JobFaults, NodeFaults, RankFault, SwitchFault

from .scenes import NODE, OTHER, T0, Centre, device_info, fault, job, message, pod, switch_info

HEALTHY = JobFaults("job-a", Health.HEALTHY, (), ())


def ready(ip: str = "", **more: object) -> NodeSight:
    status = "True" if more.pop("ready", True) else "False"
    return see_node(
        ip=ip,
        annotations={"product-serial-number": f"SN-{ip}"},
        conditions=[Condition("Ready", status, "KubeletStopped")],
        capacity={},
        allocatable={},
    )


# ----------------------------------------------------------------------------------------- the view itself


def test_a_chips_fault_is_told_with_node_device_and_rank() -> None:
    """At once, in the words of the wire."""
    centre = Centre(job())
    centre.take(NodeSeen(OTHER, ready("10.0.0.2")))

    changes = centre.devices(fault(3, "A1"), node=OTHER)

    device = DeviceFault("3", "NPU", ("A1",), ("RestartNPU",), Health.UNHEALTHY, ("CardUnhealthy",), (), ())
    node = NodeFaults(OTHER, "10.0.0.2", "SN-10.0.0.2", Health.UNHEALTHY, (device,))
    ranks = (RankFault(11, "1", "RestartNPU", "A1"),)  # type: ignore[arg-type]
    assert (JobFaults("job-a", Health.UNHEALTHY, (node,), ranks),) == changes.jobs


def test_a_fault_that_clears_leaves_nothing() -> None:
    """The chip is back by itself."""
    centre = Centre(job())
    centre.devices(fault())
    changes = centre.devices()

    assert (HEALTHY,) == changes.jobs


def test_a_second_fault_right_after_the_first_is_told() -> None:
    """Also where nobody saw the first one end, and the view looks the same."""
    centre = Centre(job())
    first = centre.devices(fault(at=T0))
    second = centre.devices(fault(at=T0 + 1), after=1)

    assert first.jobs == second.jobs
    assert 1 == len(second.jobs)
    assert () == centre.devices(fault(at=T0 + 1), update_time=5).jobs


def test_faults_of_other_jobs_and_idle_chips_are_nobodys_business() -> None:
    """Two jobs share a node; each has its own view."""
    left, right = (
        JobSight(f"job-{name}", (PodPlace(name, name, NODE, 0, 0, 2, chips),))
        for name, chips in (("a", (0, 1)), ("b", (2, 3)))
    )
    centre = Centre(left, right)
    changes = centre.devices(fault(3), fault(7))

    assert ["job-b"] == [view.job_id for view in changes.jobs]
    assert [(1, "1", "81B38009")] == centre.ranks("job-b")


def test_views_are_sorted() -> None:
    """Nodes by address, devices and ranks by number, codes by name."""
    centre = Centre(job(pods=[pod(0, "z"), pod(1, "a")]))
    centre.take(NodeSeen("z", ready("10.0.0.9")), NodeSeen("a", ready("10.0.0.10")))
    centre.devices(fault(5, "B"), fault(5, "A"), fault(2, "C"), node="a")
    centre.devices(fault(1), node="z")

    view = centre.view()
    assert ["10.0.0.9", "10.0.0.10"] == [node.ip for node in view.nodes]
    assert [("2", ("C",)), ("5", ("A", "B"))] == [(d.device_id, d.codes) for d in view.nodes[1].devices]
    assert [1, 10, 13, 13] == [rank.rank for rank in view.ranks]


@pytest.mark.parametrize(
    ("level", "device", "job_health", "ranked"),
    [
        ("NotHandleFault", Health.HEALTHY, Health.HEALTHY, False),
        ("SubHealthFault", Health.SUB_HEALTHY, Health.SUB_HEALTHY, True),
        ("PreSeparateNPU", Health.SUB_HEALTHY, Health.HEALTHY, False),
        ("RestartRequest", Health.UNHEALTHY, Health.UNHEALTHY, True),
        ("RestartBusiness", Health.UNHEALTHY, Health.UNHEALTHY, True),
        ("RestartNPU", Health.UNHEALTHY, Health.UNHEALTHY, True),
        ("FreeRestartNPU", Health.UNHEALTHY, Health.UNHEALTHY, True),
        ("SeparateNPU", Health.UNHEALTHY, Health.UNHEALTHY, True),
        ("ManuallySeparateNPU", Health.UNHEALTHY, Health.UNHEALTHY, True),
    ],
)
def test_each_level_does_what_the_table_says(
    level: str, device: Health, job_health: Health, ranked: bool
) -> None:
    """To the device as subscribers see it, to the job, and to its ranks."""
    centre = Centre(job())
    centre.devices(fault(level=level))

    view = centre.view()
    assert device == view.nodes[0].devices[0].health
    assert job_health == view.health
    assert ranked == bool(view.ranks)


def test_a_chip_to_be_reset_when_idle_waits_for_the_device_plugin() -> None:
    """FreeRestartNPU concerns no rank while the chip is not among the unhealthy ones."""
    centre = Centre(job())
    centre.devices(fault(level="FreeRestartNPU"), unhealthy=())
    assert (Health.HEALTHY, ()) == (centre.view().health, centre.view().ranks)

    centre.devices(fault(level="FreeRestartNPU"))
    assert Health.UNHEALTHY == centre.view().health


def test_beside_a_real_fault_a_degraded_chip_asks_for_nothing() -> None:
    """Its rank is named only while the job is merely sub-healthy."""
    centre = Centre(job())
    centre.devices(fault(1, "S", "SubHealthFault"))
    assert [(1, "1", "S")] == centre.ranks()

    centre.devices(fault(1, "S", "SubHealthFault"), fault(2, "F"))
    assert [(2, "1", "F")] == centre.ranks()
    assert 2 == len(centre.view().nodes[0].devices)


def test_an_unhealthy_chip_without_a_reason_is_a_fault() -> None:
    """The device plugin took it away and does not say why."""
    centre = Centre(job())
    centre.devices(unhealthy=[4])

    assert [(4, "1", "")] == centre.ranks()
    assert () == centre.view().nodes[0].devices[0].codes


def test_a_refused_report_changes_nothing_and_says_so() -> None:
    """The last good word stays."""
    centre = Centre(job())
    centre.devices(fault())
    before = centre.view()
    broken = {**device_info(), "DeviceInfoCfg": "{}", "SwitchInfoCfg": "["}

    changes = centre.take(DeviceInfoSeen(NODE, read_device_info(broken)))
    assert before == centre.view()
    assert [True, True] == [note.refused for note in changes.notes]
    assert () == changes.jobs

    changes = centre.take(NodeInfoSeen(NODE, Refused("wrong")))
    assert "wrong" == changes.notes[0].text
    assert before == centre.view()


# ------------------------------------------------------------------------------------------ other sources


def test_hardware_faults_concern_every_rank_of_the_node() -> None:
    """And go with their ConfigMap."""
    centre = Centre(job(pods=[pod(0, chips=2), pod(1, OTHER, chips=2)]))
    broken = Hardware((HardwareFault("CPU", 1, ("0003",), NodeLevel.SEPARATE),))
    centre.take(NodeInfoSeen(OTHER, broken))

    assert [(2, "1", "0003"), (3, "1", "0003")] == centre.ranks()
    assert "CPU" == centre.view().nodes[0].devices[0].device_type
    assert (HEALTHY,) == centre.take(NodeInfoSeen(OTHER, None)).jobs


def test_switch_faults_are_told_with_their_ports() -> None:
    """As one device of the node, which they concern as a whole."""
    centre = Centre(job(pods=[pod(chips=2)]))
    centre.devices(switch=switch_info("S1", "Separate"))

    device = centre.view().nodes[0].devices[0]
    assert ("-1", "Switch", ("S1",)) == (device.device_id, device.device_type, device.codes)
    assert (SwitchFault("S1", "2", "7", str(round(T0 * 1000)), "Separate"),) == device.switches
    assert [(0, "1", "S1"), (1, "1", "S1")] == centre.ranks()


def test_a_node_that_is_not_ready_is_a_fault_without_a_code() -> None:
    """And so is one that is gone, as long as the job has a pod there."""
    centre = Centre(job(pods=[pod(chips=1)]))
    centre.take(NodeSeen(NODE, ready(ready=False)))
    device = centre.view().nodes[0].devices[0]
    assert ("-1", "Node", (), ()) == (device.device_id, device.device_type, device.codes, device.levels)
    assert ("the node is not ready: KubeletStopped",) == device.reasons
    assert [(0, "1", "")] == centre.ranks()

    centre.take(NodeSeen(NODE, ready()))
    assert HEALTHY == centre.view()
    centre.take(NodeSeen(NODE, None))
    assert [(0, "1", "")] == centre.ranks()
    centre.take(JobSeen(job(pods=[pod(0, OTHER, chips=1)])))
    assert HEALTHY == centre.view()
    assert {OTHER: frozenset({"job-a"})} == centre.state.users
    assert {} == dict(centre.state.nodes)


def test_a_gpu_that_the_device_plugin_takes_back_is_a_fault_of_its_users() -> None:
    """If fewer are on offer than pods hold; an idle one is only kept from new pods."""
    sick = see_node(
        annotations={}, conditions=[], capacity={"nvidia.com/gpu": "8"}, allocatable={"nvidia.com/gpu": "7"}
    )
    whole = PodPlace("p", "u", NODE, 0, 0, 8, resource="nvidia.com/gpu")
    centre = Centre(job(pods=[whole]))
    centre.take(NodeSeen(NODE, sick))
    assert list(range(8)) == [rank.rank for rank in centre.view().ranks]
    assert "GPU" == centre.view().nodes[0].devices[0].device_type

    part = PodPlace("p", "u", NODE, 0, 0, 4, resource="nvidia.com/gpu")
    centre = Centre(job(pods=[part]))
    centre.take(NodeSeen(NODE, sick))
    assert (Health.HEALTHY, ()) == (centre.view().health, centre.view().ranks)


def test_an_xid_error_of_a_gpu_comes_in_as_a_public_fault() -> None:
    """Its rank is known where the pod says its devices, else it is all of the pod."""
    report = {**message(xid_code(79), chips=(2,)), "resource": "nvidia"}
    for chips, expected in (((3, 2), [1]), ((), [0, 1])):
        place = PodPlace("p", "u", NODE, 0, 0, 2, chips, "nvidia.com/gpu")
        centre = Centre(job(pods=[place]))
        centre.public(report)
        assert expected == [rank.rank for rank in centre.view().ranks]
        assert ("GPU", ("NVXID0079",)) == (
            centre.view().nodes[0].devices[0].device_type,
            centre.view().nodes[0].devices[0].codes,
        )


# ------------------------------------------------------------------------------------------- public faults


def test_a_public_fault_stays_until_it_is_recovered() -> None:
    """But at least five seconds, so that whoever looks now and then has seen it."""
    centre = Centre(job())
    assert centre.public(message()).public
    centre.public(message(assertion="recover"), after=1)
    assert [(0, "1", "220001001")] == centre.ranks()

    centre.take(TimePassed(), after=3.9)
    assert 1 == len(centre.ranks())
    assert centre.take(TimePassed(), after=0.1).public
    assert HEALTHY == centre.view()
    assert 0 == centre.state.public_count


def test_a_public_fault_that_happened_once_goes_by_itself() -> None:
    """After five seconds."""
    centre = Centre(job())
    centre.public(message(assertion="once"))
    centre.take(TimePassed(), after=5)

    assert HEALTHY == centre.view()


def test_a_fault_that_comes_back_before_it_is_gone_stays() -> None:
    """The recovery was of the first one."""
    centre = Centre(job())
    centre.public(message())
    centre.public(message(assertion="recover"), after=1)
    centre.public(message(faultTime=round((T0 + 2) * 1000)), after=1)
    centre.take(TimePassed(), after=60)

    assert 1 == len(centre.ranks())


@pytest.mark.parametrize(("second", "gone_at"), [(True, 7.0), (False, 5.0)])
def test_five_seconds_are_counted_from_when_the_fault_came(second: bool, gone_at: float) -> None:
    """A fault that came back has come anew; one that is merely repeated has not."""
    centre = Centre(job())
    centre.public(message())
    if second:
        centre.public(message(assertion="recover"), after=1)
    centre.public(message(), after=1 if second else 2)
    centre.public(message(assertion="recover"), after=1)
    centre.take(TimePassed(), after=gone_at - 3 - 0.1)
    assert 1 == len(centre.ranks())
    centre.take(TimePassed(), after=0.1)
    assert [] == centre.ranks()


def test_a_recovery_may_come_before_its_fault() -> None:
    """Within five seconds; later it is about another one."""
    centre = Centre(job())
    centre.public(message(assertion="recover"))
    centre.public(message(), after=4)
    assert 1 == len(centre.ranks())
    centre.take(TimePassed(), after=5)
    assert HEALTHY == centre.view()

    centre.public(message(assertion="recover"))
    centre.public(message(), after=6)
    centre.take(TimePassed(), after=60)
    assert 1 == len(centre.ranks())


def test_one_recovery_does_not_wait_for_another() -> None:
    """Each has its own moment."""
    centre = Centre(job())
    centre.public(message(faultId="fault-000A"))
    centre.public(
        message(faultId="fault-000B", chips=[1], influence=[{"nodeName": NODE, "deviceIds": [1]}]), after=60
    )
    centre.public(message(faultId="fault-000B", assertion="recover"))
    centre.public(message(faultId="fault-000A", assertion="recover"))

    assert [(1, "1", "220001001")] == centre.ranks()


# ------------------------------------------------------------------------------------- held back, and hidden


def test_an_error_that_accompanies_a_memory_error_is_dropped() -> None:
    """Within five seconds of it, before or after; where the job may repeat a step it waits that long."""
    centre = Centre(job(retry=True))
    centre.devices(fault(0, AIC, at=T0))
    assert HEALTHY == centre.view()
    centre.devices(fault(0, AIC, at=T0), fault(0, UCE, at=T0 + 2), after=2)
    assert [(0, "0", UCE)] == centre.ranks()

    centre = Centre(job(retry=True))
    centre.devices(fault(0, AIC))
    centre.take(TimePassed(), after=5)
    assert [(0, "1", AIC)] == centre.ranks()

    centre = Centre(job())
    centre.devices(fault(0, AIC))
    assert [(0, "1", AIC)] == centre.ranks()


def test_a_memory_error_is_hidden_from_the_scheduler_while_a_step_may_be_repeated() -> None:
    """Recovery hears of it at once, as a fault of kind 0; after ten silent seconds it is a normal one."""
    centre = Centre(job(retry=True))
    centre.devices(fault(0, UCE, "RestartBusiness"))
    assert ([(0, "0", UCE)], {UCE}) == (centre.ranks(), centre.hidden())

    centre.take(TimePassed(), after=9.9)
    assert {UCE} == centre.hidden()
    changes = centre.take(TimePassed(), after=0.1)
    assert ([(0, "1", UCE)], set()) == (centre.ranks(), centre.hidden())
    assert 1 == len(changes.jobs)


def test_a_report_of_the_training_side_gives_half_a_minute() -> None:
    """And its end as much again, for the device plugin to take the fault back."""
    centre = Centre(job(retry=True))
    centre.devices(fault(0, UCE, "RestartBusiness"))
    centre.take(RetryReported("job-a"), after=8)
    centre.take(TimePassed(), after=29)
    assert {UCE} == centre.hidden()
    centre.take(RetryEnded("job-a"))
    centre.take(TimePassed(), after=29)
    assert {UCE} == centre.hidden()
    centre.take(TimePassed(), after=1)
    assert set() == centre.hidden()


@pytest.mark.parametrize(("early", "hidden_s"), [(9, 21), (11, 10)])
def test_a_report_may_be_a_little_older_than_its_fault(early: float, hidden_s: float) -> None:
    """One that is too old was about another, and the fault has its own ten seconds."""
    centre = Centre(job(retry=True))
    centre.take(RetryReported("job-a"))
    centre.devices(fault(0, UCE, "RestartBusiness", T0 + early), after=early)
    centre.take(TimePassed(), after=hidden_s - 0.1)
    assert {UCE} == centre.hidden()
    centre.take(TimePassed(), after=0.1)
    assert set() == centre.hidden()


def test_without_retry_nothing_is_hidden() -> None:
    """A memory error is a fault like any other."""
    centre = Centre(job())
    centre.devices(fault(0, UCE))
    assert ([(0, "1", UCE)], set()) == (centre.ranks(), set(centre.hidden()))


def test_a_failed_collective_without_a_lost_link_means_a_restart() -> None:
    """If the training side says nothing for a minute; with a link lost elsewhere it keeps its level."""
    centre = Centre(job(retry=True))
    centre.devices(fault(0, HCCL_RETRY, "NotHandleFault"))
    assert {HCCL_RETRY} == centre.hidden()
    centre.take(TimePassed(), after=60)
    assert [("RestartBusiness", HCCL_RETRY)] == [(r.level, r.code) for r in centre.view().ranks]

    centre.devices(fault(3, LINK_DOWN, "NotHandleFault", at=centre.now), node=OTHER)
    assert "NotHandleFault" == centre.view().nodes[0].devices[0].levels[0]


def test_a_link_that_came_back_is_still_the_reason_for_a_failed_collective() -> None:
    """For three minutes it is put beside it."""
    centre = Centre(job(retry=True))
    centre.devices(fault(1, LINK_DOWN, "RestartNPU"), fault(0, HCCL_RETRY, "NotHandleFault"))
    centre.devices(fault(0, HCCL_RETRY, "NotHandleFault"), after=1)
    centre.take(TimePassed(), after=60)
    assert LINK_DOWN in {rank.code for rank in centre.view().ranks}
    centre.take(TimePassed(), after=120)
    assert LINK_DOWN not in {rank.code for rank in centre.view().ranks}


def test_a_lost_link_that_is_forgotten_explains_nothing_any_more() -> None:
    """Also on another node than the failed collective's, and with nobody looking."""
    centre = Centre(job(retry=True))
    centre.devices(fault(0, HCCL_RETRY, "NotHandleFault"))
    centre.devices(fault(3, LINK_DOWN, "NotHandleFault"), node=OTHER)
    centre.devices(node=OTHER, after=61)
    levels = [centre.view().nodes[0].devices[0].levels[0]]
    centre.take(TimePassed(), after=180)
    levels.append(centre.view().nodes[0].devices[0].levels[0])

    assert ["NotHandleFault", "RestartBusiness"] == levels


def test_faults_that_a_restart_in_place_may_heal_are_hidden_for_a_minute() -> None:
    """Unless something worse is wrong with the pod, or it was given up."""
    mild = fault(0, "L3", "RestartBusiness")
    centre = Centre(job(in_place=True))
    centre.devices(mild)
    assert ({"L3"}, [(0, "1", "L3")]) == (centre.hidden(), centre.ranks())
    centre.devices(mild, fault(5, "BAD"))
    assert set() == centre.hidden()
    centre.devices(mild, fault(5, "SUB", "SubHealthFault"))
    assert {"L3"} == centre.hidden()
    centre.take(GivenUp("job-a"), after=1)
    assert set() == centre.hidden()

    centre = Centre(job(in_place=True, ignores_sub_health=False))
    centre.devices(mild, fault(5, "SUB", "SubHealthFault"))
    assert set() == centre.hidden()
    centre.devices(mild)
    assert {"L3"} == centre.hidden()
    centre.take(TimePassed(), after=60)
    assert set() == centre.hidden()


def test_a_silenced_fault_is_shown_and_not_acted_on() -> None:
    """By code before level, until it has lasted; another job on the node is not asked to wait."""
    filters = Filters({"A": 30.0}, {"RestartNPU": 90.0})
    other = JobSight("job-b", (PodPlace("x", "x", NODE, 0, 0, 1, (7,)),))
    centre = Centre(job(pods=[pod(chips=7)], filters=filters), other)
    centre.devices(fault(0, "A"), fault(1, "B"), fault(7, "C"), switch=switch_info("S", "Separate"))
    assert 3 == len(centre.view().nodes[0].devices)
    assert "A" not in {rank.code for rank in centre.view().ranks}
    assert {"C", "S"} == {rank.code for rank in centre.view("job-b").ranks}
    assert {"A", "B"} == centre.hidden()

    centre.take(TimePassed(), after=30)
    assert "A" in {rank.code for rank in centre.view().ranks}
    assert "B" not in {rank.code for rank in centre.view().ranks}
    centre.take(TimePassed(), after=60)
    assert {"A", "B", "S"} == {rank.code for rank in centre.view().ranks}


def test_a_stress_test_hides_what_it_provokes() -> None:
    """From everybody, on its nodes, while it runs."""
    centre = Centre(job())
    centre.take(StressTest(frozenset({NODE})))
    centre.devices(fault(0, "80818C05"), fault(1, "X"))
    assert [(1, "1", "X")] == centre.ranks()
    centre.take(StressTest(frozenset()))
    assert 2 == len(centre.ranks())


# -------------------------------------------------------------------------------- faults that belong together


@pytest.mark.parametrize("trigger_first", [True, False])
def test_a_lost_link_and_a_failed_collective_set_the_pod_apart(trigger_first: bool) -> None:
    """The pod at the link, wherever the collective failed, in whatever order they come."""
    centre = Centre(job())
    link = DeviceInfoSeen(NODE, read_device_info(device_info([fault(0, LINK_DOWN, "NotHandleFault")])))
    hccl = DeviceInfoSeen(OTHER, read_device_info(device_info([fault(0, HCCL_RETRY, "NotHandleFault")])))
    first, second = (hccl, link) if trigger_first else (link, hccl)
    centre.take(first)
    assert Health.HEALTHY == centre.view().health
    changes = centre.take(second, after=100)

    assert [("job-0", Strategy.SEPARATE)] == [(mark.pod, mark.strategy) for mark in changes.marks]
    assert Health.UNHEALTHY == centre.view().health
    assert list(range(8)) == [rank.rank for rank in centre.view().ranks]


def test_a_mark_stays_with_its_pod_and_goes_with_it() -> None:
    """It is never made milder, and a new pod has none."""
    centre = Centre(job())
    centre.devices(fault(0, LINK_DOWN, "NotHandleFault"), fault(1, HCCL_RETRY, "NotHandleFault"))
    centre.devices()
    assert Health.UNHEALTHY == centre.view().health
    centre.take(JobSeen(job(pods=[PodPlace("new", "new", NODE, 0, 0, 8), pod(1, OTHER)])))
    assert HEALTHY == centre.view()


def test_a_trigger_that_comes_too_late_means_nothing() -> None:
    """After five minutes a chip's lost link is forgotten, and a switch's is called sub-health."""
    centre = Centre(job())
    centre.devices(fault(0, LINK_DOWN, "NotHandleFault"))
    centre.devices(
        fault(0, LINK_DOWN, "NotHandleFault"), fault(1, HCCL_RETRY, "NotHandleFault", T0 + 301), after=301
    )
    assert Health.HEALTHY == centre.view().health

    centre = Centre(job())
    centre.devices(switch=switch_info(SWITCH_LINK_DOWN, "NotHandle"))
    changes = centre.take(TimePassed(), after=300)
    assert [Strategy.SUB_HEALTH] == [mark.strategy for mark in changes.marks]
    assert Health.SUB_HEALTHY == centre.view().health


def test_in_a_super_pod_an_error_in_a_queue_counts_only_at_the_end() -> None:
    """It has many causes there."""
    centre = Centre(job(super_pod=True))
    centre.devices(fault(0, LINK_DOWN, "NotHandleFault"), fault(1, "8C1F8608", "NotHandleFault"))
    assert Health.HEALTHY == centre.view().health
    centre.take(TimePassed(), after=300)
    assert Health.UNHEALTHY == centre.view().health


# ------------------------------------------------------------------------------------------------- the rest


def test_a_job_that_is_gone_is_told_as_such() -> None:
    """And leaves nothing."""
    centre = Centre(job())
    centre.devices(fault())
    changes = centre.take(JobGone("job-a"))

    assert ("job-a",) == changes.gone
    assert (0, 0) == (len(centre.state.jobs), len(centre.state.users))
    assert () == centre.take(JobGone("job-a")).gone


def test_reports_on_unknown_jobs_are_refused() -> None:
    """With a note and nothing else."""
    assert Centre().take(RetryReported("nobody")).notes[0].refused


def test_a_pod_that_moved_away_leaves_the_fault_behind() -> None:
    """The fault stays with its node."""
    centre = Centre(job(pods=[pod(0)]))
    centre.devices(fault())
    centre.take(JobSeen(job(pods=[pod(0, OTHER)])))

    assert HEALTHY == centre.view()
    assert 1 == len(centre.state.nodes[NODE].faults)


def test_messages_beyond_the_limit_are_refused() -> None:
    """The rest is kept."""
    centre = Centre()
    centre.state = type(centre.state)(public_count=50_000)
    assert centre.public(message()).notes[0].refused


def test_a_level_without_a_report_of_chips_is_harmless() -> None:
    """A ConfigMap without the part about chips is told, and what was known stays."""
    centre = Centre(job())
    centre.devices(fault())
    changes = centre.take(DeviceInfoSeen(NODE, DeviceInfo()))

    assert changes.notes[0].refused
    assert 1 == len(centre.ranks())
    assert Level.RESTART_NPU == centre.state.nodes[NODE].faults[0].level
