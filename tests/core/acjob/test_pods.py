"""The pods of a job."""

from __future__ import annotations

import json
from dataclasses import replace
from time import process_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskd.core.acjob import names
from taskd.core.acjob.job import Slot
from taskd.core.acjob.pods import PodMaker, warnings
from tests.core.acjob.samples import ADDRESSES, env_of, make_job, make_pods, make_template

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def test_a_pod_says_whose_it_is() -> None:
    """Name, labels, annotations and owner, as other components read them."""
    pods = make_pods(make_job(workers=2), version=3)

    assert list(pods) == ["job-master-0", "job-worker-0", "job-worker-1"]
    metadata = pods["job-worker-1"]["metadata"]
    assert metadata["namespace"] == "team"
    assert metadata["labels"] == {
        "training.kubeflow.org/operator-name": "ascendjob-controller",
        "group-name": "mindxdl.gitee.com",
        "training.kubeflow.org/job-name": "job",
        "job-name": "job",
        "training.kubeflow.org/replica-type": "worker",
        "replica-type": "worker",
        "training.kubeflow.org/replica-index": "1",
        "replica-index": "1",
        "version": "3",
    }
    assert metadata["annotations"] == {
        "hccl/rankIndex": "2",
        "scheduling.k8s.io/group-name": "job-u-1",
        "volcano.sh/task-spec": "worker",
        "taskd.io/shape": "pytorch Master=1x8 Worker=2x8",
    }
    assert metadata["ownerReferences"] == [
        {
            "apiVersion": "mindxdl.gitee.com/v1",
            "kind": "AscendJob",
            "name": "job",
            "uid": "u-1",
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]
    assert pods["job-master-0"]["metadata"]["labels"]["training.kubeflow.org/job-role"] == "master"


def test_without_gang_scheduling_no_pod_speaks_of_a_group() -> None:
    """Neither annotations nor a scheduler."""
    pods = make_pods(make_job(schedulerName="other"), gang=False)

    for pod in pods.values():
        assert set(pod["metadata"]["annotations"]) == {"hccl/rankIndex", "taskd.io/shape"}
        assert "schedulerName" not in pod["spec"]


def test_labels_and_annotations_of_the_template_come_along() -> None:
    """The operator's own win over them, because the operator finds its pods by them."""
    worker = make_template()
    worker["metadata"] = {
        "labels": {"ring-controller.atlas": "ascend-910b", "version": "mine", "job-name": "mine"},
        "annotations": {"huawei.com/recover_policy_path": "pod", "hccl/rankIndex": "7"},
        "finalizers": ["team/keep"],
        "name": "ignored",
    }
    metadata = make_pods(make_job(worker=worker))["job-worker-0"]["metadata"]

    assert metadata["labels"]["ring-controller.atlas"] == "ascend-910b"
    assert (metadata["labels"]["version"], metadata["labels"]["job-name"]) == ("0", "job")
    assert metadata["annotations"]["huawei.com/recover_policy_path"] == "pod"
    assert metadata["annotations"]["hccl/rankIndex"] == "1"
    assert metadata["finalizers"] == ["team/keep"]
    assert metadata["name"] == "job-worker-0"


def test_without_devices_on_the_leader_the_first_worker_is_rank_0() -> None:
    """Leader and first worker then share the number, as ever."""
    pods = make_pods(make_job("mindspore", workers=2, leader=make_template(0)))

    ranks = [pod["metadata"]["annotations"]["hccl/rankIndex"] for pod in pods.values()]

    assert ranks == ["0", "0", "1"]


@pytest.mark.parametrize(
    ("job_says", "template_says", "master_gets", "worker_gets"),
    [
        ("", None, "volcano", "volcano"),
        ("volcano", None, "volcano", "volcano"),
        ("other", None, "other", "other"),
        ("", "mine", None, "mine"),
        ("other", "mine", None, "mine"),
    ],
)
def test_the_scheduler_is_the_template_s_the_job_s_or_volcano(
    job_says: str, template_says: str | None, master_gets: str | None, worker_gets: str
) -> None:
    """Where one template names a scheduler, the operator chooses for none."""
    spec: dict[str, Any] = {"schedulerName": template_says} if template_says else {}
    pods = make_pods(make_job(worker=make_template(**spec), schedulerName=job_says))

    assert pods["job-master-0"]["spec"].get("schedulerName") == master_gets
    assert pods["job-worker-0"]["spec"].get("schedulerName") == worker_gets


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("Never", "Never"), ("OnFailure", "OnFailure"), ("Always", "Always"), ("ExitCode", "Never")],
)
def test_the_policy_of_the_replicas_is_the_pod_s(policy: str, expected: str) -> None:
    """Whatever the template says; deciding by exit code is left to the operator."""
    template = make_template(restartPolicy="Always")
    pods = make_pods(make_job(worker=template, leader=template, restart=policy))

    assert {pod["spec"]["restartPolicy"] for pod in pods.values()} == {expected}


