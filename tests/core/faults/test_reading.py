"""Everything that comes in from outside: read right, or refused with one reason, and never an exception."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskd.core.faults import policy
from taskd.core.faults.codes import PublicTable, split_codes, xid_code
from taskd.core.faults.deviceinfo import (
    Chips,
    DeviceInfo,
    Switch,
    chip_number,
    read_chips,
    read_device_info,
    read_separated,
    read_switch,
)
from taskd.core.faults.levels import Level, NodeLevel, SwitchLevel
from taskd.core.faults.nodeinfo import Hardware, HardwareFault, read_node_info
from taskd.core.faults.nodesight import Complaint, Condition, Taint, see_node
from taskd.core.faults.places import PodDevice, PodDevices, read_pod_devices
from taskd.core.faults.public import (
    Code,
    PublicRefused,
    PublicReport,
    read_public,
    read_public_config_map,
)
from taskd.core.faults.rate import take
from taskd.core.faults.reading import Malformed, Refused
from taskd.core.gojson import check_code

from .scenes import NODE, T0, device_info, fault, message, switch_info

DEVICE_TEXT = (
    '{"DeviceList":{"huawei.com/Ascend910":"Ascend910-0,Ascend910-1","huawei.com/Ascend910-Fault":"[]",'
    '"huawei.com/Ascend910-NetworkUnhealthy":"","huawei.com/Ascend910-Unhealthy":""},"UpdateTime":1700000000}'
)
DEVICE_VECTOR = DEVICE_TEXT, "962ecd5fa07850b87a6c4aed5a9b576ec5f9aecd05c553da023ab95a5fb92a10"
NODE_TEXT = (
    '{"FaultDevList":[{"DeviceType":"CPU","DeviceId":1,"FaultCode":["00000003"],'
    '"FaultLevel":"PreSeparateFault"}],"NodeStatus":"PreSeparate"}'
)
NODE_VECTOR = NODE_TEXT, "e0379a763d9a89075c599a9ae3c7e2f71f19d78d5dd150c6e09427a9636df43a"
TABLE = PublicTable()


def refused(value: object) -> str:
    assert isinstance(value, Refused | PublicRefused), value
    assert "\n" not in value.reason
    return value.reason


# ------------------------------------------------------------------------------------------- check codes


def test_the_check_codes_of_the_formats_are_those_of_the_reference() -> None:
    """The code of the text itself, as any reader computes it."""
    for text, code in (DEVICE_VECTOR, NODE_VECTOR):
        assert code == check_code(text)


def test_device_info_with_the_reference_code_is_read() -> None:
    """However its writer has laid the text out: the code is over the payload in Go's order."""
    text, code = DEVICE_VECTOR
    info = json.loads(text)
    shuffled = {"UpdateTime": info["UpdateTime"], "DeviceList": dict(reversed(info["DeviceList"].items()))}
    outer = {"CheckCode": code, "DeviceInfo": shuffled, "SuperPodID": 3, "RackID": 1, "ServerIndex": 2}

    found = read_chips(json.dumps(outer, indent=2))

    assert isinstance(found, Chips)
    assert ("Ascend910-0", "Ascend910-1") == found.pools[0].available
    assert (1700000000, 3, 1, 2) == (found.update_time, found.super_pod, found.rack, found.server_index)


def test_node_info_with_the_reference_code_is_read() -> None:
    """One processor that is to be set apart beforehand."""
    text, code = NODE_VECTOR
    data = {"NodeInfo": json.dumps({"NodeInfo": json.loads(text), "CheckCode": code}), "updateTime": "x"}

    assert Hardware((HardwareFault("CPU", 1, ("00000003",), NodeLevel.PRE_SEPARATE),)) == read_node_info(data)


@pytest.mark.parametrize("code", ["", None, 7, "0" * 64])
def test_a_wrong_check_code_is_refused(code: object) -> None:
    """Absent, of another type or simply another: the payload is not used."""
    text, _ = DEVICE_VECTOR
    outer = {"DeviceInfo": json.loads(text), "CheckCode": code}
    assert "check code" in refused(read_chips(json.dumps(outer)))

    node = {"NodeInfo": json.dumps({"NodeInfo": json.loads(NODE_VECTOR[0]), "CheckCode": code})}
    assert "check code" in refused(read_node_info(node))


# -------------------------------------------------------------------------------------------- device info


