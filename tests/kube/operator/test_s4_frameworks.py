"""Frameworks, devices, and the two ways in which processes learn of each other; every example as it is."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.kube.operator.site import EXAMPLES, Controller, Json, Site, until
from tests.kube.operator.town import NPU, Town, job

FILES = sorted(path.name for path in EXAMPLES.glob("*.yaml"))


@dataclass(frozen=True)
class Becomes:
    """What an example is expected to become."""

    pods: tuple[str, ...]
    environment: dict[str, str]
    """Of the last pod."""


LED = ("master-0", "worker-0")
EXPECTED = {
    "pytorch_multinodes_acjob_910b.yaml": Becomes(LED, {"WORLD_SIZE": "4", "RANK": "1"}),
    "pytorch_hot_switching.yaml": Becomes(LED, {"WORLD_SIZE": "16", "HIGH_AVAILABILITY": "recover"}),
    "pytorch_process_rescheduling.yaml": Becomes(
        LED, {"HIGH_AVAILABILITY": "recover", "TASKD_RECOVER_STRATEGY": "recover"}
    ),
    "pytorch_recover_in_place.yaml": Becomes(
        LED, {"ENABLE_RESTART_FAULT_PROCESS": "on", "TASKD_RECOVER_STRATEGY": "recover-in-place"}
    ),
    "pytorch_online_recovery.yaml": Becomes(LED, {"HIGH_AVAILABILITY": "retry", "PROCESS_RECOVER": "on"}),
    "pytorch_dump.yaml": Becomes(LED, {"HIGH_AVAILABILITY": "dump", "TASKD_RECOVER_STRATEGY": "dump"}),
    "pytorch_exit.yaml": Becomes(LED, {"TASKD_RECOVER_STRATEGY": "exit"}),
    "pytorch_all_strategies.yaml": Becomes(
        LED,
        {
            "HIGH_AVAILABILITY": "dump,recover,retry",
            "ENABLE_RESTART_FAULT_PROCESS": "on",
            "TASKD_RECOVER_STRATEGY": "retry,recover-in-place,recover,dump,exit",
        },
    ),
    "mindspore_multinodes_acjob_910b.yaml": Becomes(
        ("scheduler-0", "worker-0", "worker-1"),
        {"MS_WORKER_NUM": "16", "MS_LOCAL_WORKER": "8", "MS_NODE_RANK": "1", "MS_ROLE": "MS_WORKER"},
    ),
    "pytorch_nvidia_gpu.yaml": Becomes(
        ("master-0", "worker-0", "worker-1", "worker-2"), {"WORLD_SIZE": "32", "RANK": "3"}
    ),
    "pytorch_cpu.yaml": Becomes(
        LED,
        {
            "WORLD_SIZE": "4",
            "LOCAL_WORLD_SIZE": "2",
            "RANK": "1",
            "TASKD_NODES": "2",
            "TASKD_PEERS": "pytorch-cpu-master-0.acjob-pods,pytorch-cpu-worker-0.acjob-pods",
        },
    ),
    "pytorch_standby.yaml": Becomes(
        ("master-0", "standby-0", "worker-0", "worker-1"), {"WORLD_SIZE": "6", "RANK": "2"}
    ),
    "mindie_inference.yaml": Becomes(LED, {"MINDX_TASK_ID": "mindie1", "APP_TYPE": "mindie-ms-server"}),
}


def test_s4_04_every_example_has_an_expectation() -> None:
    """None is forgotten."""
    assert FILES == sorted(EXPECTED)


@pytest.mark.parametrize("file", FILES)
def test_s4_04_s4_03_an_example_runs_unchanged(town: Town, file: str) -> None:
    """Applied with kubectl as it is, it has the pods and the environment that its comments promise."""
    site = town.site
    (written,) = yaml.safe_load_all((EXAMPLES / file).read_text("utf-8"))
    name = written["metadata"]["name"]
    site.kube.kubectl("apply", "-n", town.namespace, "--validate=strict", "-f", str(EXAMPLES / file))
    site.wait_state(name, "Running")

    expected = EXPECTED[file]
    assert [f"{name}-{pod}" for pod in expected.pods] == sorted(site.pods(name))
    env = site.env(f"{name}-{expected.pods[-1]}")
    assert expected.environment.items() <= env.items()
    assert {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.podIP"}} == env["POD_IP"]
    leader = f"{name}-{expected.pods[0]}"
    assert leader in site.services()
    site.delete(name)


# -------------------------------------------------------------------------------------------- frameworks


def test_s4_03_s4_02_pytorch_learns_of_its_peers_by_environment(town: Town) -> None:
    """Ranks are counted from the Master on; all have the same address of it."""
    name = town.running(job("torch", workers=2, devices={NPU: 4}))
    envs = [town.site.env(f"{name}-{pod}") for pod in ("master-0", "worker-0", "worker-1")]

    assert ["0", "1", "2"] == [env["RANK"] for env in envs]
    assert [("12", "4", "0,1,2,3")] * 3 == [
        (env["WORLD_SIZE"], env["LOCAL_WORLD_SIZE"], env["LOCAL_RANK"]) for env in envs
    ]
    (address,) = {env["MASTER_ADDR"] for env in envs}
    assert town.site.services()[f"{name}-master-0"]["spec"]["clusterIP"] == address


def test_s4_03_s4_02_mindspore_learns_of_its_peers_by_environment(town: Town) -> None:
    """A Scheduler without devices is told how many there are and is no rank; its own address is its pod's."""
    pattern = job("spore", framework="mindspore", workers=2, devices={NPU: 8})
    del pattern["spec"]["replicaSpecs"]["Scheduler"]["template"]["spec"]["containers"][0]["resources"]
    name = town.running(pattern)
    scheduler = town.site.env(f"{name}-scheduler-0")
    workers = [town.site.env(f"{name}-worker-{index}") for index in range(2)]

    assert ("MS_SCHED", "16", "false") == tuple(
        scheduler[key] for key in ("MS_ROLE", "MS_WORKER_NUM", "NPU_POD")
    )
    assert "status.podIP" == scheduler["MS_SCHED_HOST"]["fieldRef"]["fieldPath"]
    address = town.site.services()[f"{name}-scheduler-0"]["spec"]["clusterIP"]
    assert [("MS_WORKER", "0", address), ("MS_WORKER", "1", address)] == [
        (env["MS_ROLE"], env["MS_NODE_RANK"], env["MS_SCHED_HOST"]) for env in workers
    ]


