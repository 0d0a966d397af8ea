"""What a container finds in its environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskd.core.acjob import names
from taskd.core.acjob.devices import world
from taskd.core.acjob.environment import variables
from taskd.core.acjob.pods import PodMaker
from tests.core.acjob.samples import ADDRESSES, env_of, make_job, make_pods, make_template

SOFT_SHARE = dict.fromkeys(names.SOFT_SHARE, "1")
NONE = make_template(devices=0)
COMMON = {
    "ASCEND_VISIBLE_DEVICES",
    "MINDX_TASK_ID",
    "MINDX_SERVER_IP",
    "MINDX_SERVER_DOMAIN",
    "HostNetwork",
    "HCCL_LOGIC_SUPERPOD_ID",
    "REPLICA_TYPE",
    "POD_IP",
}
TORCH = {"LOCAL_WORLD_SIZE", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "RANK"}
PLACE = {"TASKD_NODES", "TASKD_PEERS", "TASKD_LEADER"}
RECOVERY = {
    "PROCESS_RECOVER",
    "ELASTIC_PROCESS_RECOVER_ENABLE",
    "ENABLE_RESTART_FAULT_PROCESS",
    "HIGH_AVAILABILITY",
    "HCCL_ASYNC_ERROR_HANDLING",
    "MS_ENABLE_TFT",
    "MINDIO_FOR_MINDSPORE",
    "MS_ENABLE_THM",
}


def recovery_of(framework: str, strategy: str, leader: dict[str, Any] | None = None, **labels: str) -> Any:
    annotations = {names.RECOVER_STRATEGY: strategy} if strategy else {}
    labels = {name.replace("_", "-"): value for name, value in labels.items()}
    job = make_job(framework, leader=leader, worker=leader, labels=labels, annotations=annotations)
    pods = make_pods(job)
    found = [{k: v for k, v in env_of(pod).items() if k in RECOVERY} for pod in pods.values()]
    assert found[0] == found[1], "all pods of a job have the same switches"
    return found[0]


# ------------------------------------------------------------------------------------- per framework


def test_pytorch_has_addresses_sizes_and_ranks() -> None:
    """Master and Workers; the rank is that of the node."""
    pods = make_pods(make_job(workers=2))

    env = env_of(pods["job-worker-1"])
    assert env == env_of(pods["job-master-0"]) | {"REPLICA_TYPE": "Worker", "RANK": "2"}
    assert set(env) == COMMON | TORCH | PLACE
    assert (env["TASKD_NODES"], env["TASKD_PEERS"]) == (
        "3",
        "job-master-0.acjob-pods,job-worker-[0-1].acjob-pods",
    )
    assert env["LOCAL_WORLD_SIZE"] == "8"
    assert env["WORLD_SIZE"] == "24"
    assert env["LOCAL_RANK"] == "0,1,2,3,4,5,6,7"
    assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == ("10.96.0.7", "2222")
    assert env["TASKD_LEADER"] == "10.96.0.7"
    assert env["MINDX_TASK_ID"] == "u-1"
    assert env["MINDX_SERVER_IP"] == "10.96.0.9"
    assert env["MINDX_SERVER_DOMAIN"] == names.PLANE_DOMAIN
    assert env["POD_IP"] == "status.podIP"


def test_mindspore_meets_at_the_scheduler() -> None:
    """The Scheduler without devices is not counted, and is told what its Workers have."""
    pods = make_pods(make_job("mindspore", workers=2, leader=NONE))

    scheduler, second = env_of(pods["job-scheduler-0"]), env_of(pods["job-worker-1"])
    assert scheduler["MS_SCHED_HOST"] == "status.podIP"
    assert second["MS_SCHED_HOST"] == "10.96.0.7"
    for env in (scheduler, second):
        assert (env["MS_LOCAL_WORKER"], env["MS_WORKER_NUM"]) == ("8", "16")
        assert (env["MS_SCHED_PORT"], env["MS_SERVER_NUM"]) == ("2222", "0")
    assert (scheduler["MS_ROLE"], scheduler["NPU_POD"], scheduler["MS_NODE_RANK"]) == (
        "MS_SCHED",
        "false",
        "0",
    )
    assert (second["MS_ROLE"], second["NPU_POD"], second["MS_NODE_RANK"]) == ("MS_WORKER", "true", "1")
    assert "HCCL_LOGIC_SUPERPOD_ID" not in scheduler


def test_tensorflow_meets_at_the_chief() -> None:
    """Chief and Worker; there are no switches for recovery."""
    annotations = {names.RECOVER_STRATEGY: "recover"}
    pods = make_pods(make_job("tensorflow", annotations=annotations))

    chief, worker = env_of(pods["job-chief-0"]), env_of(pods["job-worker-0"])
    assert (chief["CM_CHIEF_IP"], worker["CM_CHIEF_IP"]) == ("status.podIP", "10.96.0.7")
    assert (chief["CM_RANK"], worker["CM_RANK"]) == ("0", "1")
    assert (worker["CM_LOCAL_WORKER"], worker["CM_WORKER_SIZE"]) == ("8", "16")
    assert (worker["CM_CHIEF_PORT"], worker["CM_CHIEF_DEVICE"]) == ("2222", "0")
    assert worker["CM_WORKER_IP"] == "status.podIP"
    assert not RECOVERY & set(worker)
    assert worker["TASKD_RECOVER_STRATEGY"] == "recover"


def test_mindspore_alone_meets_nobody() -> None:
    """One Worker without a Scheduler has the common variables and none of MindSpore's."""
    job = make_job("mindspore", alone=True, worker=make_template(1), labels={names.POD_RESCHEDULING: "on"})

    env = env_of(make_pods(job)["job-worker-0"])

    assert set(env) == COMMON


