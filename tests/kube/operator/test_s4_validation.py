"""What is wrong with a job is told in its own status, all at once; mended, it goes on."""

from typing import Any

import pytest

from tests.kube.operator.site import Json, until
from tests.kube.operator.town import NPU, Town, job

BAD = "Master replicaSpec is not valid: "
MASTER = "spec.replicaSpecs.Master.template.spec.containers[ascend]"


def changed(pattern: Json, path: str, value: Any) -> Json:
    """The job with one field set; a number is a place in a list, ~ is a slash, None takes it away."""
    *parents, last = (int(step) if step.isdigit() else step.replace("~", "/") for step in path.split("/"))
    here: Any = pattern
    for step in parents:
        here = here[step] if isinstance(step, int) else here.setdefault(step, {})
    if value is None:
        del here[last]
    else:
        here[last] = value
    return pattern


CONTAINER = "spec/replicaSpecs/Master/template/spec/containers/0"
VISIBLE = [
    {
        "name": "ASCEND_VISIBLE_DEVICES",
        "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{NPU}']"}},
    }
]
MISTAKES: list[tuple[str, str, Any, str]] = [
    (
        "s4_16_name",
        f"{CONTAINER}/name",
        "main",
        (
            f"InvalidContainer: {BAD}There is no container named ascend "
            "(spec.replicaSpecs.Master.template.spec.containers)"
        ),
    ),
    (
        "s4_17_image",
        f"{CONTAINER}/image",
        None,
        (f"InvalidContainer: {BAD}Image is undefined in the container of ascend ({MASTER}.image)"),
    ),
    (
        "s4_22_limits",
        f"{CONTAINER}/resources/limits",
        {NPU: "4"},
        (
            f"InvalidResources: {BAD}requests and limits of {NPU} must be the same, "
            f"but got 2 and 4 ({MASTER}.resources)"
        ),
    ),
    (
        "s4_56_resource",
        f"{CONTAINER}/resources",
        {"limits": {"huawei.com/Ascend910-8c": "1"}, "requests": {"huawei.com/Ascend910-8c": "1"}},
        (
            f"InvalidVisibleDevices: {BAD}ASCEND_VISIBLE_DEVICES is taken from the "
            f"annotation {NPU}, but the resource that is requested is huawei.com/Ascend910-8c; they must be "
            f"the same, or the variable left out ({MASTER}.env[ASCEND_VISIBLE_DEVICES])"
        ),
    ),
    (
        "s4_56_none",
        f"{CONTAINER}/resources",
        {"requests": {"cpu": "1"}},
        (
            f"InvalidVisibleDevices: {BAD}ASCEND_VISIBLE_DEVICES is taken from the "
            f"annotation {NPU}, but the resource that is requested is none; they must be the "
            f"same, or the variable left out ({MASTER}.env[ASCEND_VISIBLE_DEVICES])"
        ),
    ),
    (
        "s4_03_framework",
        "metadata/labels/framework",
        "caffe",
        (
            "InvalidFramework: framework label<caffe> is not in map[mindspore:{} pytorch:{} tensorflow:{}] "
            "(metadata.labels[framework])"
        ),
    ),
    (
        "s4_11_policy",
        "spec/successPolicy",
        "Most",
        (
            'InvalidSuccessPolicy: job success policy is invalid, it must be one of <"", AllWorkers> '
            "(spec.successPolicy)"
        ),
    ),
    (
        "s4_10_queue",
        "spec/runPolicy/schedulingPolicy",
        {"queue": "nowhere"},
        (
            "InvalidQueue: check queue<nowhere> failed, err: it is not found, maybe it is not create "
            "(spec.runPolicy.schedulingPolicy.queue)"
        ),
    ),
    (
        "s4_10_minimum",
        "spec/runPolicy/schedulingPolicy",
        {"minAvailable": 3},
        (
            "InvalidMinAvailable: minAvailable is 3, but the pytorch job has 2 pods "
            "(spec.runPolicy.schedulingPolicy.minAvailable)"
        ),
    ),
    (
        "s4_12_leaders",
        "spec/replicaSpecs/Master/replicas",
        2,
        (
            "InvalidReplicaSpec: Master replicaSpec is not valid, the replicas must be only 1 "
            "(spec.replicaSpecs.Master.replicas)"
        ),
    ),
    (
        "s4_12_restart",
        "spec/replicaSpecs/Master/restartPolicy",
        "Sometimes",
        (
            f"InvalidReplicaSpec: {BAD}restartPolicy must be one of Always, OnFailure, "
            "Never, ExitCode, but got 'Sometimes' (spec.replicaSpecs.Master.restartPolicy)"
        ),
    ),
    (
        "s4_52_retries",
        "metadata/labels/fault-retry-times",
        "often",
        (
            "InvalidRetryTimes: the value of label fault-retry-times must be a whole number, but got 'often' "
            "(metadata.labels[fault-retry-times])"
        ),
    ),
]


