"""Recovery from memory inside a PyTorch training process.

The rules, and where they are kept:

* A step changes nothing before every rank holds its whole reduced gradient: the *vote*, just before the first
  registered optimizer updates. After it the update needs nobody else.
* When a generation is raised over this process, the watch cuts the sockets of the old group, whatever the
  training thread waits for fails, and the thread comes here. It leaves the group, says where it stands, and
  goes on as the answer says: it repeats the interrupted step, or applies the gradient that it holds.
* Replaced ranks get the state at the top of the step that all have agreed on, from a replica whose tensors
  agree with the others', or from a snapshot; what was theirs alone (``own``) comes from the slot that the
  dead process kept in shared memory, or from a buddy on another node.
* Every phase may be interrupted by a further fault: then all of it begins again with the later generation.
"""

import logging
import os
import socket
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from taskd.core.messages import Regroup, Standing, Trouble
from taskd.core.regroup import Kind, Offer, Transfer, plan_transfers
from taskd.train.torch.exchange import receive_state, send_state
from taskd.train.torch.feed import Feed
from taskd.train.torch.fence import SocketFence
from taskd.train.torch.fingerprints import fingerprint
from taskd.train.torch.groups import Groups
from taskd.train.torch.keeping import Keeping
from taskd.train.torch.own import OwnState
from taskd.train.torch.resetting import refuse_classic, reset_modules
from taskd.train.torch.restoring import (
    AT_START,
    NoSource,
    Own,
    gather_offers,
    gather_parts,
    part_number,
    receive_own,
    send_own,
)
from taskd.train.torch.setup import SetupNotes
from taskd.train.torch.sharding import shard_key
from taskd.train.torch.wrapping import Handle, building, current, has_ddp
from taskd.worker.client import Worker
from taskd.worker.watch import Superseded, Watch

RAISE_LIMIT_S = 10.0
BROKEN_GROUP_S = 0.1
ERROR_LENGTH = 300
STAND_LIMIT_S = 60.0
GROUP_LIMIT_S = 1800.0

log = logging.getLogger("taskd")


class Replay(Exception):
    """The step must be computed again: not every rank holds its gradient."""


@dataclass(slots=True)
class _Wrap:
    """A builder of the script's, and the handle that stands for what it last built."""

    builder: Callable[[], torch.nn.Module]
    handle: Handle
    standing: bool = False

    def build(self, *, sync: bool) -> None:
        """Build, unless what was built can stay: groups are the same objects as before, only DDP is not."""
        if self.standing:
            return
        with building(sync=sync):
            wrapper = self.builder()
        refuse_classic(wrapper)
        self.handle.set(wrapper)
        self.standing = True

    def leave(self) -> None:
        """Let a wrapper go that may be in the middle of a step and cannot be brought back."""
        if self.standing and has_ddp(current(self.handle)):
            self.handle.clear()
            self.standing = False


