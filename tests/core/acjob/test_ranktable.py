"""The rank table in its three forms, and what is written of it."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskd.core.acjob import names
from taskd.core.acjob.devices import world
from taskd.core.acjob.job import Job, Slot
from taskd.core.acjob.rankinput import SeenPod
from taskd.core.acjob.ranktable import (
    NotYet,
    RankTable,
    Written,
    initializing,
    next_write,
    rank_table,
    read_written,
    table_version,
)
from tests.core.acjob.samples import CARDS, make_job, make_template

NPU = "huawei.com/npu"


def make_device(number: int, **more: Any) -> dict[str, Any]:
    return {"device_id": str(number), "device_ip": f"192.168.0.{number}", **more}


def make_pod(
    job: Job,
    slot: Slot,
    devices: list[dict[str, Any]] | None = None,
    *,
    key: str = names.DEVICES_910,
    node: str | None = None,
    **annotations: str,
) -> SeenPod:
    """A pod with its devices written on it, or one that has none."""
    place = list(job.slots()).index(slot)
    written = {names.RANK_INDEX: str(world(job).node_rank(slot))}
    if devices is not None:
        content = {
            "pod_name": job.pod_name(slot),
            "server_id": f"server-{place}",
            "host_ip": f"10.0.0.{place}",
            "devices": devices,
        }
        written[key] = json.dumps(content)
    written |= {name.replace("_", "-"): value for name, value in annotations.items()}
    name = job.pod_name(slot)
    return SeenPod(name, f"uid-{name}", slot, written, f"172.16.0.{place}", node or f"node-{place}")


def make_all(job: Job, count: int = 2, **device: Any) -> list[SeenPod]:
    return [
        make_pod(job, slot, [make_device(each, **device) for each in range(count)]) for slot in job.slots()
    ]


def content_of(job: Job, pods: list[SeenPod]) -> dict[str, Any]:
    found = rank_table(job, pods)
    assert isinstance(found, RankTable), found
    return found.content


def reason_of(job: Job, pods: list[SeenPod]) -> str:
    found = rank_table(job, pods)
    assert isinstance(found, NotYet), found
    return found.reason


# ---------------------------------------------------------------------------------------- which form


@pytest.mark.parametrize(
    ("annotations", "selector", "resource", "expected"),
    [
        ({}, {}, CARDS, "1.0"),
        ({"huawei.com/schedule_policy": "chip8-node8"}, {}, CARDS, "1.0"),
        ({"huawei.com/schedule_policy": "chip8-node8", "sp-block": "16"}, {}, CARDS, "1.0"),
        ({"huawei.com/schedule_policy": "chip2-node16-sp"}, {}, CARDS, "1.2"),
        ({"huawei.com/schedule_policy": "chip2-node8-sp"}, {}, CARDS, "1.2"),
        ({"huawei.com/schedule_policy": "multilevel"}, {}, CARDS, "1.2"),
        ({"sp-block": "16"}, {}, CARDS, "1.2"),
        ({}, {"accelerator-type": "module-a3-16-super-pod"}, CARDS, "1.2"),
        ({}, {"accelerator-type": "module-a3-8-super-pod"}, CARDS, "1.2"),
        ({}, {"accelerator-type": "module-910b-8"}, CARDS, "1.0"),
        ({"sp-block": "16"}, {}, NPU, "2.0"),
    ],
)
def test_the_form_follows_from_the_hardware(
    annotations: dict[str, str], selector: dict[str, str], resource: str, expected: str
) -> None:
    """As the reference chooses it."""
    template = make_template(2, resource, nodeSelector=selector)
    job = make_job(leader=template, worker=template, annotations=annotations)

    assert expected == table_version(job)
    assert initializing(job)["version"] == expected
    assert initializing(job)["status"] == "initializing"


# ------------------------------------------------------------------------------------------ version 1.0


def test_form_1_0_lists_servers_with_their_devices() -> None:
    """All texts; the server is called by its address where every pod has a node of its own."""
    job = make_job(leader=make_template(2), worker=make_template(2))

    assert content_of(job, make_all(job)) == {
        "status": "completed",
        "server_list": [
            {
                "device": [
                    {"device_id": "0", "device_ip": "192.168.0.0", "rank_id": str(2 * place)},
                    {"device_id": "1", "device_ip": "192.168.0.1", "rank_id": str(2 * place + 1)},
                ],
                "server_id": f"10.0.0.{place}",
                "host_ip": f"10.0.0.{place}",
                "container_ip": f"172.16.0.{place}",
            }
            for place in range(2)
        ],
        "server_count": "2",
        "version": "1.0",
    }


def test_pods_on_one_node_are_told_apart_by_the_server_s_id() -> None:
    """Because their address is the same."""
    job = make_job()
    pods = [replace(pod, node="one") for pod in make_all(job)]

    assert [each["server_id"] for each in content_of(job, pods)["server_list"]] == ["server-0", "server-1"]


def test_the_other_annotation_serves_as_well() -> None:
    """Device plugins write the one or the other."""
    job = make_job(workers=0)
    pod = make_pod(job, Slot("Master", 0), [make_device(0)], key=names.DEVICES_NPU)

    assert content_of(job, [pod])["server_count"] == "1"


def test_inference_tells_the_hardware() -> None:
    """From an annotation of the pod; training does not."""
    labels = {"app": "mindie-ms-server", "jobID": "1"}
    for job, expected in ((make_job(workers=0, labels=labels), "800I-A2"), (make_job(workers=0), None)):
        pod = make_pod(job, Slot("Master", 0), [make_device(0)], **{"mind-cluster/hardware-type": "800I-A2"})

        assert content_of(job, [pod])["server_list"][0].get("hardware_type") == expected


@pytest.mark.parametrize("address", ["", "127.0.0.1"])
def test_an_address_may_be_missing_but_not_invalid(address: str) -> None:
    """-1 is how the driver says that it failed."""
    job = make_job()

    assert content_of(job, make_all(job, device_ip=address))
    assert reason_of(job, make_all(job, device_ip="-1")) == (
        "device(0) has invalid IP(-1), cannot generate ranktable"
    )


# ------------------------------------------------------------------------------------------ version 1.2


def test_form_1_2_groups_servers_into_super_pods() -> None:
    """In blocks, counted from the first rank."""
    job = make_job(workers=3, annotations={"sp-block": "4"})

    table = content_of(job, make_all(job, super_device_id="77"))

    assert table["version"] == "1.2"
    assert {device["super_device_id"] for each in table["server_list"] for device in each["device"]} == {"77"}
    assert table["super_pod_list"] == [
        {"super_pod_id": "0", "server_list": [{"server_id": "10.0.0.0"}, {"server_id": "10.0.0.1"}]},
        {"super_pod_id": "1", "server_list": [{"server_id": "10.0.0.2"}, {"server_id": "10.0.0.3"}]},
    ]


def test_inside_one_super_pod_devices_need_no_address() -> None:
    """Between several they do."""
    one, several = (make_job(annotations={"sp-block": block}) for block in ("4", "2"))

    assert content_of(one, make_all(one, device_ip="-1"))
    assert "invalid IP(-1)" in reason_of(several, make_all(several, device_ip="-1"))


@pytest.mark.parametrize(
    ("labels", "key"),
    [({"super-pod-affinity": "soft"}, "super-pod-rank"), ({"app": "a", "jobID": "1"}, "super-pod-id")],
)
def test_super_pods_follow_the_annotations(labels: dict[str, str], key: str) -> None:
    """Of the scheduler, in ascending order and without gaps in the list."""
    job = make_job(workers=2, labels=labels, annotations={"sp-block": "4"})
    pods = [
        replace(pod, annotations={**pod.annotations, key: number})
        for pod, number in zip(make_all(job), ["10", "2", "10"], strict=True)
    ]

    assert content_of(job, pods)["super_pod_list"] == [
        {"super_pod_id": "2", "server_list": [{"server_id": "10.0.0.1"}]},
        {"super_pod_id": "10", "server_list": [{"server_id": "10.0.0.0"}, {"server_id": "10.0.0.2"}]},
    ]
    assert key in reason_of(job, make_all(job))


# ------------------------------------------------------------------------------------------ version 2.0


def make_level(layer: int, *kinds: str) -> dict[str, Any]:
    info = {
        kind: {
            "net_layer": layer,
            "net_instance_id": f"{kind}-{layer}",
            "net_type": "CLOS",
            "net_attr": "",
            "rank_addr_list": [{"addr_type": "EID", "addr": "a", "ports": ["0/1"], "plane_id": "0"}],
        }
        for kind in kinds
    }
    return {"level": layer, "info": info}


def layers_of(levels: list[dict[str, Any]], scaleout: str | None) -> list[tuple[int, str]]:
    template = make_template(1, NPU)
    labels = {} if scaleout is None else {names.SCALEOUT_TYPE: scaleout}
    job = make_job(workers=0, leader=template, labels=labels)
    pod = make_pod(job, Slot("Master", 0), [make_device(3, levelList=levels)])
    table = content_of(job, [pod])
    assert (table["version"], table["rank_count"]) == ("2.0", 1)
    (rank,) = table["rank_list"]
    assert (rank["rank_id"], rank["local_id"], rank["device_id"]) == (0, 3, 3)
    return [(each["net_layer"], each["net_instance_id"]) for each in rank["level_list"]]


INNER = [make_level(0, "UB"), make_level(1, "UB", "UA")]
FOUND = [(0, "UB-0"), (1, "UA-1")]


@pytest.mark.parametrize(
    ("outer", "scaleout", "expected"),
    [
        ([make_level(2, "UBOE", "UBG"), make_level(3, "ROCE")], None, (3, "ROCE-3")),
        ([make_level(2, "UBG", "UBOE")], None, (2, "UBOE-2")),
        ([make_level(2, "UBG")], None, (2, "UBG-2")),
        ([make_level(2, "UBOE"), make_level(3, "ROCE")], "roce", (3, "ROCE-3")),
        ([make_level(2, "UBOE", "UBG"), make_level(3, "ROCE")], "uboe", (2, "UBOE-2")),
        ([make_level(2, "UBG"), make_level(3, "ROCE")], "UBOE", (2, "UBG-2")),
        ([], "ROCE", (3, "CLUSTER1")),
        ([], "UBOE", (2, "CLUSTER1")),
        ([], None, None),
    ],
)
def test_form_2_0_has_the_layers_that_the_job_uses(
    outer: list[dict[str, Any]], scaleout: str | None, expected: tuple[int, str] | None
) -> None:
    """The two inner ones, and the one between super pods, described as empty where the device has none."""
    layers = layers_of([*INNER, *outer], scaleout)

    assert layers == FOUND + ([] if expected is None else [expected])


def test_form_2_0_refuses_what_is_no_number() -> None:
    """A device id of words, or an unknown kind of port."""
    template = make_template(1, NPU)
    job = make_job(workers=0, leader=template)
    odd = make_job(workers=0, leader=template, labels={names.SCALEOUT_TYPE: "wire"})
    pod = make_pod(job, Slot("Master", 0), [make_device(0, device_id="Ascend910-0")])

    assert "'Ascend910-0' is not a number" in reason_of(job, [pod])
    assert "scaleout-type" in reason_of(odd, make_all(odd))


# ------------------------------------------------------------------------------------------ all versions

FORMS = st.sampled_from(["1.0", "1.2", "2.0"])


def make_form(form: str, leader: int, worker: int, workers: int) -> Job:
    resource = NPU if form == "2.0" else CARDS
    return make_job(
        "mindspore",
        workers,
        leader=make_template(leader, resource),
        worker=make_template(worker, resource),
        annotations={"sp-block": "8"} if form == "1.2" else {},
    )


def ranks_of(table: dict[str, Any]) -> list[int]:
    if "rank_list" in table:
        return [each["rank_id"] for each in table["rank_list"]]
    return [int(device["rank_id"]) for each in table["server_list"] for device in each["device"]]


@given(FORMS, st.integers(0, 4), st.integers(1, 4), st.integers(1, 5), st.randoms(use_true_random=False))
def test_rank_ids_are_unique_and_dense(
    form: str, leader: int, worker: int, workers: int, order: random.Random
) -> None:
    """Whatever the pods have and in whatever order they are seen; they agree with the job's world."""
    job = make_form(form, leader, worker, workers)
    sizes = world(job)
    pods = [
        make_pod(job, slot, [make_device(each) for each in range(sizes.per_pod[slot.kind])] or None)
        for slot in job.slots()
    ]
    shuffled = list(pods)
    order.shuffle(shuffled)

    table = content_of(job, shuffled)

    assert ranks_of(table) == list(range(sizes.size))
    assert table == content_of(job, pods)