def whole(name: str) -> Json:
    """A job without a mistake, which names its devices as the guide's sample does."""
    pattern = job(name, devices={NPU: 2})
    for kind in ("Master", "Worker"):
        pattern["spec"]["replicaSpecs"][kind]["template"]["spec"]["containers"][0]["env"] = VISIBLE
    return pattern


@pytest.mark.parametrize(("name", "path", "value", "message"), MISTAKES, ids=[case[0] for case in MISTAKES])
def test_s4_45_s4_16_s4_22_s4_56_a_mistake_is_told_and_can_be_mended(
    town: Town, name: str, path: str, value: Any, message: str
) -> None:
    """The API server takes the job; its condition names the field; nothing is made; once mended it runs."""
    site = town.site
    name = name.replace("_", "-")
    site.submit(changed(whole(name), path, value))
    last = site.wait_state(name, "Failed", "JobValidFailed")

    assert (message, "True") == (last["message"], last["status"])
    assert {} == site.pods(name)
    assert f"{name}-master-0" not in site.services()
    code, sentence = message.split(": ", 1)
    assert ("Warning", code, sentence) in until(lambda: [e for e in site.events(name) if e[1] == code])

    site.submit(whole(name))
    site.wait_state(name, "Running")
    conditions = {condition["type"]: condition["status"] for condition in site.status(name)["conditions"]}
    assert {"Created": "True", "Failed": "False", "Running": "True"} == conditions


def test_s4_45_s4_31_all_mistakes_are_told_at_once(town: Town) -> None:
    """In a fixed order: whoever mends a job need not submit it five times."""
    pattern = whole("hopeless")
    for path, value in (
        ("metadata/labels/fault-retry-times", "x"),
        ("metadata/annotations/recover-strategy", "retry, pray"),
        ("spec/successPolicy", "Most"),
        ("spec/replicaSpecs/Master/replicas", 3),
        ("spec/replicaSpecs/Worker/replicas", -1),
        (f"{CONTAINER}/name", "main"),
    ):
        changed(pattern, path, value)
    name = town.site.submit(pattern)
    last = town.site.wait_state(name, "Failed", "JobValidFailed")

    assert [
        "InvalidRetryTimes",
        "InvalidRecoverStrategy",
        "InvalidSuccessPolicy",
        "InvalidReplicaSpec",
        "InvalidContainer",
        "InvalidReplicaSpec",
    ] == codes(last["message"])


def codes(message: str) -> list[str]:
    """The codes of the mistakes that a condition lists."""
    return [part.split(":")[0] for part in message.split("; ")]


@pytest.mark.parametrize("framework", ["caffe", None])
def test_s4_45_s4_31_s4_03_no_mistake_hides_behind_the_framework(town: Town, framework: str | None) -> None:
    """Nor behind a role that nobody has: what is wrong under any framework is told with it."""
    pattern = whole(f"hidden-{framework}".lower())
    helper = {"replicas": -2, "template": {"spec": {"containers": [{"name": "main", "image": "none"}]}}}
    pattern["spec"]["replicaSpecs"]["Helper"] = helper
    for path, value in (
        ("metadata/labels/framework", framework),
        ("metadata/labels/fault-retry-times", "x"),
        ("spec/runPolicy/schedulingPolicy", {"minAvailable": 9}),
        ("spec/replicaSpecs/Master/replicas", 3),
        (f"{CONTAINER}/name", "main"),
        ("spec/replicaSpecs/Worker/restartPolicy", "Sometimes"),
    ):
        changed(pattern, path, value)
    name = town.site.submit(pattern)
    last = town.site.wait_state(name, "Failed", "JobValidFailed")

    assert [
        "InvalidRetryTimes",
        "InvalidFramework",
        "InvalidReplicaSpec",  # three Masters
        "InvalidContainer",
        "InvalidReplicaSpec",  # the Worker's restart policy
        "InvalidReplicaType",  # Helper
        "InvalidReplicaSpec",  # less than none of them
        "InvalidContainer",
        "InvalidMinAvailable",
    ] == codes(last["message"])
    assert "replicaType is Helper but must be one of [Chief Master Scheduler Worker]" in last["message"]
    assert "minAvailable is 9, but the job has 4 pods" in last["message"]


