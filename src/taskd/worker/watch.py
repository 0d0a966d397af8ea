"""The watch of a worker: the one thread that TaskD adds to a training process, and only when it can recover.

The training thread may be stuck in a collective for ever; somebody else must hear that a generation was
raised over this process and pull it out. The thread sleeps in the socket, so it costs nothing while nothing
happens; now and then it also looks at the worker's page, in case the proxy that should have called cannot:
twice a second while it seems well, ten times while it is away or something is under way.
"""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable

from taskd.core.messages import (
    Coming,
    Denied,
    Farewell,
    Interrupt,
    PlaceAsked,
    PlaceHeld,
    Regroup,
    Save,
    Saved,
    Standing,
    Through,
    Trouble,
)
from taskd.kit.procinfo import is_asleep
from taskd.worker.client import Worker, boot_clock

LOOK_S, CALM_LOOK_S = 0.1, 0.5
REPEAT_S = 0.3
PROMPT_S = 0.02
CUT_S = 10.0
COMING_S, COMING_LIMIT_S = 1.0, 1800.0
# Others can do without this rank after some five seconds of silence, not sooner; how long it asks then.
AWAY_S, CONFIRM_S = 2.0, 20.0
LEAVE_FLOOR_S, LEAVE_STEPS, LEAVE_PATIENCE = 2.0, 3.0, 5.0

log = logging.getLogger("taskd")


class Superseded(Exception):
    """A later generation was raised while this one was being entered."""


class Leave:
    """How long a training thread that was called may still take to come out of its step.

    Only its sleep counts: a thread that computes, or that would if a processor were free, comes to its next
    collective by itself. There is an end to that as well.
    """

    def __init__(self, thread: threading.Thread, limit_s: float) -> None:
        """Begin to count."""
        self._number = _kernel_id(thread)
        self._clock = time.pthread_getcpuclockid(thread.ident or 0)
        self._limit_s = limit_s
        self.put_off()

    def put_off(self) -> None:
        """Begin again: the thread is in the script's own code, which may take its time."""
        self._asleep_s = 0.0
        self._began = self._looked = time.monotonic()
        self._computed = time.clock_gettime(self._clock)

    def is_over(self) -> bool:
        """Look at the thread, and tell whether its time is up."""
        now, computed = time.monotonic(), time.clock_gettime(self._clock)
        if is_asleep(self._number):
            self._asleep_s += max(0.0, (now - self._looked) - (computed - self._computed))
        self._looked, self._computed = now, computed
        return self._asleep_s > self._limit_s or now - self._began > LEAVE_PATIENCE * self._limit_s


def _kernel_id(thread: threading.Thread) -> int:
    """The thread as the kernel numbers it.

    A rank is forked from a warm process, and Python leaves the main thread the number of its parent's.
    """
    return os.getpid() if thread is threading.main_thread() else thread.native_id or 0


