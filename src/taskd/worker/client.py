"""The worker: what lives inside a training process.

It costs the training thread one store to shared memory and one look at a socket per step. It has no thread
of its own (data loaders fork) and never waits for TaskD: when the proxy is away the training goes on and the
worker tries again at a later step.
"""

import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

from taskd.core.launch import FaultKind, ScheduledFault
from taskd.core.messages import (
    MANAGER,
    FaultDue,
    LocalHello,
    OrderDone,
    Progress,
    WorkerOrder,
    proxy_address,
    worker_address,
)
from taskd.kit.pages import Page
from taskd.kit.whereabouts import STACK_FILE, write_answer
from taskd.links.frames import BlockingFrames
from taskd.wire.envelope import Message, WireError, decode_envelope, encode_envelope, pack, unpack
from taskd.worker.where import look_at

CONNECT_S = 0.2
SEND_S = 0.2
RETRY_S = 1.0

log = logging.getLogger("taskd")


def boot_clock() -> float:
    """Return seconds by a clock that also runs while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class InjectedFault(RuntimeError):
    """Raised by ``taskd inject raise`` and by a schedule."""


class DeviceMemoryError(RuntimeError):
    """A device lost what was in its memory: this rank's tensors are not to be believed any more.

    Raised by ``taskd inject uce``, after tensors were really overwritten.
    """


@dataclass(frozen=True, slots=True)
class WorkerEnv:
    """What the agent tells a worker through its environment."""

    job: str
    node: str
    rank: int
    generation: int
    socket: str
    page: str
    fired_dir: str
    faults: str
    error_file: str = ""

    @classmethod
    def read(cls, env: Mapping[str, str]) -> "WorkerEnv | None":
        """Read the environment; None if no agent of TaskD started this process."""
        if not env.get("TASKD_SOCKET") or not env.get("TASKD_PAGE"):
            return None
        return cls(
            job=env.get("TASKD_JOB", ""),
            node=env.get("TASKD_NODE", "0"),
            rank=int(env.get("RANK", "0")),
            generation=int(env.get("TASKD_GENERATION", "0")),
            socket=env["TASKD_SOCKET"],
            page=env["TASKD_PAGE"],
            fired_dir=env.get("TASKD_FIRED_DIR", ""),
            faults=env.get("TASKD_FAULTS", ""),
            error_file=env.get("TORCHELASTIC_ERROR_FILE", ""),
        )


class Worker:
    """The worker of one training process."""

    def __init__(self, env: WorkerEnv) -> None:
        """Map the page and say hello; neither waits longer than a moment."""
        self._env = env
        self._address = worker_address(env.node, env.rank)
        self._page = Page(env.page)
        self._frames: BlockingFrames | None = None
        self._pid = os.getpid()
        self._next_try = 0.0
        self._seen_orders: set[str] = set()
        self._faults = [(fault, fault.rank == env.rank) for fault in _parse_schedule(env)]
        self._stepped = False
        self._watched = False
        self._notes: tuple[str, ...] = ()
        self._sending = threading.Lock()
        self.generation = env.generation
        self.voted_at = boot_clock()
        # Set by the engine of recovery: what only a framework can do to itself, or say of itself.
        self.damage: Callable[[], str] | None = None
        self.break_network: Callable[[], int] | None = None
        self.count_collectives: Callable[[], Mapping[str, int]] | None = None
        os.register_at_fork(after_in_child=self._forget)
        self._page.join()
        self._connect()
        self.say(Progress(env.generation, env.rank, joined=True, step=-1))

    def begin(self, step: int) -> None:
        """A step begins: take orders, and do the faults that belong here."""
        if os.getpid() != self._pid:
            return
        self._page.begin(step)
        if not self._watched:
            self.receive(0.0)
        if self._faults:
            self._do_faults(step)

    def done(self, step: int) -> None:
        """A step is done and counts."""
        if os.getpid() != self._pid:
            return
        self._page.done(step)
        if not self._stepped:
            self._stepped = True
            self.say(Progress(self.generation, self._env.rank, joined=True, step=step, ready=self._watched))

    # --- for recovery from memory ------------------------------------------------------------------------

    def hand_over_reading(self) -> None:
        """From now on another thread reads what comes; the training thread only sends."""
        self._watched = True

    def wanted(self) -> tuple[int, int, bool, bool]:
        """Return the generation that the agent wants this worker at, who leads it, how, and whether to go."""
        return self._page.wanted()

    def voted(self, step: int) -> None:
        """Note that the whole gradient of a step is here, and when."""
        self.voted_at = boot_clock()
        self._page.voted(step)

    def enter(self, generation: int) -> None:
        """This worker belongs to a later generation now."""
        self.generation = generation
        self._stepped = False
        self._page.pause()
        self.say(Progress(generation, self._env.rank, joined=True, step=-1))

    def pause(self) -> None:
        """This worker lives, and is in no step: it waits for the way on."""
        self._page.pause()

    @property
    def ended(self) -> bool:
        """Tell whether this is not the process that joined: a fork of it, or one that has left the job."""
        return os.getpid() != self._pid

    @property
    def replaced(self) -> bool:
        """Tell whether another process has this rank by now."""
        return not self._page.is_current()

    def answer(self, thread: int) -> None:
        """Tell the agent where the training thread is, if it wants to know."""
        number = self._page.asked()
        if number:
            self._write_where(thread, number, last=False)
            self._page.answered(number)

    def last_words(self, thread: int) -> None:
        """Leave behind where the training thread was when this process was ended."""
        self._write_where(thread, 0, last=True)

    def _write_where(self, thread: int, number: int, *, last: bool) -> None:
        groups: Mapping[str, int] = {}
        if self.count_collectives is not None and not last:
            groups = self.count_collectives()
        file = str(Path(self._env.error_file).with_name(STACK_FILE)) if self._env.error_file else ""
        try:
            write_answer(self._env.page, look_at(thread, number, groups, file, last=last))
        except OSError as error:
            log.warning("taskd: where this rank is cannot be told: %s", error)

    def note(self, notes: tuple[str, ...]) -> None:
        """Keep what the incident should say of this recovery: the first rank tells it, with ``ready``."""
        self._notes = notes if self._env.rank == 0 else ()

    def ready(self) -> None:
        """This worker holds its state; it can be recovered from memory."""
        self._page.ready()
        notes, self._notes = self._notes, ()
        self.say(Progress(self.generation, self._env.rank, joined=True, step=-1, ready=True, notes=notes))

    def let_go(self) -> None:
        """All ranks are through, and this one knows it."""
        self._page.let_go()

    def close(self) -> None:
        """Leave the job; what is called after this does nothing."""
        self._forget()
        self._pid = -1
        self._page.close()

    # --- link --------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        self._next_try = time.monotonic() + RETRY_S
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(CONNECT_S)
            sock.connect(self._env.socket)
        except OSError as error:
            sock.close()
            log.debug("the proxy at %s cannot be reached: %s", self._env.socket, error)
            return
        self._frames = BlockingFrames(sock, SEND_S)
        self.say(LocalHello(self._address, "", self._pid), dst=proxy_address(self._env.node))

    @property
    def connected(self) -> bool:
        """Tell whether the proxy can be reached, as far as is known."""
        return self._frames is not None

    def say(self, message: Message, dst: str = MANAGER) -> bool:
        """Send a message; lost if the proxy is away, as far as is known."""
        frames = self._frames
        if frames is None:
            return False
        envelope = pack(self._env.job, self._address, dst, message, generation=self.generation)
        try:
            with self._sending:
                frames.send(encode_envelope(envelope))
        except OSError:
            self._drop()
            return False
        return True

    def receive(self, wait_s: float) -> list[Message]:
        """Take what has come: orders are obeyed here, everything else is returned."""
        frames = self._frames
        if frames is None:
            if time.monotonic() >= self._next_try:
                self._connect()
            elif wait_s:
                time.sleep(wait_s)
            return []
        try:
            arrived = frames.poll(wait_s)
        except (OSError, ValueError):
            self._drop()
            return []
        others: list[Message] = []
        for data in arrived:
            try:
                message = unpack(decode_envelope(data))
            except WireError as error:
                log.warning("taskd: %s", error)
                continue
            if isinstance(message, WorkerOrder):
                self._obey(message)
            else:
                others.append(message)
        return others

    def _drop(self) -> None:
        frames, self._frames = self._frames, None
        if frames is not None:
            frames.close()
            self._next_try = time.monotonic() + RETRY_S

    def _forget(self) -> None:
        """In a forked child: the connection is the parent's."""
        self._drop()
        self._next_try = float("inf")

    # --- orders and faults -------------------------------------------------------------------------------

    def _obey(self, order: WorkerOrder) -> None:
        detail = "ok"
        if order.order not in self._seen_orders:
            self._seen_orders.add(order.order)
            if order.action == "fault":
                fault = _parse_order(order, self._env.rank)
                detail = self._why_not(fault[0].kind)
                if detail == "ok":
                    self._faults.append(fault)
            elif order.action != "ping":
                detail = f"this worker does not know {order.action!r}"
        self.say(OrderDone(order.order, ok=detail == "ok", detail=detail), dst=proxy_address(self._env.node))

    def _why_not(self, kind: FaultKind) -> str:
        """Say why a kind of fault cannot happen in this script; ``ok`` if it can."""
        if kind in (FaultKind.UCE, FaultKind.DOUBT) and self.damage is None:
            return "it has registered no state that could be damaged"
        if kind is FaultKind.NETWORK and self.break_network is None:
            return "TaskD did not make its process group"
        return "ok"

    def _do_faults(self, step: int) -> None:
        for entry in list(self._faults):
            fault, here = entry
            if step < fault.step:
                continue
            self._faults.remove(entry)
            if not self._first_time(fault):
                continue
            if here:
                self._do(fault, step)
            else:
                self.say(FaultDue(fault.fault_id, self._env.rank, step))

    def _do(self, fault: ScheduledFault, step: int) -> None:
        match fault.kind:
            case FaultKind.KILL:
                os.kill(os.getpid(), signal.SIGKILL)
            case FaultKind.HANG:
                os.kill(os.getpid(), signal.SIGSTOP)
            case FaultKind.RAISE:
                raise InjectedFault(f"fault {fault.fault_id} was injected at step {step}")
            case FaultKind.UCE:
                what = self.damage() if self.damage is not None else "nothing was registered"
                raise DeviceMemoryError(f"UCE ERROR: fault {fault.fault_id} at step {step} ({what})")
            case FaultKind.DOUBT:
                # Somebody who watches the device says so; the tensors may well be whole.
                raise DeviceMemoryError(f"UCE ERROR: the device's memory is in doubt at step {step}")
            case FaultKind.NETWORK:
                if self.break_network is not None:
                    log.info("taskd: fault %s broke %d connections", fault.fault_id, self.break_network())
            case FaultKind.EXIT:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(fault.code)
            case _:
                assert_never(fault.kind)

    def _first_time(self, fault: ScheduledFault) -> bool:
        """Note that a fault fires; False if it did before, perhaps in the process that this one replaces."""
        if not self._env.fired_dir:
            return True
        mark = Path(self._env.fired_dir) / fault.fault_id.replace("/", "-")
        try:
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch(exist_ok=False)
        except FileExistsError:
            return False
        except OSError as error:
            log.warning("taskd: fault %s is left out, it cannot be noted: %s", fault.fault_id, error)
            return False
        return True


def _parse_schedule(env: WorkerEnv) -> list[ScheduledFault]:
    schedule = json.loads(env.faults) if env.faults else []
    return [ScheduledFault(**{**raw, "kind": FaultKind(raw["kind"])}) for raw in schedule]


def _parse_order(order: WorkerOrder, rank: int) -> tuple[ScheduledFault, bool]:
    args = order.args
    fault = ScheduledFault(
        fault_id=args.get("id", order.order),
        kind=FaultKind(args.get("kind", "kill")),
        rank=rank,
        step=int(args.get("step", "-1")),
        code=int(args.get("code", "1")),
    )
    return fault, args.get("here") == "1"
