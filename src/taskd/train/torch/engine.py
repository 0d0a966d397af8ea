"""Recovery from memory inside a PyTorch training process.

The rules, and where they are kept:

* A step changes nothing before every rank holds its whole reduced gradient: the *vote*, just before the
  registered optimizer updates. After it the update needs nobody else, and the step counts.
* A script with several optimizers, or with collectives after the update, needs others once more. There the
  vote is at the end of the step, and until then there is a way back (``undo``).
* When a generation is raised over this process, the watch cuts the sockets of the old group, whatever the
  training thread waits for fails, and the thread comes here. It leaves the group, says where it stands
  (``meeting``), and goes on as the answer says: it repeats the interrupted step, or applies what it holds.
* Replaced ranks get the state at the top of the step that all have agreed on (``restoring``), from a replica
  whose tensors agree with the others', or from a snapshot; what was theirs alone (``own``) comes from the
  slot that the dead process kept in shared memory, or from a buddy on another node (``keeping``).
* Every phase may be interrupted by a further fault: then all of it begins again with the later generation.
* A script that has ended stays until all others have (``_stay``): whoever fails in the end has a source.
"""

import atexit
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from taskd.core.messages import Regroup, Save, Standing, Through
from taskd.core.troubles import TroubleKind
from taskd.train.torch.damage import damage
from taskd.train.torch.exits import ExitNote, end_here
from taskd.train.torch.feed import Feed
from taskd.train.torch.fence import SocketFence, count_collectives
from taskd.train.torch.fingerprints import fingerprint
from taskd.train.torch.groups import Groups
from taskd.train.torch.keeping import Keeping
from taskd.train.torch.meeting import RAISE_LIMIT_S, STAND_LIMIT_S, Meeting, Wrap
from taskd.train.torch.members import modules_in
from taskd.train.torch.notes import open_notes
from taskd.train.torch.own import OwnState
from taskd.train.torch.promises import LoopBody, find_broken_promises
from taskd.train.torch.resetting import refuse_unkept
from taskd.train.torch.restoring import (
    AT_START,
    Me,
    NoSource,
    Received,
    exchange,
    gather_numbers,
    part_number,
)
from taskd.train.torch.saver import Saver
from taskd.train.torch.sharding import shard_key
from taskd.train.torch.tails import Tail
from taskd.train.torch.troubles import Replay, describe_trouble
from taskd.train.torch.voting import Votes
from taskd.train.torch.wayback import WayBack
from taskd.train.torch.wrapping import Handle
from taskd.train.torch.zero import ShardedOptimizer
from taskd.train.watchdog import turn_watchdogs_off
from taskd.worker.client import Worker
from taskd.worker.watch import Watch

BROKEN_GROUP_S = 0.04  # a death is reported a few milliseconds after it breaks connections
GROUP_LIMIT_S = 1800.0
DISMISSAL_S, UNHEARD_S = 3600.0, 20.0
EARLY_S = 10.0

log = logging.getLogger("taskd")


