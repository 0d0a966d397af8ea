"""What the API server refuses with a clear word, and what it leaves to the controller to explain."""

import json

import pytest

from taskd.testing.kube import ApiError, Cluster
from tests.deploy.support import JOBS, MISSING, SAMPLE, changed, sample

ROLE = "spec/replicaSpecs/Master"
POD = f"{ROLE}/template/spec"
MAIN = f"{POD}/containers/0"
POLICY = "spec/runPolicy"

# What is wrong: the field, its value, and the words that must be in the answer.
REFUSED = {
    "no replicaSpecs": ("spec/replicaSpecs", MISSING, "spec.replicaSpecs: Required value"),
    "replicaSpecs is a list": (
        "spec/replicaSpecs",
        [{"Master": {}}],
        'unknown field "spec.replicaSpecs[0].Master"',
    ),
    "replicaSpecs is text": (
        "spec/replicaSpecs",
        "Master",
        "spec.replicaSpecs in body must be of type object",
    ),
    "a role is a number": (ROLE, 1, "spec.replicaSpecs.Master in body must be of type object"),
    "replicas is text": (
        f"{ROLE}/replicas",
        "two",
        "spec.replicaSpecs.Master.replicas in body must be of type integer",
    ),
    "replicas is a number in quotes": (
        *(f"{ROLE}/replicas", "2", "spec.replicaSpecs.Master.replicas in body must be of type integer"),
    ),
    "replicas is a fraction": (
        f"{ROLE}/replicas",
        1.5,
        "spec.replicaSpecs.Master.replicas in body must be of type integer",
    ),
    "restartPolicy is a number": (f"{ROLE}/restartPolicy", 0, "restartPolicy in body must be of type string"),
    "template is a list": (
        f"{ROLE}/template",
        [{}],
        "spec.replicaSpecs.Master.template in body must be of type object",
    ),
    "no containers": (
        f"{POD}/containers",
        MISSING,
        "spec.replicaSpecs.Master.template.spec.containers: Required value",
    ),
    "containers without dashes": (
        *(
            f"{POD}/containers",
            {"name": "ascend"},
            'unknown field "spec.replicaSpecs.Master.template.spec.containers.name"',
        ),
    ),
    "a container is only a name": (
        f"{POD}/containers",
        ["ascend"],
        "containers[0] in body must be of type object",
    ),
    "env without dashes": (f"{MAIN}/env", {"A": "1"}, 'template.spec.containers[0].env.A"'),
    "a variable is a number": (
        *(f"{MAIN}/env", [{"name": "A", "value": 1}], "env[0].value in body must be of type string"),
    ),
    "a variable is a boolean": (
        *(f"{MAIN}/env", [{"name": "A", "value": True}], "env[0].value in body must be of type string"),
    ),
    "a fieldRef is text": (
        *(f"{MAIN}/env", [{"name": "A", "valueFrom": {"fieldRef": "status.podIP"}}]),
        "env[0].valueFrom.fieldRef in body must be of type object",
    ),
    "command is one text": (
        f"{MAIN}/command",
        "/bin/bash -c",
        "containers[0].command in body must be of type array",
    ),
    "a port is text": (
        *(
            f"{MAIN}/ports",
            [{"containerPort": "2222"}],
            "ports[0].containerPort in body must be of type integer",
        ),
    ),
    "ports is a number": (f"{MAIN}/ports", 2222, "containers[0].ports in body must be of type array"),
    "limits is a list": (
        *(f"{MAIN}/resources/limits", ["huawei.com/Ascend910: 8"]),
        "resources.limits in body must be of type object",
    ),
    "an amount is a word": (
        f"{MAIN}/resources/limits",
        {"cpu": "two"},
        "resources.limits.cpu in body should match",
    ),
    "an amount is a list": (f"{MAIN}/resources/limits", {"cpu": [2]}, "resources.limits.cpu"),
    "an amount is a map": (f"{MAIN}/resources/limits", {"cpu": {"a": 2}}, "resources.limits.cpu"),
    "an amount is a boolean": (f"{MAIN}/resources/limits", {"cpu": True}, "resources.limits.cpu"),
    "hostNetwork is text": (
        f"{POD}/hostNetwork",
        "true",
        "template.spec.hostNetwork in body must be of type boolean",
    ),
    "a node label is a boolean": (
        *(f"{POD}/nodeSelector", {"fast": True}, "nodeSelector.fast in body must be of type string"),
    ),
    "volumes is a map": (f"{POD}/volumes", {"code": {}}, 'template.spec.volumes.code"'),
    "a pod label is a number": (
        *(
            f"{ROLE}/template/metadata/labels",
            {"version": 1},
            "metadata.labels.version in body must be of type string",
        ),
    ),
    "a label of the job is a number": ("metadata/labels/fault-retry-times", 3, "labels of type string"),
    "an annotation of the job is a list": ("metadata/annotations/recover-strategy", ["retry"], "annotations"),
    "runPolicy is text": (POLICY, "Never", "spec.runPolicy in body must be of type object"),
    "backoffLimit is text": (
        f"{POLICY}/backoffLimit",
        "3",
        "spec.runPolicy.backoffLimit in body must be of type integer",
    ),
    "suspend is text": (f"{POLICY}/suspend", "on", "spec.runPolicy.suspend in body must be of type boolean"),
    "schedulingPolicy is a list": (
        f"{POLICY}/schedulingPolicy",
        [],
        "runPolicy.schedulingPolicy in body must be of type object",
    ),
    "minAvailable is text": (
        *(
            f"{POLICY}/schedulingPolicy/minAvailable",
            "2",
            "schedulingPolicy.minAvailable in body must be of type integer",
        ),
    ),
    "successPolicy is a number": (
        "spec/successPolicy",
        1,
        "spec.successPolicy in body must be of type string",
    ),
    "schedulerName is a list": (
        "spec/schedulerName",
        ["volcano"],
        "spec.schedulerName in body must be of type string",
    ),
    "spec is a list": ("spec", [], "spec in body must be of type object"),
    "a name in capitals": ("metadata/name", "Test_Job", 'Invalid value: "Test_Job"'),
    "a misspelt kind": (
        "kind",
        "AscendJobs",
        'no matches for kind "AscendJobs" in version "mindxdl.gitee.com/v1"',
    ),
    "another version": (
        "apiVersion",
        "mindxdl.gitee.com/v2",
        'no matches for kind "AscendJob" in version "mindxdl.gitee.com/v2"',
    ),
    "a misspelt field": (f"{POLICY}/cleanPodPolcy", "All", 'unknown field "spec.runPolicy.cleanPodPolcy"'),
    "a field in the wrong place": ("spec/backoffLimit", 3, 'unknown field "spec.backoffLimit"'),
}

