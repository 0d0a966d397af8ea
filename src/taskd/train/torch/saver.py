"""A job's state on disk: every so many steps, when there is no way on, and at the start of the next run.

The files are in ``rounds``, ``checkpoints`` and ``checkpointer``; this is where the training loop meets them.
"""

import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from taskd.core.messages import Save, Saved
from taskd.train.torch.checkpointer import Checkpointer, capture_objects, dump
from taskd.train.torch.checkpoints import Offer, agree
from taskd.train.torch.keeping import Keeping, slots_of
from taskd.train.torch.manifests import CheckpointError, Layout, RankState
from taskd.train.torch.restoring import find_own, gather_numbers
from taskd.train.torch.rounds import prepare
from taskd.train.torch.slots import read_entries, read_told
from taskd.train.torch.statefile import Capture

MOST_STEPS = 16

log = logging.getLogger("taskd")


class Resumed(NamedTuple):
    """Where a run goes on."""

    step: int
    own: bytes
    told: int


class Saver:
    """One rank's side of it."""

    def __init__(self, rank: int, world: int) -> None:
        """Read from the environment what the launcher wants."""
        self._rank = rank
        self._world = world
        self._root = ""
        self._every = 0
        self._keep = 2
        self._checkpointer: Checkpointer | None = None
        self._dump_dir = os.environ.get("TASKD_DUMP_DIR", "")
        self._resume_dir = os.environ.get("TASKD_RESUME", "")
        self._restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        port = os.environ.get("MASTER_PORT", "0")
        # The same on all ranks, and another one at each start of the job.
        self._run = f"{os.environ.get('TASKD_JOB', 'job')}-{port}-{self._restarts}"

    def want(self, root: str | os.PathLike[str], every: int, keep: int) -> None:
        """Remember what the script asked for; what cannot work is an error here and now."""
        for name, value in (("every", every), ("keep", keep)):
            if type(value) is not int:
                raise TypeError(f"{name} must be a whole number, not {value!r}")
            if value < 1:
                raise ValueError(f"{name} must be 1 or more, not {value}")
        self._root = os.fspath(prepare(root))
        self._every, self._keep = every, keep

    def resume(self, objects: Mapping[str, Any], layout: tuple[str, ...]) -> Resumed | None:
        """Load the newest checkpoint that all ranks can read; None to begin anew. All ranks call it."""
        if not layout:
            return None
        best: Offer | None = None
        for root in self._sources():
            offer = agree(root, Layout(layout), self._rank, self._gather)
            if offer is None:
                if root == self._resume_dir:
                    raise CheckpointError(f"there is no checkpoint in {root}; check --resume")
            elif best is None or offer.step > best.step:
                if best is not None:
                    best.close()
                best = offer
            else:
                offer.close()
        if best is None:
            return None
        try:
            state = best.load(objects)
        finally:
            best.close()
        if self._rank == 0:
            log.warning("taskd: going on after step %d, from %s", best.step - 1, best.path)
        return Resumed(best.step, state.own, state.told)

    def begin(self, layout: tuple[str, ...], generation: int) -> None:
        """Write checkpoints from now on, if they are wanted."""
        if not self._root or not layout:
            return
        if self._checkpointer is None:
            self._checkpointer = Checkpointer(
                self._root,
                every=self._every,
                keep=self._keep,
                rank=self._rank,
                layout=Layout(layout),
                run=self._run,
                generation=generation,
            )
        else:
            self._checkpointer.renew(generation)

    def due(self, step: int) -> bool:
        """Tell whether a checkpoint belongs after so many steps."""
        return self._checkpointer is not None and self._checkpointer.due(step)

    def take(self, step: int, objects: Mapping[str, Any], own: bytes, position: int) -> None:
        """Write one in the background."""
        if self._checkpointer is not None:
            self._checkpointer.take(step, objects, RankState(own, position))

    def finish(self) -> None:
        """Wait for the last write: the loop is over."""
        if self._checkpointer is not None:
            self._checkpointer.close()

    def answer(
        self,
        save: Save,
        objects: Mapping[str, Any],
        layout: tuple[str, ...],
        keeping: Keeping,
        position: int,
    ) -> Saved:
        """Write this rank's parts of a dump, and say whether that went well."""
        try:
            where = self._dump(save, objects, layout, keeping, position)
        except Exception as error:
            log.exception("taskd: rank %d could not write its state", self._rank)
            return Saved(save.generation, self._rank, ok=False, detail=f"{type(error).__name__}: {error}")
        return Saved(save.generation, self._rank, ok=True, detail=where)

    def _dump(
        self,
        save: Save,
        objects: Mapping[str, Any],
        layout: tuple[str, ...],
        keeping: Keeping,
        position: int,
    ) -> str:
        """Write this rank's parts of a dump, and those of absent ranks that fall to it; returns where."""
        root = self._root or self._dump_dir
        if not root:
            raise CheckpointError("there is no directory to write to; give --dump-dir")
        full = layout or ("",) * self._world
        owns = keeping.owns(save.target)
        ranks: dict[int, RankState] = {}
        for rank in (self._rank, *save.absent):
            if rank != self._rank and self._writer_for(rank, save) != self._rank:
                continue
            own, left = owns.get(rank), slots_of(rank, os.environ.get("TASKD_SHM_DIR", ""))
            if own is None and rank != self._rank:
                entries = [entry for slot in left for entry in read_entries(slot)]
                own = find_own(entries, save.target)
            told = max(map(read_told, left))
            ranks[rank] = RankState(own.payload if own else b"", position, told=told)
        publish = self._rank == _first_writer(save)
        path = dump(
            root,
            step=save.target,
            layout=Layout(full),
            run=self._run,
            generation=save.generation,
            shards=self._shards(save, objects, full, keeping),
            ranks=ranks,
            publish=publish,
        )
        return path or ""

    def _shards(
        self, save: Save, objects: Mapping[str, Any], layout: tuple[str, ...], keeping: Keeping
    ) -> Iterator[tuple[str, Capture]]:
        """Give the parts that this rank writes, one after the other: memory may not hold two."""
        if self._rank in save.writers:
            yield layout[self._rank], capture_objects(objects)
        for writer, owner in save.copies:
            if writer == self._rank:
                yield layout[owner], Capture(keeping.read_copy(owner, save.target, objects))

    def _writer_for(self, absent: int, save: Save) -> int:
        """Return who writes what an absent rank alone had: a neighbour on its node, or its buddy."""
        local_world = int(os.environ.get("LOCAL_WORLD_SIZE", self._world))
        there = [rank for rank in range(self._world) if rank not in save.absent]
        near = [rank for rank in there if rank // local_world == absent // local_world]
        buddy = (absent + local_world) % self._world
        return min(near) if near else buddy if buddy in there else _first_writer(save)

    def _sources(self) -> list[str]:
        after_a_dump = self._dump_dir if self._restarts and Path(self._dump_dir).is_dir() else ""
        return list(dict.fromkeys(each for each in (self._root, self._resume_dir, after_a_dump) if each))

    def _gather(self, steps: list[int]) -> dict[int, list[int]]:
        """Show all ranks which steps can be read here."""
        row = [len(steps[:MOST_STEPS]), *steps[:MOST_STEPS], *[0] * (MOST_STEPS - len(steps))]
        rows = gather_numbers(row, self._world)
        return {rank: values[1 : 1 + values[0]] for rank, values in enumerate(rows)}


def _first_writer(save: Save) -> int:
    return min((*save.writers, *(writer for writer, _ in save.copies)))
