"""A node's containerd: its settings, its images, its pod network."""

import json
import subprocess
import time
from pathlib import Path
from typing import Final

from taskd.testing.cluster import images
from taskd.testing.cluster.layout import NodePlace
from taskd.testing.cluster.prerequisites import PATH
from taskd.testing.kube.processes import Program, ProgramFailed

# restrict_oom_score_adj: root in a container or a small machine often lacks CAP_SYS_RESOURCE, and without the
# right to lower that value every sandbox dies with "can't get final child's PID from pipe: EOF".
_SETTINGS: Final = """version = 2
root = "{directory}/containerd"
state = "{directory}/containerd-state"
disabled_plugins = [
    "io.containerd.internal.v1.opt",
    "io.containerd.snapshotter.v1.aufs",
    "io.containerd.snapshotter.v1.btrfs",
    "io.containerd.snapshotter.v1.devmapper",
    "io.containerd.snapshotter.v1.zfs",
    "io.containerd.tracing.processor.v1.otlp",
]

[grpc]
address = "{socket}"

[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{pause}"
restrict_oom_score_adj = true
disable_apparmor = true
disable_tcp_service = true

[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "overlayfs"
default_runtime_name = "runc"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = false

[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{plugins}"
conf_dir = "{directory}/cni"
"""

_START_TIMEOUT_S: Final = 30.0


def socket_path(directory: Path) -> Path:
    """Return the socket of the containerd that lives in this directory."""
    return directory / "containerd.sock"


def write_settings(node: NodePlace, directory: Path, plugins: Path) -> Path:
    """Write the settings of containerd and of the pod network; return the file for containerd."""
    (directory / "cni").mkdir()
    network = {
        "cniVersion": "0.4.0",
        "name": "taskd",
        "plugins": [
            {
                # A cable from each pod to its node, and everything routed. With a bridge in the node, a pod
                # that calls a Service and is answered by a neighbour would need br_netfilter.
                "type": "ptp",
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{"subnet": str(node.pods)}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                    "dataDir": str(directory / "addresses"),
                },
            }
        ],
    }
    (directory / "cni" / "10-taskd.conflist").write_text(json.dumps(network))
    path = directory / "containerd.toml"
    path.write_text(
        _SETTINGS.format(
            directory=directory, socket=socket_path(directory), pause=images.PAUSE, plugins=plugins
        )
    )
    return path


def wait_serving(program: Program, directory: Path) -> None:
    """Wait until containerd answers."""
    deadline = time.monotonic() + _START_TIMEOUT_S
    while not socket_path(directory).exists() or _ctr(directory, "version").returncode != 0:
        program.check()
        if time.monotonic() > deadline:
            raise ProgramFailed(f"containerd does not answer; the end of its log:\n{program.tail()}")
        time.sleep(0.05)


def load(archive: Path, directory: Path) -> None:
    """Put the images of an archive into a node."""
    done = _ctr(directory, "--namespace", "k8s.io", "images", "import", str(archive))
    if done.returncode != 0:
        raise ProgramFailed(f"ctr images import {archive} failed: {done.stderr.strip()}")


def _ctr(directory: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["ctr", "--address", str(socket_path(directory)), *arguments],
        env={"PATH": PATH},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
