"""The Services: one address for the leader of a job, and one headless Service for the host names of all pods.

The headless one is shared by all jobs of a namespace, because every object costs a write for every job, and
DNS needs only one whose selector finds the pods.
"""

from __future__ import annotations

from typing import Any

from taskd.core.acjob import names
from taskd.core.acjob.job import Job, Json, main_container, mapping, once

NO_ADDRESS = "None"


def owner_reference(job: Job) -> dict[str, Any]:
    """What makes an object go when the job goes."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "name": job.name,
        "uid": job.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def type_labels(job: Job, label: str) -> dict[str, str]:
    """The labels that all pods of one replica type share."""
    return {
        names.OPERATOR_NAME: names.CONTROLLER,
        names.GROUP_NAME: names.GROUP,
        names.JOB_NAME: job.name,
        names.JOB_NAME_SHORT: job.name,
        names.REPLICA_TYPE: label,
        names.REPLICA_TYPE_SHORT: label,
    }


@once
def leader_service_name(job: Job) -> str | None:
    """The name of the leader's Service; None for a job without a leader."""
    leader = job.leader
    return None if leader is None else f"{job.name}-{leader.label}-0"


@once
def leader_port(job: Job) -> int:
    """The port at which the job's processes meet."""
    rendezvous = (port for port in _declared(job) if port.get("name") == names.PORT_NAME)
    return next((int(port["containerPort"]) for port in rendezvous), names.PORT)


def leader_service(job: Job, cluster_ip: str = "") -> dict[str, Any] | None:
    """The Service of the leader; None for a job without a leader (MindSpore on one Worker).

    With `cluster_ip` it asks for the address that it had before: pods that run already know that one.
    """
    leader = job.leader
    if leader is None:
        return None
    selector = {
        **type_labels(job, leader.label),
        names.REPLICA_INDEX: "0",
        names.REPLICA_INDEX_SHORT: "0",
    }
    spec: dict[str, Any] = {"type": "ClusterIP", "selector": selector, "ports": _ports(job)}
    if cluster_ip:
        spec["clusterIP"] = cluster_ip
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": leader_service_name(job),
            "namespace": job.namespace,
            "labels": selector,
            "ownerReferences": [owner_reference(job)],
        },
        "spec": spec,
    }


def pods_service(namespace: str) -> dict[str, Any]:
    """The headless Service of a namespace. It belongs to no job; pods have their names before they run."""
    found_by = {names.OPERATOR_NAME: names.CONTROLLER}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": names.PODS_SERVICE, "namespace": namespace, "labels": found_by},
        "spec": {
            "type": "ClusterIP",
            "clusterIP": NO_ADDRESS,
            "publishNotReadyAddresses": True,
            "selector": found_by,
        },
    }


def _ports(job: Job) -> list[dict[str, Any]]:
    """Every port of the leader's main container, that of the rendezvous first.

    A Service refuses ports without a name beside others, and the same number twice; a container does not.
    """
    declared = sorted(_declared(job), key=lambda port: port.get("name") != names.PORT_NAME)
    ports: dict[tuple[int, str], dict[str, Any]] = {}
    for port in declared:
        number, protocol = int(port["containerPort"]), port.get("protocol") or "TCP"
        name = port.get("name") or f"port-{number}-{protocol.lower()}"
        entry = {"name": name, "protocol": protocol, "port": number, "targetPort": number}
        ports.setdefault((number, protocol), entry)
    return list(ports.values())


def _declared(job: Job) -> list[Json]:
    """The leader's ports; one without a number is left for the API server to refuse, with its own words."""
    leader = job.leader
    listed = main_container(leader.template).get("ports") if leader else None
    return [port for port in map(mapping, listed or ()) if isinstance(port.get("containerPort"), int)]
