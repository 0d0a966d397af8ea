"""ConfigMaps that others read: exactly the fields, the order and the check codes of the reference."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskd.core.faults.codes import LINK_DOWN, UCE, PublicTable
from taskd.core.faults.events import (
    GivenUp,
    NodeInfoSeen,
    PolicySeen,
    PublicRestored,
    SeparationsSeen,
    TimePassed,
)
from taskd.core.faults.levels import Level, NodeLevel
from taskd.core.faults.nodeinfo import Hardware, HardwareFault, read_node_info
from taskd.core.faults.places import PodDevice, PodDevices
from taskd.core.faults.policy import Separation
from taskd.core.faults.reading import Refused
from taskd.core.faults.state import separations
from taskd.core.faults.texts import clusterinfo, datatrace, faultjob, jobsummary, kept, reset
from taskd.core.faults.viewing import in_use
from taskd.core.gojson import check_code

from .scenes import NODE, T0, Centre, R, fault, job, message, pod, switch_info
from .test_reading import DEVICE_VECTOR, NODE_VECTOR

STAMP = 1_700_000_000.5


# -------------------------------------------------------------------------------------------------- reset


def test_flushing_is_written_as_in_the_reference() -> None:
    """Text and check code of the first test vector."""
    found = reset.flush(reset.Reset(), STAMP).data()

    assert (
        '{"RankList":[],"UpdateTime":1700000000,"RetryTime":0,"FaultFlushing":true,"GracefulExit":0,'
        '"RestartFaultProcess":false}'
    ) == found["reset.json"]
    assert "f642b26990294df0e918ff6cfcc2511ff487eb0d38a25ddba00f9ab0260a51b4" == found["checkCode"]
    assert {"reset.json", "checkCode"} == found.keys()


def test_a_rank_in_place_is_written_as_in_the_reference() -> None:
    """Text and check code of the second test vector."""
    found = reset.name_faults(reset.Reset(retry_time=1), [8], STAMP, in_place=True, per_node=8).data()

    assert (
        '{"RankList":[{"RankId":8,"LogicId":0,"Status":"fault","Policy":"","InitialPolicy":"","ErrorCode":null,'
        '"ErrorCodeHex":""}],"UpdateTime":1700000000,"RetryTime":1,"FaultFlushing":false,"GracefulExit":0,'
        '"RestartFaultProcess":true}'
    ) == found["reset.json"]
    assert "28468b1bdb07e947572535130abde24be2286cc07ceee488d97416f88e6bdf10" == found["checkCode"]


def test_what_an_operation_is_not_about_stays() -> None:
    """`restartType`, `GracefulExit` and `RetryTime` survive; the reference loses the first two."""
    before = reset.Reset(
        retry_time=4, graceful_exit=1, restart_type=reset.RestartType.HOT, ranks=(reset.ResetRank(3),)
    )
    after = reset.clear(before, STAMP)
    assert ((), False, 4, 1, reset.RestartType.HOT) == (
        after.ranks, after.flushing, after.retry_time, after.graceful_exit, after.restart_type,
    )  # fmt: skip
    assert 5 == reset.restart_all(before, STAMP).retry_time
    assert "podReschedule" == reset.restart_all(before, STAMP).data()["restartType"]
    assert 0 == reset.exit_gracefully(before, STAMP, leave=False).graceful_exit


def test_ranks_are_listed_once_and_in_order() -> None:
    """However they come."""
    found = reset.name_faults(reset.Reset(), [9, 2, 9], STAMP, in_place=False, per_node=8)
    assert [(2, 2), (9, 1)] == [(entry.rank, entry.logic_id) for entry in found.ranks]


RESETS = st.builds(
    reset.Reset,
    st.lists(
        st.builds(
            reset.ResetRank,
            st.integers(0, 10_000),
            st.integers(0, 31),
            st.sampled_from(list(reset.RankStatus)),
            st.sampled_from(["", "empty", "restart", "reset", "isolate"]),
            st.just(""),
            st.none() | st.lists(st.integers(0, 2**40), max_size=2).map(tuple),
            st.text(st.characters(exclude_categories=["Cs"]), max_size=4),
        ),
        max_size=3,
    ).map(tuple),
    st.integers(0, 2**40),
    st.integers(0, 100),
    st.booleans(),
    st.integers(0, 1),
    st.booleans(),
    st.none() | st.sampled_from(list(reset.RestartType)),
)


@given(RESETS)
def test_what_is_written_is_read_again(value: reset.Reset) -> None:
    """Also what the device plugin writes there; and a hot reset is noticed."""
    data = value.data()
    assert value == reset.read_reset(data)
    assert check_code(data["reset.json"]) == data["checkCode"]
    under_way = [entry for entry in value.ranks if entry.status is not reset.RankStatus.FAILED]
    assert value.hot_reset == any(entry.policy in {"reset", "restart"} for entry in under_way)


@given(st.text(max_size=30))
def test_no_content_ends_a_reader_of_these(text: str) -> None:
    """Users write the first of them by hand."""
    reset.read_reset({"reset.json": text, "restartType": text})
    datatrace.read_data_trace({"profilingSwitch": text})
    kept.read_statistic({"PublicFaults": text}, PublicTable(), T0)
    kept.read_manual_info({NODE: text})


PUBLIC_ENTRY = {
    "resource": "CCAE", "devIds": [1], "faultId": "fault-0001", "type": "NPU", "faultCode": "220001001",
    "level": "SeparateNPU", "faultTime": 1800000000,
}  # fmt: skip
MANUAL_ENTRY = {"FaultCode": "F", "FaultLevel": "x", "LastSeparateTime": 5}


VALUES = st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.lists(st.integers(), max_size=3)


@given(st.sampled_from(sorted(PUBLIC_ENTRY)), VALUES, st.sampled_from(sorted(MANUAL_ENTRY)))
def test_what_was_kept_may_have_been_edited(field: str, value: object, other: str) -> None:
    """An entry that makes no sense is told and left out; the one beside it is used."""
    nodes = {NODE: [{**PUBLIC_ENTRY, field: value}, {**PUBLIC_ENTRY, "faultId": "fault-0002"}]}
    found, notes = kept.read_statistic({"PublicFaults": json.dumps(nodes)}, PublicTable(), T0)
    assert ("CCAE", "fault-0002") in found[NODE]
    assert 2 == len(found[NODE]) + len(notes) or field in {"faultId", "resource"}
    centre = Centre(job())
    centre.take(PublicRestored(found))
    json.loads(kept.statistic(centre.state)["PublicFaults"])

    detail = {"Ascend910-2": [{**MANUAL_ENTRY, other: value}]}
    text = json.dumps({"Total": ["Ascend910-2"], "Detail": detail})
    entries, broken = kept.read_manual_info({NODE: text})
    assert 1 == len(entries) + len(broken)
    centre.take(PolicySeen(Separation(enabled=True)), SeparationsSeen(entries, restore=True))


def test_an_empty_reset_config_is_nothing_special() -> None:
    """As a user's job YAML makes it."""
    assert reset.Reset() == reset.read_reset({})
    assert isinstance(reset.read_reset({"reset.json": '{"RankList":[{"RankId":1,"Status":"x"}]}'}), Refused)


