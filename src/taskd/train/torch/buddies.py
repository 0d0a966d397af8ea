"""What a rank keeps for another one on a different node, in case that node is lost.

A rank's own small state (random generators, buffers) has no replica, and its node's memory goes with the
node. So at every vote each rank gives it to its buddy, the same local rank of the next node, and keeps what
it gets in its own node's shared memory, where also the process that replaces it finds it. A vote passes only
after the exchange, so whoever has committed a step knows that everybody's state of it is kept elsewhere.
"""

import ctypes
import logging
import struct
from pathlib import Path

import torch
import torch.distributed as dist

from taskd.train.torch.slots import Entry, Slot, read_entries

TAG = 7801
ROOM_BYTES = 65536
LENGTH = struct.Struct("<qqq")

log = logging.getLogger("taskd")


class Buddy:
    """The exchange of one rank with its two neighbours."""

    def __init__(self, rank: int, world: int, local_world: int, shm_dir: str) -> None:
        """Find the neighbours: on the next node the one who keeps ours, on the one before whose we keep.

        Ranks are numbered node by node and nodes are of one size, so the distance is a node.
        """
        self.to = (rank + local_world) % world
        self.owner = (rank - local_world) % world
        self._path = kept_path(shm_dir, self.owner)
        self._slot: Slot | None = None
        self._room = 0
        self._out = torch.empty(0, dtype=torch.uint8)
        self._in = torch.empty(0, dtype=torch.uint8)

    def agree(self, payload_bytes: int, *, misses: bool) -> bool:
        """Agree with all ranks on the room for a payload; called when a group stands.

        Also tells whether one of them misses something of its neighbour's that is kept once.
        """
        wanted = torch.tensor([max(ROOM_BYTES, 2 * payload_bytes), int(misses)])
        dist.all_reduce(wanted, op=dist.ReduceOp.MAX)
        self._room = int(wanted[0].item())
        self._out = torch.zeros(LENGTH.size + self._room, dtype=torch.uint8)
        self._in = torch.zeros(LENGTH.size + self._room, dtype=torch.uint8)
        return bool(wanted[1].item())

    def has_room(self, payload: bytes) -> bool:
        """Tell whether a payload fits into what was agreed on."""
        return len(payload) <= self._room

    def swap(self, step: int, kind: int, payload: bytes) -> None:
        """Give this rank's state and keep the neighbour's."""
        if not self.has_room(payload):
            log.warning(
                "taskd: %d bytes of a rank's own state are too many to be kept elsewhere", len(payload)
            )
            payload = b""
        data = LENGTH.pack(step, kind, len(payload)) + payload
        self._out[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        sent = dist.isend(self._out, self.to, tag=TAG)
        received = dist.irecv(self._in, self.owner, tag=TAG)
        for work in (received, sent):
            if work is not None:
                work.wait()
        raw = ctypes.string_at(self._in.data_ptr(), self._in.numel())
        step, kind, length = LENGTH.unpack_from(raw)
        if length:
            if self._slot is None:
                self._slot = Slot(self._path, length, create=True)
            self._slot.write(step, kind, raw[LENGTH.size : LENGTH.size + length])

    def entries(self) -> list[Entry]:
        """Return what is kept here for the neighbour, also by a process before this one."""
        return read_entries(self._path)


def kept_path(shm_dir: str, owner: int) -> str:
    """Name the file in which a node keeps a rank of another node."""
    return str(Path(shm_dir) / f"rank-{owner}.kept")
