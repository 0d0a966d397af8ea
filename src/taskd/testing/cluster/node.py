"""One node: a kubelet, a containerd and a kube-proxy in namespaces of their own.

The namespaces (network and mounts) belong to one process that only waits, the holder; the others enter them.
So the kernel undoes everything that a node did to links, firewall rules and mounts when its last process
ends. Inside, the places that these programs insist on (/run, /var/lib, /var/log) are the node's own, and the
kernel settings that kubelet would change for the whole machine are files that have the wanted values already.
"""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from taskd.testing.cluster import cgroups, dns, network, runtime
from taskd.testing.cluster.layout import Layout, NodePlace
from taskd.testing.cluster.prerequisites import PATH
from taskd.testing.kube.processes import Program, ProgramFailed

# What kubelet wants and would set, on the whole machine.
_SYSCTLS: Final = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1_000_000,
    "kernel/keys/root_maxbytes": 25_000_000,
}

_HOLD: Final = """set -e
cd "$1"
mount -t tmpfs -o mode=755 tmpfs /run
mount -t tmpfs -o mode=755 tmpfs /var/log
mount -t overlay overlay -o "lowerdir=/var/lib,upperdir=$1/var,workdir=$1/var-work" /var/lib
(cd sysctl && find . -type f) | while read -r name; do mount --bind "sysctl/$name" "/proc/sys/$name"; done
echo 1 >/proc/sys/net/ipv4/ip_forward
touch held
exec "$2"
"""

_HOLD_TIMEOUT_S: Final = 20.0


class Node:
    """One node, step by step: `prepare` (namespaces, containerd, images), then `join`."""

    def __init__(
        self, layout: Layout, place: NodePlace, directory: Path, binaries: dict[str, Path], plugins: Path
    ) -> None:
        self.place = place
        self.directory = directory
        self._layout = layout
        self._binaries = binaries
        self._plugins = plugins
        self._programs: dict[str, Program] = {}

    @property
    def programs(self) -> dict[str, Program]:
        """Its programs by name, in the order of their start."""
        return dict(self._programs)

    @property
    def kubelet(self) -> Program:
        """Its kubelet: `kill`, `pause`, `resume`, `start`."""
        return self._programs["kubelet"]

    def prepare(self, archives: Sequence[Path]) -> None:
        """Make the namespaces and start containerd in them, with the images of these archives."""
        cgroups.make(f"{self.place.cgroup}/system")
        self._hold()
        settings = runtime.write_settings(self.place, self.directory, self._plugins)
        containerd = self._start("containerd", ["containerd", f"--config={settings}"])
        runtime.wait_serving(containerd, self.directory)
        for archive in archives:
            runtime.load(archive, self.directory)

    def join(self, kubelet_kubeconfig: Path, proxy_kubeconfig: Path) -> None:
        """Start kubelet and kube-proxy; the node becomes Ready by itself."""
        config = self.directory / "kubelet.json"
        config.write_text(json.dumps(self._kubelet_config()))
        self._start(
            "kubelet",
            [
                self._binaries["kubelet"],
                f"--config={config}",
                f"--kubeconfig={kubelet_kubeconfig}",
                f"--hostname-override={self.place.name}",
                f"--node-ip={self.place.address}",
                f"--root-dir={self.directory / 'kubelet'}",
                f"--cert-dir={self.directory / 'pki'}",
                # How often it counts what containers use: of no interest here.
                "--housekeeping-interval=60s",
            ],
        )
        self._start(
            "kube-proxy",
            [
                self._binaries["kube-proxy"],
                f"--kubeconfig={proxy_kubeconfig}",
                f"--hostname-override={self.place.name}",
                "--proxy-mode=iptables",
                f"--cluster-cidr={self._layout.network}",
                "--iptables-min-sync-period=100ms",
                "--iptables-sync-period=10m",
                "--oom-score-adj=0",
                # These are the machine's, not the node's.
                "--conntrack-max-per-core=0",
                "--conntrack-tcp-timeout-established=0",
                "--conntrack-tcp-timeout-close-wait=0",
            ],
        )

    def _hold(self) -> None:
        for name in ("var", "var-work"):
            (self.directory / name).mkdir()
        for name, value in _SYSCTLS.items():
            file = self.directory / "sysctl" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{value}\n")
        holder = Program(
            [
                *cgroups.joining(f"{self.place.cgroup}/system"),
                *("unshare", "--net", "--mount", "/bin/sh", "-c", _HOLD, "sh"),
                self.directory,
                self._binaries["pause"],
            ],
            name="holder",
            log=self.directory / "holder.log",
            environment={"PATH": PATH},
        )
        self._programs["holder"] = holder
        holder.start()
        deadline = time.monotonic() + _HOLD_TIMEOUT_S
        while not (self.directory / "held").exists():
            holder.check()
            if time.monotonic() > deadline:
                raise ProgramFailed(f"no namespaces for {self.place.name}: {holder.tail()}")
            time.sleep(0.01)
        network.connect(self._layout, self.place, self._holder_pid())

    def _holder_pid(self) -> int:
        pid = self._programs["holder"].pid
        if pid is None:
            raise ProgramFailed(f"the holder of {self.place.name} is gone")
        return pid

    def _start(self, name: str, command: Sequence[str | Path]) -> Program:
        program = Program(
            [
                *cgroups.joining(f"{self.place.cgroup}/system"),
                *("nsenter", "--target", str(self._holder_pid()), "--net", "--mount", "--"),
                *command,
            ],
            name=name,
            log=self.directory / f"{name}.log",
            environment={"PATH": PATH},
        )
        self._programs[name] = program
        program.start()
        return program

    def _kubelet_config(self) -> dict[str, Any]:
        directory = self.directory
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "containerRuntimeEndpoint": f"unix://{runtime.socket_path(directory)}",
            "podLogsDir": str(directory / "logs"),
            "volumePluginDir": str(directory / "volume-plugins"),
            # Whoever reaches it is on this machine.
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "clusterDNS": [str(self._layout.address)],
            "clusterDomain": dns.DOMAIN,
            "resolvConf": "",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.place.cgroup}",
            "failCgroupV1": False,
            "oomScoreAdj": 0,
            "failSwapOn": False,
            # A lost node is told by its lease, in time; the status is written when it changes.
            "nodeLeaseDurationSeconds": 10,
            "nodeStatusUpdateFrequency": "1s",
            "nodeStatusReportFrequency": "5m",
            # This machine's disk is not ours to judge, and what is on it goes with the cluster.
            "evictionHard": {
                "memory.available": "0%",
                "nodefs.available": "0%",
                "nodefs.inodesFree": "0%",
                "imagefs.available": "0%",
            },
            "imageGCHighThresholdPercent": 100,
            "localStorageCapacityIsolation": False,
            "volumeStatsAggPeriod": "-1s",
            "serializeImagePulls": False,
            "enableProfilingHandler": False,
            "kubeAPIQPS": 100,
            "kubeAPIBurst": 200,
            "registryPullQPS": 0,
        }
