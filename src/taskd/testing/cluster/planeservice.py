"""The documented name of the control plane, for one that runs on this machine beside a cluster.

Jobs find a plane as `clusterd-grpc-svc` in `mindx-dl`, at 8899: the operator puts the address of that Service
into their pods. A plane in a pod would be found by its labels; here an address is written down.
"""

from typing import Final

from taskd.testing.cluster.real_nodes import RealNodes

NAMESPACE: Final = "mindx-dl"
NAME: Final = "clusterd-grpc-svc"
PORT: Final = 8899
_SERVICE: Final = f"/api/v1/namespaces/{NAMESPACE}/services/{NAME}"
_SLICE: Final = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices/{NAME}"
_PORT_NAME: Final = "grpc"


def publish(cluster: RealNodes, host: str, port: int) -> str:
    """Let the name lead to an address of this machine; returns the address that pods use."""
    ports = [{"name": _PORT_NAME, "protocol": "TCP", "port": PORT, "targetPort": PORT}]
    made = cluster.api.apply(
        _SERVICE,
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": NAME, "namespace": NAMESPACE},
            "spec": {"ports": ports},
        },
    )
    cluster.api.apply(
        _SLICE,
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": NAME,
                "namespace": NAMESPACE,
                "labels": {"kubernetes.io/service-name": NAME},
            },
            "addressType": "IPv4",
            "ports": [{"name": _PORT_NAME, "protocol": "TCP", "port": port}],
            "endpoints": [{"addresses": [host], "conditions": {"ready": True}}],
        },
    )
    return str(made["spec"]["clusterIP"])


def withdraw(cluster: RealNodes) -> None:
    """Take the name away again; what is gone already is no error."""
    cluster.api.delete(_SLICE)
    cluster.api.delete(_SERVICE)