# --------------------------------------------------------------------------------------------- data trace


def test_switches_are_written_in_their_order() -> None:
    """What is not named is off."""
    assert {
        "profilingSwitch": '{"CommunicationOperator":"off","Step":"on","SaveCheckpoint":"off","FP":"off",'
        '"DataLoader":"off"}'
    } == datatrace.data_trace({"Step": "on"})


@pytest.mark.parametrize("wrong", [{"Step": "yes"}, {"Stride": "on"}, {"FP": 1}])
def test_unknown_switches_and_values_are_refused(wrong: dict[str, Any]) -> None:
    """The reference writes whatever it is given."""
    assert isinstance(datatrace.read_switches(wrong), Refused)


def test_data_trace_is_read_again() -> None:
    """An unset field is off."""
    data = datatrace.data_trace({"FP": "on", "Step": ""})
    assert {
        name: "on" if name == "FP" else "off" for name in datatrace.SWITCHES
    } == datatrace.read_data_trace(data)


# ------------------------------------------------------------------------------------------- cluster info


def entry(centre: Centre, node: str = NODE) -> dict[str, Any]:
    record = centre.state.nodes[node]
    jobs = [found.sight for found in centre.state.jobs.values()]
    found = clusterinfo.device_entry(record, in_use(record, jobs))
    assert found is not None
    return found


def lists(centre: Centre) -> tuple[str, str, str]:
    found = entry(centre)["DeviceList"]
    return found[R], found[f"{R}-Unhealthy"], found[f"{R}-NetworkUnhealthy"]