@pytest.mark.parametrize("value", [None, "null", "large-model-schema", "normal-schema"])
def test_s4_07_the_values_of_tor_affinity(town: Town, value: str | None) -> None:
    """Each known one is accepted without a word and reaches the PodGroup."""
    labels = {} if value is None else {"tor-affinity": value}
    name = town.running(job(f"affine-{value}".lower(), labels=labels))

    (group,) = [g for g in town.site.groups() if g["metadata"]["ownerReferences"][0]["name"] == name]
    assert value == group["metadata"]["labels"].get("tor-affinity")
    assert [] == [event for event in town.site.events(name) if event[0] == "Warning"]


def test_s4_07_s4_08_an_unknown_value_is_passed_on_with_a_warning(town: Town) -> None:
    """The scheduler may be newer than we are, so it is no mistake."""
    name = town.running(
        job(
            "novel",
            labels={"tor-affinity": "ring-schema"},
            annotations={"huawei.com/schedule_policy": "chip9-node9"},
        )
    )

    (group,) = [g for g in town.site.groups() if g["metadata"]["ownerReferences"][0]["name"] == name]
    assert "ring-schema" == group["metadata"]["labels"]["tor-affinity"]
    assert "chip9-node9" == group["metadata"]["annotations"]["huawei.com/schedule_policy"]
    warned = until(lambda: [w for w in warnings(town, name) if len(warnings(town, name)) == 2])
    assert {"UnknownTorAffinity", "UnknownSchedulePolicy"} == set(warned)


def warnings(town: Town, name: str) -> list[str]:
    """The reasons of the Warning events of a job."""
    return [reason for kind, reason, _ in town.site.events(name) if kind == "Warning"]


@pytest.mark.parametrize(
    ("ports", "number"),
    [
        (None, 2222),
        ([{"name": "ascendjob-port", "containerPort": 3333}], 3333),
        ([{"name": "web", "containerPort": 8080}], 2222),
    ],
    ids=["not set", "another number", "another port"],
)
def test_s4_21_the_port_of_the_leader(town: Town, ports: list[Json] | None, number: int) -> None:
    """2222 where none of that name is written; the number is the user's, the name is fixed."""
    pattern = job(f"port-{number}-{len(ports or [])}")
    if ports is not None:
        pattern["spec"]["replicaSpecs"]["Master"]["template"]["spec"]["containers"][0]["ports"] = ports
    name = town.running(pattern)

    (container,) = town.site.pod(f"{name}-master-0")["spec"]["containers"]
    assert {("ascendjob-port", number)} <= {
        (port["name"], port["containerPort"]) for port in container["ports"]
    }
    service = town.site.services()[f"{name}-master-0"]
    assert ("ascendjob-port", number) == (
        service["spec"]["ports"][0]["name"],
        service["spec"]["ports"][0]["port"],
    )
    assert len(service["spec"]["ports"]) == len(container["ports"])
    assert str(number) == town.site.env(f"{name}-worker-0")["MASTER_PORT"]


def test_s4_10_a_change_of_the_job_reaches_the_group(town: Town) -> None:
    """The PodGroup follows the job while it runs, and no pod is touched for it."""
    name = town.running(job("regrouped", workers=2))
    before = {pod: content["metadata"]["uid"] for pod, content in town.site.pods(name).items()}
    town.site.patch(name, {"spec": {"runPolicy": {"schedulingPolicy": {"minAvailable": 2}}}})

    def group() -> Json:
        (found,) = [g for g in town.site.groups() if g["metadata"]["ownerReferences"][0]["name"] == name]
        return found

    until(lambda: group()["spec"]["minMember"] == 2)
    assert before == {pod: content["metadata"]["uid"] for pod, content in town.site.pods(name).items()}
    assert "Running" == town.site.state(name)
