"""NCCL: collectives between CUDA devices.

``abort`` (ncclCommAbort) makes the kernels of a communicator end, from any thread; a thread that waits for
the stream wakes up then. It takes about a second with several processes of one device. The device itself
stays usable, and so does everything that was computed before.

What NCCL's own watchdog does with a broken communicator has to be off: it ends the process, which recovery
is there to prevent. It reads its variables when a backend is made, so they are set around that.
"""

import contextlib
import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist

from taskd.train.torch.devices.protocol import Backend, Damage, Store

_dist = cast("Any", dist)  # its groups are exported, but not for the type checker


class NcclDevice:
    """NCCL, on this process's current CUDA device."""

    name = "nccl"
    device_type = "cuda"
    must_restart = False

    def environment(self) -> dict[str, str]:
        """Keep NCCL's watchdog from ending the process, and its monitor from ending a slow watchdog."""
        return {
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
            "TORCH_NCCL_ENABLE_MONITORING": "0",
            "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
        }

    def make_backend(
        self,
        store: Store,
        rank: int,
        size: int,
        timeout: timedelta,
        options: object = None,
    ) -> Backend:
        """Make the backend; its communicators come with the first collective of each device."""
        chosen = options if isinstance(options, _dist.ProcessGroupNCCL.Options) else None
        if chosen is None:
            chosen = _dist.ProcessGroupNCCL.Options()
            chosen._timeout = timeout  # noqa: SLF001 - torch itself sets it so
        with _set(self.environment()):
            return _dist.ProcessGroupNCCL(store, rank, size, chosen)

    def interrupt(self, backend: Backend) -> None:
        """Abort its communicators."""
        backend.abort()

    def close(self, backend: Backend) -> None:
        """Abort, which waits for nobody; a shutdown would first finish what the peers never will."""
        backend.abort()

    def restart(self) -> None:
        """Nothing to do: an aborted communicator leaves the device as it was."""

    def damage(self) -> Damage:
        """After a memory error every call to a CUDA device fails: the process has to be replaced."""
        try:
            torch.cuda.synchronize()
        except RuntimeError:
            return Damage.FOREIGN
        return Damage.NONE


@contextlib.contextmanager
def _set(variables: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
