"""Copy a device's tensors into shared memory beside the computation.

A copy from a device runs at full speed, and at the same time as kernels, only into memory that the driver has
pinned; so the mapping is registered with it, once per file. The copies go into a stream of their own, which
begins when what the training had put into its stream is done; the update waits for them on the device, and
no thread waits. The checksums are taken on the device, from what is copied: it reads its memory thirty times
as fast as the host could.
"""

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from taskd.train.torch import sums

log = logging.getLogger("taskd")

_NO_ERROR = 0
_streams: dict[int, Any] = {}
_warned = False


class Pin:
    """Memory that the driver is asked to pin when a device first copies into it."""

    def __init__(self, address: int, size_bytes: int) -> None:
        self._address = address
        self._size = size_bytes
        self._held = False
        self._tried = False

    def hold(self) -> None:
        """Pin; where the driver refuses, copies are slower and as right."""
        global _warned  # noqa: PLW0603 - one process, one driver
        if self._tried:
            return
        self._tried = True
        code = int(torch.cuda.cudart().cudaHostRegister(self._address, self._size, 0))
        self._held = code == _NO_ERROR
        if not self._held and not _warned:
            _warned = True
            log.warning("taskd: CUDA cannot pin the snapshots' memory (error %d); copies are slower", code)

    def release(self) -> None:
        """Unpin, before the memory is unmapped."""
        if self._held:
            self._held = False
            torch.cuda.cudart().cudaHostUnregister(self._address)


class DeviceCopies:
    """The copies of one snapshot from each device that has a part of it.

    Made and ordered by the thread that trains; ``begin`` and ``finish`` are the other thread's.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        """Copy these byte tensors as they are when all that was asked of their devices is done."""
        other = {tensor.device.type for tensor in tensors} - {"cuda"}
        if other:
            raise TypeError(f"tensors on {sorted(other)} cannot be kept in shared memory yet")
        self._numbers: dict[int, list[int]] = {}
        for number, tensor in enumerate(tensors):
            self._numbers.setdefault(tensor.device.index, []).append(number)
        self._rows = [sums.count_rows(tensor.numel()) for tensor in tensors]
        self._ready = {index: torch.cuda.current_stream(index).record_event() for index in self._numbers}
        self._done: dict[int, Any] = {}
        self._sums: dict[int, torch.Tensor] = {}

    def begin(self, copies: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Begin to copy each tensor to its place, in the order of the tensors; returns while they run."""
        pairs = list(copies)
        for index, numbers in self._numbers.items():
            stream = _stream(index)
            stream.wait_event(self._ready[index])
            with torch.cuda.device(index), torch.cuda.stream(stream):
                for number in numbers:
                    data, place = pairs[number]
                    place.copy_(data, non_blocking=True)
                rows = torch.cat([sums.sum_rows(pairs[number][0]) for number in numbers])
                host = torch.empty(rows.shape, dtype=rows.dtype, pin_memory=True)
                host.copy_(rows, non_blocking=True)
                # A thread that waits for it sleeps: it must not take a core from the training.
                done = torch.cuda.Event(blocking=True)
                done.record(stream)
            self._done[index], self._sums[index] = done, host

    def order_after(self) -> None:
        """Let what is put into the current streams from now on begin when the copies are done."""
        for index, done in self._done.items():
            torch.cuda.current_stream(index).wait_event(done)

    def finish(self) -> list[int]:
        """Wait for the copies; return the checksum of each tensor."""
        found = [0] * len(self._rows)
        for index, done in self._done.items():
            done.synchronize()
            at = 0
            for number in self._numbers[index]:
                found[number] = sums.seal(self._sums[index][at : at + self._rows[number]])
                at += self._rows[number]
        return found


def _stream(index: int) -> Any:  # noqa: ANN401 - torch.cuda.Stream
    if index not in _streams:
        _streams[index] = torch.cuda.Stream(index)
    return _streams[index]
