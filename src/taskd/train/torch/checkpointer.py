"""Who writes checkpoints: a training loop every so many steps, and a job that has no way on.

The loop must not wait for a disk. At a commit the state is copied in memory; a thread writes the copy, and a
round that comes while one is being written is left out. Whatever goes wrong with a checkpoint, the training
goes on: a full disk is no reason to lose the run.

A dump is the opposite: nothing trains any more, so the state is written from where it is, at once.
"""

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Iterable, Mapping

import torch

from taskd.train.torch.exchange import Stateful
from taskd.train.torch.manifests import Layout, RankState, RoundIncomplete
from taskd.train.torch.rounds import ROUND_LIMIT_S, Round, prepare, prune, sweep
from taskd.train.torch.statefile import Capture

CLOSE_LIMIT_S = ROUND_LIMIT_S + 60.0
GRACE_S = 10.0  # how long parts of an earlier generation may still come
POLL_S = (0.02, 1.0)

log = logging.getLogger("taskd")


def capture_objects(objects: Mapping[str, Stateful]) -> Capture:
    """Make the state of registered objects ready to be written."""
    return Capture({name: thing.state_dict() for name, thing in objects.items()})


def dump(
    root: str | os.PathLike[str],
    *,
    step: int,
    layout: Layout,
    run: str,
    generation: int,
    shards: Iterable[tuple[str, Capture]],
    ranks: Mapping[int, RankState],
    publish: bool,
    limit_s: float = ROUND_LIMIT_S,
) -> str | None:
    """Write this process's parts of a last checkpoint: the shards that fall to it, and some ranks' own state.

    The one that publishes waits for the parts of all others, and returns where the checkpoint is. Who decides
    must see to it that each shard and each rank has a writer; also a rank that died, if it left something.
    """
    home = prepare(root)
    with Round(home, layout, step, run=run, generation=generation, kind="dump") as round_:
        for shard, capture in shards:
            round_.add_shard(shard, capture)
        for rank, state in ranks.items():
            round_.add_rank(rank, state.capture())
        if not publish:
            return None
        round_.wait(limit_s=limit_s)
        path = round_.publish()
    sweep(home, run, generation)
    return os.fspath(path)


