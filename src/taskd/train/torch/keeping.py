"""What outlives a training process: its own small state, and snapshots of the rest where no replica has it.

Three places, from near to far: the rank's slot in the node's shared memory (own state, at the start and at
the vote of every step), its snapshots beside it (the registered state, if this rank is the only one that has
its part), and a buddy on another node who keeps a copy of both, and of the rank's notes. What was committed
is always in all places that this rank uses: the vote of a step passes only when the state before it is kept
everywhere.
"""

import ctypes
import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from taskd.train.torch import snapshots
from taskd.train.torch.buddies import Buddy, kept_path
from taskd.train.torch.notes import SetupNotes
from taskd.train.torch.own import without_states
from taskd.train.torch.restoring import AT_VOTE, Own, find_own
from taskd.train.torch.slots import Slot, read_entries, read_told
from taskd.train.torch.spread import Meshes

TAG = 7803

log = logging.getLogger("taskd")


class Keeping:
    """One rank's places."""

    def __init__(
        self,
        rank: int,
        world: int,
        slot_path: str,
        shm_dir: str,
        notes: SetupNotes,
        *,
        newcomer: bool,
        slot_before: str = "",
    ) -> None:
        """Take the rank's slot over. What the process before left is read first.

        ``slot_before`` is that of a process which was still alive when this rank's files were made.
        """
        self._rank = rank
        self._world = world
        self._shm_dir = shm_dir
        self._notes = notes
        self._slot_before = slot_before
        self._votes: dict[int, bytes] = {}
        self._inherited = read_entries(slot_path) if newcomer else []
        if newcomer and slot_before:
            self._inherited += read_entries(slot_before)
        self.told = read_told(slot_path) if newcomer else 0
        self._slot = Slot(slot_path, create=True)
        self._slot.tell(self.told)
        self._snapshot_path = f"{slot_path}.snap"
        self._snapshot: snapshots.Snapshot | None = None
        self._doubtful = False
        self._buddy = _find_buddy(rank, world, shm_dir)
        self._kept_snapshot = f"{kept_path(shm_dir, self._buddy.owner)}.snap" if self._buddy else ""
        if not newcomer:
            snapshots.remove(self._snapshot_path)

    # --- in every step -----------------------------------------------------------------------------------

    def note(self, step: int, kind: int, own: bytes) -> None:
        """Keep the rank's own state."""
        self._slot.write(step, kind, own)

    def tell(self, steps: int) -> None:
        """Keep how many steps the script is told of; before it is."""
        self._slot.tell(steps)

    def told_before(self, top: int) -> int:
        """Return how many steps the script of the process before this one was told of.

        It may be one more than anybody else has committed: a vote ends for one rank before it does for all.
        """
        return min(max(top, self.told), top + 1)

    def before_vote(self, step: int, own: bytes) -> None:
        """See that all that was committed so far is kept, here and at the buddy, and keep the own state."""
        self._slot.write(step, AT_VOTE, own)
        self._votes = {step: own, step - 1: self._votes.get(step - 1, b"")}
        if self._snapshot is not None:
            self._snapshot.settle()
            self._snapshot.wait()
            self._doubtful = False
        if self._buddy is not None:
            self._buddy.swap(step, AT_VOTE, own if self._buddy.has_room(own) else without_states(own))
            if self._snapshot is not None:
                self._swap_snapshots(step)

    def begin(self) -> None:
        """A step begins. What is still being copied is good only if the memory is, until it is done."""
        self._doubtful = self._snapshot is not None and not self._snapshot.is_settled()

    def distrust(self, step: int) -> None:
        """The memory has failed in this step: a snapshot that was taken from it meanwhile is of no use."""
        if self._snapshot is not None and self._doubtful:
            self._snapshot.discard(step)

    def committed(self, step: int, objects: Mapping[str, Any]) -> None:
        """Begin a snapshot of the state of which ``step`` steps are part; it is done by the next vote."""
        if self._snapshot is not None:
            self._snapshot.take(step, objects)

    def keep_last(self) -> None:
        """See that the state of the last step is kept: no vote comes any more that would."""
        if self._snapshot is not None:
            self._snapshot.settle()
            self._snapshot.wait()

    def hand_over(self, step: int) -> None:
        """See that the state of which ``step`` steps are part is kept; all ranks do so before some leave."""
        if self._snapshot is None:
            return
        self._snapshot.settle()
        self._snapshot.wait()
        if self._buddy is not None:
            self._swap_snapshots(step)

    # --- when a group stands -----------------------------------------------------------------------------

    def agree(self, layout: tuple[str, ...], own_bytes: int, step: int, objects: Mapping[str, Any]) -> None:
        """Agree with all ranks on what is kept.

        One rank without a replica is enough to make all keep snapshots: when its last one was not finished,
        everybody has to go back to the one before. A replica counts only where a lost node leaves it.
        """
        buddy = self._buddy
        if buddy is not None and buddy.agree(own_bytes, misses=not self._notes.has(buddy.owner)):
            notes = bytearray(self._notes.export()) or bytearray(1)  # a tensor cannot be made of nothing
            theirs = _swap_data(torch.frombuffer(notes, dtype=torch.uint8), buddy)
            self._notes.keep(buddy.owner, ctypes.string_at(theirs.data_ptr(), theirs.numel()))
        if self._world == 1 or _has_replicas(layout):
            return
        if self._snapshot is None:
            self._snapshot = snapshots.Snapshot(self._snapshot_path, create=True)
        self._snapshot.take(step, objects)
        self._snapshot.settle()

    def clear_before(self) -> None:
        """This rank keeps its state by itself; what a process that left had kept is of no use any more."""
        if self._slot_before:
            snapshots.remove(f"{self._slot_before}.snap")
            Path(self._slot_before).unlink(missing_ok=True)
            self._slot_before = ""

    # --- in a recovery -----------------------------------------------------------------------------------

    def copies(self) -> tuple[tuple[int, int], ...]:
        """Return the (rank, step) of which there is a snapshot here; their content was not looked at."""
        found = [(self._rank, step) for path in self._own_paths() for step in snapshots.versions(path)]
        if self._buddy is not None:
            found += [(self._buddy.owner, step) for step in snapshots.versions(self._kept_snapshot)]
        return tuple(found)

    def beside(self) -> tuple[tuple[int, int], ...]:
        """Return the (rank, step) of the snapshots that other ranks of this node have left, or leave."""
        if self._snapshot is None:
            return ()
        return tuple(
            (rank, step)
            for rank in _ranks_of_node(self._rank, self._world)
            if rank != self._rank
            for slot in slots_of(rank, self._shm_dir)
            for step in snapshots.versions(f"{slot}.snap")
        )

    def read_copy(self, owner: int, step: int, objects: Mapping[str, Any]) -> dict[str, Any]:
        """Return the states in a snapshot that is here, whosever it is."""
        near = [] if owner == self._rank else [f"{slot}.snap" for slot in slots_of(owner, self._shm_dir)]
        having = (path for path in near if step in snapshots.versions(path))
        return snapshots.read(next(having, self._path_of(owner, step)), step, Meshes(objects.values()))

    def whole_copies(self, step: int, wanted: Iterable[int]) -> tuple[int, ...]:
        """Return the ranks among the wanted of whose step there is a whole snapshot here."""
        return tuple(rank for rank in wanted if (rank, step) in self.copies() and self._is_whole(rank, step))

    def owns(self, step: int) -> dict[int, Own | None]:
        """Return whose own state for a step is here."""
        found = {self._rank: find_own(self._inherited or self._slot.read(), step)}
        if self._buddy is not None:
            found[self._buddy.owner] = find_own(self._buddy.entries(), step)
        return found

    def at_vote(self, step: int) -> bytes:
        """Return this process's own state at the vote of one of the last two steps, if it was there."""
        return self._votes.get(step, b"")

    def settled_in(self) -> None:
        """This process has its place; what its predecessor left is of no use any more."""
        self._inherited = []

    def load_copy(self, owner: int, step: int, objects: Mapping[str, Any]) -> None:
        """Load a snapshot that is here."""
        snapshots.load(self._path_of(owner, step), step, objects)

    def send_copy(self, owner: int, step: int, to: int) -> None:
        """Send a snapshot that is here to a rank that is elsewhere."""
        data = snapshots.export(self._path_of(owner, step), step)
        dist.send(torch.tensor([data.numel()]), to, tag=TAG)
        dist.send(data, to, tag=TAG)

    def receive_copy(self, step: int, source: int, objects: Mapping[str, Any]) -> None:
        """Receive a snapshot and load it."""
        length = torch.zeros(1, dtype=torch.int64)
        dist.recv(length, source, tag=TAG)
        data = torch.empty(int(length.item()), dtype=torch.uint8)
        dist.recv(data, source, tag=TAG)
        snapshots.import_bytes(self._snapshot_path, data)
        snapshots.load(self._snapshot_path, step, objects)

    def _is_whole(self, rank: int, step: int) -> bool:
        try:
            snapshots.verify(self._path_of(rank, step), step)
        except snapshots.SnapshotDamaged as damage:
            log.warning("taskd: %s; another source is looked for", damage)
            snapshots.forget(self._path_of(rank, step), step)
            return False
        return True

    def _path_of(self, owner: int, step: int) -> str:
        if owner != self._rank:
            return self._kept_snapshot
        having = (path for path in self._own_paths() if step in snapshots.versions(path))
        return next(having, self._snapshot_path)

    def _own_paths(self) -> list[str]:
        """Return where snapshots of this rank may be: its own, and those of a process that has left."""
        before = [f"{self._slot_before}.snap"] if self._slot_before else []
        return [self._snapshot_path, *before]

    def _swap_snapshots(self, step: int) -> None:
        """Give the last snapshot to the buddy and keep the neighbour's."""
        buddy = self._buddy
        if buddy is None:
            return
        have = step in snapshots.versions(self._snapshot_path)
        mine = snapshots.export(self._snapshot_path, step) if have else torch.empty(0, dtype=torch.uint8)
        theirs = _swap_data(mine, buddy)
        if theirs.numel():
            snapshots.import_bytes(self._kept_snapshot, theirs)


