"""What the flag parser asks of the machine.

The parser of ``taskd run`` is a function of its arguments and of these few answers, so that a test can try
eight devices on a laptop or a script that does not exist without arranging either. Devices are counted
without torch: importing it would cost the launcher more than a second.
"""

import glob
import os
import re
import shutil
import socket
import subprocess
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

_NVIDIA_PROC = Path("/proc/driver/nvidia/gpus")
_NVIDIA_SMI_LIMIT_S = 10.0


class DeviceKind(StrEnum):
    """Accelerators that can be counted, by the name that torchrun gives them."""

    GPU = "gpu"
    NPU = "npu"


@dataclass(frozen=True, slots=True)
class Machine:
    """The parser's questions. Paths are relative to the working directory of the launcher."""

    env: Mapping[str, str]
    exists: Callable[[str], bool]
    which: Callable[[str], str | None]
    read_text: Callable[[str], str]
    count_devices: Callable[[DeviceKind], int]
    count_cpus: Callable[[], int]
    new_id: Callable[[], str]
    hostname: Callable[[], str] = socket.gethostname


def this_machine() -> Machine:
    """Return the answers of the machine that this process runs on."""
    return Machine(
        env=os.environ,
        exists=lambda path: Path(path).exists(),
        which=shutil.which,
        read_text=lambda path: Path(path).read_text(encoding="utf-8-sig"),
        count_devices=count_devices,
        count_cpus=lambda: len(os.sched_getaffinity(0)),
        new_id=lambda: str(uuid.uuid4()),
    )


def count_devices(kind: DeviceKind) -> int:
    """Count the accelerators of a kind that this machine shows, whatever the job may use of them."""
    if kind is DeviceKind.NPU:
        return sum(1 for path in glob.glob("/dev/davinci*") if re.fullmatch(r".*/davinci\d+", path))  # noqa: PTH207
    try:
        return sum(1 for _ in _NVIDIA_PROC.iterdir())
    except OSError:
        return _ask_nvidia_smi()


def _ask_nvidia_smi() -> int:
    """Count with nvidia-smi, for containers that hide /proc/driver."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return 0
    try:
        listing = subprocess.run(
            [program, "-L"], capture_output=True, text=True, timeout=_NVIDIA_SMI_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(1 for line in listing.stdout.splitlines() if line.startswith("GPU "))
