"""The whole: a control plane and three real nodes, on one machine, until `stop`."""

import json
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from taskd.testing.cluster import cgroups, dns, images, leftovers, network, prerequisites
from taskd.testing.cluster.layout import NUMBERS, Layout
from taskd.testing.cluster.node import Node
from taskd.testing.cluster.real_nodes import RealNodes
from taskd.testing.kube import binaries
from taskd.testing.kube.controlplane import ControlPlane
from taskd.testing.kube.processes import Program, ProgramFailed
from taskd.testing.kube.volcano import VolcanoStandIn

_NODES_TIMEOUT_S: Final = 60.0
_WEIGHT_PROCESSES: Final = 12
_PROXY_USER: Final = "system:kube-proxy"
_VOLCANO: Final = "volcano"


class RealCluster(ControlPlane, RealNodes):
    """Three real nodes and their control plane; a context manager, or `start` and `stop`.

    number: which of the clusters of this machine (default: any that is free). gangs: Volcano's stand-in
    places the pods of `schedulerName: volcano` too, all of a gang or none; without it kube-scheduler does,
    under that name, and the stand-in moves only the PodGroups. audit: as in `ControlPlane`.
    """

    def __init__(self, number: int | None = None, *, gangs: bool = False, audit: bool = False) -> None:
        paths = prerequisites.require()
        self._plugins = prerequisites.cni_directory() or Path()
        self._claim = leftovers.claim(number)
        self.layout = self._claim.layout
        users = {f"system:node:{node.name}": "system:nodes" for node in self.layout.nodes}
        self._binaries = paths
        self._gangs = gangs
        self._nodes: dict[str, Node] = {}
        self._dns: Program | None = None
        self._volcano: VolcanoStandIn | None = None
        self._directory: Path | None = None
        super().__init__(
            audit=audit,
            node_grace_s=10,
            address=str(self.layout.address),
            # The DNS server reads everything, and the administrator's rights spare it a role of its own.
            users={**users, _PROXY_USER: _PROXY_USER, "coredns": "system:masters"},
            scheduler_names=() if gangs else (_VOLCANO,),
        )

    @property
    def machines(self) -> dict[str, Node]:
        """The nodes by name, with programs that can be killed and paused."""
        return dict(self._nodes)

    @property
    def volcano(self) -> VolcanoStandIn:
        """Volcano's stand-in, which may be stopped and started."""
        if self._volcano is None:
            raise ProgramFailed("the cluster was not started")
        return self._volcano

    def stop(self) -> None:
        """End everything and remove every trace of it."""
        if self._volcano is not None:
            self._volcano.stop()
        programs = [program for node in self._nodes.values() for program in node.programs.values()]
        for program in [*programs, *([self._dns] if self._dns else [])]:
            program.kill()
        # First the nodes: what their processes hold, the kernel gives back with them.
        cgroups.end(self.layout.cgroup)
        super().stop()
        network.remove(self.layout)
        cgroups.remove(self.layout.cgroup)
        if self._directory is not None:
            leftovers.remove_directory(self._directory)
        self._claim.release()

    def _start(self) -> None:
        leftovers.clear(self.layout)
        self._directory = Path(tempfile.mkdtemp(prefix=self.layout.directory_prefix))
        owner = leftovers.Identity.of(os.getpid())
        assert owner is not None  # noqa: S101 - that is this process
        self._state = leftovers.State(owner, leftovers.boot(), str(self._directory))
        self._state.write(self.layout)
        cgroups.make(self.layout.cgroup)
        # Else all pods together would share what one busy process beside them gets.
        cgroups.weigh(self.layout.cgroup, _WEIGHT_PROCESSES)
        network.make_bridge(self.layout)
        archives = self._write_archives(self._directory)
        for place in self.layout.nodes:
            home = self._directory / place.name
            home.mkdir()
            self._nodes[place.name] = Node(self.layout, place, home, self._binaries, self._plugins)
        with ThreadPoolExecutor(len(self._nodes)) as pool:
            prepared = [pool.submit(node.prepare, archives) for node in self._nodes.values()]
            super()._start()
            for each in prepared:
                each.result()
        self._note()
        self._start_dns(self._directory)
        proxy = self.user_kubeconfig(_PROXY_USER)
        for node in self._nodes.values():
            node.join(self.user_kubeconfig(f"system:node:{node.place.name}"), proxy)
        self._note()
        self._volcano = VolcanoStandIn(self, places=self._gangs).start()
        self._wait_nodes()
        self._state.kubeconfig, self._state.ready = str(self.kubeconfig), True
        self._note()

    def _start_dns(self, directory: Path) -> None:
        self._dns = dns.program(
            self.layout, self._binaries["coredns"], self.user_kubeconfig("coredns"), directory
        )
        self._dns.start()

    def _write_archives(self, directory: Path) -> list[Path]:
        archives = []
        for image in (images.pause(self._binaries["pause"]), images.host()):
            path = directory / f"{image.name.replace('/', '-').replace(':', '-')}.tar"
            image.archive(path)
            archives.append(path)
        return archives

    def _wait_nodes(self) -> None:
        """Wait until every node is Ready."""

        def ready() -> bool:
            for node in self._nodes.values():
                for program in node.programs.values():
                    program.check()
            known = {node["metadata"]["name"] for node in self.api.items("/api/v1/nodes")}
            return known == set(self._nodes) and all(self.node_ready(name) for name in known)

        self.wait(ready, timeout_s=_NODES_TIMEOUT_S, every_s=0.1)
        if self._dns is not None:
            self._dns.check()

    def _note(self) -> None:
        """Write down what runs."""
        programs = {program.name: program for program in self.programs}
        programs |= {
            f"{name} {node.place.name}": program
            for node in self._nodes.values()
            for name, program in node.programs.items()
        }
        if self._dns is not None:
            programs["coredns"] = self._dns
        found = {
            name: leftovers.Identity.of(program.pid) for name, program in programs.items() if program.pid
        }
        self._state.programs = {name: each for name, each in found.items() if each is not None}
        self._state.write(self.layout)


class BorrowedCluster(RealNodes):
    """A cluster that somebody else has started on this machine and will end."""

    def __init__(self, layout: Layout, state: leftovers.State, directory: Path) -> None:
        kubectl = binaries.require("kubectl")["kubectl"]
        known = json.loads(Path(state.kubeconfig).read_text())
        server = known["clusters"][0]["cluster"]
        super().__init__(
            url=server["server"],
            ca=Path(server["certificate-authority"]),
            token=known["users"][0]["user"]["token"],
            kubectl=kubectl,
            directory=directory,
        )
        self.layout = layout


def borrowed(directory: Path) -> BorrowedCluster | None:
    """Return the cluster of this machine that TASKD_KUBECONFIG or KUBECONFIG names, or None.

    What the client writes goes into `directory`.
    """
    named = os.environ.get("TASKD_KUBECONFIG") or os.environ.get("KUBECONFIG")
    for number in NUMBERS:
        state = leftovers.State.read(Layout(number))
        if named and state is not None and state.ready and state.owner.alive and state.kubeconfig == named:
            return BorrowedCluster(Layout(number), state, directory)
    return None
