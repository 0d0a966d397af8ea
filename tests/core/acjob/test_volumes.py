"""Volumes that the operator adds, and the ConfigMaps behind them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from taskd.core.acjob import names
from taskd.core.acjob.job import Slot
from taskd.core.acjob.pods import PodMaker
from taskd.core.acjob.volumes import asked_sinks, config_maps, data_trace
from taskd.core.gojson import check_code
from tests.core.acjob.samples import ADDRESSES, make_job, make_pods, make_template

RESET, TRACE, RINGS = (
    "/user/restore/reset/config",
    "/user/cluster-info/datatrace-config",
    "/user/serverid/devindex/config",
)


def mounts_of(spec: dict[str, Any]) -> dict[str, Any]:
    """What is mounted in the container `ascend`: path to the source of the volume."""
    volumes = {volume["name"]: volume for volume in spec.get("volumes", [])}
    assert len(volumes) == len(spec.get("volumes", [])), "a volume's name stands there twice"
    (ascend,) = (each for each in spec["containers"] if each["name"] == "ascend")
    return {
        mount["mountPath"]: {key: part for key, part in volumes[mount["name"]].items() if key != "name"}
        for mount in ascend.get("volumeMounts", [])
    }


def spec_of(**settings: Any) -> dict[str, Any]:
    spec: dict[str, Any] = make_pods(make_job(**settings))["job-worker-0"]["spec"]
    return spec


def mounting(*paths: str, volumes: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    listed = [{"name": "mine", "mountPath": path} for path in paths]
    return make_template(
        container={"volumeMounts": listed}, volumes=volumes or [{"name": "mine", "emptyDir": {}}]
    )


def test_a_pod_finds_its_files_without_the_user_s_help() -> None:
    """Optional, so that it starts without them; read-only, because they are written by others."""
    spec = spec_of()

    assert mounts_of(spec) == {
        RESET: {"configMap": {"name": "reset-config-job", "optional": True}},
        TRACE: {"configMap": {"name": "data-trace-job", "optional": True}},
    }
    assert all(mount["readOnly"] for mount in spec["containers"][0]["volumeMounts"])


@pytest.mark.parametrize("path", [RESET, RESET + "/", "/user/restore", RESET + "/reset.json"])
def test_what_the_user_mounts_there_is_left_alone(path: str) -> None:
    """There, around it or inside it; the other volume is added all the same."""
    template = mounting(path)

    spec = spec_of(worker=template)

    assert set(mounts_of(spec)) == {path, TRACE}
    assert mounts_of(spec)[path] == {"emptyDir": {}}


def test_a_path_that_only_begins_alike_is_another_path() -> None:
    """`…/config-old` is not `…/config`."""
    assert set(mounts_of(spec_of(worker=mounting(RESET + "-old")))) == {RESET + "-old", RESET, TRACE}


def test_a_volume_of_the_same_name_is_not_mistaken_for_ours() -> None:
    """Ours then has another name."""
    volumes = [{"name": "mine", "emptyDir": {}}, {"name": "taskd-reset-config", "emptyDir": {}}]

    found = mounts_of(spec_of(worker=mounting("/data", volumes=volumes)))

    assert found[RESET] == {"configMap": {"name": "reset-config-job", "optional": True}}


def test_an_annotation_leaves_the_template_as_it_is() -> None:
    """No volumes, no mounts, no host name."""
    spec = spec_of(annotations={names.LEAVE_TEMPLATE: "true"})

    assert {} == mounts_of(spec)
    assert not {"volumes", "hostname", "subdomain"} & set(spec)


def test_certificates_come_from_a_secret_where_there_is_one() -> None:
    """Readable by the owner alone."""
    maker = PodMaker(make_job(), ADDRESSES, gang=True, certificates="taskd-tls")

    found = mounts_of(maker.pod(Slot("Worker", 0), 0)["spec"])

    assert found[names.CERTIFICATES_PATH] == {
        "secret": {"secretName": "taskd-tls", "optional": True, "defaultMode": 0o400}
    }


@pytest.mark.parametrize(
    ("labels", "annotations", "created"),
    [
        ({}, {}, []),
        ({}, {"recover-strategy": "exit"}, []),
        ({"fault-scheduling": "off", "subHealthyStrategy": "ignore"}, {}, []),
        ({"fault-scheduling": "later", "subHealthyStrategy": "", "pod-rescheduling": "yes"}, {}, []),
        ({}, {"recover-strategy": "recover"}, ["reset-config-job"]),
        ({"fault-scheduling": "external-grace-1"}, {}, ["reset-config-job"]),
        ({"fault-scheduling": "grace"}, {}, ["reset-config-job"]),
        ({"pod-rescheduling": "on"}, {}, ["reset-config-job"]),
        ({"subHealthyStrategy": "hotSwitch"}, {}, ["reset-config-job"]),
        ({}, {"taskd.io/rank-table": "configmap"}, ["rings-config-job"]),
        ({}, {"taskd.io/rank-table": "file"}, []),
    ],
)
def test_the_operator_creates_only_what_nobody_else_would(
    labels: dict[str, str], annotations: dict[str, str], created: list[str]
) -> None:
    """For recovery where it is asked for, for the rank table where it is asked for."""
    found = config_maps(make_job(labels=labels, annotations=annotations))

    assert created == [each["metadata"]["name"] for each in found]
    assert all(each["metadata"]["ownerReferences"][0]["uid"] == "u-1" for each in found)


def test_before_the_first_fault_there_is_nothing_to_reset() -> None:
    """All fields are there, in the order of the check code."""
    (found,) = config_maps(make_job(labels={"fault-scheduling": "grace"}))

    text = found["data"]["reset.json"]
    assert found["metadata"]["labels"] == {"reset": "true"}
    assert text == (
        '{"RankList":[],"UpdateTime":0,"RetryTime":0,"FaultFlushing":false,'
        '"GracefulExit":0,"RestartFaultProcess":false}'
    )
    assert found["data"]["checkCode"] == check_code(text)


def test_the_check_code_is_that_of_the_control_plane() -> None:
    """A known text and its code."""
    text = (
        '{"RankList":[],"UpdateTime":1700000000,"RetryTime":0,"FaultFlushing":true,'
        '"GracefulExit":0,"RestartFaultProcess":false}'
    )

    assert check_code(text) == "f642b26990294df0e918ff6cfcc2511ff487eb0d38a25ddba00f9ab0260a51b4"


def test_tracing_has_five_switches() -> None:
    """Off unless asked for."""
    found = data_trace(make_job(), frozenset({"Step"}))

    assert found["metadata"]["name"] == "data-trace-job"
    assert json.loads(found["data"]["profilingSwitch"]) == {
        "CommunicationOperator": "off",
        "Step": "on",
        "SaveCheckpoint": "off",
        "FP": "off",
        "DataLoader": "off",
    }


@pytest.mark.parametrize(
    ("volumes", "annotation", "exists", "expected"),
    [
        ([], "", False, set()),
        ([{"name": "ranktable", "hostPath": {"path": "/x"}}], "", False, {"file"}),
        ([{"name": "any", "configMap": {"name": "rings-config-job"}}], "", False, {"configmap"}),
        (
            [{"name": "any", "projected": {"sources": [{"configMap": {"name": "rings-config-job"}}]}}],
            "",
            False,
            {"configmap"},
        ),
        ([{"name": "any", "configMap": {"name": "rings-config-other"}}], "", False, set()),
        ([], "", True, {"configmap"}),
        ([], "file , ConfigMap", False, {"file", "configmap"}),
        ([], "paper", False, set()),
    ],
)
def test_the_table_goes_where_the_job_asks(
    volumes: list[dict[str, Any]], annotation: str, exists: bool, expected: set[str]
) -> None:
    """By a volume, by the annotation, or by a ConfigMap that is there already."""
    job = make_job(worker=make_template(volumes=volumes), annotations={names.RANK_TABLE: annotation})

    assert expected == asked_sinks(job, config_map_exists=exists)


def test_a_table_that_is_asked_for_is_mounted() -> None:
    """Where programs look for it; and its first content says that it is not ready."""
    settings = {"annotations": {names.RANK_TABLE: "configmap"}, "labels": {names.ATLAS: "ascend-910b"}}

    (created,) = config_maps(make_job(**settings))  # type: ignore[arg-type]

    assert RINGS not in mounts_of(spec_of())
    assert mounts_of(spec_of(**settings))[RINGS] == {
        "configMap": {"name": "rings-config-job", "optional": True}
    }
    assert created["data"] == {"hccl.json": '{"status":"initializing"}', "version": "0"}
    assert created["metadata"]["labels"] == {"ring-controller.atlas": "ascend-910b"}
