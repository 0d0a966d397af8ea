"""Checksums of tensors at the speed of memory, the same on the CPU and on a device.

A CRC over gigabytes takes longer than copying them. Here the bytes are added up as 64-bit words, a row of
256 KiB at a time, which is bound by memory alone and costs milliseconds for 10 GB on a device; a CRC over the
rows' sums makes the order of the rows count. Additions wrap around, so their order does not matter and all
devices agree. Any change within one word is noticed; words that change places within a row are not, and
nothing that we guard against (torn copies, flipped bits, stale pages) does that.
"""

import ctypes
import os
import zlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

ROW_BYTES = 256 * 1024
_BLOCK_BYTES = 64 * ROW_BYTES
_MOST_THREADS = 8
_WORD = 8
_ROW_WORDS = ROW_BYTES // _WORD


class Threads(ThreadPoolExecutor):
    """Threads that are also there for a rank whose script has ended, and which helps another one.

    The interpreter ends all pools before it lets anybody else know that it is about to end.
    """

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:  # noqa: ANN401 - any
        """Do it in a thread, or here where there are none any more."""
        try:
            return super().submit(fn, *args, **kwargs)
        except RuntimeError:
            done: Future[Any] = Future()
            done.set_result(fn(*args, **kwargs))
            return done


def count_rows(length: int) -> int:
    """Return how many sums there are for so many bytes."""
    full, rest = divmod(length, ROW_BYTES)
    return full + bool(rest // _WORD) + bool(rest % _WORD)


def sum_rows(data: torch.Tensor) -> torch.Tensor:
    """Return the sums of a byte tensor's rows, where the tensor is."""
    if data.data_ptr() % _WORD:
        data = data.clone()
    length = data.numel()
    full, words = length // ROW_BYTES * ROW_BYTES, length // _WORD * _WORD
    parts: list[torch.Tensor] = []
    if full:
        rows = data[:full].view(torch.int64).view(-1, _ROW_WORDS)
        if data.device.type == "cpu" and torch.get_num_threads() > 1:
            # Row by row none is large enough for torch to call more threads: they belong to the training.
            parts.extend(row.sum().view(1) for row in rows)
        else:
            parts.append(rows.sum(1))
    if words > full:
        parts.append(data[full:words].view(torch.int64).sum().view(1))
    if length > words:
        parts.append(data[words:].sum(dtype=torch.int64).view(1))
    if len(parts) == 1:
        return parts[0]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64, device=data.device)


def seal(rows: torch.Tensor) -> int:
    """Return one number for the sums of rows, which must be on the CPU."""
    if not rows.numel():
        return 0
    rows = rows.contiguous()
    return zlib.crc32((ctypes.c_ubyte * rows.nbytes).from_address(rows.data_ptr()))


def checksum(data: torch.Tensor) -> int:
    """Return the checksum of a byte tensor."""
    return seal(sum_rows(data).cpu())


def checksum_quickly(data: torch.Tensor) -> int:
    """Return the checksum of a byte tensor in the host's memory, by several threads if it is large.

    For when all wait for it: pages that this process has not touched yet cost more than adding them up.
    """
    if data.numel() <= _BLOCK_BYTES:
        return checksum(data)
    blocks = data.split(_BLOCK_BYTES)
    with Threads(min(_MOST_THREADS, os.cpu_count() or 1, len(blocks))) as pool:
        return seal(torch.cat(list(pool.map(sum_rows, blocks))))