@given(FORMS, st.lists(st.integers(1, 5), min_size=3, max_size=3))
def test_what_pods_really_have_counts(form: str, counts: list[int]) -> None:
    """Even where it is not what they asked for."""
    job = make_form(form, 2, 2, 2)
    pods = [
        make_pod(job, slot, [make_device(each) for each in range(count)])
        for slot, count in zip(job.slots(), counts, strict=True)
    ]

    assert ranks_of(content_of(job, pods)) == list(range(sum(counts)))


@pytest.mark.parametrize("form", ["1.0", "1.2", "2.0"])
def test_a_leader_without_a_device_has_no_entry(form: str) -> None:
    """But it has to be there."""
    job = make_form(form, 0, 2, 2)
    pods = [
        make_pod(job, slot, None if slot.kind == "Scheduler" else [make_device(0)]) for slot in job.slots()
    ]

    assert ranks_of(content_of(job, pods)) == [0, 1]
    assert reason_of(job, pods[1:]) == "2 of 3 pods have their devices"


def test_the_rank_on_the_pod_decides_the_order() -> None:
    """It may have been changed by the scheduler; two pods of one rank are refused."""
    job = make_job(workers=1)
    master, worker = make_all(job)
    swapped = [
        replace(master, annotations={**master.annotations, names.RANK_INDEX: "1"}),
        replace(worker, annotations={**worker.annotations, names.RANK_INDEX: "0"}),
    ]
    twice = [master, replace(worker, annotations={**worker.annotations, names.RANK_INDEX: "0"})]

    assert [each["server_id"] for each in content_of(job, swapped)["server_list"]] == ["10.0.0.1", "10.0.0.0"]
    assert "same hccl/rankIndex 0" in reason_of(job, twice)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"terminating": True}, "1 of 2 pods have their devices"),
        ({"pod_ip": ""}, "pod job-worker-0 has no IP address yet"),
        ({"annotations": {}}, "1 of 2 pods have their devices"),
        ({"annotations": {names.DEVICES_910: "{"}}, "pod job-worker-0: its devices are not JSON"),
        ({"annotations": {names.DEVICES_910: "[1]"}}, "lists no devices"),
        ({"annotations": {names.DEVICES_910: '{"devices":[]}'}}, "lists no devices"),
        ({"annotations": {names.DEVICES_910: '{"devices":[{}]}'}}, "one without device_id"),
        ({"annotations": {names.DEVICES_910: '{"devices":[3]}'}}, "one without device_id"),
        (
            {"annotations": {names.DEVICES_910: "{}", names.RANK_INDEX: "x"}},
            "pod job-worker-0: hccl/rankIndex is 'x', not a number",
        ),
    ],
)
def test_why_there_is_no_table_yet(change: dict[str, Any], reason: str) -> None:
    """In words that name the pod."""
    job = make_job()
    master, worker = make_all(job)

    assert reason in reason_of(job, [master, replace(worker, **change)])