class Watch:
    """Hears what is raised over a worker, wakes the training thread, and waits with it for the way on."""

    def __init__(self, worker: Worker, rank: int, on_raise: Callable[[int], None]) -> None:
        """``on_raise`` is called from the watch's thread with the new generation; it must not block."""
        self._worker = worker
        self._rank = rank
        self._on_raise = on_raise
        self._news = threading.Condition()
        self._raised = worker.generation
        self._leader = -1
        self._gentle = self._leaving = False
        self._regroup: Regroup | Save | None = None
        self._denied: Denied | None = None
        self._leave: Leave | None = None
        self._cut_until = 0.0
        self._cut_for = worker.generation
        self._training = threading.current_thread()
        self._farewell = -1
        self._asked = self._held = 0
        self._called_at = self._said_coming = 0.0
        self.pace_s = 0.0
        # Tells whether the training thread is in the script's own code, between steps or after them.
        self.is_outside: Callable[[], bool] = lambda: False
        # Called while the training thread has not come out yet, and now and then while all is well.
        self.on_linger: Callable[[int], None] = lambda _: None
        self.on_look: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._run, name="taskd-watch", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._training = threading.current_thread()
        self._worker.hand_over_reading()
        self._look()
        self._thread.start()

    @property
    def raised(self) -> tuple[int, int]:
        """Return the latest generation that was raised, and its leader."""
        with self._news:
            return self._raised, self._leader

    def is_gentle(self, generation: int) -> bool:
        """Tell whether this generation was raised last, and gently: steps are finished first."""
        with self._news:
            return self._gentle and self._raised == generation

    def is_leaving(self, generation: int) -> bool:
        """Tell whether this process is to leave when it comes to this generation."""
        with self._news:
            return self._leaving and self._raised == generation

    def is_told_to_move(self, current: int) -> bool:
        """Tell whether a generation later than the current one was raised gently."""
        return self._gentle and self._raised > current  # without the lock: asked in every step

    def came_out(self) -> None:
        """The training thread has left whatever it was in."""
        with self._news:
            self._leave = None

    def wait_raised(self, after: int, limit_s: float) -> bool:
        """Wait until a generation later than ``after`` was raised; False if that did not happen in time."""
        with self._news:
            return self._news.wait_for(lambda: self._raised > after, limit_s)

    def ask_again(self, trouble: Trouble, limit_s: float) -> bool:
        """Ask for another try of a step; False if there is none, or nobody answers."""
        after = trouble.generation
        deadline = time.monotonic() + limit_s
        with self._news:
            self._denied = None
        while time.monotonic() < deadline:
            self._worker.say(trouble)
            with self._news:
                self._news.wait_for(lambda: self._raised > after or self._denied is not None, REPEAT_S)
                if self._raised > after:
                    return True
                if self._denied is not None:
                    return False
        return False

    def confirm_place(self) -> None:
        """Be sure that this rank is still ours before its script is told of a step, if we may have been away.

        A machine that was stopped goes on where it was. Its last vote may end with what the others sent
        before they went on without it, and another process may have told of that step long ago. So whoever
        voted a while ago asks, again and again, until a manager that may decide says so. A generation that
        is raised over this process is as good an answer: only its members are called.
        """
        if boot_clock() - self._worker.voted_at < AWAY_S:
            return
        generation = self._worker.generation
        deadline = time.monotonic() + CONFIRM_S
        self._asked += 1
        while time.monotonic() < deadline:
            self._worker.say(PlaceAsked(generation, self._rank, self._asked))
            with self._news:
                if self._news.wait_for(
                    lambda: self._held == self._asked or self._raised > generation, REPEAT_S
                ):
                    return
        log.warning("taskd: for %g s nobody has said whether rank %d is still here", CONFIRM_S, self._rank)

    def stand(
        self, standing: Standing, limit_s: float, meanwhile: Callable[[], None] | None = None
    ) -> Regroup | Save:
        """Say where this worker stands, again and again, until the answer is there.

        ``meanwhile`` is done if the answer takes its time: somebody else is still on the way.
        """
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            self._worker.pause()
            self._worker.say(standing)
            with self._news:
                patience = REPEAT_S if meanwhile is None else PROMPT_S
                answered = self._news.wait_for(lambda: self._answered(standing.generation), patience)
            if not answered and meanwhile is not None:
                meanwhile()
                meanwhile = None
                continue
            with self._news:
                if self._raised > standing.generation:
                    raise Superseded
                if self._regroup is not None and self._regroup.generation == standing.generation:
                    return self._regroup
        raise TimeoutError(f"no plan for generation {standing.generation} came within {limit_s:g} s")

    def repeat(self, saved: Saved, limit_s: float) -> None:
        """Say that this rank has written its part, again and again, until there is a way on or an end."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            self._worker.pause()
            self._worker.say(saved)
            if self.wait_raised(saved.generation, REPEAT_S):
                return
        raise TimeoutError(f"nobody ended this process within {limit_s:g} s of its dump")

    def take_leave(self, through: Through, unheard_s: float, limit_s: float) -> bool:
        """Say that the script has ended, again and again, until all may go; False if all are called instead.

        Nobody to say it to for ``unheard_s`` is as good as a farewell.
        """
        end = time.monotonic() + limit_s
        deadline = time.monotonic() + unheard_s
        while time.monotonic() < min(deadline, end):
            self._worker.pause()
            if self._worker.say(through):
                deadline = time.monotonic() + unheard_s
            with self._news:
                self._news.wait_for(lambda: self._is_dismissed(through.generation), REPEAT_S)
                if self._raised > through.generation:
                    return False
                if self._farewell == through.generation:
                    self._worker.let_go()
                    return True
        return True

    def _is_dismissed(self, generation: int) -> bool:
        return self._raised > generation or self._farewell == generation

    def _answered(self, generation: int) -> bool:
        regroup = self._regroup
        return self._raised > generation or (regroup is not None and regroup.generation == generation)

    def _run(self) -> None:
        calm = False
        while True:
            messages = self._worker.receive(CALM_LOOK_S if calm and self._worker.connected else LOOK_S)
            self._end_if_replaced()
            for message in messages:
                if isinstance(message, Interrupt):
                    leaving = self._rank in message.leaving
                    self._hear(message.generation, message.leader, message.gentle, leaving)
                elif isinstance(message, Regroup | Denied | Save | Farewell | PlaceHeld):
                    self._note(message)
            self._look()
            self._end_if_stuck()
            with self._news:
                settled = self._leave is None and self._raised == self._worker.generation
            calm = settled and time.monotonic() >= self._cut_until
            if settled:
                # Not while groups are taken down: whoever holds one then may be the last to hold it.
                self._worker.answer(self._training.ident or 0)
                self.on_look()

    def _end_if_replaced(self) -> None:
        """End a process that was stopped for so long that another one has its rank by now.

        What it is about to do would be refused or go to nobody, but for one thing: told of a raised
        generation it would stand for its rank, and the manager could not tell the two apart.
        """
        if self._worker.replaced:
            log.error("taskd: rank %d belongs to another process by now; this one ends", self._rank)
            os.kill(os.getpid(), signal.SIGKILL)

    def _end_if_stuck(self) -> None:
        """End a process whose training thread does not come out: it becomes one more rank to be replaced.

        Cutting the connections wakes a collective within milliseconds, nearly always; a computation comes to
        its next collective within a step. Whatever is left after that would hold up everybody else.
        """
        with self._news:
            leave, cut_for = self._leave, self._cut_for
        if time.monotonic() < self._cut_until:
            # Once more: gloo's threads may have opened new connections. Not for a generation that was raised
            # gently since: up to its entry the group of now is in use.
            self._on_raise(cut_for)
        if leave is not None:
            self.on_linger(self._raised)
        if leave is not None and self.is_outside():
            leave.put_off()
            self._say_coming()
        elif leave is not None and leave.is_over():
            log.error("taskd: rank %d did not come out of its step; it ends to be replaced", self._rank)
            self._worker.last_words(self._training.ident or 0)
            os.kill(os.getpid(), signal.SIGKILL)

    def _say_coming(self) -> None:
        """Ask for patience while the script is busy with something of its own, but not for ever."""
        now = time.monotonic()
        if now - self._said_coming >= COMING_S and now - self._called_at < COMING_LIMIT_S:
            self._said_coming = now
            self._worker.say(Coming(self._raised, self._rank))

    def _note(self, message: Regroup | Denied | Save | Farewell | PlaceHeld) -> None:
        with self._news:
            if isinstance(message, Regroup | Save):
                self._regroup = message
            elif isinstance(message, PlaceHeld):
                self._held = message.number if message.rank == self._rank else self._held
            elif isinstance(message, Farewell):
                self._farewell = message.generation
            elif message.rank == self._rank:
                self._denied = message
            self._news.notify_all()

    def _look(self) -> None:
        self._hear(*self._worker.wanted())

    def _hear(self, generation: int, leader: int, gentle: bool, leaving: bool) -> None:  # noqa: FBT001 - as read
        with self._news:
            if generation <= self._raised:
                return
            self._raised, self._leader = generation, leader
            self._gentle, self._leaving = gentle, leaving
            if gentle:
                # Nobody is pulled out of anything: the training thread comes at the end of a step.
                self._news.notify_all()
                return
            self._called_at = time.monotonic()
            self._cut_until, self._cut_for = self._called_at + CUT_S, generation
            self._leave = Leave(self._training, max(LEAVE_FLOOR_S, LEAVE_STEPS * self.pace_s))
        # Cut first: a training thread that is woken by the condition must find its group dead already.
        self._on_raise(generation)
        with self._news:
            self._news.notify_all()
