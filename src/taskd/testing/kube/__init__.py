"""A real Kubernetes for tests: control plane on loopback, played nodes, a stand-in for Volcano.

    from taskd.testing.kube import ControlPlane, Kubelets, Nodes, VolcanoStandIn

    with ControlPlane(audit=True) as kube, Kubelets(kube), VolcanoStandIn(kube):
        nodes = Nodes(kube)
        nodes.add(2, capacity={"huawei.com/Ascend910": 8})       # Ready when it returns
        with kube.namespace() as namespace:                      # a fresh one; deleted in the background
            kube.apply_yaml(text)                                # kubectl apply, server-side
            pod = nodes.wait_phase(namespace, "job-worker-0", "Running")
            nodes.out_of_memory(namespace, "job-worker-0")       # exit, succeed, evict, stick; lose(node)
            kube.restart_apiserver()                             # kill -9 and start; kube.apiserver.pause()
            mark = kube.audit.mark()
            ...
            assert [] == kube.audit.writes(since=mark, user_agent="taskd")

The programs are built once from ``tools/kube`` (``python -m taskd.testing.kube build``) and kept outside the
checkout; see `binaries`. In tests of this project the fixtures of ``tests/kube/conftest.py`` do all this.
"""

from taskd.testing.kube.audit import AuditLog, Request
from taskd.testing.kube.binaries import Unavailable, missing, require
from taskd.testing.kube.client import Api, ApiError, Event, Watch
from taskd.testing.kube.cluster import Cluster, User, existing
from taskd.testing.kube.controlplane import ControlPlane
from taskd.testing.kube.nodes import Kubelets, Nodes
from taskd.testing.kube.processes import Program, ProgramFailed
from taskd.testing.kube.volcano import VolcanoStandIn, install_crds, remove_crds

__all__ = [
    "Api",
    "ApiError",
    "AuditLog",
    "Cluster",
    "ControlPlane",
    "Event",
    "Kubelets",
    "Nodes",
    "Program",
    "ProgramFailed",
    "Request",
    "Unavailable",
    "User",
    "VolcanoStandIn",
    "Watch",
    "existing",
    "install_crds",
    "missing",
    "remove_crds",
    "require",
]