def test_s4_03_mindspore_on_one_device_needs_no_scheduler(town: Town) -> None:
    """A single Worker with one device is a whole job."""
    pattern = job("alone", framework="mindspore", devices={NPU: 1})
    del pattern["spec"]["replicaSpecs"]["Scheduler"]
    name = town.running(pattern)

    assert ["alone-worker-0"] == list(town.site.pods(name))
    assert "alone-worker-0" not in town.site.services()


def test_s4_03_tensorflow_has_a_chief(town: Town) -> None:
    """As the reference has it, though the guide does not name it."""
    name = town.running(job("tensor", framework="tensorflow", devices={NPU: 2}))

    assert ["tensor-chief-0", "tensor-worker-0"] == sorted(town.site.pods(name))
    assert ("4", "1") == tuple(town.site.env("tensor-worker-0")[key] for key in ("CM_WORKER_SIZE", "CM_RANK"))


# ------------------------------------------------------------------------------------------ inference


def inference(name: str, **labels: str) -> Json:
    """A job that the labels make one of an inference service."""
    return job(name, devices={NPU: 1}, labels={"app": "mindie-ms-server", "jobID": name, **labels})


def test_s4_02_an_inference_job_has_its_own_environment(town: Town) -> None:
    """Its id is the label's; nothing of a training is there."""
    name = town.running(inference("serving"))
    env = town.site.env("serving-worker-0")

    assert ("serving", "mindie-ms-server") == (env["MINDX_TASK_ID"], env["APP_TYPE"])
    assert not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "ASCEND_VISIBLE_DEVICES"} & set(env)
    assert "Running" == town.site.state(name)


def test_s4_02_s4_27_to_s4_30_an_inference_job_has_the_same_states(town: Town) -> None:
    """Restarted as often as its label says, and then it has failed; one that ends well has succeeded."""
    ending = town.running(inference("sated"))
    for pod in ("sated-master-0", "sated-worker-0"):
        town.nodes.succeed(town.namespace, pod)
    name = town.running(inference("served", **{"fault-retry-times": "1"}))
    town.exit("served-worker-0")
    until(lambda: town.site.status(name).get("restarts") == 1)
    town.site.wait_state(name, "Running")
    town.exit("served-worker-0")
    town.site.wait_state(name, "Failed", "JobFailed")
    town.site.wait_state(ending, "Succeeded", "JobSucceeded")


# ---------------------------------------------------------------------------------------------- devices


def test_s4_19_s4_55_a_cut_card_has_no_visible_devices(town: Town) -> None:
    """Static vNPU: the job is valid without the variable, and it is not added."""
    name = town.running(job("cut", devices={"huawei.com/Ascend910-8c": 1}))

    assert "ASCEND_VISIBLE_DEVICES" not in town.site.env(f"{name}-worker-0")
    assert "2" == town.site.env(f"{name}-worker-0")["WORLD_SIZE"]


