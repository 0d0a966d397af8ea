"""Small pods for tests of the ground itself."""

from pathlib import Path
from typing import Any

from taskd.testing.cluster import RealNodes

WEB = ("python3", "-u", "-m", "http.server", "8000")


def make_pod(
    cluster: RealNodes,
    namespace: str,
    name: str,
    *command: str,
    node: str = "",
    subdomain: str = "",
    writable: tuple[Path, ...] = (),
) -> str:
    """Create a pod that runs a command with this machine's Python; returns its name."""
    parts = cluster.training_volumes(writable)
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "containers": [parts.container(*command)],
        "volumes": parts.volumes,
    }
    if node:
        spec["nodeSelector"] = {"kubernetes.io/hostname": node}
    if subdomain:
        spec |= {"hostname": name, "subdomain": subdomain}
    labels = {"name": name, "group": subdomain}
    body = {"metadata": {"name": name, "labels": labels}, "spec": spec}
    cluster.api.create(f"/api/v1/namespaces/{namespace}/pods", body)
    return name


def make_service(cluster: RealNodes, namespace: str, name: str, spec: dict[str, Any]) -> None:
    """Create a Service."""
    body = {"metadata": {"name": name}, "spec": spec}
    cluster.api.create(f"/api/v1/namespaces/{namespace}/services", body)


def make_heads(cluster: RealNodes, namespace: str, name: str) -> None:
    """Create a headless Service that gives each pod of its subdomain a name."""
    spec = {"clusterIP": "None", "selector": {"group": name}, "publishNotReadyAddresses": True}
    make_service(cluster, namespace, name, spec)


def column(cluster: RealNodes, namespace: str, path: str) -> dict[str, str]:
    """Ask kubectl for one value of each pod, as a user would."""
    template = f'{{range .items[*]}}{{.metadata.name}} {{{path}}}{{"\\n"}}{{end}}'
    text = cluster.kubectl("get", "pods", "-n", namespace, "-o", f"jsonpath={template}")
    found = (line.partition(" ") for line in text.splitlines() if line.strip())
    return {name: value for name, _, value in found}