def test_warnings_come_once_per_job() -> None:
    """Reason and text of each; none for the sample job."""
    odd = make_job(
        worker=make_template(schedulerName="mine", restartPolicy="Always"),
        labels={"tor-affinity": "large"},
        annotations={"huawei.com/schedule_policy": "chip3-node7"},
        schedulerName="other",
    )
    fine = make_job(
        labels={"tor-affinity": "null"},
        annotations={"huawei.com/schedule_policy": "chip8-node8"},
        schedulerName="volcano",
    )

    assert [reason for reason, _text in warnings(odd, gang=True)] == [
        "SettedJobSchedulerName",
        "SettedPodTemplateSchedulerName",
        "SettedPodTemplateRestartPolicy",
        "UnknownTorAffinity",
        "UnknownSchedulePolicy",
    ]
    assert [reason for reason, _text in warnings(odd, gang=False)] == [
        "SettedPodTemplateRestartPolicy",
        "UnknownTorAffinity",
        "UnknownSchedulePolicy",
    ]
    assert "chip3-node7" in warnings(odd, gang=True)[-1][1]
    assert () == warnings(fine, gang=True)


@pytest.mark.parametrize(
    ("name", "expected"), [("job", []), ("job.v2", ["NoHostName"]), ("j" * 54, ["NoHostName"])]
)
def test_pods_that_cannot_have_a_host_name_are_told(name: str, expected: list[str]) -> None:
    """A dot or more than 63 characters: DNS knows no such label."""
    assert expected == [
        reason for reason, _text in warnings(replace(make_job(workers=12), name=name), gang=True)
    ]
    left = make_job(workers=12, annotations={names.LEAVE_TEMPLATE: "true"})
    assert () == warnings(replace(left, name=name), gang=True)


# ---------------------------------------------------------------------------------------- host names


def test_a_pod_has_its_name_in_dns() -> None:
    """Its own, below the headless Service of the namespace."""
    spec = make_pods(make_job())["job-worker-0"]["spec"]

    assert (spec["hostname"], spec["subdomain"]) == ("job-worker-0", "acjob-pods")


@pytest.mark.parametrize(
    "spec",
    [{"hostname": "mine"}, {"subdomain": "mine"}, {"hostNetwork": True}, {"setHostnameAsFQDN": True}],
    ids=lambda spec: next(iter(spec)),
)
def test_a_template_with_a_name_of_its_own_is_left_alone(spec: dict[str, Any]) -> None:
    """And one that has the name of its node."""
    made = make_pods(make_job(worker=make_template(**spec)))["job-worker-0"]["spec"]

    named = ("hostname", "subdomain", "hostNetwork", "setHostnameAsFQDN")
    assert {field: made[field] for field in named if field in made} == spec


@pytest.mark.parametrize("name", ["x" * 64, "has.dots", "-dash"])
def test_a_name_that_dns_refuses_is_no_host_name(name: str) -> None:
    """The pod is made all the same."""
    spec = PodMaker(make_job(), ADDRESSES, gang=True).pod(Slot("Worker", 0), 0, name=name)["spec"]

    assert "hostname" not in spec
    assert "subdomain" not in spec


