"""The definition of AscendJob on a real API server."""

import json
from dataclasses import fields
from typing import Any

import pytest

from taskd.core.acjob import conditions, faults
from taskd.core.acjob.job import Slot
from taskd.core.acjob.seen import Ended, PodSeen
from taskd.core.acjob.status import Status
from taskd.testing.kube import Cluster
from tests.deploy.support import CRD, JOBS, SAMPLE, Document, changed, load, sample
from tools import crd as generator

NAME = "ascendjobs.mindxdl.gitee.com"
DEFINITION = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{NAME}"
TEMPLATE = "spec/replicaSpecs/Master/template"


def test_kubectl_apply_takes_it_without_a_warning(cluster: Cluster, crd: None) -> None:
    """By client-side apply too, whose copy in an annotation is limited to 256 KiB; twice changes nothing."""
    said = cluster.kubectl("apply", "-f", str(CRD), check=False)

    assert f"customresourcedefinition.apiextensions.k8s.io/{NAME} unchanged\n" == said


def test_it_is_a_complete_structural_schema(cluster: Cluster, crd: None) -> None:
    """The API server has accepted the names, and has nothing to say against the schema."""
    conditions = {c["type"]: c["status"] for c in cluster.api.get(DEFINITION)["status"]["conditions"]}

    assert {"NamesAccepted": "True", "Established": "True"} == conditions


def test_s4_1_s4_5_the_kind_and_its_short_name(cluster: Cluster, crd: None) -> None:
    """`acjob` is AscendJob of mindxdl.gitee.com/v1."""
    rows = cluster.kubectl("api-resources", "--api-group=mindxdl.gitee.com", "--no-headers", "-o", "wide")

    (row,) = rows.splitlines()
    assert ["ascendjobs", "acjob", "mindxdl.gitee.com/v1", "true", "AscendJob"] == row.split()[:5]
    assert "all" == row.split()[-1]


def test_the_pod_template_is_what_the_api_server_publishes(cluster: Cluster) -> None:
    """The file in the repository is what `make crd` writes for this version of Kubernetes."""
    version = cluster.api.get("/version")
    if (version["major"], version["minor"]) != ("1", "34"):
        pytest.skip(f"the definition is made for 1.34, and this is {version['gitVersion']}")

    assert CRD.read_text("utf-8") == generator.render(cluster.api.get("/openapi/v3/api/v1"))


def test_get_shows_state_and_age(cluster: Cluster, crd: None, namespace: str) -> None:
    """A job that nobody has looked at yet has an empty state."""
    cluster.kubectl("apply", "-n", namespace, "-f", str(SAMPLE))

    head, row = cluster.kubectl("get", "acjob", "-n", namespace).splitlines()

    assert ["NAME", "STATE", "AGE"] == head.split()
    assert "default-test-pytorch" == row.split()[0]


def test_explain_describes_the_fields(cluster: Cluster, crd: None) -> None:
    """`kubectl explain` has a sentence for every field of ours."""
    assert "cleanPodPolicy" in cluster.kubectl("explain", "acjob.spec.runPolicy")
    assert "free their devices" in cluster.kubectl("explain", "acjob.spec.runPolicy.cleanPodPolicy")
    assert "volcano" in cluster.kubectl("explain", "acjob.spec.schedulerName")
    assert "called `ascend`" in cluster.kubectl("explain", "acjob.spec.replicaSpecs.template")
    assert "fieldPath" in cluster.kubectl("explain", "acjob.spec.replicaSpecs.template", "--recursive")


def test_every_field_of_ours_has_a_description() -> None:
    """None is forgotten; the pod template has Kubernetes' own, in `kubectl explain pod`."""
    (definition,) = load(CRD.read_text("utf-8"))
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]

    assert [] == [*undescribed(schema["properties"]["spec"], "spec")]
    assert [] == [*undescribed(schema["properties"]["status"], "status")]


def test_s4_54_no_field_of_a_template_is_dropped(cluster: Cluster, crd: None, namespace: str) -> None:
    """A template with every field that Kubernetes knows, and one that it does not know in each object."""
    schemas = cluster.api.get("/openapi/v3/api/v1")["components"]["schemas"]
    template = filled(schemas[generator.TEMPLATE], schemas)
    job = changed(sample(), TEMPLATE, template)
    path = JOBS.format(namespace)

    cluster.api.create(path, job)
    stored = cluster.api.get(f"{path}/default-test-pytorch")

    assert template == stored["spec"]["replicaSpecs"]["Master"]["template"]
    assert "futureField" in template["spec"]["containers"][0]["env"][0]["valueFrom"]["fieldRef"]
    assert job["spec"] == stored["spec"]


