"""The guide's own sample, applied unchanged with kubectl, and what became of it on the API server."""

import json
from dataclasses import dataclass

import pytest
import yaml

from tests.kube.operator.site import EXAMPLES, Json, Site
from tests.kube.operator.town import NPU, Town

FILE = EXAMPLES / "pytorch_multinodes_acjob_910b.yaml"
NAME = "default-test-pytorch"
KINDS = ("Master", "Worker")


@dataclass(frozen=True)
class Sample:
    """The job as it is stored, its template by type, and its pods by type."""

    site: Site
    job: Json
    templates: dict[str, Json]
    pods: dict[str, Json]

    def container(self, kind: str) -> tuple[Json, Json]:
        """The container as written and as the pod has it."""
        (written,) = self.templates[kind]["spec"]["containers"]
        (found,) = self.pods[kind]["spec"]["containers"]
        return written, found


@pytest.fixture(scope="module")
def sample(town: Town) -> Sample:
    """The sample runs."""
    site = town.site
    said = site.kube.kubectl("apply", "-n", site.namespace, "--validate=strict", "-f", str(FILE), check=False)
    assert f"ascendjob.mindxdl.gitee.com/{NAME} created\n" == said
    site.wait_state(NAME, "Running")
    job = site.job(NAME)
    templates = {kind: job["spec"]["replicaSpecs"][kind]["template"] for kind in KINDS}
    pods = {kind: site.pod(f"{NAME}-{kind.lower()}-0") for kind in KINDS}
    return Sample(site, job, templates, pods)


def test_s4_01_acjob_is_its_short_name(sample: Sample) -> None:
    """kubectl finds the job under the short name."""
    kube, namespace = sample.site.kube, sample.site.namespace

    assert f"ascendjob.mindxdl.gitee.com/{NAME}\n" == kube.kubectl(
        "get", "acjob", "-n", namespace, "-o", "name"
    )


def test_s4_04_s4_06_the_sample_runs_under_its_name(sample: Sample) -> None:
    """Applied unchanged, it becomes a PodGroup, a Service and two pods that run."""
    site = sample.site
    uid = sample.job["metadata"]["uid"]

    assert [f"{NAME}-master-0", f"{NAME}-worker-0"] == sorted(site.pods(NAME))
    assert f"{NAME}-master-0" in site.services()
    assert [f"{NAME}-{uid}"] == [group["metadata"]["name"] for group in site.groups()]
    assert ["Running", "Running"] == [pod["status"]["phase"] for pod in sample.pods.values()]
    (written,) = yaml.safe_load_all(FILE.read_text("utf-8"))
    assert written["spec"] == sample.job["spec"]


def test_s4_05_group_version_and_kind(sample: Sample) -> None:
    """They stand on the stored job, and everything that belongs to it names them as its owner."""
    site = sample.site
    assert ("mindxdl.gitee.com/v1", "AscendJob") == (sample.job["apiVersion"], sample.job["kind"])
    (group,) = site.groups()
    for thing in (*sample.pods.values(), site.services()[f"{NAME}-master-0"], group):
        (owner,) = thing["metadata"]["ownerReferences"]
        assert ("mindxdl.gitee.com/v1", "AscendJob", NAME) == (
            owner["apiVersion"],
            owner["kind"],
            owner["name"],
        )
        assert sample.job["metadata"]["uid"] == owner["uid"]


def test_s4_07_s4_08_the_labels_and_the_policy_reach_the_scheduler(sample: Sample) -> None:
    """All of them are on the PodGroup; known values are no reason for a Warning."""
    (group,) = sample.site.groups()

    assert {
        "framework": "pytorch",
        "ring-controller.atlas": "ascend-910b",
        "tor-affinity": "null",
    }.items() <= group["metadata"]["labels"].items()
    assert "chip8-node8" == group["metadata"]["annotations"]["huawei.com/schedule_policy"]
    assert [] == [event for event in sample.site.events(NAME) if event[0] == "Warning"]


def test_s4_09_volcano_is_asked_to_place_the_pods(sample: Sample) -> None:
    """Both pods name the scheduler of the job, and the group that they belong to."""
    (group,) = sample.site.groups()
    for pod in sample.pods.values():
        assert "volcano" == pod["spec"]["schedulerName"]
        assert group["metadata"]["name"] == pod["metadata"]["annotations"]["scheduling.k8s.io/group-name"]
        assert pod["spec"]["nodeName"]


