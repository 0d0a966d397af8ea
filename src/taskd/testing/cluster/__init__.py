"""A real Kubernetes with real nodes for tests: three kubelets, each with a containerd, on one machine.

    from taskd.testing.cluster import cluster

    with cluster() as c:                                      # ten seconds; needs root
        c.kubectl("get", "nodes")
        parts = c.training_volumes(writable=[results])        # for the template of a pod that trains
        c.add_device_capacity("node-1", "huawei.com/Ascend910", 8)
        c.cut_link("node-2"); c.mend_link("node-2")
        c.pids_in_pod("default", "job-worker-0")              # as this machine sees them, to kill one

A whole job is a `PodJob`, with a `ControllerProcess` that serves it and `DevicePlugins` that report faults.

It is the control plane of `taskd.testing.kube`, so everything of a `Cluster` is there too (namespaces,
users, kubectl, kill and pause of the API server). ``make cluster`` starts one for a look around. The facts
about this machine that it rests on are said where they are used: `node` (namespaces), `cgroups`, `network`,
`runtime` (containerd), `leftovers` (what happens after a crash).
"""

from taskd.testing.cluster.controllers import ControllerProcess
from taskd.testing.cluster.devices import ChipFault, DevicePlugins
from taskd.testing.cluster.ground import BorrowedCluster, RealCluster, borrowed
from taskd.testing.cluster.leftovers import Busy, Identity
from taskd.testing.cluster.podjobs import JobForm, PodJob
from taskd.testing.cluster.prerequisites import NOT_SHOWN, missing, require
from taskd.testing.cluster.real_nodes import PodProcess, RealNodes
from taskd.testing.cluster.training import TrainingVolumes

cluster = RealCluster

__all__ = [
    "NOT_SHOWN",
    "BorrowedCluster",
    "Busy",
    "ChipFault",
    "ControllerProcess",
    "DevicePlugins",
    "Identity",
    "JobForm",
    "PodJob",
    "PodProcess",
    "RealCluster",
    "RealNodes",
    "TrainingVolumes",
    "borrowed",
    "cluster",
    "missing",
    "require",
]