def test_an_inference_job_has_its_own_environment() -> None:
    """Task id and kind of application come from the labels; nothing of a framework is there."""
    job = make_job(labels={"app": "mindie-ms-server", "jobID": "infer-1"})

    for pod in make_pods(job).values():
        env = env_of(pod)
        assert set(env) == {"MINDX_TASK_ID", "APP_TYPE", "MINDX_SERVER_IP", "MINDX_SERVER_DOMAIN", "POD_IP"}
        assert (env["MINDX_TASK_ID"], env["APP_TYPE"]) == ("infer-1", "mindie-ms-server")


# ----------------------------------------------------------------------------------------- per device


@pytest.mark.parametrize(
    ("resource", "labels", "gang", "seen"),
    [
        ("huawei.com/Ascend910", {}, True, True),
        ("huawei.com/Ascend310", {}, True, True),
        ("huawei.com/Ascend310P", {}, True, True),
        ("huawei.com/npu", {}, True, True),
        ("huawei.com/Ascend910", {}, False, False),
        ("huawei.com/Ascend910", SOFT_SHARE, True, False),
        ("huawei.com/Ascend910-2c", {}, True, False),
        ("huawei.com/npu-core", {}, True, False),
        ("nvidia.com/gpu", {}, True, False),
    ],
)
def test_visible_devices_come_from_the_scheduler_for_whole_cards_only(
    resource: str, labels: Mapping[str, str], gang: bool, seen: bool
) -> None:
    """Requests for cpu and memory beside them play no part."""
    template = make_template(2, resource)
    template["spec"]["containers"][0]["resources"]["requests"] |= {"cpu": "4", "memory": "1Gi"}
    job = make_job(worker=template, leader=template, labels=labels)

    env = env_of(make_pods(job, gang=gang)["job-worker-0"])

    assert env.get("ASCEND_VISIBLE_DEVICES") == (f"metadata.annotations['{resource}']" if seen else None)


def test_pods_of_different_size_make_one_world() -> None:
    """A Master with 4 devices and two Workers with 8 are 20 processes; each pod knows its own share."""
    pods = make_pods(make_job(workers=2, leader=make_template(4)))

    sizes = [(env_of(pod)["LOCAL_WORLD_SIZE"], env_of(pod)["WORLD_SIZE"]) for pod in pods.values()]

    assert sizes == [("4", "20"), ("8", "20"), ("8", "20")]