# Mistakes that the controller explains in a condition, with all others of the same job.
LEFT_TO_THE_CONTROLLER = {
    "no framework": ("metadata/labels/framework", MISSING),
    "an unknown framework": ("metadata/labels/framework", "caffe"),
    "no spec": ("spec", MISSING),
    "no roles": ("spec/replicaSpecs", {}),
    "an unknown role": ("spec/replicaSpecs/Chief", sample()["spec"]["replicaSpecs"]["Worker"]),
    "no leader": (ROLE, MISSING),
    "two leaders": (f"{ROLE}/replicas", 2),
    "a negative number of pods": ("spec/replicaSpecs/Worker/replicas", -1),
    "too many pods": ("spec/replicaSpecs/Worker/replicas", 20001),
    "no pods": ("spec/replicaSpecs/Worker/replicas", 0),
    "an empty role": ("spec/replicaSpecs/Worker", {}),
    "an empty list of containers": (f"{POD}/containers", []),
    "no container called ascend": (f"{MAIN}/name", "main"),
    "no image": (f"{MAIN}/image", MISSING),
    "a port of another name": (f"{MAIN}/ports/0/name", "other"),
    "limits that differ from requests": (f"{MAIN}/resources/limits/huawei.com~Ascend910", 4),
    "another resource than the variable names": (f"{MAIN}/resources", {"limits": {"huawei.com/npu": 2}}),
    "a variable twice": (f"{MAIN}/env", [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]),
    "an unknown restartPolicy": (f"{ROLE}/restartPolicy", "Sometimes"),
    "an unknown cleanPodPolicy": (f"{POLICY}/cleanPodPolicy", "Some"),
    "an unknown successPolicy": ("spec/successPolicy", "Most"),
    "a negative time to live": (f"{POLICY}/ttlSecondsAfterFinished", -1),
    "a negative deadline": (f"{POLICY}/activeDeadlineSeconds", -1),
    "a negative backoffLimit": (f"{POLICY}/backoffLimit", -1),
    "more available pods than there are": (f"{POLICY}/schedulingPolicy/minAvailable", 3),
    "an unknown queue": (f"{POLICY}/schedulingPolicy/queue", "nowhere"),
    "retries that are no number": ("metadata/labels/fault-retry-times", "abc"),
    "an unknown recovery strategy": ("metadata/annotations/recover-strategy", "pray"),
    "an unknown switch affinity": ("metadata/labels/tor-affinity", "yes"),
    "an unknown scheduling policy": ("metadata/annotations/huawei.com~schedule_policy", "chip3"),
    "processes that are no number": ("metadata/annotations/taskd.io~processes-per-pod", "many"),
}