def test_s4_10_minimum_and_queue_are_in_the_group(sample: Sample) -> None:
    """The scheduler is told how many pods must start together, where, and what they need."""
    (group,) = sample.site.groups()

    assert 2 == group["spec"]["minMember"]
    assert "default" == group["spec"]["queue"]
    assert {"master": 1, "worker": 1} == group["spec"]["minTaskMember"]
    assert {NPU: "4"} == group["spec"]["minResources"]


def test_s4_11_the_success_policy_is_kept(sample: Sample) -> None:
    """AllWorkers is accepted and stored (what it does: test_s4_states)."""
    assert "AllWorkers" == sample.job["spec"]["successPolicy"]


def test_s4_12_one_pod_for_each_replica(sample: Sample) -> None:
    """A Master and a Worker, which nobody restarts in place, with ranks in that order."""
    for rank, kind in enumerate(KINDS):
        pod = sample.pods[kind]
        assert "Never" == pod["spec"]["restartPolicy"]
        assert kind.lower() == pod["metadata"]["labels"]["replica-type"]
        assert "0" == pod["metadata"]["labels"]["replica-index"]
        assert str(rank) == pod["metadata"]["annotations"]["hccl/rankIndex"]
        env = sample.site.env(pod["metadata"]["name"])
        assert (str(rank), "4", "2", "0,1") == tuple(
            env[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "LOCAL_RANK")
        )


def test_s4_13_labels_of_the_template_are_on_the_pods(sample: Sample) -> None:
    """The kind of chip, which scheduler and device plugin read there."""
    for kind in KINDS:
        assert "ascend-910b" == sample.pods[kind]["metadata"]["labels"]["ring-controller.atlas"]


def test_s4_14_the_anti_affinity_finds_the_label_it_looks_for(sample: Sample) -> None:
    """It is passed on as it is, and the pods carry the label `job-name` that it selects."""
    for kind in KINDS:
        assert sample.templates[kind]["spec"]["affinity"] == sample.pods[kind]["spec"]["affinity"]
        (term,) = sample.pods[kind]["spec"]["affinity"]["podAntiAffinity"][
            "requiredDuringSchedulingIgnoredDuringExecution"
        ]
        assert "kubernetes.io/hostname" == term["topologyKey"]
        (wanted,) = term["labelSelector"]["matchExpressions"]
        assert sample.pods[kind]["metadata"]["labels"][wanted["key"]] in wanted["values"]


def test_s4_15_the_node_selector_is_passed_on(sample: Sample) -> None:
    """The pods were placed on nodes that have the label."""
    for pod in sample.pods.values():
        assert {"example-key": "example-value"} == pod["spec"]["nodeSelector"]
        node = sample.site.kube.api.get(f"/api/v1/nodes/{pod['spec']['nodeName']}")
        assert "example-value" == node["metadata"]["labels"]["example-key"]


def test_s4_16_s4_17_name_and_image_of_the_container(sample: Sample) -> None:
    """As written, with the pull policy."""
    for kind in KINDS:
        _, found = sample.container(kind)
        assert ("ascend", "pytorch-test:latest", "IfNotPresent") == tuple(
            found[field] for field in ("name", "image", "imagePullPolicy")
        )


def test_s4_18_the_node_address_is_passed_on(sample: Sample) -> None:
    """XDL_IP stays a reference to the node's address, which the kubelet fills in."""
    for kind in KINDS:
        pod = sample.pods[kind]
        env = sample.site.env(pod["metadata"]["name"])
        assert "status.hostIP" == env["XDL_IP"]["fieldRef"]["fieldPath"]
        assert pod["status"]["hostIP"]


def test_s4_19_s4_55_the_devices_are_named_in_the_annotation(sample: Sample) -> None:
    """Once in the environment, and the annotation it refers to is there before the pod runs."""
    for kind in KINDS:
        pod = sample.pods[kind]
        entries = [
            entry
            for entry in pod["spec"]["containers"][0]["env"]
            if entry["name"] == "ASCEND_VISIBLE_DEVICES"
        ]
        (entry,) = entries
        assert f"metadata.annotations['{NPU}']" == entry["valueFrom"]["fieldRef"]["fieldPath"]
        devices = pod["metadata"]["annotations"][NPU].split(",")
        assert 2 == len(set(devices))
        assert all(device.startswith("Ascend910-") for device in devices)