def test_a_composite_fault_is_split_by_code() -> None:
    """Each code has its own time and level; one that the map does not have takes those of the entry."""
    item = fault(3, "80E01801,80C98009", "SeparateNPU")
    item["fault_time_and_level_map"] = {"80E01801": {"fault_time": 5000, "fault_level": "RestartBusiness"}}

    found = read_device_info(device_info([item])).chips

    assert isinstance(found, Chips)
    assert [
        ("80E01801", Level.RESTART_BUSINESS, 5.0),
        ("80C98009", Level.SEPARATE, None),
    ] == [(f.code, f.level, f.time) for f in found.faults]


def test_codes_of_switches_keep_their_commas() -> None:
    """They stand in brackets."""
    assert ("A", "[0x08520003,na,L2,na]", "B") == split_codes("A,[0x08520003,na,L2,na], B,A,")


def test_an_unknown_level_counts_as_broken_and_is_told() -> None:
    """A newer device plugin may know more words; a fault is never taken for none."""
    found = read_device_info(device_info([fault(level="MeltNPU")])).chips

    assert isinstance(found, Chips)
    assert Level.SEPARATE == found.faults[0].level
    assert "MeltNPU" in found.notes[0]


def test_each_part_is_refused_on_its_own() -> None:
    """A broken switch part does not hide a chip's fault, nor the other way round."""
    data = device_info([fault()], separated=[1, 2], switch="{")
    found = read_device_info(data)

    assert isinstance(found.chips, Chips)
    assert "not JSON" in refused(found.switch)
    assert (1, 2) == found.separated
    assert DeviceInfo() == read_device_info({})


def test_switch_faults_have_their_own_levels() -> None:
    """By code, chip and port; recovered ones are left out; words of configurations are understood."""
    found = read_switch(switch_info(level="RestartRequestFault"))
    assert isinstance(found, Switch)
    entry = found.entries[0]
    assert ("2", "7", SwitchLevel.RESTART_REQUEST, T0) == (entry.chip, entry.port, entry.level, entry.time)

    over = json.loads(switch_info())
    over["FaultCode"] = [over["FaultCode"][0].replace('"Assertion": 1', '"Assertion": 0')]
    assert Switch((), 1) == read_switch(json.dumps(over))


@pytest.mark.parametrize(("name", "number"), [("Ascend910-3", 3), ("npu-12", 12), ("Ascend910-8c-101-5", 5)])
def test_chips_are_numbers(name: str, number: int) -> None:
    """The last part of the name, also of a part of a chip."""
    assert number == chip_number(name)


@pytest.mark.parametrize("name", ["", "Ascend910", "Ascend910-", "a-x", "a-99999", "a-٣"])
def test_what_names_no_chip_is_refused(name: str) -> None:
    """Nothing else is a number of a chip."""
    with pytest.raises(Malformed):
        chip_number(name)
    assert isinstance(read_separated(f"Ascend910-1,{name}x"), Refused)


# ------------------------------------------------------------------------------------------ public faults


def test_a_good_public_fault_is_read() -> None:
    """With the level of its code, and chips by node."""
    found = read_public(message(chips=(5, 1)), TABLE, {})

    assert isinstance(found, PublicReport)
    one = found.faults[0]
    assert (Level.SEPARATE, ((NODE, (1, 5)),), T0) == (one.level, one.influence, one.time)


def test_a_node_may_be_named_by_its_serial_number() -> None:
    """If it is known; an unknown name is accepted, as it may join later."""
    where = [{"nodeName": "", "nodeSN": "SN1", "deviceIds": [0]}]
    found = read_public(message(influence=where), TABLE, {"SN1": "n"})
    assert isinstance(found, PublicReport)
    assert (("n", (0,)),) == found.faults[0].influence

    assert "nodeSN" in refused(read_public(message(influence=where), TABLE, {}))


