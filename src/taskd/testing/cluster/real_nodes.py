"""What tests do with real nodes: cut a cable, add a device, find the processes of a pod."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from taskd.testing.cluster import cgroups, network, training
from taskd.testing.cluster.layout import Layout
from taskd.testing.cluster.leftovers import Identity
from taskd.testing.kube.client import STRATEGIC, Object
from taskd.testing.kube.cluster import Cluster
from taskd.testing.kube.nodes import is_ready


@dataclass(frozen=True)
class PodProcess:
    """A process in a pod, as this machine sees it."""

    identity: Identity
    pid_inside: int
    """The process id that it has in its pod."""
    command: tuple[str, ...]

    @property
    def pid(self) -> int:
        """Its process id on this machine."""
        return self.identity.pid


class RealNodes(Cluster):
    """A cluster whose nodes are namespaces of this machine."""

    layout: Layout

    @property
    def node_names(self) -> list[str]:
        """The names of its nodes."""
        return [node.name for node in self.layout.nodes]

    def cut_link(self, node: str) -> None:
        """Pull a node's cable. Its processes go on; nobody hears of them."""
        network.cut(self.layout.node(node))

    def mend_link(self, node: str) -> None:
        """Plug it in again."""
        network.mend(self.layout.node(node))

    def node_ready(self, node: str) -> bool:
        """Tell whether the API server takes a node for Ready."""
        return is_ready(self.api.get(f"/api/v1/nodes/{node}"))

    def add_device_capacity(self, node: str, resource: str, count: int, *, timeout_s: float = 20) -> None:
        """Give a node devices that do not exist, and wait until its kubelet has taken them over."""
        path = f"/api/v1/nodes/{node}"
        amount = {resource: str(count)}
        self.api.patch(f"{path}/status", {"status": {"capacity": amount}}, kind=STRATEGIC)

        def taken_over() -> bool:
            status = self.api.get(path)["status"]
            return all(status[part].get(resource) == str(count) for part in ("capacity", "allocatable"))

        self.wait(taken_over, timeout_s=timeout_s, every_s=0.1)

    def training_volumes(self, writable: Sequence[Path] = ()) -> training.TrainingVolumes:
        """Return what a pod needs to train with this machine's Python; see `training`."""
        return training.volumes(writable)

    def pids_in_pod(self, namespace: str, pod: str) -> list[PodProcess]:
        """Return the processes of a pod's containers (without its sandbox), in the order of their start."""
        uid = self.api.get(f"/api/v1/namespaces/{namespace}/pods/{pod}")["metadata"]["uid"]
        found = []
        for group in cgroups.find(self.layout.cgroup, f"pod{uid}"):
            for pid in cgroups.processes(str(group.relative_to(cgroups.tracking()))):
                process = _look(pid)
                if process is not None and process.command != ("/pause",):
                    found.append(process)
        return sorted(found, key=lambda process: (process.identity.start, process.pid))

    def wait_pod_ready(self, namespace: str, pod: str, *, timeout_s: float = 30) -> Object:
        """Wait until a pod is Ready, and return it."""

        def ready() -> Object | None:
            found = self.api.find(f"/api/v1/namespaces/{namespace}/pods/{pod}")
            conditions = ((found or {}).get("status") or {}).get("conditions") or []
            good = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
            return found if good else None

        return self.wait(ready, timeout_s=timeout_s) or {}


def _look(pid: int) -> PodProcess | None:
    identity = Identity.of(pid)
    try:
        text = Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    # A process that has ended and was not buried yet has no command line.
    if identity is None or not text:
        return None
    # One number for each nested namespace, the innermost last.
    (inside,) = [line.split()[-1] for line in status.splitlines() if line.startswith("NSpid:")]
    return PodProcess(identity, int(inside), tuple(text.split("\0")[:-1]))