def test_a_job_without_ascend_devices_has_no_table() -> None:
    """It says so."""
    job = make_job(leader=make_template(0), worker=make_template(0))

    assert reason_of(job, [make_pod(job, slot) for slot in job.slots()]) == (
        "no replica requests a huawei.com device"
    )


def test_a_standby_pod_takes_part_when_it_takes_over() -> None:
    """Not before; the table stays as it is while both are there."""
    job = make_job()
    master, worker = make_all(job)
    standby = replace(
        worker, name="job-worker-0-hot-1", uid="new", pod_ip="172.16.0.99", node="spare",
        annotations={**worker.annotations, names.POD_TYPE: names.BACKUP},
    )  # fmt: skip
    taken_over = replace(standby, annotations=worker.annotations)

    assert content_of(job, [master, worker, standby]) == content_of(job, [master, worker])
    assert reason_of(job, [master, standby]) == "1 of 2 pods have their devices"
    after = content_of(job, [master, replace(worker, terminating=True), taken_over])
    assert after["server_list"][1]["container_ip"] == "172.16.0.99"


# -------------------------------------------------------------------------------------------- writing


def test_the_version_grows_with_the_content_and_only_then() -> None:
    """Begun, completed, looked at again, a pod replaced."""
    job = make_job()
    master, worker = make_all(job)
    begun = next_write(job, rank_table(job, []), None)
    assert begun is not None
    complete = rank_table(job, [master, worker])
    completed = next_write(job, complete, begun)
    assert completed is not None
    elsewhere = rank_table(job, [master, replace(worker, pod_ip="172.16.0.50", uid="new")])
    moved = next_write(job, elsewhere, completed)
    assert moved is not None

    assert [each.version for each in (begun, completed, moved)] == [0, 1, 2]
    assert next_write(job, rank_table(job, [master]), begun) is None
    assert next_write(job, complete, completed) is None
    assert next_write(job, complete, moved) == Written(completed.text, 3)