def test_an_unknown_pod_field_survives_kubectl_apply(cluster: Cluster, crd: None, namespace: str) -> None:
    """Strict validation has nothing against it, and a second apply does not change it."""
    job = changed(sample(), f"{TEMPLATE}/spec/futureField", {"nested": [1, {"deep": "kept"}]})

    for answer in ("created", "unchanged"):
        said = cluster.kubectl(
            "apply", "-n", namespace, "--validate=strict", "-f", "-", stdin=json.dumps(job), check=False
        )
        assert f"ascendjob.mindxdl.gitee.com/default-test-pytorch {answer}\n" == said

    stored = cluster.api.get(f"{JOBS.format(namespace)}/default-test-pytorch")
    assert {"nested": [1, {"deep": "kept"}]} == stored["spec"]["replicaSpecs"]["Master"]["template"]["spec"][
        "futureField"
    ]


def test_nothing_is_filled_in(cluster: Cluster, crd: None, namespace: str) -> None:
    """What is stored is what was written: defaults are the controller's and the Pod's business."""
    job = {
        "apiVersion": "mindxdl.gitee.com/v1",
        "kind": "AscendJob",
        "metadata": {"name": "bare"},
        "spec": {"replicaSpecs": {"Worker": {"template": {"spec": {"containers": [{"name": "ascend"}]}}}}},
    }

    stored = cluster.api.create(JOBS.format(namespace), job)

    assert job["spec"] == stored["spec"]
    assert "status" not in stored


def test_an_empty_field_counts_as_not_set(cluster: Cluster, crd: None, namespace: str) -> None:
    """`env:` with nothing below it is null in YAML; it is not stored, so nobody has to think of it."""
    job = sample()
    for path in ("spec/runPolicy/schedulingPolicy", f"{TEMPLATE}/spec/nodeSelector", f"{TEMPLATE}/metadata"):
        job = changed(job, path, None)
    job = changed(job, f"{TEMPLATE}/spec/containers/0/env", None)

    stored = cluster.api.create(JOBS.format(namespace), job)

    assert {} == stored["spec"]["runPolicy"]
    template = stored["spec"]["replicaSpecs"]["Master"]["template"]
    assert {"spec"} == set(template)
    assert "nodeSelector" not in template["spec"]
    assert "env" not in template["spec"]["containers"][0]


@pytest.mark.parametrize("amount", [2, "2", 0.5, "500m", "1.5Gi", "1e3", "10Ki", 0, "-1"], ids=repr)
def test_an_amount_is_what_a_pod_takes(
    cluster: Cluster, crd: None, namespace: str, amount: float | str
) -> None:
    """Whole numbers, fractions and text with a unit, stored as written."""
    where = f"{TEMPLATE}/spec/containers/0/resources/limits"

    stored = cluster.api.create(JOBS.format(namespace), changed(sample(), f"{where}/cpu", amount))

    containers = stored["spec"]["replicaSpecs"]["Master"]["template"]["spec"]["containers"]
    assert amount == containers[0]["resources"]["limits"]["cpu"]


def test_a_status_may_be_written_in_parts(cluster: Cluster, crd: None, namespace: str) -> None:
    """No field of the status is required, unknown ones are kept, and the spec is out of its reach."""
    cluster.kubectl("apply", "-n", namespace, "-f", str(SAMPLE))

    write_status(cluster, namespace, {"restarts": 1})
    write_status(cluster, namespace, {"fromALaterVersion": {"a": [1]}})
    written = write_status(cluster, namespace, {"observedGeneration": 1}, spec={"schedulerName": "other"})

    assert {"restarts": 1, "fromALaterVersion": {"a": [1]}, "observedGeneration": 1} == written["status"]
    assert "volcano" == written["spec"]["schedulerName"]
    assert 1 == written["metadata"]["generation"]