def listed(*chips: int) -> str:
    return ",".join(f"Ascend910-{chip}" for chip in chips)


def test_a_node_without_faults_is_published_as_it_came() -> None:
    """With the fields in their order."""
    text, _ = DEVICE_VECTOR
    centre = Centre()
    centre.devices(chips=2, update_time=1700000000)

    found = entry(centre)
    assert json.loads(text)["DeviceList"] == found["DeviceList"]
    assert ["DeviceList", "UpdateTime", "CmName", "SuperPodID", "RackID", "ServerIndex"] == list(found)
    assert (1700000000, "mindx-dl-deviceinfo-node-1", -2) == (
        found["UpdateTime"], found["CmName"], found["SuperPodID"],
    )  # fmt: skip


def test_split_faults_are_merged_again() -> None:
    """One entry for chip and kind: codes sorted, the worst level three times, each code with its own."""
    centre = Centre(job())
    centre.devices(fault(1, "B", "RestartBusiness"), fault(1, "A", "SeparateNPU"))

    found = json.loads(entry(centre)["DeviceList"][f"{R}-Fault"])
    times = {code: {"fault_time": round(T0 * 1000), "fault_level": level} for code, level in (
        ("A", "SeparateNPU"), ("B", "RestartBusiness"))}  # fmt: skip
    assert [
        {
            "fault_type": "CardUnhealthy",
            "npu_name": "Ascend910-1",
            "large_model_fault_level": "SeparateNPU",
            "fault_level": "SeparateNPU",
            "fault_handling": "SeparateNPU",
            "fault_code": "A,B",
            "fault_time_and_level_map": times,
        }
    ] == found
    assert (listed(0, 2, 3, 4, 5, 6, 7), listed(1), "") == lists(centre)


def test_a_public_fault_takes_a_chip_and_gives_it_back() -> None:
    """Also the one that the device plugin calls good."""
    centre = Centre()
    centre.devices(chips=3)
    centre.public(message(chips=(1,), influence=[{"nodeName": NODE, "deviceIds": [1]}]))
    assert (listed(0, 2), listed(1), "") == lists(centre)
    assert "PublicFault" == json.loads(entry(centre)["DeviceList"][f"{R}-Fault"])[0]["fault_type"]

    centre.public(message(assertion="recover"), after=10)
    assert (listed(0, 1, 2), "", "") == lists(centre)


def test_a_fault_of_the_network_has_its_own_list() -> None:
    """It blocks new pods and leaves those that are there."""
    centre = Centre()
    centre.devices(fault(2, LINK_DOWN, kind="CardNetworkUnhealthy"), chips=3)
    assert (listed(0, 1), "", listed(2)) == lists(centre)


@pytest.mark.parametrize("used", [True, False])
def test_a_chip_to_be_set_apart_is_unhealthy_only_while_idle(used: bool) -> None:
    """Nothing new is placed there in either case."""
    centre = Centre(*([job(pods=[pod(chips=2)])] if used else []))
    for unhealthy in ((), (1,)):
        centre.devices(fault(1, "P", "PreSeparateNPU"), chips=2, unhealthy=unhealthy)
        assert (listed(0), "" if used else listed(1), "") == lists(centre)


def test_what_the_scheduler_is_not_told_is_not_there() -> None:
    """The chip is out of every list of bad ones, and not on offer; once told, it is in them."""
    centre = Centre(job(pods=[pod(chips=2)], retry=True))
    centre.devices(fault(0, UCE, "RestartBusiness"), chips=2)
    assert (listed(1), "", "") == lists(centre)
    assert "[]" == entry(centre)["DeviceList"][f"{R}-Fault"]
    centre.take(TimePassed(), after=10)
    assert (listed(1), listed(0), "") == lists(centre)

    centre = Centre(job(pods=[pod(chips=2)], in_place=True))
    centre.devices(fault(0, "L3", "RestartBusiness"), chips=2)
    assert (listed(1), "", "") == lists(centre)
    centre.take(GivenUp("job-a"))
    assert (listed(1), listed(0), "") == lists(centre)


def test_codes_of_chips_kept_apart_are_left_out() -> None:
    """Their level rules all the same."""
    centre = Centre(job())
    centre.devices(fault(1, "B", "RestartBusiness"), separated=[1])

    found = json.loads(entry(centre)["DeviceList"][f"{R}-Fault"])
    assert ["B"] == [one["fault_code"] for one in found]
    assert ["ManuallySeparateNPU"] == [one["fault_level"] for one in found]