def slots_of(rank: int, shm_dir: str) -> list[Path]:
    """Return what processes of a rank of this node left; one that was moved had a slot of its own."""
    directory = Path(shm_dir)
    return [directory / f"rank-{rank}.slot", *sorted(directory.glob(f"rank-{rank}-g*.slot"))]


def _has_replicas(layout: tuple[str, ...]) -> bool:
    """Tell whether every part has two holders, on two nodes where there are two."""
    local_world = int(os.environ.get("LOCAL_WORLD_SIZE", len(layout)))
    size = local_world if local_world < len(layout) else 1
    holders: dict[str, set[int]] = {}
    for rank, part in enumerate(layout):
        holders.setdefault(part, set()).add(rank // size)
    return min(map(len, holders.values())) > 1


def _ranks_of_node(rank: int, world: int) -> range:
    size = int(os.environ.get("LOCAL_WORLD_SIZE", world))
    first = rank // size * size
    return range(first, min(first + size, world))


def _swap_data(mine: torch.Tensor, buddy: Buddy) -> torch.Tensor:
    """Give bytes to the buddy and get the neighbour's, which may be more or fewer."""
    length = torch.zeros(1, dtype=torch.int64)
    _swap(torch.tensor([mine.numel()]), buddy.to, length, buddy.owner)
    theirs = torch.empty(int(length.item()), dtype=torch.uint8)
    _swap(mine, buddy.to, theirs, buddy.owner)
    return theirs


def _swap(out: torch.Tensor, to: int, into: torch.Tensor, source: int) -> None:
    work = [dist.isend(out, to, tag=TAG) if out.numel() else None]
    work.append(dist.irecv(into, source, tag=TAG) if into.numel() else None)
    for each in work:
        if each is not None:
            each.wait()


def _find_buddy(rank: int, world: int, shm_dir: str) -> Buddy | None:
    """Return the exchange with a neighbour on another node; None where all ranks share one memory."""
    local_world = int(os.environ.get("LOCAL_WORLD_SIZE", world))
    if local_world >= world or not shm_dir:
        return None
    if world % local_world:
        log.warning("taskd: nodes of different sizes; what a rank alone has is lost with its node")
        return None
    return Buddy(rank, world, local_world, shm_dir)