class Engine:
    """One rank's side of recovery."""

    def __init__(self, worker: Worker, rank: int, world_size: int) -> None:
        """Prepare; nothing happens before the script wraps, registers or steps."""
        turn_watchdogs_off(os.environ)
        self._worker = worker
        self._rank = rank
        self._world = world_size
        self._birth = worker.generation
        self._fence = SocketFence()
        self._watch = Watch(worker, rank, self._on_raise)
        self._newcomer = os.environ.get("TASKD_NEWCOMER") == "1"
        slot = os.environ["TASKD_SLOT"]
        shm_dir = os.environ.get("TASKD_SHM_DIR", "")
        before = os.environ.get("TASKD_SLOT_BEFORE", "")
        self._notes = open_notes(worker, slot, rank, world_size)
        self._keeping = Keeping(
            rank, world_size, slot, shm_dir, self._notes, newcomer=self._newcomer, slot_before=before
        )
        self.groups = Groups(self._fence, lambda: worker.generation, self._notes, alone=self._newcomer)
        self._meeting = Meeting(worker, self._watch, self._fence, self.groups, rank)
        self._objects: dict[str, Any] = {}
        self._own = OwnState()
        self._tail, self._votes = Tail(self._own), Votes(rank, world_size, shm_dir)
        self._way = WayBack()
        self._began: dict[int, bytes] = {}
        self.saver = Saver(rank, world_size)
        self._feed = Feed(None)
        self._arrival: tuple[int, bytes] | None = None  # where to go on, and the own state there
        # What this process is: does it have a group, a place in the loop, a state, and which part of it?
        self._entered = False
        self._arrived = not self._newcomer
        self._has_state = not self._newcomer
        self._resumed = False
        self._part = 0
        self._layout: tuple[str, ...] = ()
        self._pending: Regroup | Save | None = None
        self._print: tuple[int, int] | None = None
        # Where it is: steps that count, steps that the script was told of, and the attempt under way.
        self._step = self._told = self._kept = self._start = 0
        self._attempted = -1
        self._updates = self._calls_before = self._calls_after = 0
        self._voted = self._careful = self._moving = False
        self._until = self._end = -1
        self._through = self._early = False
        self._exit, self._body = ExitNote(), LoopBody(rank)
        self._outside: int | None = None  # how many collectives there had been when the script took over
        self.replaying = False
        self._watch.is_outside = lambda: self._outside == self.groups.calls
        self._watch.on_linger = self.groups.let_go
        self._watch.on_look = self.groups.end_overdue
        worker.damage = lambda: damage(self._objects)
        worker.break_network = lambda: self._fence.sever(worker.generation)
        worker.count_collectives = count_collectives

    # --- what the script calls ---------------------------------------------------------------------------

    def enter(self) -> None:
        """Be a member of the process group: of the first one, or alone in one until the loop begins."""
        if self._entered:
            return
        self._entered = True
        atexit.register(self._stay)
        self._exit.begin()
        if self._arrived:
            self._watch.start()
        if not dist.is_initialized():
            # It is made by ``groups``, as it is when the script calls this itself.
            dist.init_process_group("gloo", timeout=timedelta(seconds=GROUP_LIMIT_S))

    def wrap(self, builder: Callable[[], torch.nn.Module]) -> Handle:
        """Build a wrapper now, and again whenever the group changes and it holds a DDP."""
        self.enter()
        wrap = Wrap(builder, Handle())
        self._meeting.wraps.append(wrap)
        if self._arrived:
            self._retry_if_raised(lambda: wrap.build(sync=True))
        else:
            self._notes.lenient = True
            wrap.build(sync=True)
            self._notes.lenient = False
        return wrap.handle

    def register(self, objects: dict[str, Any]) -> None:
        """Keep these objects' state; an optimizer votes before it changes anything."""
        for name, thing in objects.items():
            if not hasattr(thing, "state_dict") or not hasattr(thing, "load_state_dict"):
                raise TypeError(f"{name} has no state_dict and load_state_dict, so its state cannot be kept")
            refuse_unkept(thing)
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
        # All may have to go one step back, into the loop before.
        self._feed, self._start = Feed(data, self._feed.kept_before(start)), start
        self._began = {step: own for step, own in self._began.items() if step < start}
        # A replacement, or a run that goes on, passes through the loops that are behind it.
        passes = self._newcomer or self._resumed
        self._step = max(self._step, start) if passes else start
        self._told = max(self._told, self._step)
        self._until, self._outside = until, None
        self._take_up()
        self._meet()
        if self._has_state:
            self._worker.ready()
        self._kept = self._step
        while True:
            if self._newcomer and isinstance(self._pending, Regroup) and self._pending.target > until:
                self._outside = self.groups.calls
                return  # the others are in a later loop, and wait for this rank there
            if self._pending is not None and not self._settle():
                continue
            self._keep()
            if self._step >= until or self._step == self._end:
                self._leave_loop()
                return
            if self._moving:
                self._move()
                continue
            step = self._step
            result, counts = self._attempt(function, step)
            if counts and step >= self._told:
                self._watch.confirm_place()
                self._told = step + 1
                self._keeping.tell(self._told)
                self._outside = self.groups.calls
                try:
                    yield step, result
                except GeneratorExit:  # the script leaves its loop before the end, or an error does
                    self._early = True
                    self._leave_loop()
                    raise
                self._body.came_back(self._outside, self.groups.calls, step)
                self._outside = None

    def _leave_loop(self) -> None:
        """Keep what a rank that dies from here on would need."""
        self._until = self._step
        self._keep()
        self.saver.finish()
        self._keeping.keep_last()
        self.groups.remember()
        self._outside = self.groups.calls

    def _stay(self) -> None:
        """The interpreter is about to end: stay until all ranks come here, and help those who do not.

        Who has left its loop early stays for a moment only: if the others have not, they wait for it.
        """
        ended = self._entered and self._arrived and self._until == self._step
        if not ended or self._exit.failed or self._world == 1 or self._worker.ended:
            return  # the script failed, or left in the middle: that is for others to answer
        sys.stdout.flush()
        sys.stderr.flush()
        self._through = True
        while True:
            through = Through(self._worker.generation, self._rank, self._step - 1)
            if self._watch.take_leave(through, UNHEARD_S, EARLY_S if self._early else DISMISSAL_S):
                return
            log.info("taskd: the script has ended, and another rank needs its state")
            self.groups.revive()
            self._come_together(complete=False)
            while self._pending is not None and not self._settle():
                pass
            if self._step < self._until:
                log.error("taskd: the last step is lost, and the script that made it has ended")
                os._exit(1)

    # --- one step ----------------------------------------------------------------------------------------

    def _attempt(self, function: Callable[..., Any], step: int) -> tuple[Any, bool]:
        """Try a step; says whether it counts now. If not, it comes again or was overtaken."""
        self._voted, self._updates, self._attempted = False, 0, step
        self._careful |= self._tail.matters
        started = time.monotonic()
        modules = modules_in(self._objects)
        batch, before = self._begin(step, modules)
        self._way.begin(self._objects, modules, self._meeting.handles)
        self._keeping.begin()
        try:
            self._worker.begin(step)
            result = function(step, batch) if self._feed.present else function(step)
            self._finish(step)
        except Replay:
            pass
        except Exception as error:
            if not self._another_try(error, step):
                raise
            log.info("taskd: step %d was interrupted: %s", step, error)
            if not isinstance(self._pending, Save):
                self._take_back(step)
                self._come_together(complete=False)
        else:
            self._watch.pace_s = max(0.9 * self._watch.pace_s, time.monotonic() - started)
            self.replaying = False
            self._way.end(whole=True)
            return result, True
        if self._step > step:
            # The update had been made; only what the step did after it was lost, and so was its result.
            log.warning("taskd: step %d counts, but its result was lost with the old group", step)
            self.replaying = False
            self._way.end(whole=False)
            return None, True
        self._way.repeat(self._objects)
        self._own.restore(self._objects, before)
        self.replaying = True
        return None, False

    def _begin(self, step: int, modules: list[torch.nn.Module]) -> tuple[Any, bytes]:
        """Return the batch of a step, and the rank's own state with which it begins, also when repeated.

        Drawing a batch may draw random numbers. A replacement draws it again, so what is kept for it is the
        state before that; who repeats a step has its batch, and needs the state after it.
        """
        if step not in self._began:
            fresh = self._own.capture(self._objects, self._feed.place(), modules)
            self._keeping.note(step, AT_START, fresh)
            self._tail.begin(fresh)
            batch = self._feed.batch(step)
            drawn = self._feed.present
            self._began[step] = self._own.capture(self._objects, b"", modules) if drawn else fresh
            for old in [each for each in self._began if each < step - 1]:
                del self._began[old]
            return batch, self._began[step]
        return self._feed.batch(step), self._began[step]

    def _finish(self, step: int) -> None:
        """The step's function has returned: count the step, after a vote if there was none yet."""
        if self._step > step:
            # Seen once is enough: from here on this rank has its vote at the end of a step. A rank that does
            # nothing after its update may keep voting before it until the next agreement: a vote is a vote.
            self._tail.end(self._objects, step)
            self._careful |= self.groups.calls != self._calls_after or self._updates > 1
            return
        self._vote(step)
        self._commit(step)

    def _keep(self) -> None:
        """Begin to copy what was committed, after the body of the loop: a schedule may be turned there."""
        if self._kept == self._step:
            return
        self._kept = self._step
        self._keeping.committed(self._step, self._objects)
        if self.saver.due(self._step):
            own = self._own.capture(self._objects, self._feed.place())
            self.saver.take(self._step, self._objects, own, self._step - self._start)

    def _another_try(self, error: Exception, step: int) -> bool:
        """Tell whether the step is to be tried again: a fault elsewhere explains the error, or it may pass.

        An error after the update is the script's own: the step counts, and trying it again is not possible.
        """
        if isinstance(self._pending, Save):
            return True  # there is no group any more, and no need for one
        generation = self._worker.generation
        trouble = describe_trouble(error, generation, self._rank, step)
        if trouble.kind == TroubleKind.UCE:
            # What is in memory is not to be believed; only what was kept outside of it is this rank's own.
            self._has_state = False
            self._keeping.distrust(step)
        broken = BROKEN_GROUP_S if trouble.kind == TroubleKind.NETWORK else 0.0
        if self._watch.wait_raised(generation, broken):
            return True
        if self._step > step and self._has_state:
            return False
        return self._watch.ask_again(trouble, RAISE_LIMIT_S)

    def _before_update(self, optimizer: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Vote before anything is changed, or keep a way back where the vote is at the end of the step."""
        step = self._step
        if not self._entered or self._attempted != step:
            return
        # One that is given a closure computes its gradients, and changes parameters between them.
        self._careful |= kwargs.get("closure", args[1] if len(args) > 1 else None) is not None
        if not self._updates:
            self._way.before_update(self._objects, careful=self._careful)
        if self._careful:
            return
        if isinstance(optimizer, ShardedOptimizer):
            optimizer.prepare()  # all that it needs from others; nothing is changed by it
        self._vote(step)
        self._calls_before = self.groups.calls

    def _after_update(self, *_: object) -> None:
        """Count the step: its update is made, and nobody else is needed."""
        if self._attempted == self._step and not self._careful:
            self._commit(self._step)
            self._calls_after = self.groups.calls
            # One that talks to the others in the midst of its update (Muon's do) needs a way back as well.
            self._careful |= self._calls_before != self._calls_after
        self._updates += 1

    def _vote(self, step: int) -> None:
        """Go on only if all ranks have come as far as this one."""
        own = self._own.capture(self._objects, self._feed.place())
        try:
            self._keeping.before_vote(step, own)
            self._worker.voted(step)
            moves = self._watch.is_told_to_move(self._worker.generation)
            sums = self._votes.add_up(step, self._tail.ballot(moves=moves))
        except Exception as error:
            if not self._another_try(error, step):
                raise
            log.info("taskd: the vote of step %d was interrupted: %s", step, error)
            if self._come_together(complete=True).target <= step:
                self._take_back(step)
                raise Replay from error
        else:
            # Whoever was told that ranks are to be moved tells all others, so that all stop at the same step.
            self._moving = self._tail.count(sums, self._world)
        self._voted = True
        self._tail.voted(own)

    def _commit(self, step: int) -> None:
        self._step = step + 1
        self._way.commit()
        self._worker.done(step)

    def _take_back(self, step: int) -> None:
        """Bring the state back to the beginning of a step that was interrupted within its updates."""
        if self._step > step:
            return
        for thing in self._objects.values():
            if isinstance(thing, ShardedOptimizer):
                thing.discard()
        if not self._way.take_back(self._objects) and self._voted:
            # An update that failed halfway: what it left is of no use, a replica has better.
            self._has_state = False

    # --- coming together ---------------------------------------------------------------------------------

    def _on_raise(self, generation: int) -> None:
        self._fence.cut(generation - 1)
        self._votes.interrupt(generation)
        self.groups.interrupt(generation)

    def _arrive(self) -> None:
        """The script comes to its loop. A replacement, alone so far, joins the others here."""
        self.groups.set_up()
        if self._arrived:
            return
        self._watch.start()
        self._come_together(complete=False)
        self._arrived = True

    def _move(self) -> None:
        """Some ranks get other processes: come together at the top of a step, with nothing to take back."""
        self._moving = False
        if not self._watch.wait_raised(self._worker.generation, STAND_LIMIT_S):
            raise TimeoutError(
                f"others were told to come together, this rank was not for {STAND_LIMIT_S:g} s"
            )
        try:
            self._keeping.hand_over(self._step)
        except Exception as error:  # noqa: BLE001 - a peer is gone; all go the usual way
            log.info("taskd: the move before step %d was interrupted: %s", self._step, error)
            self._come_together(complete=False)
            return
        parting = self._own.capture(self._objects, self._feed.place())
        answer = self._come_together(complete=False, parting=parting)
        # The old process of a rank that was moved has no new group; the new one has.
        old = self._worker.generation < answer.generation
        if isinstance(answer, Regroup) and self._rank in answer.parted and old:
            self.saver.finish()  # what this one still writes is finished; its script is not
            log.info("taskd: rank %d goes on in another process; this one ends", self._rank)
            end_here()

    def _come_together(self, *, complete: bool, parting: bytes = b"") -> Regroup | Save:
        self._moving = False

        def describe(generation: int, store: str) -> Standing:
            leaving = bool(parting) and self._watch.is_leaving(generation)
            return Standing(
                generation,
                self._rank,
                self._has_state,
                self._step,
                complete and self._has_state,
                store,
                self._layout,
                self._keeping.copies(),
                os.getpid(),
                self._birth,
                leaving,
                parting if leaving else b"",
                self._through,
                0 if self._has_state else max(self._told, self._keeping.told),
                self._keeping.beside(),
            )

        def meanwhile() -> None:
            if self._has_state and not self._watch.is_leaving(self._watch.raised[0]):
                self._print = (self._step, fingerprint(self._objects))

        self._print = None
        objects = list(self._objects.values())
        with self._way.as_begun():
            self._pending = self._meeting.come_together(
                describe, objects, meanwhile, fresh=not self._arrived, gentle=bool(parting)
            )
        if isinstance(self._pending, Regroup) and self._pending.shards and not self._has_state:
            # Its predecessor's: what a fresh process holds says less, where parts are told by their contents.
            self._part = int(self._pending.shards[self._rank], 16)
        return self._pending

    def _retry_if_raised(self, work: Callable[[], None]) -> None:
        """Do something collective; if a generation is raised meanwhile, come together (which does it too)."""
        try:
            work()
        except Exception:
            if not self._watch.wait_raised(self._worker.generation, RAISE_LIMIT_S):
                raise
            self._come_together(complete=False)

    def _meet(self) -> None:
        """Learn, once, which part of the state each rank has, and go on where an earlier run ended."""
        if self._part:
            return
        self._part = part_number(shard_key(self._objects, self._meeting.handles))
        for broken in find_broken_promises(self._objects, self._meeting.handles) if self._rank == 0 else ():
            log.warning("taskd: %s", broken)
        optimizers = sum(isinstance(thing, torch.optim.Optimizer) for thing in self._objects.values())
        self._careful = optimizers > 1
        if self._pending is None:
            self._retry_if_raised(self._get_acquainted)
        if self._has_state and self._pending is None:
            self._resume()

    def _get_acquainted(self) -> None:
        """Agree with all ranks on what each has and how steps count."""
        offer = self._votes.offer(self._worker.generation)
        mine = [self._part, int(self._careful), int(self._way.early), offer]
        parts, careful, early, offers = zip(*gather_numbers(mine, self._world), strict=True)
        self._layout = tuple(f"{part:x}" for part in parts)
        self._careful, self._way.early = any(careful), any(early)
        self._votes.agree(offers, self.groups.limit_s)
        self._tail.forget()
        own = self._own.capture(self._objects, self._feed.place())
        self._keeping.agree(self._layout, len(own), self._step, self._objects)
        self.saver.begin(self._layout, self._worker.generation)

    def _resume(self) -> None:
        resumed = self.saver.resume(self._objects, self._layout)
        if resumed is None:
            return
        self._resumed = True
        self._step, self._told = max(resumed.step, self._step), max(resumed.told, resumed.step, self._step)
        self._arrival = self._step, resumed.own
        self._take_up()
        self._keeping.committed(self._step, self._objects)

    def _take_up(self) -> None:
        """Put the data and the rank's own state to where this process goes on, if that is in this loop."""
        if self._arrival is None or self._arrival[0] > self._until:
            return
        (step, own), self._arrival = self._arrival, None
        self._feed.go_to(self._own.place_in(own) if own else b"", step, self._start)
        if own:
            self._own.restore(self._objects, own)

    # --- at the top of the agreed step -------------------------------------------------------------------

    def _settle(self) -> bool:
        """Do what was agreed on: move state to those who need it, or write it down. False: agreed anew."""
        pending = self._pending
        if isinstance(pending, Save):
            self._dump(pending)
            return False
        if pending is None or (self._rank not in pending.receivers and self._step != pending.target):
            return True
        start = self._start if self._has_state else -1
        known = self._print[1] if self._print and self._print[0] == self._step else None
        me = Me(self._rank, self._world, self._part, start, known)
        try:
            received = None
            if pending.receivers:
                received = exchange(me, pending, self._keeping, self._objects, self._worker.note)
            if received is not None:
                self._take_place(pending, received)
            self._get_acquainted()
        except Exception as error:
            lost = isinstance(error, NoSource) and self._another_try(error, pending.target)
            if not lost and not self._watch.wait_raised(self._worker.generation, RAISE_LIMIT_S):
                raise
            self._come_together(complete=False)
            return False
        self._pending, self._kept = None, self._step
        self._keeping.clear_before()
        self._worker.ready()
        return True

    def _take_place(self, regroup: Regroup, received: Received) -> None:
        """Be the rank at the agreed step: its number, its random numbers, its place in the data."""
        target, own = regroup.target, received.own
        if self._newcomer and not self._has_state:
            # Where the run began: a newcomer may have found a later checkpoint than the others did.
            self._start = received.begun if received.begun >= 0 else self._start
            self._feed.go_to(self._own.place_in(own.payload) if own else b"", target, self._start)
            self._told = self._keeping.told_before(regroup.top)
            begun = own is not None and (own.kind == AT_START or self._rank in regroup.partings)
            if own is not None and begun and target == self._until:
                # The process before was in the next loop: what comes between the two has been already.
                self._arrival = target, own.payload
        self._newcomer = False
        self._step = target
        self._end = target if regroup.over else -1
        self._has_state = True
        self._keeping.settled_in()
        if target in self._began:
            self._own.restore(self._objects, self._began[target])
        elif own is not None:
            self._own.restore(self._objects, own.payload, received.like)

    def _dump(self, save: Save) -> None:
        """Write this rank's part, say so, and wait for the end or for another way on."""
        saved = self.saver.answer(save, self._objects, self._layout, self._keeping, save.target - self._start)
        self._watch.repeat(saved, DISMISSAL_S)
        self._come_together(complete=False)