def test_shared_cards_have_one_process_each() -> None:
    """Whatever number of shares a pod asks for."""
    env = env_of(make_pods(make_job(workers=2, labels=SOFT_SHARE))["job-worker-1"])

    assert (env["LOCAL_WORLD_SIZE"], env["WORLD_SIZE"], env["LOCAL_RANK"]) == ("1", "3", "0")


@pytest.mark.parametrize("framework", ["pytorch", "mindspore", "tensorflow"])
def test_the_device_plugin_says_the_sizes_of_parts_of_a_card(framework: str) -> None:
    """So the operator does not."""
    part = make_template(4, "huawei.com/npu-core")
    job = make_job(framework, worker=part, leader=part if framework == "pytorch" else NONE)

    for pod in make_pods(job).values():
        sizes = {"LOCAL_WORLD_SIZE", "WORLD_SIZE", "LOCAL_RANK", "MS_LOCAL_WORKER", "MS_WORKER_NUM"}
        assert not (sizes | {"CM_LOCAL_WORKER", "CM_WORKER_SIZE"}) & set(env_of(pod))


@pytest.mark.parametrize(
    ("template", "annotations", "local"),
    [
        (NONE, {}, "1"),
        (NONE, {names.PROCESSES_PER_POD: "3"}, "3"),
        (make_template(2, "nvidia.com/gpu"), {}, "2"),
    ],
)
def test_any_device_or_none_has_the_framework_s_variables(
    template: dict[str, Any], annotations: dict[str, str], local: str
) -> None:
    """But nothing that only Ascend's software reads, which would be false there."""
    annotations = {**annotations, names.RECOVER_STRATEGY: "retry,recover"}
    job = make_job(workers=1, leader=template, worker=template, annotations=annotations)

    env = env_of(make_pods(job)["job-worker-0"])

    assert (env["LOCAL_WORLD_SIZE"], env["WORLD_SIZE"]) == (local, str(2 * int(local)))
    assert env["RANK"] == "1"
    assert env["HIGH_AVAILABILITY"] == "recover,retry"
    assert env["TASKD_RECOVER_STRATEGY"] == "retry,recover"
    assert not {name for name in env if name.startswith(("HCCL", "ASCEND"))}


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({}, ["0", "0", "0", "0"]),
        ({"sp-block": "16"}, ["0", "0", "1", "1"]),
        ({"sp-block": "4"}, ["0", "1", "2", "3"]),
        ({"sp-block": "nonsense"}, ["0", "0", "0", "0"]),
        (
            {"huawei.com/schedule_policy": "multilevel", "huawei.com/affinity-config": "level1=2,level2=4"},
            ["0", "0", "1", "1"],
        ),
        ({"huawei.com/schedule_policy": "multilevel"}, ["0", "0", "0", "0"]),
    ],
)
def test_pods_are_grouped_into_logical_super_pods(annotations: dict[str, str], expected: list[str]) -> None:
    """By the size of a block and the devices of a pod."""
    pods = make_pods(make_job(workers=3, annotations=annotations))

    assert expected == [env_of(pod)["HCCL_LOGIC_SUPERPOD_ID"] for pod in pods.values()]


def test_a_soft_super_pod_is_chosen_by_the_scheduler() -> None:
    """Its number is then in an annotation; not so for the newest devices."""
    labels = {names.SUPER_POD_AFFINITY: "soft"}
    npu = make_template(8, "huawei.com/npu")

    soft = env_of(make_pods(make_job(labels=labels))["job-worker-0"])
    newest = env_of(make_pods(make_job(labels=labels, leader=npu, worker=npu))["job-worker-0"])

    assert soft["HCCL_LOGIC_SUPERPOD_ID"] == "metadata.annotations['super-pod-rank']"
    assert newest["HCCL_LOGIC_SUPERPOD_ID"] == "0"