class Engine:
    """One rank's side of recovery."""

    def __init__(self, worker: Worker, rank: int, world_size: int) -> None:
        """Prepare; nothing happens before the script wraps, registers or steps."""
        self._worker = worker
        self._rank = rank
        self._world = world_size
        self._fence = SocketFence()
        self._watch = Watch(worker, rank, self._on_raise)
        self._newcomer = os.environ.get("TASKD_NEWCOMER") == "1"
        self._has_state = not self._newcomer
        slot = os.environ["TASKD_SLOT"]
        shm_dir = os.environ.get("TASKD_SHM_DIR", "")
        self._keeping = Keeping(rank, world_size, slot, shm_dir, newcomer=self._newcomer)
        self._notes = SetupNotes(f"{slot}.setup")
        self.groups = Groups(self._fence, lambda: self._worker.generation, self._notes, alone=self._newcomer)
        self._arrived = not self._newcomer
        self._objects: dict[str, Any] = {}
        self._wraps: list[_Wrap] = []
        self._own = OwnState()
        self._ballot = torch.ones(1)
        self._server: Any = None
        self._entered = False
        self._pending: Regroup | None = None
        self._step = 0
        self._told = 0
        self._part = 0
        self._feed = Feed(None)
        self._layout: tuple[str, ...] = ()
        self._undo: dict[str, Any] | None = None
        self._voted = False
        self._updated = 0
        self._attempted = -1
        self.replaying = False

    # --- what the script calls ---------------------------------------------------------------------------

    def enter(self) -> None:
        """Be a member of the process group: of the first one, or alone in one until the loop begins."""
        if self._entered:
            return
        self._entered = True
        if self._arrived:
            self._watch.start()
        if not dist.is_initialized():
            # It is made by ``groups``, as it is when the script calls this itself.
            dist.init_process_group("gloo", timeout=timedelta(seconds=GROUP_LIMIT_S))

    def wrap(self, builder: Callable[[], torch.nn.Module]) -> Handle:
        """Build a wrapper now, and again whenever the group changes and it holds a DDP."""
        self.enter()
        wrap = _Wrap(builder, Handle())
        self._wraps.append(wrap)
        if self._arrived:
            self._retry_if_raised(lambda: wrap.build(sync=True))
        else:
            self._notes.lenient = True
            wrap.build(sync=True)
            self._notes.lenient = False
        return wrap.handle

    def _arrive(self) -> None:
        """The script comes to its loop. A replacement, alone so far, joins the others here."""
        self.groups.set_up()
        if self._arrived:
            return
        self._watch.start()
        self._come_together(complete=False)
        self._arrived = True

    def register(self, objects: dict[str, Any]) -> None:
        """Keep these objects' state; an optimizer votes before it changes anything."""
        for name, thing in objects.items():
            if not hasattr(thing, "state_dict") or not hasattr(thing, "load_state_dict"):
                raise TypeError(f"{name} has no state_dict and load_state_dict, so its state cannot be kept")
            refuse_classic(thing)
            self._objects[name] = thing
            if isinstance(thing, torch.optim.Optimizer):
                thing.register_step_pre_hook(self._before_update)
                thing.register_step_post_hook(self._after_update)

    def steps(
        self, function: Callable[..., Any], until: int, data: Iterable[Any] | None, start: int
    ) -> Iterator[tuple[int, Any]]:
        """Run the steps and yield each that counts, once."""
        self.enter()
        self._arrive()
        feed = Feed(data)
        # A replacement passes through the loops that its predecessor had behind it.
        self._step = max(self._step, start) if self._newcomer else start
        self._told = max(self._told, self._step)
        self._meet()
        if self._has_state:
            self._worker.ready()
        while True:
            if self._pending is not None and not self._restore(feed, start):
                continue
            if self._step >= until:
                return
            step = self._step
            result, counts = self._attempt(function, step, feed)
            if counts and step >= self._told:
                self._told = step + 1
                yield step, result

    # --- one step ----------------------------------------------------------------------------------------

    def _attempt(self, function: Callable[..., Any], step: int, feed: Feed) -> tuple[Any, bool]:
        """Try a step; says whether it counts now. If not, it comes again or was overtaken."""
        self._voted, self._updated, self._attempted = False, 0, step
        batch = feed.batch(step) if feed.present else None
        started = time.monotonic()
        before = self._own.capture(self._objects, feed.place_before(step))
        self._feed = feed
        self._keeping.note(step, AT_START, before)
        self._undo = None
        try:
            self._worker.begin(step)
            result = function(step, batch) if feed.present else function(step)
        except Replay:
            pass
        except Exception as error:
            if not self._another_try(error, step):
                raise
            log.info("taskd: step %d was interrupted: %s", step, error)
            self._take_back(step)
            self._come_together(complete=False)
        else:
            if self._step == step:
                self._commit(step)
            self._watch.pace_s = max(0.9 * self._watch.pace_s, time.monotonic() - started)
            self.replaying = False
            return result, True
        if self._step > step:
            # The update had been made; only what the step did after it was lost, and so was its result.
            log.warning("taskd: step %d counts, but its result was lost with the old group", step)
            self.replaying = False
            return None, True
        self._own.restore(self._objects, before)
        self.replaying = True
        return None, False

    def _another_try(self, error: Exception, step: int) -> bool:
        """Tell whether the step is to be tried again: a fault elsewhere explains the error, or it may pass.

        An error after the update is the script's own: the step counts, and trying it again is not possible.
        """
        generation = self._worker.generation
        if self._watch.wait_raised(generation, _patience(error)):
            return True
        if self._step > step:
            return False
        frames = traceback.extract_tb(error.__traceback__)
        place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
        what = f"{type(error).__name__}: {error}"[:ERROR_LENGTH]
        return self._watch.ask_again(Trouble(generation, self._rank, step, what, place), RAISE_LIMIT_S)

    def _before_update(self, *_: object) -> None:
        """Vote: no optimizer changes anything before every rank holds its whole gradient.

        With several optimizers each has its vote, and a step that does not get to the last one is taken back:
        what the next one computes may need the others again.
        """
        step = self._step
        if not self._entered or self._attempted != step:
            return
        own = self._own.capture(self._objects, self._feed.place())
        last = self._updated == self._optimizers - 1
        if not self._updated and self._optimizers > 1:
            self._undo = {name: deepcopy(thing.state_dict()) for name, thing in self._objects.items()}
        try:
            self._keeping.before_vote(step, own)
            if last:
                self._worker.voted(step)
            dist.all_reduce(self._ballot)
        except Exception as error:
            if not self._another_try(error, step):
                raise
            log.info("taskd: the vote of step %d was interrupted: %s", step, error)
            if not last:
                self._take_back(step)
            if self._come_together(complete=last).target == step:
                raise Replay from error
        self._voted = True

    def _after_update(self, *_: object) -> None:
        """Count the step when the last registered optimizer is done."""
        self._updated += 1
        if self._updated == self._optimizers and self._attempted == self._step:
            self._commit(self._step)

    @property
    def _optimizers(self) -> int:
        return sum(isinstance(thing, torch.optim.Optimizer) for thing in self._objects.values())

    def _take_back(self, step: int) -> None:
        """Bring the state back to the beginning of a step that was interrupted within its updates."""
        if self._step > step or not self._voted:
            return
        self._voted = False
        if self._undo is None:
            # An update that failed halfway: what it left is of no use, a replica has better.
            self._has_state = False
            return
        for name, state in self._undo.items():
            self._objects[name].load_state_dict(state)
        self._undo = None

    def _commit(self, step: int) -> None:
        self._step = step + 1
        self._undo = None
        self._worker.done(step)
        self._keeping.committed(step + 1, self._objects)

    # --- coming together ---------------------------------------------------------------------------------

    def _on_raise(self, generation: int) -> None:
        self._fence.cut(generation - 1)

    def _come_together(self, *, complete: bool) -> Regroup:
        """Leave the old group and enter that of the latest generation, however often it changes meanwhile."""
        while True:
            generation, leader = self._watch.raised
            self._watch.came_out()
            self._leave()
            store = self._open_store() if leader == self._rank else ""
            standing = Standing(
                generation,
                self._rank,
                self._has_state,
                self._step,
                complete,
                store,
                self._layout,
                self._keeping.copies(),
            )
            try:
                regroup = self._watch.stand(standing, STAND_LIMIT_S)
                self._join(regroup)
            except Superseded:
                continue
            except Exception:
                if not self._watch.wait_raised(generation, RAISE_LIMIT_S):
                    raise
                continue
            self._pending = regroup
            return regroup

    def _leave(self) -> None:
        if self._arrived:
            # What a replacement has built alone has not been used yet.
            for wrap in self._wraps:
                wrap.leave()
        self.groups.leave()
        reset_modules(
            [*(current(wrap.handle) for wrap in self._wraps if wrap.standing), *self._objects.values()]
        )
        self._server = None
        # Now, while the replacements start: building needs nobody else.
        with self.groups.muted():
            for wrap in self._wraps:
                wrap.build(sync=False)

    def _open_store(self) -> str:
        host = os.environ.get("MASTER_ADDR", "127.0.0.1")
        if self._rank != 0:
            host = _own_address(host)
        limit = timedelta(seconds=STAND_LIMIT_S)
        self._server = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=limit)
        return f"{host}:{self._server.port}"

    def _join(self, regroup: Regroup) -> None:
        generation = regroup.generation
        host, _, port = regroup.store.rpartition(":")
        with self._fence.recording(generation):
            # The leader too: a connection that is made here can be cut when a peer never comes.
            limit = timedelta(seconds=STAND_LIMIT_S)
            client = dist.TCPStore(host, int(port), is_master=False, timeout=limit)
        self.groups.together(generation, dist.PrefixStore(f"taskd/{generation}", client))
        self._worker.enter(generation)

    def _retry_if_raised(self, work: Callable[[], None]) -> None:
        """Do something collective; if a generation is raised meanwhile, come together (which does it too)."""
        try:
            work()
        except Exception:
            if not self._watch.wait_raised(self._worker.generation, RAISE_LIMIT_S):
                raise
            self._come_together(complete=False)

    # --- state -------------------------------------------------------------------------------------------

    def _meet(self) -> None:
        """Learn, once, which part of the state each rank has, and prepare to keep a neighbour's."""
        if self._part:
            return
        self._part = part_number(shard_key(self._objects, [wrap.handle for wrap in self._wraps]))
        if self._pending is None:
            self._retry_if_raised(self._get_acquainted)

    def _get_acquainted(self) -> None:
        self._layout = gather_parts(self._part, self._world)
        own = self._own.capture(self._objects, self._feed.place())
        self._keeping.agree(self._layout, len(own), self._step, self._objects)

    def _restore(self, feed: Feed, start: int) -> bool:
        """At the top of the agreed step, give state to those who need it; False if that was interrupted."""
        regroup = self._pending
        if regroup is None or (self._rank not in regroup.receivers and self._step != regroup.target):
            return True
        try:
            if regroup.receivers:
                self._exchange(regroup, feed, start)
            self._get_acquainted()
        except NoSource as error:
            if not self._another_try(error, regroup.target):
                raise
            self._come_together(complete=False)
            return False
        except Exception:
            if not self._watch.wait_raised(self._worker.generation, RAISE_LIMIT_S):
                raise
            self._come_together(complete=False)
            return False
        self._pending = None
        self._worker.ready()
        return True

    def _exchange(self, regroup: Regroup, feed: Feed, start: int) -> None:
        """Show what is here, compute who gives what to whom, and do this rank's part of it."""
        target = regroup.target
        receives = self._rank in regroup.receivers
        owns = self._keeping.owns(target)
        offer = Offer(
            self._rank,
            self._part,
            holds=not receives,
            digest=0 if receives else fingerprint(self._objects),
            needs_own=receives,
            snapshots=self._keeping.whole_copies(target, regroup.receivers),
            own=tuple(rank for rank, own in owns.items() if own is not None),
        )
        offers, begun = gather_offers(offer, start if self._has_state else -1, self._world)
        plan = plan_transfers(offers)
        for note in plan.notes:
            log.warning("taskd: %s", note)
        if plan.orphans:
            raise NoSource(plan.orphans, target)
        own = owns[self._rank]
        received = False
        for move in plan.moves:
            if move.kind is Kind.OWN:
                own = self._move_own(move, owns, own)
            else:
                received |= self._move_state(move, target)
        if received:
            self._take_place(regroup, feed, begun if begun >= 0 else start, own)

    def _move_own(self, move: Transfer, owns: dict[int, Own | None], mine: Own | None) -> Own | None:
        if self._rank == move.source:
            kept = owns[move.owner]
            if kept is not None:
                send_own(kept, move.receiver)
        elif self._rank == move.receiver:
            return receive_own(move.source)
        return mine

    def _move_state(self, move: Transfer, step: int) -> bool:
        """Send or receive a state; True if this rank has received one."""
        gives, gets = self._rank == move.source, self._rank == move.receiver
        if move.kind is Kind.SNAPSHOT:
            if gives and gets:
                self._keeping.load_copy(move.owner, step, self._objects)
            elif gives:
                self._keeping.send_copy(move.owner, step, move.receiver)
            elif gets:
                self._keeping.receive_copy(step, move.source, self._objects)
        elif gives:
            send_state(self._objects, move.receiver)
        elif gets:
            receive_state(self._objects, move.source)
        return gets

    def _take_place(self, regroup: Regroup, feed: Feed, start: int, own: Own | None) -> None:
        """Be the rank at the agreed step: its number, its random numbers, its place in the data."""
        target = regroup.target
        if not self._has_state and self._newcomer:
            # Where the run began: a newcomer may have found a later checkpoint than the others did.
            feed.go_to(self._own.place_in(own.payload) if own else b"", target - start)
            self._told = regroup.top
            if own is not None and own.kind == AT_START and feed.present:
                feed.batch(target)  # drawn before the state was taken, so it must not draw from it again
        self._step = target
        self._has_state = True
        self._keeping.settled_in()
        if own is not None:
            self._own.restore(self._objects, own.payload)


def _patience(error: Exception) -> float:
    """Decide how long an error may be the sign of a fault elsewhere that nobody has told of yet.

    The text of an error never says who is to blame; it only says whether waiting makes sense.
    """
    broken = isinstance(error, dist.DistError) or "gloo" in str(error).lower()
    return BROKEN_GROUP_S if broken else 0.0


def _own_address(towards: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((towards, 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
