"""Reports that are valid and make no sense: the centre takes them, and what it publishes is still whole."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from taskd.core.faults.codes import UCE
from taskd.core.faults.deviceinfo import Chips, read_chips, read_device_info
from taskd.core.faults.events import DeviceInfoSeen, NodeInfoSeen
from taskd.core.faults.levels import Level
from taskd.core.faults.nodeinfo import Hardware, read_node_info
from taskd.core.faults.places import PodPlace
from taskd.core.faults.reading import Refused
from taskd.core.faults.texts.clusterinfo import device_entry, node_entry, switch_entry
from taskd.core.faults.viewing import in_use
from taskd.core.gojson import check_code, compact

from .scenes import NODE, T0, Centre, R, fault, job, pod

NAMES = st.sampled_from(["Ascend910-0", "Ascend910-7", "Ascend910-8c-100-0", "npu-3", "Ascend310P-12"])
LISTS = st.lists(NAMES, max_size=3).map(",".join)
RESOURCES = st.sampled_from([R, "huawei.com/npu", "huawei.com/Ascend310P", "x", ""])
SUFFIXES = st.sampled_from(["", "-Unhealthy", "-NetworkUnhealthy", "-Recovering"])
WORDS = st.text(max_size=4) | st.sampled_from([UCE, "A,B", "[1,2]", ",", "<&>", "\u2028"])


@st.composite
def entries(draw: st.DrawFn) -> dict[str, Any]:
    code = draw(WORDS)
    made = fault(0, code, draw(st.sampled_from(list(Level)) | WORDS), T0)
    made["npu_name"] = draw(NAMES)
    made["fault_type"] = draw(
        st.sampled_from(["CardUnhealthy", "CardNetworkUnhealthy", "NodeUnhealthy", "?"])
    )
    made["fault_time_and_level_map"] = draw(
        st.dictionaries(
            WORDS,
            st.fixed_dictionaries({}, optional={"fault_time": st.integers(-5, 2**62), "fault_level": WORDS}),
            max_size=2,
        )
    )
    return made


@st.composite
def reports(draw: st.DrawFn) -> str:
    lists = draw(st.dictionaries(st.tuples(RESOURCES, SUFFIXES).map("".join), LISTS, max_size=5))
    lists[draw(RESOURCES) + "-Fault"] = compact(draw(st.lists(entries(), max_size=3)))
    info = {"DeviceList": dict(sorted(lists.items())), "UpdateTime": draw(st.integers(-(2**63), 2**63 - 1))}
    outer = {"DeviceInfo": info, "CheckCode": check_code(compact(info))}
    return json.dumps(outer)


@given(reports(), st.booleans(), st.booleans())
def test_every_valid_report_is_taken_and_published(text: str, used: bool, retry: bool) -> None:
    """Chips that no list has, two names for one chip, unknown levels and codes, times of anywhen."""
    centre = Centre(job(pods=[pod(chips=8)], retry=retry, in_place=not retry) if used else job(pods=[]))
    centre.take(DeviceInfoSeen(NODE, read_device_info({"DeviceInfoCfg": text})))
    assert isinstance(read_chips(text), Chips)

    record = centre.state.nodes[NODE]
    entry = device_entry(record, in_use(record, [found.sight for found in centre.state.jobs.values()]))
    assert entry is not None
    assert entry == json.loads(compact(entry))
    for key, value in entry["DeviceList"].items():
        if key.endswith("-Fault"):
            assert all(found["npu_name"] for found in json.loads(value))


@given(st.lists(st.tuples(st.text(max_size=5), st.integers(-(2**63), 2**63 - 1), WORDS, WORDS), max_size=3))
def test_every_valid_hardware_report_is_taken(parts: list[tuple[str, int, str, str]]) -> None:
    """Whatever parts a node may have."""
    faults = [
        {"DeviceType": kind, "DeviceId": number, "FaultCode": [code], "FaultLevel": level}
        for kind, number, code, level in parts
    ]
    info = {"FaultDevList": faults, "NodeStatus": ""}
    data = {"NodeInfo": json.dumps({"NodeInfo": info, "CheckCode": check_code(compact(info))})}
    found = read_node_info(data)
    assert isinstance(found, Hardware)
    centre = Centre(job())
    centre.take(NodeInfoSeen(NODE, found))

    record = centre.state.nodes[NODE]
    assert (
        json.loads(compact(node_entry(record, in_use=True, stamp=T0)))["CmName"]
        == f"mindx-dl-nodeinfo-{NODE}"
    )
    assert switch_entry(record, in_use=False) is None


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | WORDS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(WORDS, inner, max_size=2),
    max_leaves=4,
)
HARDWARE = {"DeviceType": "CPU", "DeviceId": 1, "FaultCode": ["00000001"], "FaultLevel": "SeparateFault"}


@given(st.data())
def test_a_damaged_hardware_report_is_taken_or_refused_in_words(data: st.DataObject) -> None:
    """Any field may be anything, or be missing, under a check code that is right or not."""
    entry: dict[str, Any] = dict(HARDWARE)
    info: dict[str, Any] = {"FaultDevList": [entry], "NodeStatus": "UnHealthy"}
    outer: dict[str, Any] = {"NodeInfo": info}
    for place in data.draw(st.lists(st.sampled_from([entry, info, outer]), min_size=1, max_size=2)):
        field = data.draw(st.sampled_from(sorted(place)))
        if data.draw(st.booleans()):
            place[field] = data.draw(ANYTHING)
        else:
            del place[field]
            break
    right = check_code(compact(outer.get("NodeInfo")))
    outer["CheckCode"] = data.draw(st.just(right) | ANYTHING)
    found = read_node_info({"NodeInfo": json.dumps(outer)})
    if isinstance(found, Refused):
        assert found.reason
        assert "\n" not in found.reason
        return
    centre = Centre(job())
    centre.take(NodeInfoSeen(NODE, found))
    assert json.loads(compact(node_entry(centre.state.nodes[NODE], in_use=True, stamp=T0)))


def test_a_pod_that_does_not_say_its_chips_may_have_any() -> None:
    """So a chip that is to be set apart counts as used, and that pod stays."""
    centre = Centre(job(pods=[PodPlace("p", "u", NODE, 0, 0, 1)]))
    centre.devices(fault(1, "P", "PreSeparateNPU"), chips=2)
    record = centre.state.nodes[NODE]
    used = in_use(record, [found.sight for found in centre.state.jobs.values()])

    assert used is None
    entry = device_entry(record, used)
    assert entry is not None
    assert ("Ascend910-0", "") == (entry["DeviceList"][R], entry["DeviceList"][f"{R}-Unhealthy"])
