"""All mistakes at once: none of them keeps another from being told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from taskd.core.acjob.validation import validate
from tests.core.acjob.play import Play, raw_job

RECORDS = sorted((Path(__file__).parent / "refused").glob("*.json"))
REFUSED = {path.stem: json.loads(path.read_text()) for path in RECORDS}
"""Jobs that the reference operator refuses, with what it was seen to say."""


def codes(raw: dict[str, Any], **more: Any) -> list[str]:
    return [problem.code for problem in validate(raw, **more)]


def test_a_whole_job_has_no_mistakes() -> None:
    assert [] == codes(raw_job())


@pytest.mark.parametrize("framework", ["caffe", None])
def test_what_is_wrong_under_any_framework_is_told_without_one(framework: str | None) -> None:
    raw = raw_job(policy={"schedulingPolicy": {"minAvailable": 5}}, labels={"framework": framework})
    raw["spec"]["replicaSpecs"]["Worker"]["restartPolicy"] = "Sometimes"
    raw["spec"]["replicaSpecs"]["Master"]["replicas"] = 2

    assert [
        "InvalidFramework",
        "InvalidReplicaSpec",
        "InvalidReplicaSpec",
        "InvalidMinAvailable",
    ] == codes(raw)


@pytest.mark.parametrize("leader", ["Master", "Chief", "Scheduler"])
def test_a_role_that_some_framework_has_is_no_mistake_without_one(leader: str) -> None:
    """Which of them is meant is not known."""
    raw = raw_job(labels={"framework": "caffe"})
    raw["spec"]["replicaSpecs"][leader] = raw["spec"]["replicaSpecs"].pop("Master")

    assert ["InvalidFramework"] == codes(raw)


@pytest.mark.parametrize("key", ["Helper", "worker"])
def test_what_is_wrong_in_a_role_is_told_though_the_role_is_wrong_too(key: str) -> None:
    """One that the framework does not have, or has under another key already."""
    raw = raw_job()
    raw["spec"]["replicaSpecs"][key] = {"replicas": -1, "template": {"spec": {"containers": []}}}

    assert ["InvalidReplicaType", "InvalidReplicaSpec", "InvalidReplicaSpec"] == codes(raw)


def test_a_job_without_pods_is_told_without_a_framework_too() -> None:
    raw = raw_job(labels={"framework": "caffe"}, workers=0)
    raw["spec"]["replicaSpecs"]["Master"]["replicas"] = 0

    assert ["InvalidFramework", "InvalidReplicaSpec", "InvalidReplicaSpec"] == codes(raw)


@pytest.mark.parametrize(
    ("framework", "asks", "expected"),
    [
        ("pytorch", False, []),
        ("mindspore", False, ["InvalidSuccessPolicy"]),
        ("caffe", False, ["InvalidFramework"]),
        ("caffe", True, ["InvalidFramework", "InvalidSuccessPolicy"]),
    ],
)
def test_that_nobody_computes_is_told_where_it_is_certain(
    framework: str, asks: bool, expected: list[str]
) -> None:
    """A leader computes where it asks for devices, or where nobody does and it is no Scheduler."""
    raw = raw_job(labels={"framework": framework}, success="AllWorkers")
    specs = raw["spec"]["replicaSpecs"]
    if framework == "mindspore":
        specs["Scheduler"] = specs.pop("Master")
    specs["Worker"]["replicas"] = 0
    if asks:
        container = specs["Worker"]["template"]["spec"]["containers"][0]
        container["resources"] = {"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "1"}}

    assert expected == codes(raw)


def test_the_queue_is_told_among_the_others() -> None:
    raw = raw_job(labels={"framework": "caffe"})
    raw["spec"]["successPolicy"] = "Most"

    assert ["InvalidSuccessPolicy", "InvalidQueue", "InvalidFramework"] == codes(raw, missing_queue="gone")


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_what_the_reference_refuses_is_refused_in_its_words(case: str) -> None:
    """The same conditions, the code and the sentence to the letter, with the path of the field behind it."""
    recorded = REFUSED[case]
    play = Play({**recorded["input"], "metadata": {**recorded["input"]["metadata"], "uid": "u-1"}})
    play.reconcile()

    theirs, ours = recorded["conditions"], play.status["conditions"]
    assert [(each["type"], each["status"], each["reason"]) for each in theirs] == [
        (each["type"], each["status"], each["reason"]) for each in ours
    ]
    assert theirs[-1]["message"] == ours[-1]["message"].rpartition(" (")[0]
    ((_kind, code, sentence),) = recorded["events"]
    assert [(code, sentence)] == [(each.code, each.message) for each in validate(recorded["input"])]
    assert {"PodGroups": [], "Services": [], "Pods": [], "ConfigMaps": []} == recorded["objects"]
    assert (0, None, None) == (play.born, play.group, play.service)