def test_the_longest_name_still_is_a_host_name() -> None:
    """63 characters."""
    spec = PodMaker(make_job(), ADDRESSES, gang=True).pod(Slot("Worker", 0), 0, name="x" * 63)["spec"]

    assert spec["hostname"] == "x" * 63


# ------------------------------------------------------------------------------------ the same template


FIELDS = st.text(max_size=3).map("field-".__add__) | st.sampled_from(["tolerations", "affinity", "lifecycle"])
CONTENT = st.dictionaries(FIELDS, JSON, max_size=4)


@given(CONTENT, CONTENT)
def test_the_template_reaches_the_pod_untouched(spec: dict[str, Any], container: dict[str, Any]) -> None:
    """Fields that nobody knows too; and making a pod does not change the template."""
    template = make_template(container=container, **spec)
    before = json.dumps(template)
    job = make_job(leader=template, worker=template, annotations={names.LEAVE_TEMPLATE: "true"})

    made = make_pods(job, gang=False)["job-worker-0"]["spec"]

    (ascend,) = made.pop("containers")
    ascend.pop("env")
    assert ascend == template["spec"]["containers"][0]
    assert made == {**spec, "restartPolicy": "Never"}
    assert json.dumps(template) == before


def test_only_the_container_named_ascend_is_given_anything() -> None:
    """Others are the very objects of the template."""
    other = {"name": "logs", "image": "logs:1", "env": [{"name": "RANK", "value": "x"}]}
    template = make_template(initContainers=[{"name": "init", "image": "i"}])
    template["spec"]["containers"].insert(0, other)

    spec = make_pods(make_job(worker=template))["job-worker-0"]["spec"]

    assert spec["containers"][0] is other
    assert spec["initContainers"] == [{"name": "init", "image": "i"}]
    assert "RANK" in env_of({"spec": spec})


def test_a_replaced_pod_is_the_same_but_for_its_version() -> None:
    """Same name, rank and environment after a restart."""
    job = make_job(workers=3)
    maker = PodMaker(job, ADDRESSES, gang=True)

    first, second = maker.pod(Slot("Worker", 1), 0), maker.pod(Slot("Worker", 1), 1)

    assert second["metadata"]["labels"].pop("version") == "1"
    assert first["metadata"]["labels"].pop("version") == "0"
    assert first == second


def test_a_standby_pod_has_the_index_and_rank_of_its_source() -> None:
    """Only its name and a few annotations differ."""
    maker = PodMaker(make_job(workers=3), ADDRESSES, gang=True)
    marks = {names.POD_TYPE: names.BACKUP, names.BACKUP_SOURCE: "job-worker-2"}

    source = maker.pod(Slot("Worker", 2), 0)
    standby = maker.pod(Slot("Worker", 2), 0, name="job-worker-2-hot-ab12", annotations=marks)

    assert standby["metadata"]["name"] == standby["spec"]["hostname"] == "job-worker-2-hot-ab12"
    assert standby["metadata"]["labels"] == source["metadata"]["labels"]
    assert standby["metadata"]["annotations"] == {**source["metadata"]["annotations"], **marks}
    assert env_of(standby) == env_of(source)


def test_a_thousand_pods_cost_milliseconds() -> None:
    """Less than 60 µs of processor time each, in the best of five rounds."""
    env = [{"name": f"USER_{number}", "value": "x"} for number in range(20)]
    mounts = [{"name": f"v{number}", "mountPath": f"/data/{number}"} for number in range(8)]
    worker = make_template(env=env, container={"volumeMounts": mounts})
    job = make_job(workers=999, worker=worker, annotations={names.RECOVER_STRATEGY: "retry,recover,dump"})
    slots = list(job.slots())
    best = float("inf")
    for _round in range(5):
        begun = process_time()
        maker = PodMaker(job, ADDRESSES, gang=True)
        made = [maker.pod(slot, 0) for slot in slots]
        best = min(best, process_time() - begun)
        assert len(made) == 1000

    assert best / 1000 < 60e-6