def test_s4_20_the_command_is_passed_on(sample: Sample) -> None:
    """To the letter."""
    for kind in KINDS:
        written, found = sample.container(kind)
        assert ["/bin/bash", "-c"] == found["command"]
        assert written["args"] == found["args"]
        assert found["args"][0].startswith(
            "cd /job/code/scripts; chmod +x train_start.sh; bash train_start.sh "
        )
        assert found["args"][0].endswith("--epochs=90 --batch-size=4096")


def test_s4_21_the_port_is_that_of_the_service(sample: Sample) -> None:
    """Number and name, in the pods, in the Service and in MASTER_PORT; MASTER_ADDR is the Service's address."""
    service = sample.site.services()[f"{NAME}-master-0"]
    (port,) = service["spec"]["ports"]
    assert ("ascendjob-port", 2222, 2222) == (port["name"], port["port"], port["targetPort"])
    for kind in KINDS:
        _, found = sample.container(kind)
        assert [{"containerPort": 2222, "name": "ascendjob-port", "protocol": "TCP"}] == found["ports"]
        env = sample.site.env(sample.pods[kind]["metadata"]["name"])
        assert (service["spec"]["clusterIP"], "2222") == (env["MASTER_ADDR"], env["MASTER_PORT"])
    labels = sample.pods["Master"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert not service["spec"]["selector"].items() <= sample.pods["Worker"]["metadata"]["labels"].items()


def test_s4_22_limits_and_requests_are_the_same(sample: Sample) -> None:
    """Two devices each."""
    for kind in KINDS:
        _, found = sample.container(kind)
        assert {"limits": {NPU: "2"}, "requests": {NPU: "2"}} == found["resources"]


def test_s4_23_s4_24_volumes_and_mounts_are_passed_on(sample: Sample) -> None:
    """All seven, in their order; ours come after them."""
    for kind in KINDS:
        written, found = sample.container(kind)
        assert 7 == len(written["volumeMounts"])
        assert written["volumeMounts"] == found["volumeMounts"][:7]
        volumes = sample.pods[kind]["spec"]["volumes"]
        assert sample.templates[kind]["spec"]["volumes"] == [
            without_defaults(volume) for volume in volumes[:7]
        ]
        assert {"medium": "Memory"} == volumes[5]["emptyDir"]


def test_s4_54_the_template_is_preserved(sample: Sample) -> None:
    """Every field that the template has is in the pod with the same value; lists begin with what it has."""
    for kind in KINDS:
        assert [] == [*differences(sample.templates[kind]["spec"], sample.pods[kind]["spec"], "spec")]
        (container,) = sample.pods[kind]["spec"]["containers"]
        assert "--data=/job/data/resnet50/imagenet" in container["args"][0]


def without_defaults(volume: Json) -> Json:
    """A volume without what the API server fills in."""
    if "hostPath" in volume:
        return {**volume, "hostPath": {"path": volume["hostPath"]["path"]}}
    return volume


def differences(written: object, found: object, path: str) -> list[str]:
    """Where something written is not found again; the environment is a set, because ours comes before it."""
    match written, found:
        case dict(), dict():
            return [
                difference
                for key, value in written.items()
                for difference in differences(value, found.get(key), f"{path}.{key}")
            ]
        case list(), list() if path.endswith(".env"):
            lost = [
                entry for entry in written if json.dumps(entry) not in {json.dumps(e) for e in plain(found)}
            ]
            return [f"{path}: {entry}" for entry in lost]
        case list(), list():
            return [
                difference
                for place, value in enumerate(written)
                for difference in differences(
                    value, found[place] if place < len(found) else None, f"{path}[{place}]"
                )
            ]
    return [] if str(written) == str(found) else [f"{path}: {written} became {found}"]


def plain(entries: list[Json]) -> list[Json]:
    """Environment entries without the API version that the server writes to references."""
    text = json.dumps(entries).replace('"apiVersion": "v1", ', "")
    found: list[Json] = json.loads(text)
    return found