def test_a_switch_is_published_with_its_worst_level() -> None:
    """As it came, with the name of its ConfigMap."""
    centre = Centre()
    centre.devices(switch=switch_info("S", "RestartRequest"))
    found = clusterinfo.switch_entry(centre.state.nodes[NODE], in_use=False)

    assert found is not None
    assert ["FaultCode", "FaultLevel", "UpdateTime", "NodeStatus", "FaultTimeAndLevelMap", "CmName"] == list(
        found
    )
    assert ("RestartRequest", "UnHealthy", "mindx-dl-switchinfo-node-1") == (
        found["FaultLevel"], found["NodeStatus"], found["CmName"],
    )  # fmt: skip
    assert json.loads(switch_info("S", "RestartRequest"))["FaultCode"] == found["FaultCode"]


@pytest.mark.parametrize(
    ("level", "used", "status"),
    [
        (NodeLevel.NOT_HANDLE, True, "Healthy"),
        (NodeLevel.PRE_SEPARATE, True, "Healthy"),
        (NodeLevel.PRE_SEPARATE, False, "UnHealthy"),
        (NodeLevel.SEPARATE, True, "UnHealthy"),
    ],
)
def test_a_node_is_published_while_something_is_wrong(level: NodeLevel, used: bool, status: str) -> None:
    """To be set apart beforehand is healthy for those who are there."""
    centre = Centre()
    centre.take(NodeInfoSeen(NODE, Hardware((HardwareFault("CPU", 1, ("03",), level),))))
    found = clusterinfo.node_entry(centre.state.nodes[NODE], in_use=used, stamp=STAMP)

    assert {
        "FaultDevList": [
            {"DeviceType": "CPU", "DeviceId": 1, "FaultCode": ["03"], "FaultLevel": level.value}
        ],
        "NodeStatus": status,
        "CmName": "mindx-dl-nodeinfo-node-1",
        "UpdateTime": 1700000000500,
    } == found


def test_a_report_and_its_payload_agree() -> None:
    """What is read from the reference's text is written as that text."""
    text, code = NODE_VECTOR
    found = read_node_info({"NodeInfo": json.dumps({"NodeInfo": json.loads(text), "CheckCode": code})})
    assert isinstance(found, Hardware)
    assert json.loads(text)["FaultDevList"] == [one.payload() for one in found.faults]


SIZES = st.dictionaries(st.text("abcdef", min_size=1, max_size=3), st.integers(1, 60), max_size=20)


@given(SIZES, SIZES)
def test_entries_stay_where_they_are(first: dict[str, int], then: dict[str, int]) -> None:
    """None is lost, none is too full, and one whose ConfigMap has room is not moved."""
    before = clusterinfo.spread(first, {}, 100)
    after = clusterinfo.spread(then, before, 100)

    assert then.keys() == after.keys()
    filled: dict[int, int] = {}
    for name, number in after.items():
        filled[number] = filled.get(number, 0) + then[name]
    assert all(size <= 100 for size in filled.values())
    assert before == clusterinfo.spread(first, before, 100)


def test_one_change_changes_one_config_map() -> None:
    """Whatever else there is."""
    sizes = {f"n{number:03}": 10 for number in range(100)}
    before = clusterinfo.spread(sizes, {}, 95)
    after = clusterinfo.spread({**sizes, "n050": 14}, before, 95)
    assert before == after
    grown = clusterinfo.spread({**sizes, "n050": 40}, before, 95)
    assert 1 == sum(before[name] != grown[name] for name in sizes)


def test_texts_are_gathered_in_order() -> None:
    """An empty one is the empty string; in the one that cannot be split the urgent come first."""
    assert "" == clusterinfo.gather({})
    assert '{"a":{},"b":1}' == clusterinfo.gather({"b": "1", "a": "{}"})
    assert ('{"b":"xxxx"}', 1) == clusterinfo.gather_within({"a": '"xxxx"', "b": '"xxxx"'}, ["b"], 15)


# -------------------------------------------------------------------------------------------- job summary