def test_s4_19_s4_55_a_card_that_is_cut_on_demand(town: Town) -> None:
    """Dynamic vNPU: the device plugin says the sizes, so nobody else does."""
    name = town.running(job("core", devices={"huawei.com/npu-core": 4}))

    assert not {"ASCEND_VISIBLE_DEVICES", "WORLD_SIZE"} & set(town.site.env(f"{name}-worker-0"))


@pytest.mark.parametrize(
    ("name", "devices", "size"),
    [("gpu", {"nvidia.com/gpu": 4}, "8"), ("cpu", None, "2")],
    ids=["NVIDIA", "CPU"],
)
def test_s4_19_s4_55_other_devices_have_no_ascend_variables(
    town: Town, name: str, devices: dict[str, int] | None, size: str
) -> None:
    """Sizes are those of what is requested; what only Ascend's software reads is left out."""
    name = town.running(job(name, devices=devices))
    env = town.site.env(f"{name}-worker-0")

    assert size == env["WORLD_SIZE"]
    assert [] == [key for key in env if key.startswith(("ASCEND", "HCCL"))]


def test_s4_19_s4_55_s4_56_whole_cards_get_the_variable_of_their_resource(town: Town) -> None:
    """Where the template has none it is added, for exactly the resource that is requested."""
    name = town.running(job("whole-cards", devices={NPU: 2}))
    env = town.site.env(f"{name}-worker-0")

    assert f"metadata.annotations['{NPU}']" == env["ASCEND_VISIBLE_DEVICES"]["fieldRef"]["fieldPath"]
    assert 2 == len(town.site.pod(f"{name}-worker-0")["metadata"]["annotations"][NPU].split(","))


# --------------------------------------------------------------------------------------- without Volcano


@pytest.fixture
def ungrouped(town: Town, site: Site, tmp_path: Path) -> Iterator[Site]:
    """A namespace whose controller has gang scheduling switched off."""
    flags = ("--gang", "off", "--lease-s", "60")
    controller = Controller(site.kube.kubeconfig, site.namespace, tmp_path / "log", *flags).start()
    assert "gang scheduling is switched off" in controller.log.read_text()
    yield site
    assert 0 == controller.stop()


def test_s4_09_s4_10_s4_19_without_gang_scheduling_volcano_is_not_asked(ungrouped: Site) -> None:
    """schedulerName, minimum and queue have no effect; Kubernetes' own scheduler places the pods."""
    policy = {"schedulingPolicy": {"minAvailable": 2, "queue": "default"}}
    name = ungrouped.submit(job("loose", devices={NPU: 1}, policy=policy, schedulerName="volcano"))
    ungrouped.wait_state(name, "Running")

    assert [] == ungrouped.groups()
    for pod in ungrouped.pods(name).values():
        assert "default-scheduler" == pod["spec"]["schedulerName"]
        assert "scheduling.k8s.io/group-name" not in pod["metadata"]["annotations"]
    assert "ASCEND_VISIBLE_DEVICES" not in ungrouped.env("loose-worker-0")


def test_s4_14_the_anti_affinity_of_the_sample_keeps_its_pods_apart(ungrouped: Site) -> None:
    """Kubernetes' own scheduler obeys it: two pods of one job are on two nodes."""
    sample = ungrouped.example("pytorch_multinodes_acjob_910b.yaml")
    for replicas in sample["spec"]["replicaSpecs"].values():
        replicas["template"]["spec"]["containers"][0]["env"].pop()  # as the sample's own comment says
    name = ungrouped.submit(sample)
    ungrouped.wait_state(name, "Running")

    assert 2 == len({pod["spec"]["nodeName"] for pod in ungrouped.pods(name).values()})


# ------------------------------------------------------------------------------------- the rank table


def table(site: Site, name: str) -> Json:
    """The table in the ConfigMap of a job."""
    found = site.kube.api.get(f"/api/v1/namespaces/{site.namespace}/configmaps/rings-config-{name}")
    content: Json = json.loads(found["data"]["hccl.json"])
    return content


def number(site: Site, name: str) -> int:
    """How often the table of a job has changed: what its readers watch."""
    found = site.kube.api.get(f"/api/v1/namespaces/{site.namespace}/configmaps/rings-config-{name}")
    return int(found["data"]["version"])


def container_of(listed: Json, rank: str) -> str:
    """The address of the pod that has this rank; empty while the table is not complete."""
    for server in listed["server_list"]:
        if rank in {device["rank_id"] for device in server["device"]}:
            return str(server["container_ip"])
    return ""