@pytest.mark.parametrize("form", ["1.0", "1.2", "2.0"])
def test_a_lost_pod_empties_the_table(form: str) -> None:
    """A reader never sees devices of a pod that is gone."""
    job = make_form(form, 1, 1, 1)
    pods = [make_pod(job, slot, [make_device(0)]) for slot in job.slots()]
    completed = next_write(job, rank_table(job, pods), None)
    assert completed is not None

    after = next_write(job, rank_table(job, pods[:1]), completed)

    assert after is not None
    content = json.loads(after.text)
    assert content["status"] == "initializing"
    assert not content.get("server_list")
    assert not content.get("rank_list")
    assert after.version == completed.version + 1


def test_what_a_user_prepared_is_understood() -> None:
    """A ConfigMap by hand, with blanks and without a version, is not written again for nothing."""
    job = make_job()
    held = read_written({"hccl.json": '{\n  "status": "initializing"\n}\n'})

    assert held is not None
    assert held.version == 0
    assert next_write(job, NotYet("waiting"), held) is None
    completed = next_write(job, rank_table(job, make_all(job)), held)
    assert completed is not None
    assert completed.version == 1
    assert read_written(completed.data()) == completed


@pytest.mark.parametrize("data", [None, {}, {"other": "x"}])
def test_a_sink_without_a_table_holds_nothing(data: dict[str, str] | None) -> None:
    """It is written at once."""
    assert read_written(data) is None
    assert next_write(make_job(), NotYet("waiting"), None) is not None


def test_rubbish_in_a_sink_is_replaced() -> None:
    """And its version, if any, counts on."""
    held = read_written({"hccl.json": "rubbish", "version": "41"})

    written = next_write(make_job(), NotYet("waiting"), held)

    assert written is not None
    assert written.version == 42


def test_a_table_may_be_too_large_for_a_config_map() -> None:
    """The API server would refuse it."""
    assert Written("x" * 1_000_000).fits_config_map
    assert not Written("x" * 1_000_001).fits_config_map