BAD_FAULTS: list[dict[str, Any]] = [
    {"faultId": "short"},
    {"faultId": "x" * 129},
    {"faultId": "blank blank"},
    {"faultType": "Chip"},
    {"faultCode": "22000100"},
    {"faultCode": "999999999"},
    {"faultTime": 1_735_689_599_999},
    {"faultTime": 10_000_000_000_000},
    {"faultTime": "1800000000000"},
    {"faultTime": True},
    {"assertion": "maybe"},
    {"faultLocation": {str(n): "" for n in range(11)}},
    {"faultLocation": {"k" * 17: ""}},
    {"faultLocation": {"k": "v" * 129}},
    {"influence": []},
    {"influence": [{"nodeName": "n", "deviceIds": [0]}] * 1001},
    {"influence": [{"nodeName": "Big_Name", "deviceIds": [0]}]},
    {"influence": [{"nodeName": "n" * 254, "deviceIds": [0]}]},
    {"influence": [{"nodeName": "n", "deviceIds": []}]},
    {"influence": [{"nodeName": "n", "deviceIds": [0, 0]}]},
    {"influence": [{"nodeName": "n", "deviceIds": [32]}]},
    {"influence": [{"nodeName": "n", "deviceIds": [-1]}]},
    {"influence": [{"nodeName": "n", "deviceIds": list(range(33))}]},
    {"description": "x" * 513},
    {"description": "a\nb"},
]


@pytest.mark.parametrize("wrong", BAD_FAULTS, ids=lambda wrong: next(iter(wrong)))
def test_a_bad_fault_is_refused_with_409(wrong: dict[str, Any]) -> None:
    """The limits, one by one; where it is the only one, so is the message."""
    found = read_public(message(**wrong), TABLE, {})

    assert isinstance(found, PublicRefused)
    assert Code.PARAMETER == found.code
    assert next(iter(wrong)) in found.reason or "deviceIds" in found.reason or "nodeName" in found.reason


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": "x"},
        {"timestamp": 5},
        {"version": "2.0"},
        {"faults": []},
        {"faults": [{}] * 101},
        {"faults": None},
    ],
    ids=str,
)
def test_a_bad_head_is_refused_with_409(wrong: dict[str, Any]) -> None:
    """The whole message is."""
    found = read_public({**message(), **wrong}, TABLE, {})

    assert isinstance(found, PublicRefused)
    assert Code.PARAMETER == found.code


def test_good_faults_of_a_message_are_used_and_bad_ones_told() -> None:
    """None is lost because of another."""
    good, bad = message()["faults"][0], message(faultType="x")["faults"][0]
    found = read_public({**message(), "faults": [bad, good]}, TABLE, {})

    assert isinstance(found, PublicReport)
    assert 1 == len(found.faults)
    assert found.left_out[0].startswith("faults[0]: faultType")


def test_an_unknown_sender_is_refused_with_410() -> None:
    """As a real ClusterD does: there is no limiter for it."""
    found = read_public({**message(), "resource": "nobody"}, TABLE, {})

    assert isinstance(found, PublicRefused)
    assert (Code.RATE, True) == (found.code, found.reason.startswith("limiter work by resource failed"))


def test_each_sender_has_a_hundred_at_once_and_one_a_second() -> None:
    """One that is loud does not silence another."""
    buckets: Any = {}
    answers = []
    for _ in range(110):
        buckets, ok = take(buckets, "CCAE", T0)
        answers.append(ok)
    assert [True] * 100 + [False] * 10 == answers
    assert take(buckets, "pingmesh", T0)[1]
    assert not take(buckets, "CCAE", T0 + 0.9)[1]
    assert take(buckets, "CCAE", T0 + 1)[1]
    assert not take(buckets, "CCAE", T0 - 1000)[1]


def test_xid_errors_of_nvidia_come_in_by_the_same_door() -> None:
    """A device that fell off the bus is as lost as a separated chip."""
    found = read_public({**message(xid_code(79)), "resource": "nvidia"}, TABLE, {})

    assert isinstance(found, PublicReport)
    assert ("NVXID0079", Level.SEPARATE) == (found.faults[0].code, found.faults[0].level)


# ------------------------------------------------------------------------------------------ nodes and pods


