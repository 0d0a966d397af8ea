"""Hand a device's tensors to another process of the same machine, without the host in between.

A process can read memory that another one has on a device, if it is given the driver's handle for it: ten
gigabytes arrive in milliseconds, where sending their bytes takes ten seconds. The giver must keep the memory,
unchanged, until the taker says that it is done.

torch has this for its own multiprocessing, with counters that are tied into each tensor's storage for good
and with at most a thousand events. That is not for parameters which live as long as the job, nor for a taker
that may be killed in between. So the driver's own five calls are used, and nothing is left behind.

They fail where memory is not from ``cudaMalloc`` (expandable segments), between machines or containers that
do not see each other, and between devices without a path. Then the bytes are sent.
"""

import ctypes
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from taskd.kit.machine import boot_id
from taskd.train.torch import sums

_HANDLE_BYTES = 64
_LAZY_PEER_ACCESS = 1

log = logging.getLogger("taskd")


class _Handle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_char * _HANDLE_BYTES),)


class HandleRefused(RuntimeError):
    """The driver does not give or take a handle here."""

    def __init__(self, call: str, code: int) -> None:
        super().__init__(f"{call} gave error {code}")


@dataclass(frozen=True, slots=True)
class Offer:
    """Where tensors are on a device: the number of each, the allocation that it is in, its place there."""

    machine: str
    allocations: list[bytes]
    tensors: list[tuple[int, int, int]]
    seals: list[int]


def offer(tensors: Sequence[torch.Tensor]) -> Offer | None:
    """Offer those of these dense tensors that are on a CUDA device; None if there are none, or it cannot be.

    They must not change before the taker is done. What was asked of the device before this is done first.
    """
    numbers = [number for number, tensor in enumerate(tensors) if tensor.is_cuda and tensor.numel()]
    if not numbers:
        return None
    allocations: dict[int, tuple[int, bytes]] = {}
    places: list[tuple[int, int, int]] = []
    try:
        for number in numbers:
            address = tensors[number].data_ptr()
            base = _base(address)
            if base not in allocations:
                allocations[base] = len(allocations), _handle(base)
            places.append((number, allocations[base][0], address - base))
    except (HandleRefused, OSError) as error:
        log.info("taskd: state is sent as bytes: %s", error)
        return None
    seals = _seals([tensors[number] for number in numbers])
    for index in {tensors[number].device.index for number in numbers}:
        torch.cuda.synchronize(index)
    return Offer(boot_id(), [handle for _, handle in allocations.values()], places, seals)


class Opened:
    """An offer of another process, with its memory in sight."""

    def __init__(self, given: Offer, addresses: list[int]) -> None:
        self._given = given
        self._addresses = addresses

    def copy(self, tensors: Sequence[torch.Tensor]) -> list[int]:
        """Copy into tensors on this process's device; return the numbers of those that arrived damaged."""
        stream = torch.cuda.current_stream().cuda_stream
        for number, allocation, offset in self._given.tensors:
            source = self._addresses[allocation] + offset
            target = tensors[number]
            _call("cuMemcpyAsync", target.data_ptr(), source, target.nbytes, stream)
        numbers = [number for number, _, _ in self._given.tensors]
        found = _seals([tensors[number] for number in numbers])
        return [n for n, was, is_ in zip(numbers, self._given.seals, found, strict=True) if was != is_]

    def close(self) -> None:
        """Let go of the other process's memory."""
        torch.cuda.synchronize()
        while self._addresses:
            _call("cuIpcCloseMemHandle", self._addresses.pop())


def open_offer(given: Offer) -> Opened | None:
    """Look at an offer; None if it cannot be taken here."""
    if given.machine != boot_id() or not torch.cuda.is_available():
        return None
    torch.cuda.current_stream()  # the driver's calls need a context
    opened = Opened(given, [])
    try:
        for raw in given.allocations:
            address = ctypes.c_uint64()
            handle = _Handle.from_buffer_copy(raw)
            _call("cuIpcOpenMemHandle_v2", ctypes.byref(address), handle, _LAZY_PEER_ACCESS)
            opened._addresses.append(address.value)  # noqa: SLF001 - its own maker
    except (HandleRefused, OSError) as error:
        log.info("taskd: state is received as bytes: %s", error)
        opened.close()
        return None
    return opened


def _seals(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Return a checksum of each tensor, taken on the device that it is on."""
    rows = [sums.sum_rows(tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)) for tensor in tensors]
    # One copy to the host, not one each.
    together: dict[torch.device, torch.Tensor] = {
        device: torch.cat([row for row in rows if row.device == device]).cpu()
        for device in {row.device for row in rows}
    }
    at = dict.fromkeys(together, 0)
    found: list[int] = []
    for row in rows:
        start = at[row.device]
        at[row.device] += row.numel()
        found.append(sums.seal(together[row.device][start : start + row.numel()]))
    return found


def _base(address: int) -> int:
    """Return where the allocation begins that an address lies in."""
    base, size = ctypes.c_uint64(), ctypes.c_size_t()
    _call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), address)
    return base.value


def _handle(base: int) -> bytes:
    handle = _Handle()
    _call("cuIpcGetMemHandle", ctypes.byref(handle), base)
    return bytes(handle)


def _call(name: str, *arguments: object) -> None:
    code = getattr(_driver(), name)(
        *(ctypes.c_uint64(value) if isinstance(value, int) else value for value in arguments)
    )
    if code:
        raise HandleRefused(name, code)


@cache
def _driver() -> Any:  # noqa: ANN401 - a library of C functions
    return ctypes.CDLL("libcuda.so.1")