@pytest.mark.parametrize(("path", "value", "says"), REFUSED.values(), ids=list(REFUSED))
def test_a_wrong_type_is_refused_and_named(
    cluster: Cluster, crd: None, namespace: str, path: str, value: object, says: str
) -> None:
    """Plain `kubectl apply` fails, says which field is wrong, and nothing is stored."""
    job = json.dumps(changed(sample(), path, value))

    said = cluster.kubectl("apply", "-n", namespace, "-f", "-", stdin=job, check=False)

    assert says in said
    assert [] == cluster.api.items(JOBS.format(namespace))


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("      replicas: 1\n", "\t  replicas: 1\n", "found character that cannot start any token"),
        ("  runPolicy:\n", "  runPolicy\n", "error parsing"),
        ("  replicaSpecs:\n", "replicaSpecs:\n", 'unknown field "replicaSpecs"'),
        ('tor-affinity: "null"', "tor-affinity: *null", "error parsing"),
    ],
    ids=["a tab", "a forgotten colon", "a wrong indentation", "an unknown alias"],
)
def test_text_that_means_nothing_is_refused(
    cluster: Cluster, crd: None, namespace: str, old: str, new: str, says: str
) -> None:
    """Damaged YAML never becomes half a job."""
    text = SAMPLE.read_text("utf-8")
    assert old in text

    said = cluster.kubectl("apply", "-n", namespace, "-f", "-", stdin=text.replace(old, new, 1), check=False)

    assert says in said
    assert [] == cluster.api.items(JOBS.format(namespace))


@pytest.mark.parametrize(("path", "value"), LEFT_TO_THE_CONTROLLER.values(), ids=list(LEFT_TO_THE_CONTROLLER))
def test_a_mistake_in_the_meaning_is_accepted(
    cluster: Cluster, crd: None, namespace: str, path: str, value: object
) -> None:
    """It can be stored, so it is: the controller then lists all mistakes of the job in one condition."""
    job = changed(sample(), path, value)

    said = cluster.kubectl("apply", "-n", namespace, "-f", "-", stdin=json.dumps(job), check=False)

    assert "ascendjob.mindxdl.gitee.com/default-test-pytorch created\n" == said
    assert job.get("spec") == cluster.api.get(f"{JOBS.format(namespace)}/default-test-pytorch").get("spec")


def test_a_bad_change_leaves_the_job_as_it_was(cluster: Cluster, crd: None, namespace: str) -> None:
    """The job that was there before goes on unchanged."""
    cluster.kubectl("apply", "-n", namespace, "-f", str(SAMPLE))
    path = f"{JOBS.format(namespace)}/default-test-pytorch"
    before = cluster.api.get(path)

    job = json.dumps(changed(sample(), f"{ROLE}/replicas", "two"))
    said = cluster.kubectl("apply", "-n", namespace, "-f", "-", stdin=job, check=False)

    assert "must be of type integer" in said
    assert before == cluster.api.get(path)


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (f"{POD}/containers", {"name": "ascend"}, "template.spec.containers in body must be of type array"),
        (f"{MAIN}/env", {"A": "1"}, "containers[0].env in body must be of type array"),
        ("spec/replicaSpecs", [{"Master": {}}], "spec.replicaSpecs in body must be of type object"),
    ],
    ids=["containers without dashes", "env without dashes", "replicaSpecs is a list"],
)
def test_a_client_that_does_not_ask_for_strictness_is_refused_too(
    cluster: Cluster, crd: None, namespace: str, path: str, value: object, says: str
) -> None:
    """To kubectl these are unknown fields; the schema finds them for everybody else."""
    with pytest.raises(ApiError) as refused:
        cluster.api.create(JOBS.format(namespace), changed(sample(), path, value))

    assert 422 == refused.value.code
    assert says in refused.value.message
