"""What the agent, the nursery, the warm process and the parked spares say to each other.

All of them are on one machine, start from the same release and live no longer than the agent, so the frames
need no versions: four bytes of length, then JSON. JSON rather than msgpack because an environment may hold
bytes that are no UTF-8; Python carries them as lone surrogates, which only JSON's escapes keep.

This module stays small because the parent of all training processes imports it.
"""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from taskd.core.programs import Program, ProgramKind

_LENGTH = struct.Struct("!I")

# Variables that an interpreter, libc or a library reads once, while it starts. A process that was prepared
# under other values of these cannot be made to look as if it had started with the right ones.
_READ_AT_START = (
    "PYTHON", "LD_", "GLIBC_", "MALLOC_", "LANG", "LC_", "TZ",
    "OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "BLIS_", "NUMEXPR_",
    "TORCH_", "PYTORCH_", "TORCHDYNAMO", "TORCHINDUCTOR", "ASCEND_", "CUDA_",
)  # fmt: skip

Message = dict[str, object]


@dataclass(frozen=True, slots=True)
class WorkerLaunch:
    """Everything that is needed to start one training process.

    ``env`` is its complete environment. ``stdout`` and ``stderr`` are files to append to; empty means that
    the agent's own stream is inherited. ``error_file`` receives an uncaught exception; empty means none.
    """

    key: str
    program: Program
    env: Mapping[str, str]
    cwd: str
    stdout: str = ""
    stderr: str = ""
    error_file: str = ""


def encode(message: Message) -> bytes:
    """Return a message as one frame."""
    body = json.dumps(message, separators=(",", ":")).encode()
    return _LENGTH.pack(len(body)) + body


class Frames:
    """Cuts a stream of bytes back into messages."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """Take bytes as they came and return the messages that are now complete."""
        self._pending += data
        messages: list[Message] = []
        while len(self._pending) >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._pending)
            end = _LENGTH.size + size
            if len(self._pending) < end:
                break
            messages.append(json.loads(self._pending[_LENGTH.size : end]))
            del self._pending[:end]
        return messages


def pack_launch(launch: WorkerLaunch) -> Message:
    """Return a launch as a plain message."""
    return {
        "key": launch.key,
        "kind": launch.program.kind.value,
        "target": launch.program.target,
        "args": list(launch.program.args),
        "env": dict(launch.env),
        "cwd": launch.cwd,
        "stdout": launch.stdout,
        "stderr": launch.stderr,
        "error_file": launch.error_file,
    }


def parse_launch(message: Message) -> WorkerLaunch:
    """Return the launch that a message describes."""
    return WorkerLaunch(
        key=str(message["key"]),
        program=Program(
            ProgramKind(str(message["kind"])),
            str(message["target"]),
            tuple(cast("list[str]", message["args"])),
        ),
        env=cast("dict[str, str]", message["env"]),
        cwd=str(message["cwd"]),
        stdout=str(message["stdout"]),
        stderr=str(message["stderr"]),
        error_file=str(message["error_file"]),
    )


def differs_at_start(prepared: Mapping[str, str], wanted: Mapping[str, str]) -> str:
    """Return the first variable that forbids using a process prepared under another environment, or ""."""
    for name in sorted(set(prepared) | set(wanted)):
        if name.startswith(_READ_AT_START) and prepared.get(name) != wanted.get(name):
            return name
    return ""
