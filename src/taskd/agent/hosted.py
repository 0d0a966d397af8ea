"""An agent whose processes belong to somebody else.

The machine and the line to the manager are those of every agent. What differs is the body: processes are
started, ended and looked at by calling their owner (a ``Host``), whose functions block for as long as they
like and expect the thread that they were given in (torch sets signal handlers when it starts processes). So
the calling thread does nothing but serve the host, and the machine lives in a thread of its own, where
signs of life go out whatever the host is doing::

    calling thread   <-- effects (a queue) ---   machine, clock and line to the manager
                     --- events (the loop) -->
"""

import asyncio
import contextlib
import logging
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from taskd.agent.callbacks import Host, Look
from taskd.agent.faults import do_fault
from taskd.agent.ledger import Ledger
from taskd.agent.uplink import Uplink
from taskd.core import node as machine
from taskd.core.exits import Exit, ExitCode
from taskd.core.heartbeat import BeatState
from taskd.core.launch import JobOptions, NodePlace, Plan
from taskd.core.messages import (
    Announce,
    Beat,
    Inject,
    Order,
    OrderDone,
    WorkerExited,
    WorkersStopped,
    WorkerState,
    WorkerView,
)
from taskd.core.nodestate import (
    DoFault,
    EndProcesses,
    Execute,
    InterruptProcesses,
    Leave,
    NodeEffect,
    NodeEvent,
    NodeState,
    OrderReceived,
    ProcessesStarted,
    ProcessExited,
    Promote,
    RefuseOrder,
    SignalProcesses,
    SpawnFailed,
    SpawnProcesses,
    StandbysStarted,
    Tell,
    TellStopped,
    Ticked,
)
from taskd.kit.container import page_path
from taskd.kit.jobs import read_start_ticks
from taskd.kit.logs import Log
from taskd.kit.machine import boot_id, find_free_port, is_paused
from taskd.kit.pages import Page

LOOK_S = 0.2
TICK_S = 0.1
BEAT_S = 0.5
START_LIMIT_S = 60.0
MANAGER_WARNING_S = 5.0
MANAGER_LIMIT_S = 180.0
LONELY_LIMIT_S = 60.0
JOIN_THREAD_S = 5.0
SIGKILL = 9

console = logging.getLogger("taskd")


@dataclass(frozen=True, slots=True)
class HostedConfig:
    """What such an agent must know.

    ``fault_limit_s`` is how long a fault may stand without an order of the manager before the node gives up;
    0 waits for ever.
    """

    job: str
    node: str
    wants_rank: int
    addr: str
    socket: str
    local_world: int
    options: JobOptions
    ledger_file: str = ""
    look_s: float = LOOK_S
    manager_limit_s: float = MANAGER_LIMIT_S
    lonely_limit_s: float = LONELY_LIMIT_S
    fault_limit_s: float = 0.0


@dataclass(slots=True)
class _Process:
    """A process that was running when the host was last asked."""

    rank: int
    pid: int
    born_at: float


@dataclass(frozen=True, slots=True)
class _Broken:
    """The machine's thread cannot go on."""

    error: BaseException


_Work = SpawnProcesses | SignalProcesses | Leave | _Broken


class NoManagerError(TimeoutError):
    """Nobody told this agent what to do in time."""


