"""The jobs that are submitted: one pod template for everybody, dressed as each operator wants it."""

from typing import Any

from taskd.core.acjob import job as jobs
from taskd.core.acjob.environment import Addresses
from taskd.core.acjob.pods import PodMaker
from taskd.core.acjob.services import leader_service
from taskd.operator.carrier import pod_group_manifest

Json = dict[str, Any]

JOBS = "/apis/mindxdl.gitee.com/v1/namespaces/{}/ascendjobs"
PYTORCH_JOBS = "/apis/kubeflow.org/v1/namespaces/{}/pytorchjobs"
JOB_SETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/{}/jobsets"

# What a training template has in practice: a script, a port, amounts, a few volumes.
_SCRIPT = (
    'exec taskd run --nnodes $((WORLD_SIZE / LOCAL_WORLD_SIZE)) --node-rank "$RANK" '
    '--nproc-per-node "$LOCAL_WORLD_SIZE" --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" '
    "/job/code/train.py --data /job/data --output /job/output --epochs 100"
)


def template(container: str, port: str, *, node: str = "", **more: str) -> Json:
    """Return the pod template with its container and port called as asked."""
    spec: Json = {
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "containers": [
            {
                "name": container,
                "image": "pytorch-test:latest",
                "imagePullPolicy": "IfNotPresent",
                "command": ["/bin/bash", "-c"],
                "args": [_SCRIPT],
                "env": [{"name": "XDL_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}}],
                "ports": [
                    {"containerPort": 2222, "name": port},
                    {"containerPort": 9601, "name": "taskd-port"},
                ],
                "resources": {
                    "requests": {"cpu": "1", "memory": "1Gi"},
                    "limits": {"cpu": "2", "memory": "2Gi"},
                },
                "volumeMounts": [
                    {"name": "code", "mountPath": "/job/code"},
                    {"name": "data", "mountPath": "/job/data"},
                    {"name": "output", "mountPath": "/job/output"},
                    {"name": "dshm", "mountPath": "/dev/shm"},  # noqa: S108 - a path in a pod
                ],
            }
        ],
        "volumes": [
            {"name": "code", "emptyDir": {}},
            {"name": "data", "emptyDir": {}},
            {"name": "output", "emptyDir": {}},
            {"name": "dshm", "emptyDir": {"medium": "Memory"}},
        ],
        **more,
    }
    if node:
        spec["nodeName"] = node
    return {"metadata": {"labels": {"app": "bench"}}, "spec": spec}


def ascend_job(namespace: str, name: str, pods: int, *, node: str = "", requests: Json | None = None) -> Json:
    """Return an AscendJob of so many pods, the Master among them."""
    pod = template("ascend", "ascendjob-port", node=node)
    if requests:
        pod["spec"]["containers"][0]["resources"] = {"requests": requests, "limits": requests}
    replicas: Json = {"Master": {"replicas": 1, "restartPolicy": "Never", "template": pod}}
    if pods > 1:
        replicas["Worker"] = {"replicas": pods - 1, "restartPolicy": "Never", "template": pod}
    return {
        "apiVersion": "mindxdl.gitee.com/v1",
        "kind": "AscendJob",
        "metadata": {"name": name, "namespace": namespace, "labels": {"framework": "pytorch"}},
        "spec": {"replicaSpecs": replicas},
    }


def pytorch_job(namespace: str, name: str, pods: int) -> Json:
    """Return Kubeflow's job of the same pods."""
    pod = template("pytorch", "pytorchjob-port")
    replicas: Json = {"Master": {"replicas": 1, "restartPolicy": "Never", "template": pod}}
    if pods > 1:
        replicas["Worker"] = {"replicas": pods - 1, "restartPolicy": "Never", "template": pod}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"pytorchReplicaSpecs": replicas},
    }


def job_set(namespace: str, name: str, pods: int) -> Json:
    """Return JobSet's job of the same pods, with the defaults that its webhook would write.

    JobSet tells a pod nothing about the training, so whoever uses it writes that into the template: the
    variables that our operator adds by itself stand there. (The API server keeps track of who set each of
    them, so a pod with few costs it much less.)
    """
    pod = template("ascend", "ascendjob-port", restartPolicy="Never")
    raw = ascend_job(namespace, name, pods)
    raw["metadata"]["uid"] = "00000000-0000-0000-0000-000000000000"
    ours = objects_of(raw, gang=False)[-1][1]
    pod["spec"]["containers"][0]["env"] = ours["spec"]["containers"][0]["env"]
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "successPolicy": {"operator": "All"},
            "startupPolicy": {"startupPolicyOrder": "AnyOrder"},
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "replicatedJobs": [
                {
                    "name": "worker",
                    "replicas": 1,
                    "template": {
                        "spec": {
                            "parallelism": pods,
                            "completions": pods,
                            "completionMode": "Indexed",
                            "backoffLimit": 0,
                            "template": pod,
                        }
                    },
                }
            ],
        },
    }


def objects_of(raw: Json, *, gang: bool) -> list[tuple[str, Json]]:
    """Return what our operator makes for a stored job, as (kind, manifest), in its order."""
    job = jobs.read(raw)
    found: list[tuple[str, Json]] = []
    if gang:
        found.append(("podgroups", pod_group_manifest(job, paused=False)))
    service = leader_service(job)
    assert service is not None
    found.append(("services", service))
    # The address of a Service is known once it is made; any other one makes a pod of the same size.
    maker = PodMaker(job, Addresses(leader_ip="10.96.100.100"), gang=gang)
    found += [("pods", maker.pod(slot, 0)) for slot in job.slots()]
    return found