class Checkpointer:
    """Writes one rank's part of a checkpoint every so many steps."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        every: int,
        keep: int = 2,
        rank: int,
        layout: Layout,
        run: str,
        generation: int = 0,
        limit_s: float = ROUND_LIMIT_S,
    ) -> None:
        """Check what was asked for: this is where an error is welcome, later ones are only told."""
        for name, value in (("every", every), ("keep", keep)):
            if type(value) is not int:
                raise TypeError(f"{name} must be a whole number, not {value!r}")
            if value < 1:
                raise ValueError(f"{name} must be 1 or more, not {value}")
        self._root = prepare(root)
        self._every = every
        self._keep = keep
        self._rank = rank
        self._layout = layout
        self._run = run
        self._generation = generation
        self._limit_s = limit_s
        self._owner = layout.owner(layout.shards[rank]) == rank
        self._memory: torch.Tensor | None = None
        self._thread: threading.Thread | None = None
        self._round: Round | None = None
        self._given_up = threading.Event()
        self._waiting = threading.Event()
        self._left_out: list[Round] = []
        self._renewed = 0.0
        self._told: set[tuple[object, ...]] = set()
        self.written = -1
        if rank == 0:
            sweep(self._root, run, generation)

    @property
    def busy(self) -> bool:
        """Tell whether a round is under way: on this rank, or on another that this one waits for."""
        return self._thread is not None and self._thread.is_alive()

    def due(self, step: int) -> bool:
        """Tell whether a checkpoint belongs here, after so many steps."""
        return step > 0 and step % self._every == 0

    def renew(self, generation: int) -> None:
        """Take part in a later generation. A round of the old one may still be finished, if all wrote."""
        self._renewed = time.monotonic()
        self._generation = generation

    def take(self, step: int, objects: Mapping[str, Stateful], own: RankState) -> bool:
        """Copy the state as it is after ``step`` steps and write it in the background.

        Returns whether that was begun. Call it on all ranks at the same steps.
        """
        round_ = Round(self._root, self._layout, step, run=self._run, generation=self._generation)
        if not self._make_free(round_):
            return False
        try:
            shard = self._copy(objects) if self._owner else None
            rank = own.capture()
            rank.copy_tensors(None)
        except Exception as error:  # noqa: BLE001 - the training goes on, whatever a state_dict does
            self._tell(step, error)
            shard = rank = None
        self._given_up.clear()
        self._waiting.clear()
        self._round = round_
        self._thread = threading.Thread(
            target=self._write, args=(round_, shard, rank), name="taskd-checkpoint", daemon=True
        )
        self._thread.start()
        return rank is not None

    def close(self, limit_s: float = CLOSE_LIMIT_S) -> None:
        """Finish the last write; call it when the loop is over.

        The first rank sees the checkpoint published; the others go when their own parts are written.
        """
        thread = self._thread
        if thread is not None:
            if self._rank != 0:
                self._waiting.wait(limit_s)
                self._given_up.set()
            thread.join(limit_s)
            if thread.is_alive():
                log.warning("taskd: the last checkpoint was not written within %.0f s", limit_s)
                return
        self._memory = None
        if self._rank == 0:
            sweep(self._root, self._run, self._generation, published=sys.maxsize)

    def _make_free(self, round_: Round) -> bool:
        """See whether a round can begin; says so if not."""
        before = self._round
        if self._thread is None or before is None or not self._thread.is_alive():
            return True
        if before.generation < self._generation and self._waiting.is_set():
            # It waits for parts of a rank that is no more.
            self._given_up.set()
            self._thread.join(1.0)
            if not self._thread.is_alive():
                return True
        log.warning(
            "taskd: no checkpoint at step %d: that of step %d is still being written",
            round_.step,
            before.step,
        )
        self._left_out.append(round_)
        return False

    def _copy(self, objects: Mapping[str, Stateful]) -> Capture:
        capture = capture_objects(objects)
        self._memory = capture.copy_tensors(self._memory)
        return capture

    # --- in the thread -----------------------------------------------------------------------------------

    def _write(self, round_: Round, shard: Capture | None, rank: Capture | None) -> None:
        try:
            with round_:
                try:
                    self._add_parts(round_, shard, rank)
                except Exception:
                    round_.skip(self._rank)
                    raise
                self._waiting.set()
                if self._rank == 0:
                    self._finish(round_)
                else:
                    self._await_end(round_)
        except RoundIncomplete as error:
            log.warning("taskd: no checkpoint at step %d: %s", round_.step, error)
        except Exception as error:  # noqa: BLE001 - the training goes on
            self._tell(round_.step, error)
        finally:
            self._waiting.set()
            self._say_left_out()

    def _add_parts(self, round_: Round, shard: Capture | None, rank: Capture | None) -> None:
        if rank is None:
            round_.skip(self._rank)
            return
        if shard is not None:
            round_.add_shard(self._layout.shards[self._rank], shard)
        round_.add_rank(self._rank, rank)

    def _finish(self, round_: Round) -> None:
        try:
            round_.wait(limit_s=self._limit_s, given_up=lambda: self._is_over(round_))
            path = round_.publish()
        except Exception:
            round_.drop()
            raise
        self.written = round_.step
        log.info("taskd: %s is written", path)
        prune(self._root, round_.step, self._keep)
        sweep(self._root, self._run, round_.generation, published=round_.step)

    def _await_end(self, round_: Round) -> None:
        """Wait until the first rank published or dropped it: until then no rank begins another."""
        waited_s, pause_s = 0.0, POLL_S[0]
        while round_.open and not round_.given_up and not self._is_over(round_) and waited_s < self._limit_s:
            self._given_up.wait(pause_s)
            waited_s += pause_s
            pause_s = min(1.3 * pause_s, POLL_S[1])
            self._say_left_out()

    def _is_over(self, round_: Round) -> bool:
        """Tell whether nothing more can come: nobody waits, or a rank was replaced and did not write."""
        late = round_.generation < self._generation and time.monotonic() - self._renewed > GRACE_S
        return late or self._given_up.is_set()

    def _say_left_out(self) -> None:
        """Tell those who wait for this rank's parts of a round that it left out."""
        while self._left_out:
            with contextlib.suppress(OSError), self._left_out.pop() as round_:
                round_.skip(self._rank)

    def _tell(self, step: int, error: Exception) -> None:
        """Warn, once for each kind of error."""
        kind = (type(error), getattr(error, "errno", None))
        if kind not in self._told:
            self._told.add(kind)
            log.warning(
                "taskd: no checkpoint at step %d, the training goes on without; said once: %s: %s",
                *(step, type(error).__name__, error),
            )