class HostedAgent:
    """The agent of one node whose processes belong to a host."""

    def __init__(
        self, config: HostedConfig, host: Host, log: Log, on_absent: Callable[[], None] | None = None
    ) -> None:
        """Make an agent; ``run`` makes it work. ``on_absent`` is called when the proxy is not there."""
        self._config = config
        self._host = host
        self._log = log
        self._work: queue.SimpleQueue[_Work] = queue.SimpleQueue()
        # The calling thread's:
        self._alive: dict[int, _Process] = {}
        self._generation = 0
        self._stopping = False
        self._complained = False
        # The machine's thread's:
        self._state = NodeState(config.node)
        self._pages: dict[int, Page] = {}
        self._lonely_since = self._fault_since = time.monotonic()
        self._uplink = Uplink(
            job=config.job,
            node=config.node,
            socket=config.socket,
            log=log,
            announce=self._announce,
            generation=lambda: self._state.generation,
            on_order=self._on_order,
            on_absent=on_absent,
        )
        self._ledger = Ledger(config.ledger_file, config.node, self._uplink.incarnation)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over: asyncio.Event | None = None
        self._ready = threading.Event()

    def run(self) -> Leave:
        """Serve the host in this thread until the job is over for this node; returns how it ended."""
        thread = threading.Thread(target=self._run_machine, name="taskd-agent", daemon=True)
        thread.start()
        self._ready.wait()
        try:
            return self._serve_host()
        finally:
            self._end_machine()
            thread.join(JOIN_THREAD_S)

    # --- the calling thread: the host --------------------------------------------------------------------

    def _serve_host(self) -> Leave:
        while True:
            work: _Work | None = None
            with contextlib.suppress(queue.Empty):
                work = self._work.get(timeout=self._config.look_s)
            match work:
                case SpawnProcesses():
                    self._start(work.plan, work.place)
                case SignalProcesses():
                    self._stop(by_force=work.signal == SIGKILL)
                case Leave():
                    self._call("leave", self._host.leave)
                    return work
                case _Broken():
                    self._call("stop", self._host.stop)
                    raise work.error
                case None:
                    pass
            self._look()

    def _start(self, plan: Plan, place: NodePlace) -> None:
        self._generation, self._stopping, self._alive = plan.generation, False, {}
        began = time.monotonic()
        try:
            self._host.start(plan.restart_count)
            looks = self._wait_until_started()
        except Exception as error:  # noqa: BLE001 - foreign code may raise anything
            self._log.exception("spawn_failed")
            self._call("stop", self._host.stop)  # what was started before it failed
            why = f"the processes could not be started: {error!r}"
            self._send(SpawnFailed(time.monotonic(), plan.generation, why))
            return
        views: list[WorkerView] = []
        for local_rank in range(place.local_world):
            rank, pid = place.first_rank + local_rank, looks[local_rank].pid
            self._alive[local_rank] = _Process(rank, pid, began)
            views.append(WorkerView(rank, local_rank, pid, WorkerState.RUNNING))
        sources = dict.fromkeys(place.ranks, "host")
        self._send(ProcessesStarted(time.monotonic(), plan.generation, tuple(views), sources))

    def _wait_until_started(self) -> Mapping[int, Look]:
        deadline = time.monotonic() + START_LIMIT_S
        wanted = range(self._config.local_world)
        while True:
            looks = self._host.look() or {}
            if all(rank in looks and looks[rank].started for rank in wanted):
                return looks
            if time.monotonic() > deadline:
                missing = [rank for rank in wanted if rank not in looks or not looks[rank].started]
                raise TimeoutError(f"local ranks {missing} were not there after {START_LIMIT_S:g} s")
            time.sleep(self._config.look_s)

    def _stop(self, *, by_force: bool) -> None:
        self._stopping = True
        self._call("stop", self._host.stop)
        if by_force:
            for process in self._alive.values():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(process.pid, SIGKILL)

    def _look(self) -> None:
        if not self._alive:
            return
        looks = self._call("look", self._host.look)
        now = time.monotonic()
        for local_rank, process in list(self._alive.items()):
            look = looks.get(local_rank) if looks is not None else None
            how = self._judge(process, look, answered=looks is not None)
            if how is None:
                continue
            del self._alive[local_rank]
            report = WorkerExited(
                generation=self._generation,
                rank=process.rank,
                local_rank=local_rank,
                pid=process.pid,
                exit=how,
                step=-1,
                lived_s=now - process.born_at,
                noticed_at=now,
                failed_stamp=look.failed_stamp if look is not None else 0.0,
                error=look.error if look is not None else "",
            )
            self._send(ProcessExited(now, report))

    def _judge(self, process: _Process, look: Look | None, *, answered: bool) -> Exit | None:
        """Decide whether a process has ended, and how; None while it runs.

        The owner's word counts. Only where it has none, or is said to have ended the process itself, is
        the kernel asked whether the process is still there.
        """
        if look is not None and look.exit is not None:
            return look.exit
        if look is not None and look.started and not self._stopping:
            process.pid = look.pid
            return None
        if (self._stopping or answered) and read_start_ticks(process.pid) is None:
            return Exit(signal=SIGKILL) if self._stopping else Exit()
        return None

    def _call(
        self, what: str, function: Callable[[], Mapping[int, Look] | None]
    ) -> Mapping[int, Look] | None:
        """Call the host; one that raises is complained of once and asked again later."""
        try:
            return function()
        except Exception as error:  # noqa: BLE001 - foreign code may raise anything
            self._log.exception("host_failed", what=what)
            if not self._complained:
                self._complained = True
                console.warning("a registered callback failed (%s): %r; its log has the details", what, error)
            return None

    def _send(self, event: NodeEvent) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the machine's thread has ended, and said why
                self._loop.call_soon_threadsafe(self._apply, event)

    # --- the machine's thread ----------------------------------------------------------------------------

    def _run_machine(self) -> None:
        try:
            asyncio.run(self._serve_manager())
        except BaseException as error:  # noqa: BLE001 - the calling thread raises it
            self._work.put(_Broken(error))
        finally:
            self._ready.set()

    def _end_machine(self) -> None:
        if self._loop is not None and self._over is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._over.set)

    async def _serve_manager(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        self._ready.set()
        work = [asyncio.ensure_future(self._uplink.keep()), asyncio.ensure_future(self._keep_time())]
        over = asyncio.ensure_future(self._over.wait())
        try:
            await asyncio.wait({over, *work}, return_when=asyncio.FIRST_COMPLETED)
            for task in work:
                if task.done():
                    task.result()
            await self._uplink.flush()
        finally:
            for each in (over, *work):
                each.cancel()
            await asyncio.gather(over, *work, return_exceptions=True)
            self._drop_pages()

    async def _keep_time(self) -> None:
        started = last_beat = time.monotonic()
        warned = False
        while True:
            await asyncio.sleep(TICK_S)
            now = time.monotonic()
            self._apply(Ticked(now))
            self._uplink.resend_due(now)
            if now - last_beat >= BEAT_S:
                last_beat = now
                self._beat()
            if not self._uplink.heard_manager:
                limit_s = self._config.manager_limit_s
                if now - started > limit_s:
                    raise NoManagerError(
                        f"no manager was reached in {limit_s:g} s; check its address and port"
                    )
                if not warned and now - started > MANAGER_WARNING_S:
                    warned = True
                    console.warning("no manager was reached yet; still trying")
            self._give_up_if_alone(now)

    def _give_up_if_alone(self, now: float) -> None:
        """Leave by itself where the manager does not come back: nothing here starts it again."""
        if not self._done or not self._uplink.pending:
            self._lonely_since = now
        if not self._faulty:
            self._fault_since = now
        if now - self._lonely_since > self._config.lonely_limit_s:
            self._lonely_since = now
            self._work.put(Leave(ExitCode.OK, "all local ranks finished; no manager answers", ""))
        if self._config.fault_limit_s and now - self._fault_since > self._config.fault_limit_s:
            self._fault_since = now
            self._work.put(Leave(ExitCode.FAILED, "no order came about a fault in time", ""))

    @property
    def _done(self) -> bool:
        states = {view.state for view in self._state.workers.values()}
        return states == {WorkerState.SUCCEEDED}

    @property
    def _faulty(self) -> bool:
        return any(view.state is WorkerState.FAILED for view in self._state.workers.values())

    def _announce(self) -> Announce:
        config = self._config
        return Announce(
            node=config.node,
            wants_rank=config.wants_rank,
            addr=config.addr,
            host=socket.gethostname(),
            pid=os.getpid(),
            boot_id=boot_id(),
            local_world=config.local_world,
            free_port=find_free_port(config.addr),
            phase=self._state.phase,
            generation=self._state.generation,
            plan=self._state.plan,
            workers=tuple(self._with_progress(view) for view in self._state.workers.values()),
            options=config.options,
        )

    def _with_progress(self, view: WorkerView) -> WorkerView:
        step, joined = self._progress(view.rank)
        state = WorkerState.JOINED if joined and view.state is WorkerState.RUNNING else view.state
        return replace(view, state=state, step=max(step, view.step))

    def _beat(self) -> None:
        alive = {rank: view for rank, view in self._state.workers.items() if view.state.alive}
        progress = {rank: self._progress(rank) for rank in alive}
        self._uplink.beat(
            Beat(
                self._state.generation,
                {rank: step for rank, (step, _) in progress.items()},
                tuple(rank for rank, (_, joined) in progress.items() if joined),
                tuple(rank for rank, view in alive.items() if is_paused(view.pid)),
            )
        )

    def _progress(self, rank: int) -> tuple[int, bool]:
        page = self._pages.get(rank)
        view = page.read() if page is not None else None
        return (-1, False) if view is None else (view.step, view.state is not BeatState.NEW)

    def _make_pages(self, plan: Plan, place: NodePlace) -> None:
        """Lay a page for each rank where its worker looks for it; without one it is only less visible."""
        for rank in place.ranks:
            old = self._pages.pop(rank, None)
            if old is not None:
                old.close()
            try:
                path = page_path(self._config.socket, rank)
                self._pages[rank] = Page(path, create_generation=plan.generation)
            except OSError as error:
                self._log.warning("no_page", rank=rank, why=str(error))

    def _drop_pages(self) -> None:
        for rank, page in self._pages.items():
            page.close()
            Path(page_path(self._config.socket, rank)).unlink(missing_ok=True)

    def _on_order(self, order: Order) -> None:
        self._apply(OrderReceived(time.monotonic(), order))

    def _apply(self, event: NodeEvent) -> None:
        self._state, effects = machine.step(self._state, event)
        for effect in effects:
            self._carry_out(effect)

    def _carry_out(self, effect: NodeEffect) -> None:
        match effect:
            case Execute():
                self._ledger.write(effect.order, effect.generation)
            case SpawnProcesses(standby=True):
                why = "the processes of this node are not TaskD's to make"
                self._apply(StandbysStarted(time.monotonic(), effect.plan.generation, error=why))
            case SpawnProcesses():
                self._make_pages(effect.plan, effect.place)
                self._work.put(effect)
            case SignalProcesses() | Leave():
                self._work.put(effect)
            case Promote() | EndProcesses():
                pass  # there are no standbys here
            case InterruptProcesses():
                # Ranks of another launcher are restarted as a whole; they never say that they keep a state.
                self._log.warning("interrupt_without_effect", ranks=effect.ranks)
            case Tell():
                self._uplink.tell(effect.report)
            case TellStopped():
                self._uplink.tell(WorkersStopped(effect.generation, find_free_port(self._config.addr)))
            case DoFault():
                self._do_fault(effect.order)
            case RefuseOrder():
                self._log.info("order_refused", order=effect.order, why=effect.why)

    def _do_fault(self, order: Inject) -> None:
        if order.whole_node or order.role == "agent":
            detail = "this node belongs to its own launcher; only its ranks and its proxy can be hit"
            self._uplink.tell(OrderDone(order.order, ok=False, detail=detail))
            return
        view = self._state.workers.get(order.rank)
        pid = view.pid if view is not None and view.state.alive else 0
        ok, detail = do_fault(order, pid, self._uplink.proxy_pid)
        self._uplink.tell(OrderDone(order.order, ok=ok, detail=detail))