def test_a_node_says_what_is_wrong_with_it() -> None:
    """Not ready, under pressure, cordoned, out of service, devices that are not offered."""
    found = see_node(
        ip="10.0.0.1",
        annotations={"product-serial-number": "SN", "NodeHealthyStatus": "UnHealthy"},
        conditions=[
            Condition("Ready", "Unknown", "NodeStatusUnknown"),
            Condition("DiskPressure", "True", "KubeletHasDiskPressure"),
            Condition("PIDPressure", "False"),
            Condition("EtcdIsVoter", "True"),
        ],
        taints=[Taint("node.kubernetes.io/unreachable", "NoExecute"), Taint("maintenance", "NoExecute")],
        unschedulable=True,
        capacity={"nvidia.com/gpu": "8", "cpu": "4"},
        allocatable={"nvidia.com/gpu": "7", "cpu": "3"},
    )

    assert [
        ("", NodeLevel.SEPARATE),
        ("DiskPressure", NodeLevel.SUB_HEALTH),
        ("NodeHealthyStatus", NodeLevel.SEPARATE),
        ("maintenance", NodeLevel.PRE_SEPARATE),
        ("node.kubernetes.io/unschedulable", NodeLevel.PRE_SEPARATE),
    ] == [(c.code, c.level) for c in found.complaints]
    assert ({"nvidia.com/gpu": 1}, "SN", "10.0.0.1") == (found.missing, found.serial, found.ip)


def test_a_good_node_has_nothing_to_say() -> None:
    """Also one whose kubelet has not reported yet."""
    good = see_node(annotations={}, conditions=[Condition("Ready", "True")], capacity={}, allocatable={})
    new = see_node(annotations={}, conditions=[], capacity={}, allocatable={})

    assert () == good.complaints == new.complaints
    gone = see_node(
        annotations={}, conditions=[], taints=[Taint("node.kubernetes.io/out-of-service", "")], capacity={},
        allocatable={},
    )  # fmt: skip
    assert Complaint(
        "node.kubernetes.io/out-of-service", NodeLevel.SEPARATE, "a person took the node out of service"
    ) == gone.complaints[0]  # fmt: skip


def test_a_pods_devices_are_read_in_the_order_of_ranks() -> None:
    """From the scheduler's annotation, else from the allocation, else from ours; else nobody says."""
    text = json.dumps(
        {
            "devices": [{"device_id": "4", "device_ip": "1.1", "super_device_id": "9"}, {"device_id": "2"}],
            "server_id": "s", "host_ip": "h", "super_pod_id": 7,
        }
    )  # fmt: skip
    written = {"ascend.kubectl.kubernetes.io/ascend-910-configuration": text}
    found = read_pod_devices({**written, "huawei.com/AscendReal": "Ascend910-0"})

    assert PodDevices((PodDevice(4, "1.1", "9"), PodDevice(2)), "s", "h", 7) == found
    real = read_pod_devices({"huawei.com/AscendReal": "Ascend910-5,Ascend910-1"})
    assert isinstance(real, PodDevices)
    assert (1, 5) == real.chips
    ours = read_pod_devices({"taskd.io/devices": "3,1"})
    assert isinstance(ours, PodDevices)
    assert (3, 1) == ours.chips
    assert PodDevices(()) == read_pod_devices({})
    assert "not JSON" in refused(read_pod_devices({next(iter(written)): "{"}))


# ------------------------------------------------------------------------------------------ what people set


def test_the_separation_policy_is_read_with_its_limits() -> None:
    """Missing is false or zero, and zero is out of range; -1 hours lets nothing back."""
    good = {"enabled": True, "separate": {"fault_window_hours": 24, "fault_threshold": 3}}
    free = {"release": {"fault_free_hours": -1}}
    assert policy.Separation(True, 86400, 3, None) == policy.read_separation({**good, **free})
    assert "fault_free_hours" in refused(policy.read_separation(good))
    assert "fault_window_hours" in refused(policy.read_separation({"enabled": True}))
    assert "enabled" in refused(policy.read_separation({"enabled": "yes"}))
    assert "not an object" in refused(policy.read_separation(None))
    high = {**good, **free, "separate": {"fault_window_hours": 721, "fault_threshold": 3}}
    assert "between 1 and 720" in refused(policy.read_separation(high))


def test_public_codes_can_be_set_and_the_worst_list_wins() -> None:
    """A code in two lists has the worse level."""
    lists = {"NotHandleFaultCodes": ["123456789"], "SeparateNPUCodes": ["123456789"]}
    found = policy.read_public_table(json.dumps({"publicFaultCode": lists, "publicFaultResource": ["me"]}))

    assert PublicTable({"123456789": Level.SEPARATE}, frozenset({"me"})) == found
    bad = {"publicFaultCode": {"NotHandleFaultCodes": ["1"]}}
    assert "9 characters" in refused(policy.read_public_table(json.dumps(bad)))