def facts(phase: str = "Running", pods: int = 2, **more: Any) -> jobsummary.JobFacts:
    made = tuple(
        jobsummary.PodFacts(
            f"p{index}", phase, f"n{index}", index, index * 2, f"10.0.0.{index}", f"SN{index}",
            PodDevices((PodDevice(4, "1.1.1.4"), PodDevice(5, "1.1.1.5", "77")), f"s{index}", f"h{index}", 3),
            {"ascend": f"containerd://{index}"},
        )
        for index in range(pods)
    )  # fmt: skip
    return jobsummary.JobFacts("ns", "j", "uid", "pytorch", 2, made, created=5, master="m", **more)


def test_a_running_job_is_summed_up() -> None:
    """Every field of the reference, and the table of servers."""
    (found,) = jobsummary.summary(facts(), jobsummary.JobStatus.RUNNING)
    table = json.loads(found.data.pop("hccl.json"))

    assert (
        "job-summary-j",
        {
            "job_name": "j", "framework": "pytorch", "job_id": "uid", "job_status": "running",
            "cm_index": "0", "total": "1", "operator": "add", "time": "5", "sid": "uid", "sharedTorIp": "",
            "masterAddr": "m",
        },
    ) == (found.name, found.data)  # fmt: skip
    assert ("complete", "2", 1) == (table["status"], table["server_count"], table["total"])
    assert {
        "device": [
            {"device_id": "4", "device_ip": "1.1.1.4", "rank_id": "2"},
            {"device_id": "5", "device_ip": "1.1.1.5", "rank_id": "3", "super_device_id": "77"},
        ],
        "server_id": "h1", "host_ip": "h1", "super_pod_id": 3, "server_name": "n1", "server_sn": "SN1",
        "pod_name": "p1", "container_ids": {"ascend": "containerd://1"},
    } == table["server_list"][1]  # fmt: skip


def test_a_waiting_job_has_no_table_yet() -> None:
    """Nor addresses."""
    (found,) = jobsummary.summary(facts("Pending"), jobsummary.JobStatus.PENDING)
    assert '{"status":"initializing"}' == found.data["hccl.json"]
    assert not {"masterAddr", "sharedTorIp", "deleteTime"} & found.data.keys()


def test_large_jobs_are_cut_between_servers() -> None:
    """Each slice is a table of its own, and knows how many there are."""
    found = jobsummary.summary(facts(pods=5), jobsummary.JobStatus.RUNNING, limit=700)
    tables = [json.loads(one.data["hccl.json"]) for one in found]

    assert ["job-summary-j", "job-summary-j-1", "job-summary-j-2"] == [one.name for one in found]
    assert ["p0", "p1", "p2", "p3", "p4"] == [s["pod_name"] for t in tables for s in t["server_list"]]
    assert [("0", "3"), ("1", "3"), ("2", "3")] == [
        (one.data["cm_index"], one.data["total"]) for one in found
    ]
    assert {"5"} == {table["server_count"] for table in tables}


@pytest.mark.parametrize(
    ("phases", "before", "after"),
    [
        (["Running", "Failed"], "running", "failed"),
        (["Succeeded", "Succeeded"], "running", "complete"),
        (["Running", "Succeeded"], "pending", "running"),
        (["Running", "Pending"], "pending", "pending"),
        (["Running", "Pending"], "running", "failed"),
        (["Running", "Running"], "failed", "running"),
        (["Running"], "complete", "complete"),
        ([], "pending", "pending"),
    ],
)
def test_the_status_follows_the_pods(phases: list[str], before: str, after: str) -> None:
    """As the reference derives it, also from what it was before."""
    pods = tuple(facts(phase, 1).pods[0] for phase in phases)
    job_facts = jobsummary.JobFacts("ns", "j", "u", "pytorch", 2, pods)
    assert after == jobsummary.job_status(job_facts, jobsummary.JobStatus(before))


def test_a_job_that_is_deleted_while_it_runs_has_failed() -> None:
    """With the time; a failed one too, and one that runs again has none."""
    (found,) = jobsummary.summary(facts(), jobsummary.JobStatus.RUNNING, 9, deleted=True)
    assert ("failed", "delete", "9") == tuple(found.data[k] for k in ("job_status", "operator", "deleteTime"))
    (found,) = jobsummary.summary(facts(), jobsummary.JobStatus.FAILED, 9)
    assert ("failed", "add", "9") == tuple(found.data[k] for k in ("job_status", "operator", "deleteTime"))
    assert "deleteTime" not in jobsummary.summary(facts(), jobsummary.JobStatus.RUNNING, 9)[0].data