def test_whatever_the_controller_may_write_fits(cluster: Cluster, crd: None, namespace: str) -> None:
    """The API server takes every field of its status, and the definition knows every one of them."""
    cluster.kubectl("apply", "-n", namespace, "-f", str(SAMPLE))
    end = Ended("ascend", 137, 9, reason="OOMKilled", message="…", at="2024-01-01T10:00:00Z")
    pod = PodSeen("a", "uid", None, node="node-1", ended=(end,))
    status = Status(
        conditions=conditions.read([condition("Created", "JobCreated"), condition("Running", "JobRunning")]),
        replicas={"Master": {"active": 1, "pending": 0, "succeeded": 0, "failed": 0}},
        start_time="2024-01-01T10:00:00Z",
        completion_time="2024-01-01T10:00:00Z",
        observed_generation=1,
        restarts=2,
        voluntary=1,
        retries=1,
        row=2,
        restarted_at="2024-01-01T10:00:00Z",
        stable=True,
        whole_job=True,
        finished=frozenset({Slot("Worker", 0)}),
        filled=frozenset({Slot("Worker", 1)}),
        places={"Worker": 1},
        leader_ip="10.0.0.1",
        ready="1/2",
        strategy="retry,recover",
        last_fault=faults.describe(pod, "pod-failed", "2024-01-01T10:00:00Z"),
        causes={"pod-failed": 2},
        handled={"request-1": 2},
        refusal="fault-scheduling is off",
    )
    assert [] == [field.name for field in fields(status) if not getattr(status, field.name)]
    body = {**status.as_json(), "lastReconcileTime": "2024-01-01T10:00:00Z"}
    request = {"id": "request-1", "scope": "job", "pods": ["a"], "uids": ["uid"], "reason": "…"}
    asked = {
        "requests": [{**request, "voluntary": True, "force": True, "avoid": ["node-1"]}],
        "isolatedNodes": [{"name": "node-1", "scope": "node", "reason": "…"}],
    }

    write_status(cluster, namespace, {**body, **asked})

    (definition,) = load(CRD.read_text("utf-8"))
    known = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    assert {*body, *asked} == {*known["properties"]}


def test_the_status_of_an_applied_job_is_ignored(cluster: Cluster, crd: None, namespace: str) -> None:
    """What `kubectl get -o yaml` printed can be applied again; its status does not come with it."""
    job = changed(sample(), "status", {"restarts": 99})

    assert "status" not in cluster.api.create(JOBS.format(namespace), job)


# ------------------------------------------------------------------------------------------------ helpers


def condition(kind: str, reason: str) -> Document:
    return {
        "type": kind,
        "status": "True",
        "reason": reason,
        "message": "…",
        "lastUpdateTime": "2024-01-01T10:00:00Z",
        "lastTransitionTime": "2024-01-01T10:00:00Z",
    }


def write_status(cluster: Cluster, namespace: str, status: Document, **more: object) -> Document:
    path = f"{JOBS.format(namespace)}/default-test-pytorch/status"
    written: Document = cluster.api.patch(path, {"status": status, **more})
    return written


def undescribed(schema: Document, path: str) -> list[str]:
    """Return the fields without a description, not looking into the pod template."""
    found = []
    for name, value in schema.get("properties", {}).items():
        if not value.get("description"):
            found.append(f"{path}.{name}")
        if name != "template":
            found += undescribed(value, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if key in schema:
            found += undescribed(schema[key], f"{path}[]")
    return found


def filled(schema: Document, schemas: dict[str, Document]) -> Any:
    """Return a value of that schema with every field set, and an unknown one beside them in every object."""
    match schema:
        case {"$ref": str(ref)} | {"allOf": [{"$ref": str(ref)}]}:
            name = ref.removeprefix(generator.REF)
            return "1500m" if name == generator.QUANTITY else filled(schemas[name], schemas)
        case {"format": "int-or-string"}:
            return 8080
        case {"type": "object", "additionalProperties": dict(values)}:
            return {"key": filled(values, schemas)}
        case {"type": "object"}:
            fields = {name: filled(value, schemas) for name, value in schema.get("properties", {}).items()}
            return {**fields, "futureField": ["kept", {"as": "it is"}]}
        case {"type": "array"}:
            return [filled(schema["items"], schemas)]
        case {"type": "string", "format": "date-time"}:
            return "2024-01-01T10:00:00Z"
        case {"type": "string", "format": "byte"}:
            return "AAAA"
        case {"type": "string"}:
            return "text"
        case {"type": "integer" | "number"}:
            return 7
        case {"type": "boolean"}:
            return True
        case _:
            raise AssertionError(schema)
