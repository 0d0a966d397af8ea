"""What a pod needs to train with this machine's Python: system, interpreter and environment, mounted.

Everything is at the same place inside as outside, read-only, so that nothing has to be told where it is.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from taskd.testing.cluster import images

# The checkout, from which an editable installation is imported.
_CHECKOUT: Final = Path(__file__).resolve().parents[4]
_SYSTEM: Final = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/etc/alternatives",
    "/etc/ld.so.cache",
)


@dataclass(frozen=True)
class TrainingVolumes:
    """Parts of a pod template: `volumes` of the pod; `image`, `mounts` and `env` of the container."""

    volumes: list[dict[str, Any]]
    mounts: list[dict[str, Any]]
    env: list[dict[str, str]]
    image: str = images.HOST

    def container(self, *command: str, name: str = "ascend") -> dict[str, Any]:
        """Return a container that runs this command."""
        return {
            "name": name,
            "image": self.image,
            "imagePullPolicy": "Never",
            "command": [*command],
            "env": self.env,
            "volumeMounts": self.mounts,
            # A pod that asks for nothing gets the smallest share of the processors that there is.
            "resources": {"requests": {"cpu": "500m"}},
        }


def volumes(writable: Sequence[Path] = ()) -> TrainingVolumes:
    """Return what a pod needs that trains; it may write to the directories `writable`, on this machine."""
    system = [Path(name) for name in _SYSTEM]
    places = [path for path in system if path.exists() and not path.is_symlink()]
    mine = [Path(sys.base_prefix).resolve(), Path(sys.base_prefix), Path(sys.prefix), _CHECKOUT]
    for path in mine:
        if not any(path.is_relative_to(other) for other in places):
            places.append(path)
    found: list[dict[str, Any]] = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    mounts: list[dict[str, Any]] = [{"name": "shm", "mountPath": "/dev/shm"}]  # noqa: S108 - where it is
    for number, path in enumerate([*places, *writable]):
        found.append({"name": f"host-{number}", "hostPath": {"path": str(path)}})
        mounts.append(
            {"name": f"host-{number}", "mountPath": str(path), "readOnly": number < len(places)},
        )
    search = [str(Path(sys.prefix) / "bin"), "/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"]
    env = [
        {"name": "PATH", "value": ":".join(search)},
        # The mounts are read-only, and a failed write of bytecode for every module costs time.
        {"name": "PYTHONDONTWRITEBYTECODE", "value": "1"},
        {"name": "HOME", "value": "/root"},
    ]
    if "PYTHONPATH" in os.environ:
        # A checkout beside the one that is installed: what is tested here is tested there.
        env.append({"name": "PYTHONPATH", "value": os.environ["PYTHONPATH"]})
    return TrainingVolumes(found, mounts, env)
