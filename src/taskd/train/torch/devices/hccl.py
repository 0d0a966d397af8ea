"""HCCL: collectives between Ascend devices, by torch_npu.

NOT RUN ON HARDWARE. Written from torch_npu's documentation and public sources and tested against a double
that records the calls; most of these calls are documented as beta or reserved.

``stop_device`` ends all that runs on the device, for this process; whatever waits for it fails with "FORCE
STOP", in every thread. Until ``restart_device`` the device does nothing more. A communicator is given up with
``abort_hccl_comm``, after its root's address has been taken out of the store, or the next one under the
same names would find a process that is gone; here each generation has a store of its own, so that is only
tidy. What a memory error hit is asked with ``check_uce_in_memory``.
"""

import contextlib
from datetime import timedelta
from functools import cached_property
from importlib import import_module
from typing import Any

from taskd.train.torch.devices.protocol import Backend, Damage, Store

_OK = (None, 0)
_REASON = "reinit"  # what torch_npu itself says when it makes a group anew


class DeviceStuck(RuntimeError):
    """The device could not be stopped or restarted: the process has to be replaced."""

    def __init__(self, what: str, answer: object) -> None:
        super().__init__(f"torch_npu's {what} answered {answer!r}; this process has to be replaced")


class HcclDevice:
    """HCCL, on this process's current Ascend device."""

    name = "hccl"
    device_type = "npu"
    must_restart = True

    @cached_property
    def _npu(self) -> Any:  # noqa: ANN401 - torch_npu is not typed
        return import_module("torch_npu")

    @property
    def _device(self) -> int:
        number: int = self._npu.npu.current_device()
        return number

    def environment(self) -> dict[str, str]:
        """Keep torch_npu's watchdog from ending the process."""
        return {"HCCL_ASYNC_ERROR_HANDLING": "0"}

    def make_backend(
        self,
        store: Store,
        rank: int,
        size: int,
        timeout: timedelta,
        options: object = None,
    ) -> Backend:
        """Make the backend; its communicator comes with the first collective."""
        kind = self._npu._C._distributed_c10d.ProcessGroupHCCL  # noqa: SLF001 - where torch_npu itself has it
        chosen: Any = options if isinstance(options, kind.Options) else kind.Options()
        chosen._timeout = timeout  # noqa: SLF001 - torch_npu itself sets it so
        return kind(store, rank, size, chosen)

    def interrupt(self, backend: Backend) -> None:  # noqa: ARG002 - the device stops for all its backends
        """Stop the device."""
        answer = self._npu.npu.stop_device(self._device)
        if answer not in _OK:
            raise DeviceStuck("stop_device", answer)

    def close(self, backend: Backend) -> None:
        """Give its communicator up."""
        with contextlib.suppress(Exception):  # the store may be gone with its host
            backend._delete_tcpstore_key()  # noqa: SLF001 - as torch_npu's reinit_process_group does
        backend.abort_hccl_comm(_REASON)

    def restart(self) -> None:
        """Let the device run again."""
        answer = self._npu.npu.restart_device(self._device)
        if answer not in _OK:
            raise DeviceStuck("restart_device", answer)

    def damage(self) -> Damage:
        """Ask what a memory error hit. Needs torch_npu's caching of memory, which is on by default."""
        return Damage(self._npu.npu.check_uce_in_memory(self._device))
