"""The ranks of a new group show each other what they hold, and move what is missing.

Runs at the top of the agreed step, with all ranks present. What each offers is a line of numbers in one
``all_gather``; the plan that follows from it is computed by everybody alike (``core.regroup``), so no rank
has to tell another what to do.
"""

import ctypes
import hashlib
import struct
from collections.abc import Iterable
from typing import NamedTuple

import torch
import torch.distributed as dist

from taskd.core.regroup import Offer
from taskd.train.torch.slots import Entry

AT_START, AT_VOTE = 0, 1
MOST = 4  # copies that one rank offers
WIDTH = 8 + 2 * MOST
TAG = 7802
_HEAD = struct.Struct("<qq")


class NoSource(RuntimeError):
    """A rank's state of the agreed step is nowhere; a further round may agree on another one."""

    def __init__(self, ranks: Iterable[int], step: int) -> None:
        super().__init__(f"nobody has a whole state of rank {', '.join(map(str, ranks))} at step {step}")


class Own(NamedTuple):
    """A rank's own small state, and at which moment of a step it was taken."""

    kind: int
    payload: bytes


def part_number(key: str) -> int:
    """Make a number of a shard's name, so that it travels in a tensor."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:7], "little")


def gather_parts(part: int, world: int) -> tuple[str, ...]:
    """Learn which part of the state every rank has."""
    rows = [torch.zeros(1, dtype=torch.int64) for _ in range(world)]
    dist.all_gather(rows, torch.tensor([part]))
    return tuple(f"{int(row.item()):x}" for row in rows)


def gather_offers(mine: Offer, start: int, world: int) -> tuple[dict[int, Offer], int]:
    """Show this rank's offer and see all others'; also returns where the run began, from who was there."""
    snapshots, own = mine.snapshots[:MOST], mine.own[:MOST]
    row = [mine.part, int(mine.holds), mine.digest, int(mine.needs_own), start, len(snapshots), len(own), 0]
    row += [*snapshots, *[-1] * (MOST - len(snapshots)), *own, *[-1] * (MOST - len(own))]
    rows = [torch.zeros(WIDTH, dtype=torch.int64) for _ in range(world)]
    dist.all_gather(rows, torch.tensor(row))
    offers: dict[int, Offer] = {}
    begun = -1
    for rank, got in enumerate(rows):
        part, holds, digest, needs_own, its_start, snapshot_count, own_count, _, *lists = map(
            int, got.tolist()
        )
        offers[rank] = Offer(
            rank,
            part,
            bool(holds),
            digest,
            bool(needs_own),
            tuple(lists[:snapshot_count]),
            tuple(lists[MOST : MOST + own_count]),
        )
        if its_start >= 0 and begun < 0:
            begun = its_start
    return offers, begun


def find_own(entries: Iterable[Entry], step: int) -> Own | None:
    """Find what a rank needs to begin a step: as it was just then, or else at the vote of the step before."""
    kept = {(entry.step, entry.kind): entry.payload for entry in entries}
    for key in ((step, AT_START), (step - 1, AT_VOTE)):
        if key in kept:
            return Own(key[1], kept[key])
    return None


def send_own(own: Own, dst: int) -> None:
    """Give a rank its own state back."""
    dist.send(_tensor(_HEAD.pack(own.kind, len(own.payload))), dst, tag=TAG)
    dist.send(_tensor(own.payload), dst, tag=TAG)


def receive_own(src: int) -> Own:
    """Take it."""
    head = torch.empty(_HEAD.size, dtype=torch.uint8)
    dist.recv(head, src, tag=TAG)
    kind, length = _HEAD.unpack(ctypes.string_at(head.data_ptr(), head.numel()))
    data = torch.empty(length, dtype=torch.uint8)
    dist.recv(data, src, tag=TAG)
    return Own(kind, ctypes.string_at(data.data_ptr(), length))


def _tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
