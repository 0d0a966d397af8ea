"""What this machine must have to be three nodes, said in one line where it has not.

Root, because nodes make namespaces, mounts and control groups. Some Debian packages, which are installed
where that is possible. And programs that are built from Go modules, once (`taskd.testing.kube.binaries`).
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from taskd.testing.cluster import cgroups
from taskd.testing.kube import binaries
from taskd.testing.kube.binaries import Unavailable

PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PROGRAMS: Final = (*binaries.CONTROL_PLANE, *binaries.NODES)
NOT_SHOWN: Final = "the tests on three real nodes were not run, so nothing is shown about training in pods"

# Program and the Debian package that has it.
_PACKAGES: Final = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "mount": "mount",
}
_CNI_PACKAGE: Final = "containernetworking-plugins"
_CNI_PLUGINS: Final = ("ptp", "host-local", "loopback")
_CNI_PLACES: Final = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))


def cni_directory() -> Path | None:
    """Return where the network plugins are."""
    for place in _CNI_PLACES:
        if all(os.access(place / name, os.X_OK) for name in _CNI_PLUGINS):
            return place
    return None


def absent_packages() -> list[str]:
    """Return the Debian packages that are not here."""
    packages = {package for program, package in _PACKAGES.items() if shutil.which(program, path=PATH) is None}
    if cni_directory() is None:
        packages.add(_CNI_PACKAGE)
    return sorted(packages)


def missing() -> str | None:
    """Return one line that says why there can be no nodes here, or None if there can."""
    if sys.platform != "linux":
        return "nodes need Linux"
    if os.geteuid() != 0:
        return "nodes need root"
    if not cgroups.ROOT.is_dir() or not os.access(cgroups.tracking(), os.W_OK):
        return f"nodes need control groups, and {cgroups.ROOT} has none that can be written"
    absent = absent_packages()
    if absent and shutil.which("apt-get") is None:
        return f"nodes need {', '.join(absent)}, and there is no apt-get to install them"
    probe = ["unshare", "--net", "--mount", "true"]
    if subprocess.run(probe, capture_output=True, check=False, timeout=10).returncode != 0:
        return "nodes need namespaces, and this root may not make any"
    return binaries.missing(PROGRAMS)


def require() -> dict[str, Path]:
    """Return where the built programs are; installs and builds what is missing, or raises `Unavailable`."""
    reason = missing()
    if reason is not None:
        raise Unavailable(reason)
    install(absent_packages())
    left = absent_packages()
    if left:
        raise Unavailable(f"{', '.join(left)} not found after their installation")
    return binaries.require(*PROGRAMS)


def install(packages: Sequence[str]) -> None:
    """Install Debian packages; `Unavailable` with apt-get's own last words if that fails."""
    if not packages:
        return
    sys.stderr.write(f"cluster: installing {', '.join(packages)} (apt-get)\n")
    sys.stderr.flush()
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    wanted = ["apt-get", "install", "--yes", "--no-install-recommends", *packages]
    for command in (["apt-get", "update"], wanted):
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            said = (done.stderr or done.stdout).strip().splitlines()
            raise Unavailable(f"{' '.join(command)} failed: {said[-1] if said else done.returncode}")