def test_the_container_knows_whether_it_shares_the_network_of_the_node() -> None:
    """HostNetwork is true or false."""
    shared = make_template(hostNetwork=True)

    pods = make_pods(make_job(worker=shared))

    assert [env_of(pod)["HostNetwork"] for pod in pods.values()] == ["false", "true"]


# --------------------------------------------------------------------------------------- per strategy

ON = {"PROCESS_RECOVER": "on", "ELASTIC_PROCESS_RECOVER_ENABLE": "1"}
TORCH_ON = {**ON, "HCCL_ASYNC_ERROR_HANDLING": "0"}
MS_ON = {**ON, "MINDIO_FOR_MINDSPORE": "1", "MS_ENABLE_THM": "{HCCL_WATCHDOG:0}"}
IN_PLACE = {"ENABLE_RESTART_FAULT_PROCESS": "on"}


@pytest.mark.parametrize(
    ("framework", "strategy", "expected"),
    [
        ("pytorch", "recover", {**TORCH_ON, "HIGH_AVAILABILITY": "recover"}),
        ("pytorch", "retry", {**TORCH_ON, "HIGH_AVAILABILITY": "retry"}),
        ("pytorch", "dump", {**TORCH_ON, "HIGH_AVAILABILITY": "dump"}),
        ("pytorch", "recover-in-place", {**TORCH_ON, **IN_PLACE, "HIGH_AVAILABILITY": "recover"}),
        (
            "pytorch",
            "elastic-training",
            {
                "PROCESS_RECOVER": "on",
                "HCCL_ASYNC_ERROR_HANDLING": "0",
                "HIGH_AVAILABILITY": "elastic-training",
            },
        ),
        ("pytorch", "retry,recover,dump,exit", {**TORCH_ON, "HIGH_AVAILABILITY": "dump,recover,retry"}),
        ("mindspore", "recover", {**MS_ON, "MS_ENABLE_TFT": "{ARF:1}"}),
        ("mindspore", "retry", {**MS_ON, "MS_ENABLE_TFT": "{HCCE:1,UCE:1}"}),
        ("mindspore", "dump", {**MS_ON, "MS_ENABLE_TFT": "{TTP:1}"}),
        ("mindspore", "recover-in-place", {**MS_ON, **IN_PLACE, "MS_ENABLE_TFT": "{ARF:1}"}),
        ("mindspore", "retry,recover,dump", {**MS_ON, "MS_ENABLE_TFT": "{ARF:1,HCCE:1,TTP:1,UCE:1}"}),
        ("mindspore", "elastic-training", {}),
    ],
)
def test_each_strategy_has_its_switches(framework: str, strategy: str, expected: dict[str, str]) -> None:
    """As the framework spells them, in alphabetical order."""
    assert expected == recovery_of(framework, strategy)


@pytest.mark.parametrize("framework", ["pytorch", "mindspore"])
@pytest.mark.parametrize("strategy", ["", "exit", " exit , "])
def test_no_way_of_recovery_no_switch(framework: str, strategy: str) -> None:
    """A job that only asks to exit gets none; not even an empty one."""
    assert {} == recovery_of(framework, strategy)


def test_blanks_between_strategies_do_not_matter() -> None:
    """The list that the container sees has none."""
    job = make_job(annotations={names.RECOVER_STRATEGY: " retry , recover,, retry"})

    env = env_of(make_pods(job)["job-master-0"])

    assert recovery_of("pytorch", "retry,recover") == recovery_of("pytorch", " retry , recover,, retry")
    assert env["TASKD_RECOVER_STRATEGY"] == "retry,recover"


