"""The ranks of a new group show each other what they hold, and move what is missing.

Runs at the top of the agreed step, with all ranks present. What each offers is a line of numbers in one
``all_gather``; the plan that follows from it is computed by everybody alike (``core.regroup``), so no rank
has to tell another what to do.
"""

import ctypes
import hashlib
import logging
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist

from taskd.core.messages import Regroup
from taskd.core.regroup import Kind, Offer, Transfer, describe_sources, plan_transfers
from taskd.train.torch.exchange import receive_state, send_state
from taskd.train.torch.fingerprints import fingerprint
from taskd.train.torch.slots import Entry

if TYPE_CHECKING:
    from taskd.train.torch.keeping import Keeping

log = logging.getLogger("taskd")

AT_START, AT_VOTE = 0, 1
MOST = 4  # copies that one rank offers
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


def gather_numbers(mine: list[int], world: int) -> list[list[int]]:
    """Show a few numbers to all ranks, and see theirs; as many on each."""
    rows = [torch.zeros(len(mine), dtype=torch.int64) for _ in range(world)]
    dist.all_gather(rows, torch.tensor(mine, dtype=torch.int64))
    return [row.tolist() for row in rows]


def gather_offers(mine: Offer, start: int, world: int) -> tuple[dict[int, Offer], int]:
    """Show this rank's offer and see all others'; also returns where the run began, from who was there."""
    snapshots, own = mine.snapshots[:MOST], mine.own[:MOST]
    row = [mine.part, int(mine.holds), mine.digest, int(mine.needs_own), start, len(snapshots), len(own), 0]
    row += [*snapshots, *[-1] * (MOST - len(snapshots)), *own, *[-1] * (MOST - len(own))]
    offers: dict[int, Offer] = {}
    begun = -1
    for rank, got in enumerate(gather_numbers(row, world)):
        part, holds, digest, needs_own, its_start, snapshot_count, own_count, _, *lists = got
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


@dataclass(frozen=True, slots=True)
class Me:
    """This rank, as far as an exchange needs to know it. ``start`` is -1 where the run's begin is unknown.

    ``digest`` is the fingerprint of its state, if it had the time to take it.
    """

    rank: int
    world: int
    part: int
    start: int
    digest: int | None = None


class Received(NamedTuple):
    """What a rank got: its own small state, if that was kept anywhere, and where the run began.

    Its own state of the last vote is older than the state that it received: a step may change buffers after
    its vote (the count of an averaged model). Buffers that are the same there as in ``like`` were not its own
    then, and stay as received.
    """

    own: Own | None
    begun: int
    like: bytes = b""


def exchange(
    me: Me,
    regroup: Regroup,
    keeping: "Keeping",
    objects: Mapping[str, Any],
    tell: Callable[[tuple[str, ...]], None],
) -> Received | None:
    """Show what is here, compute who gives what to whom, and do this rank's part; None if it got nothing.

    What people should know of it is told to ``tell``, on every rank alike.
    """
    target = regroup.target
    receives = me.rank in regroup.receivers
    owns = keeping.owns(target)
    digest = 0 if receives else me.digest if me.digest is not None else fingerprint(objects)
    if me.rank in regroup.partings:
        # From the process that had this rank up to now, as of this very moment: no batch is drawn yet.
        owns[me.rank] = Own(AT_VOTE, regroup.partings[me.rank])
    offer = Offer(
        me.rank,
        me.part,
        holds=not receives,
        digest=digest,
        needs_own=receives,
        snapshots=keeping.whole_copies(target, regroup.receivers),
        own=tuple(rank for rank, own in owns.items() if own is not None),
    )
    offers, begun = gather_offers(offer, me.start, me.world)
    plan = plan_transfers(offers)
    for note in plan.notes:
        log.warning("taskd: %s", note)
    if plan.orphans:
        raise NoSource(plan.orphans, target)
    tell((*plan.notes, *describe_sources(plan.moves)))
    own = owns[me.rank]
    received = from_itself = False
    like = b""
    for move in plan.moves:
        if move.kind is Kind.OWN:
            own = _move_own(me.rank, move, owns) or own
        elif move.kind is Kind.SNAPSHOT:
            got = _move_snapshot(me.rank, move, target, keeping, objects)
            received |= got
            from_itself |= got and move.owner == me.rank
        elif me.rank == move.source:
            send_state(objects, move.receiver, extra=keeping.at_vote(target - 1))
        elif me.rank == move.receiver:
            like = receive_state(objects, move.source)
            received = True
    if own is None or own.kind != AT_VOTE or me.rank in regroup.partings:
        like = b""  # as new as the state
    elif from_itself:
        like = own.payload  # the snapshot, taken at the end of the step, has them all
    return Received(own, begun, like) if received else None


def _move_own(rank: int, move: Transfer, owns: Mapping[int, Own | None]) -> Own | None:
    if rank == move.source:
        kept = owns[move.owner]
        if kept is not None:
            send_own(kept, move.receiver)
    elif rank == move.receiver:
        return receive_own(move.source)
    return None


def _move_snapshot(
    rank: int, move: Transfer, step: int, keeping: "Keeping", objects: Mapping[str, Any]
) -> bool:
    gives, gets = rank == move.source, rank == move.receiver
    if gives and gets:
        keeping.load_copy(move.owner, step, objects)
    elif gives:
        keeping.send_copy(move.owner, step, move.receiver)
    elif gets:
        keeping.receive_copy(step, move.source, objects)
    return gets


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