def test_the_newest_chips_have_a_flat_list_too() -> None:
    """With the version that says so."""
    table = json.loads(
        jobsummary.summary(facts(plain_npu=True), jobsummary.JobStatus.RUNNING)[0].data["hccl.json"]
    )
    assert ("2.0", 4) == (table["version"], table["rank_count"])
    assert {"rank_id": 3, "local_id": 1, "device_id": 5, "level_list": []} == table["rank_list"][3]


# -------------------------------------------------------------------------------------- what outlives us


def test_public_faults_survive_a_restart() -> None:
    """They are kept with seconds, and come back with the level that the table has now."""
    centre = Centre(job())
    centre.public(message(chips=(1, 3)))
    data = kept.statistic(centre.state)
    assert '{"publicFaultNum":1}' == data["FaultNum"]
    assert (
        '{"node-1":[{"resource":"CCAE","devIds":[1,3],"faultId":"fault-0001","type":"NPU","faultCode":"220001001",'
        '"level":"SeparateNPU","faultTime":1800000000}]}'
    ) == data["PublicFaults"]

    found, notes = kept.read_statistic(data, PublicTable(), T0)
    again = Centre(job())
    again.take(PublicRestored(found))
    assert () == notes
    assert centre.view() == again.view()
    again.public(message(assertion="recover"), after=6)
    assert 0 == again.state.public_count


def test_what_was_kept_does_not_undo_what_was_said_since() -> None:
    """A sender may be faster than the reading of the old ones."""
    old = Centre(job())
    old.public(message())
    found, _ = kept.read_statistic(kept.statistic(old.state), PublicTable(), T0)
    centre = Centre(job())
    centre.public(message(faultTime=round((T0 + 9) * 1000)))
    centre.take(PublicRestored(found))

    assert [T0 + 9] == [held.fault.time for held in centre.state.nodes[NODE].public.values()]
    assert 1 == centre.state.public_count


def test_a_broken_entry_does_not_cost_the_others() -> None:
    """It is told, and the rest comes back."""
    centre = Centre(job())
    centre.public(message())
    nodes = json.loads(kept.statistic(centre.state)["PublicFaults"])
    nodes[NODE].append({"faultCode": 5})
    found, notes = kept.read_statistic({"PublicFaults": json.dumps(nodes)}, PublicTable(), T0)
    assert 1 == len(found[NODE])
    assert 1 == len(notes)


def test_chips_kept_apart_are_written_for_people() -> None:
    """And read again; deleted from either part, a chip is let back."""
    centre = Centre(job())
    centre.take(PolicySeen(Separation(enabled=True, threshold=1)))
    centre.devices(fault(2, "F"))
    centre.take(TimePassed(), after=30)
    data = kept.manual_info(centre.state)
    stamp = round((T0 + 30) * 1000)
    entry_text = f'{{"FaultCode":"F","FaultLevel":"ManuallySeparateNPU","LastSeparateTime":{stamp}}}'
    assert {NODE: f'{{"Total":["Ascend910-2"],"Detail":{{"Ascend910-2":[{entry_text}]}}}}'} == data

    found, broken = kept.read_manual_info(data)
    assert separations(centre.state).keys() == found.keys()
    assert {} == broken
    fewer = {NODE: data[NODE].replace('"Total":["Ascend910-2"]', '"Total":[]')}
    assert {} == kept.read_manual_info(fewer)[0]
    again = Centre(job())
    again.take(PolicySeen(Separation(enabled=True)), SeparationsSeen(found, restore=True))
    assert data == kept.manual_info(again.state)
    assert {NODE} == kept.read_manual_info({NODE: "{"})[1].keys()
    assert Level.MANUALLY_SEPARATE == found[NODE, 2, "F"].level


def test_super_pods_with_a_lost_part_are_named() -> None:
    """Whose devices go, which nodes have to let go of them; sorted, unlike the reference's."""
    members = [
        faultjob.Member("b", 1, ("12", "3")),
        faultjob.Member("a", 1, ("7",)),
        faultjob.Member("c", 2, ("1",)),
    ]
    assert (
        '{"1":{"SdIds":["3","12"],"FaultNodes":{"b":{}},"NodeNames":["a"],"FaultTimes":1700000000,"JobId":"j"}}'
    ) == faultjob.fault_job("j", members, ["b"], STAMP)
    assert "" == faultjob.fault_job("j", members, [], STAMP)
    assert {"k": "x"} == faultjob.without({"j": "y", "k": "x"}, "j")