@pytest.mark.parametrize(
    ("framework", "strategy", "expected"),
    [
        ("pytorch", "", {**ON, "HIGH_AVAILABILITY": "recover"}),
        ("pytorch", "dump", {**TORCH_ON, "HIGH_AVAILABILITY": "dump,recover"}),
        ("mindspore", "", {**ON, "MINDIO_FOR_MINDSPORE": "1", "MS_ENABLE_TFT": "{ARF:1}"}),
        ("mindspore", "dump", {**MS_ON, "MS_ENABLE_TFT": "{ARF:1,TTP:1}"}),
    ],
)
def test_hot_switching_joins_the_other_strategies(
    framework: str, strategy: str, expected: dict[str, str]
) -> None:
    """A pod is replaced by rescheduling, which therefore is switched on."""
    assert expected == recovery_of(framework, strategy, subHealthyStrategy="hotSwitch")


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [("", {"MS_ENABLE_TFT": "{RSC:1}"}), ("recover", {**MS_ON, "MS_ENABLE_TFT": "{ARF:1,RSC:1}"})],
)
def test_mindspore_is_told_of_pod_rescheduling(strategy: str, expected: dict[str, str]) -> None:
    """PyTorch has no switch for it."""
    assert expected == recovery_of("mindspore", strategy, pod_rescheduling="on")
    assert {} == recovery_of("pytorch", "", pod_rescheduling="on")


def test_without_ascend_there_are_no_switches_of_hccl() -> None:
    """The others are there."""
    assert recovery_of("pytorch", "recover", leader=NONE) == {**ON, "HIGH_AVAILABILITY": "recover"}
    assert recovery_of("mindspore", "recover", leader=NONE) == {
        **ON,
        "MINDIO_FOR_MINDSPORE": "1",
        "MS_ENABLE_TFT": "{ARF:1}",
    }


# -------------------------------------------------------------------------------------- with the user's


def test_a_value_of_the_user_may_refer_to_ours() -> None:
    """Kubernetes expands only names that stand earlier in the list."""
    user = {"name": "TOTAL", "value": "$(WORLD_SIZE)"}
    pod = make_pods(make_job(worker=make_template(env=[user])))["job-worker-0"]

    order = [entry["name"] for entry in pod["spec"]["containers"][0]["env"]]

    assert order.index("WORLD_SIZE") < order.index("TOTAL")


def test_the_address_of_the_control_plane_may_be_its_name() -> None:
    """Where its IP address is not known."""
    found = variables(make_job(), world(make_job()), "Worker", type(ADDRESSES)("10.0.0.1"), gang=True)

    assert {"name": "MINDX_SERVER_IP", "value": names.PLANE_DOMAIN} in found.entries


NAMES = st.sampled_from(
    ["RANK", "WORLD_SIZE", "MASTER_ADDR", "POD_IP", "HIGH_AVAILABILITY", "HCCL_LOGIC_SUPERPOD_ID", "A", "B"]
)
ENTRIES = st.lists(
    st.builds(lambda name, value: {"name": name, "value": value}, NAMES, st.text(max_size=3)), max_size=8
)


@given(ENTRIES, st.integers(0, 4), st.sampled_from(["", "retry,dump", "exit"]), st.booleans())
def test_what_the_user_set_is_what_the_container_sees(
    users: list[dict[str, str]], index: int, strategy: str, gang: bool
) -> None:
    """No name stands twice, the user's value wins, and nothing of ours is lost otherwise."""
    annotations = {names.RECOVER_STRATEGY: strategy, "sp-block": "8"}
    job = make_job(workers=5, worker=make_template(env=users), annotations=annotations)
    bare = make_job(workers=5, annotations=annotations)
    slot = list(job.slots())[index]

    with_user = env_of(PodMaker(job, ADDRESSES, gang=gang).pod(slot, 0))
    without = env_of(PodMaker(bare, ADDRESSES, gang=gang).pod(slot, 0))

    chosen = {} if slot.kind == "Master" else {entry["name"]: entry["value"] for entry in users}
    assert with_user == {**without, **chosen}


@given(st.integers(1, 8), st.integers(0, 6), st.integers(0, 8))
def test_the_ranks_of_the_nodes_are_a_permutation(leader: int, workers: int, each: int) -> None:
    """Every pod that computes has its own rank, counted from 0."""
    job = make_job(workers=workers, leader=make_template(leader), worker=make_template(each))
    sizes = world(job)

    ranks = sorted(sizes.node_rank(slot) for slot in job.slots() if sizes.per_pod[slot.kind])

    assert ranks == list(range(sizes.nodes))