def test_relations_and_windows_can_be_set() -> None:
    """A rule without a trigger, or with another strategy, is refused as a whole."""
    rule = {"TriggerFault": "A", "RelationFaults": ["B"], "FaultStrategy": "SubHealth"}
    assert (policy.Relation("A", frozenset({"B"}), policy.Strategy.SUB_HEALTH),) == policy.read_relations(
        json.dumps([rule])
    )
    assert "Separate or SubHealth" in refused(
        policy.read_relations(json.dumps([{**rule, "FaultStrategy": ""}]))
    )
    windows = [{"FaultCode": "B", "FaultType": "faultDevice", "TimeOutInterval": 9}]
    assert {"B": 9.0} == policy.read_windows(json.dumps(windows))


def test_filters_take_codes_and_levels_with_seconds() -> None:
    """Sixty seconds where none are named, full-width signs as people type them, and bad entries are told."""
    found, notes = policy.read_filters(
        {
            policy.FILTER_CODE: "8C1F8608:30, 80E01801，[0x08520003,na,L2,na]：5",  # noqa: RUF001
            policy.FILTER_LEVEL: "RestartRequest:0,RestartBusiness:86401,Melt",
        }
    )

    assert {"8C1F8608": 30.0, "80E01801": 60.0, "[0x08520003,na,L2,na]": 5.0} == found.codes
    assert {"RestartRequest": 0.0} == found.levels
    assert 2 == len(notes)
    assert 60.0 == policy.read_filters({}, inference=True)[0].levels[Level.RESTART_REQUEST]


# ------------------------------------------------------------------------------------------------- fuzzing

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
KEYS = [
    "DeviceInfo", "DeviceList", "UpdateTime", "CheckCode", "SuperPodID", "FaultCode", "FaultLevel",
    "NodeInfo", "FaultDevList", "NodeStatus", "FaultTimeAndLevelMap", "faults", "influence", "devices",
    "device_id", "publicFaultCode", "separate", "release", "enabled", "id", "timestamp", "version",
    "resource",
]  # fmt: skip
SHAPED = st.recursive(
    JSON,
    lambda inner: st.dictionaries(st.sampled_from(KEYS), inner, max_size=4) | st.lists(inner, max_size=2),
    max_leaves=6,
)
TEXTS = st.text(max_size=40) | SHAPED.map(json.dumps) | st.just("[" * 5_000) | st.just('"\\ud800"')


@given(TEXTS)
def test_no_text_ends_a_reader(text: str) -> None:
    """Whatever stands in a ConfigMap or an annotation: a value or a refusal with one line."""
    device = read_device_info({"DeviceInfoCfg": text, "SwitchInfoCfg": text, "ManuallySeparateNPU": text})
    results: list[object] = [
        device.chips,
        device.switch,
        device.separated,
        read_node_info({"NodeInfo": text}),
        read_public_config_map({"PublicFault": text}, TABLE, {}),
        read_pod_devices({"ascend.kubectl.kubernetes.io/ascend-910-configuration": text}),
        read_pod_devices({"huawei.com/AscendReal": text}),
        read_pod_devices({"taskd.io/devices": text}),
        policy.read_public_table(text),
        policy.read_relations(text),
        policy.read_windows(text),
    ]
    for result in results:
        if isinstance(result, Refused | PublicRefused):
            assert "\n" not in result.reason
            assert len(result.reason) < 400
    policy.read_filters({policy.FILTER_CODE: text, policy.FILTER_LEVEL: text})


@given(SHAPED)
def test_no_value_ends_a_reader(value: object) -> None:
    """Nor does any decoded value, as gRPC and YAML hand them over."""
    read_public(value, TABLE, {})
    policy.read_separation(value)


@given(st.dictionaries(st.sampled_from(sorted(message()["faults"][0])), JSON, max_size=4), JSON)
def test_no_change_of_a_good_message_ends_a_reader(changes: dict[str, Any], extra: object) -> None:
    """Deep inside a message that begins well."""
    read_public(message(**changes), TABLE, {})
    read_public(message(influence=[extra, {"nodeName": extra, "deviceIds": extra}]), TABLE, {})


@given(JSON, st.sampled_from(sorted(fault())))
def test_no_change_of_a_good_device_report_ends_a_reader(extra: object, field: str) -> None:
    """With a check code that is right, so that the content is looked at."""
    read_device_info(device_info([{**fault(), field: extra}], unhealthy=()))