def test_s4_02_the_rank_table_as_a_config_map(town: Town) -> None:
    """It names every device with its rank, and follows a pod that moves; pods see it as a file."""
    annotations = {"taskd.io/rank-table": "configmap"}
    name = town.running(job("listed", devices={NPU: 2}, annotations=annotations))
    until(lambda: table(town.site, name)["status"] == "completed")
    found = table(town.site, name)

    ranks = {device["rank_id"] for server in found["server_list"] for device in server["device"]}
    assert {"0", "1", "2", "3"} == ranks
    addresses = {device["device_ip"] for server in found["server_list"] for device in server["device"]}
    assert len(addresses) == 4
    (container,) = town.site.pod("listed-worker-0")["spec"]["containers"]
    assert "/user/serverid/devindex/config" in {mount["mountPath"] for mount in container["volumeMounts"]}

    before, address = number(town.site, name), container_of(found, "2")
    worker = town.site.pod("listed-worker-0")
    assert worker["status"]["podIP"] == address
    with town.controller.frozen():
        town.site.kube.kubectl("delete", "pod", "-n", town.namespace, "listed-worker-0", "--wait=false")
        town.wait_gone("listed-worker-0", worker["metadata"]["uid"])
        # Somebody else gets the address that is free now.
        containers = [{"name": "a", "image": "none"}]
        other = {
            "metadata": {"name": "squatter"},
            "spec": {"nodeName": worker["spec"]["nodeName"], "containers": containers},
        }
        town.site.kube.api.create(f"/api/v1/namespaces/{town.namespace}/pods", other)
        town.nodes.wait_phase(town.namespace, "squatter", "Running")
    until(lambda: town.site.status(name).get("restarts") == 1)
    town.site.wait_state(name, "Running")
    moved = town.site.pod("listed-worker-0")["status"]["podIP"]
    until(lambda: container_of(table(town.site, name), "2") == moved, say=lambda: f"{table(town.site, name)}")

    assert address != moved
    assert "completed" == table(town.site, name)["status"]
    assert before < number(town.site, name)


def test_s4_02_the_rank_table_names_super_pods(town: Town) -> None:
    """Version 1.2, where the job says how many devices a super pod has: two pods of two make one of four."""
    annotations = {"taskd.io/rank-table": "configmap", "sp-block": "4"}
    name = town.running(job("grouped", workers=3, devices={NPU: 2}, annotations=annotations))
    until(lambda: table(town.site, name)["status"] == "completed")
    found = table(town.site, name)

    assert ("1.2", "4") == (found["version"], found["server_count"])
    ids = [server["server_id"] for server in found["server_list"]]
    assert [("0", ids[:2]), ("1", ids[2:])] == [
        (group["super_pod_id"], [server["server_id"] for server in group["server_list"]])
        for group in found["super_pod_list"]
    ]
    devices = [device for server in found["server_list"] for device in server["device"]]
    assert [str(rank) for rank in range(8)] == [device["rank_id"] for device in devices]
    assert all(device["super_device_id"] for device in devices)


def test_s4_02_the_rank_table_of_devices_without_servers(town: Town) -> None:
    """Version 2.0, for `huawei.com/npu`: one entry a device, and numbers instead of texts."""
    annotations = {"taskd.io/rank-table": "configmap"}
    name = town.running(job("flat", devices={"huawei.com/npu": 2}, annotations=annotations))
    until(lambda: table(town.site, name)["status"] == "completed")
    found = table(town.site, name)

    assert ("2.0", 4, [0, 1, 2, 3]) == (
        found["version"],
        found["rank_count"],
        [entry["rank_id"] for entry in found["rank_list"]],
    )
    assert all(isinstance(entry["device_id"], int) for entry in found["rank_list"])
    assert "server_list" not in found


def test_s4_02_the_rank_table_as_a_file(site: Site, town: Town, tmp_path: Path) -> None:
    """A job with a volume called `ranktable` finds it in its own folder; it goes with the job."""
    folder = tmp_path / "tables"
    flags = ("--rank-table-dir", str(folder), "--lease-s", "60")
    controller = Controller(site.kube.kubeconfig, site.namespace, tmp_path / "log", *flags).start()
    name = site.submit(site.example("mindie_inference.yaml"))
    site.wait_state(name, "Running")
    file = folder / f"{site.namespace}.{name}" / "hccl.json"
    until(lambda: file.exists() and json.loads(file.read_text())["status"] == "completed")

    servers = json.loads(file.read_text())["server_list"]
    assert 16 == sum(len(server["device"]) for server in servers)
    site.delete(name)
    until(lambda: not file.exists())
    assert 0 == controller.stop()
