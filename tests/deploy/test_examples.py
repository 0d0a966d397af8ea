"""The samples: complete, as the guides have them, and taken by the API server as they are."""

import hashlib
import re
from pathlib import Path

import pytest

from taskd.core.acjob import job, pods, validation
from taskd.testing.kube import Cluster
from tests.deploy.support import EXAMPLES, ROOT, SAMPLE, load, sample
from tools import promises

# Of the sample as it is published, lines joined by line feeds, without indentation.
PUBLISHED_SHA256 = "cd0414fb44ab2259f3a60820e5e1ff65ba2df0dd6c789575f573f8b5ea9cad38"
# What the three guides on recovery tell to add: file, labels, annotations.
GUIDES = {
    "pytorch_hot_switching.yaml": ({"subHealthyStrategy": "hotSwitch"}, {}),
    "pytorch_process_rescheduling.yaml": ({"fault-scheduling": "grace"}, {"recover-strategy": "recover"}),
    "pytorch_recover_in_place.yaml": (
        {"fault-scheduling": "grace"},
        {"recover-strategy": "recover-in-place"},
    ),
    "pytorch_online_recovery.yaml": ({"fault-scheduling": "grace"}, {"recover-strategy": "retry"}),
    "pytorch_dump.yaml": ({"fault-scheduling": "grace"}, {"recover-strategy": "dump"}),
    "pytorch_exit.yaml": ({"fault-scheduling": "grace"}, {"recover-strategy": "exit"}),
    "pytorch_all_strategies.yaml": (
        {"fault-scheduling": "grace"},
        {"recover-strategy": "retry,recover-in-place,recover,dump,exit"},
    ),
}


def test_s4_4_the_sample_of_the_guide_is_there_to_the_letter() -> None:
    """Every line of the published sample, comments included; only the indentation is ours."""
    lines = [line.strip() for line in SAMPLE.read_text("utf-8").splitlines()]

    assert PUBLISHED_SHA256 == hashlib.sha256("\n".join(lines).encode()).hexdigest()


def test_the_sample_means_what_the_guide_says() -> None:
    """The indentation puts every part where it belongs."""
    published = sample()
    roles = published["spec"]["replicaSpecs"]
    pod = roles["Master"]["template"]["spec"]
    (container,) = pod["containers"]

    assert "default-test-pytorch" == published["metadata"]["name"]
    assert {"minAvailable": 2, "queue": "default"} == published["spec"]["runPolicy"]["schedulingPolicy"]
    assert roles["Master"] == {**roles["Worker"], "template": roles["Master"]["template"]}
    assert roles["Master"]["template"] == roles["Worker"]["template"]
    (term,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert "kubernetes.io/hostname" == term["topologyKey"]
    assert ["default-test-pytorch"] == term["labelSelector"]["matchExpressions"][0]["values"]
    assert ["XDL_IP", "ASCEND_VISIBLE_DEVICES"] == [variable["name"] for variable in container["env"]]
    assert {"limits", "requests"} == set(container["resources"])
    assert 7 == len(container["volumeMounts"]) == len(pod["volumes"])


@pytest.mark.parametrize("file", sorted(GUIDES))
def test_the_samples_of_the_recovery_guides_have_what_the_guides_ask_for(file: str) -> None:
    """The label or strategy of the guide, and TaskD's port in all pods."""
    (sent,) = load((ROOT / "examples" / file).read_text("utf-8"))
    labels, annotations = GUIDES[file]

    assert labels.items() <= sent["metadata"]["labels"].items()
    assert annotations.items() <= sent["metadata"]["annotations"].items()
    for role in sent["spec"]["replicaSpecs"].values():
        (container,) = role["template"]["spec"]["containers"]
        assert {"containerPort": 9601, "name": "taskd-port"} in container["ports"]
        assert "train_start.sh /job/code /job/output pretrain_gpt.py" in container["args"][0]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_a_sample_is_taken_unchanged(cluster: Cluster, crd: None, namespace: str, path: Path) -> None:
    """Strictly checked by a real API server: no unknown field, no wrong type, no warning."""
    said = cluster.kubectl(
        *("apply", "-n", namespace, "--dry-run=server", "--validate=strict", "-f", str(path)), check=False
    )

    assert re.fullmatch(r"ascendjob\.mindxdl\.gitee\.com/\S+ created \(server dry run\)\n", said)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_pods_of_a_sample_are_pods(cluster: Cluster, namespace: str, path: Path) -> None:
    """Every template makes a Pod that a real API server takes, so no job fails for its sample's sake."""
    (sent,) = load(path.read_text("utf-8"))
    for role, spec in sent["spec"]["replicaSpecs"].items():
        template = spec["template"]
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**template.get("metadata", {}), "name": role.lower()},
            "spec": {**template["spec"], "restartPolicy": spec["restartPolicy"]},
        }
        cluster.api.request(
            "POST",
            f"/api/v1/namespaces/{namespace}/pods",
            pod,
            query={"dryRun": "All", "fieldValidation": "Strict"},
        )


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_controller_finds_nothing_wrong_with_a_sample(path: Path) -> None:
    """No mistake, and no warning either."""
    (raw,) = load(path.read_text("utf-8"))
    raw["metadata"] |= {"namespace": "default", "uid": "1"}

    assert () == validation.validate(raw)
    assert () == pods.warnings(job.read(raw), gang=True)


def test_every_sample_is_in_the_guide() -> None:
    """docs/ascendjob.md names each of them."""
    guide = (ROOT / "docs/ascendjob.md").read_text("utf-8")

    assert [] == [path.name for path in EXAMPLES if f"`{path.name}`" not in guide]


def test_every_promise_is_in_the_table() -> None:
    """docs/ascendjob.md has a row for each of S4-1 to S4-56, with the tests that carry its number."""
    guide = promises.GUIDE.read_text("utf-8")

    assert [*range(1, 57)] == [int(number) for _, number, _ in promises.ROW.findall(guide)]
    assert promises.filled(guide) == guide, "run python tools/promises.py"


@pytest.mark.parametrize(
    ("test", "numbers"),
    [
        ("test_s4_25_get_shows_it", [25]),
        ("test_s4_01_short_name", [1]),
        ("test_s4_1_s4_5_the_kind", [1, 5]),
        ("test_s4_49_to_s4_51_the_commands", [49, 50, 51]),
    ],
)
def test_a_test_says_in_its_name_what_it_shows(test: str, numbers: list[int]) -> None:
    """One number, several, or a range."""
    assert numbers == [*promises.promised(test)]
