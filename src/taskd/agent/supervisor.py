"""The agent: owner of the training processes of one node.

The decisions are in ``core.node``; this is their body. Orders come through the proxy and are numbered, deaths
come from the nursery, and everything that the machine wants done is done here. When the proxy or the manager
is away nothing changes for the training: reports wait, and the agent keeps knocking.
"""

import asyncio
import contextlib
import functools
import os
import socket
import sys
import time
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from taskd.agent.config import AgentConfig
from taskd.agent.console import Console
from taskd.agent.errorfile import read_error_file
from taskd.agent.faults import do_fault
from taskd.agent.hanging import HangSearch, Hung, Living
from taskd.agent.keepsakes import read_notes
from taskd.agent.launches import (
    STDERR,
    STDOUT,
    RankFiles,
    answer_limit_s,
    clear_memory,
    console_view,
    make_launch,
    rank_files,
    with_newcomer,
)
from taskd.agent.ledger import Ledger
from taskd.agent.nursery import ChildExit, Nursery, NurseryLostError, Sent, SpawnError
from taskd.agent.surroundings import base_env
from taskd.agent.uplink import Uplink
from taskd.agent.witnesses import clear_answers, last_words
from taskd.core import node as machine
from taskd.core.exits import Exit, ExitCode
from taskd.core.failures import describe_exit
from taskd.core.heartbeat import BeatState, BeatView
from taskd.core.launch import NodePlace, Plan
from taskd.core.messages import (
    Announce,
    Beat,
    Finish,
    Inject,
    Interrupt,
    NodePhase,
    Order,
    OrderDone,
    WorkerExited,
    WorkersStopped,
    WorkerState,
    WorkerView,
)
from taskd.core.nodestate import (
    ConversationBegan,
    DoFault,
    EndProcesses,
    Execute,
    InterruptProcesses,
    Leave,
    LeaverExited,
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
    StandbyExited,
    StandbysStarted,
    Tell,
    TellStopped,
    Ticked,
)
from taskd.kit.lifeline import Lifeline
from taskd.kit.logs import Log
from taskd.kit.machine import boot_id, find_free_port, is_paused, is_stopped, remove_tree
from taskd.kit.pages import Page

BEAT_S = 0.5
# While something is under way, and while nothing is: every look takes time from the training.
TICK_S, CALM_TICK_S = 0.1, 0.5
FIRST_WARM_S = 30.0
ALONE_S = 10.0
ANSWER_S = 1.0
SIGTERM, SIGKILL, SIGCONT = 15, 9, 18


@dataclass(slots=True)
class _Birth:
    """One life of a rank, or of a standby that may become one."""

    generation: int
    rank: int
    local_rank: int
    at: float
    files: RankFiles
    page: Page
    standby: bool = False
    newcomer: bool = False
    ended: bool = False
    hung: Hung | None = None


class Agent:
    """One node's agent."""

    def __init__(self, config: AgentConfig, log: Log, lifeline: Lifeline, sent: Sent | None = None) -> None:
        """Make an agent; ``run`` makes it work. ``sent``: a nursery that was sent ahead for it."""
        self._config = config
        self._log = log
        self._lifeline = lifeline
        self._state = NodeState(config.node)
        self._uplink = Uplink(
            job=config.spec.job,
            node=config.node,
            socket=config.socket,
            log=log,
            announce=self._announce,
            generation=lambda: self._state.generation,
            on_order=self._on_order,
            on_question=functools.partial(read_notes, config.shm_dir),
        )
        self._env = base_env(config.spec, os.environ)
        self._stirred = asyncio.Event()
        self._nursery = self._make_nursery(sent)
        self._nursery_ready, self._nursery_lost = asyncio.Event(), asyncio.Event()
        self._has_spawned = False
        self._console = Console(sys.stdout.buffer, sys.stderr.buffer)
        self._ledger = Ledger(config.ledger_file, config.node, self._uplink.incarnation)
        self._births: dict[int, _Birth] = {}
        self._standbys: dict[int, _Birth] = {}
        self._past: list[_Birth] = []
        self._tasks: set[asyncio.Future[None]] = set()
        self._left = asyncio.Event()
        self._hangs = HangSearch(config.spec.hang_floor_s, config.spec.hang_ceiling_s)
        self._missing_pids: set[int] = set()
        self._said_alone = False
        self._failed_since = time.monotonic()
        self._answer_limit_s = answer_limit_s(os.environ)
        self._cwd = str(Path.cwd())

    # --- life --------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until the manager ends the job."""
        work = [
            asyncio.ensure_future(self._keep_nursery()),
            asyncio.ensure_future(self._uplink.keep()),
            asyncio.ensure_future(self._keep_time()),
            asyncio.ensure_future(self._console.run()),
        ]
        over = asyncio.ensure_future(self._left.wait())
        try:
            await asyncio.wait({over, *work}, return_when=asyncio.FIRST_COMPLETED)
            for task in work:
                if task.done():
                    task.result()
            await self._uplink.flush()  # the final report; the job is over either way
        finally:
            everything: list[asyncio.Future[Any]] = [over, *work, *self._tasks]
            for each in everything:
                each.cancel()
            await asyncio.gather(*everything, return_exceptions=True)
            await self._nursery.close()
            await self._console.drain()

    def stop_here(self, why: str) -> None:
        """End this node's part: the launcher of a multi-node job was told to go."""
        self._apply(OrderReceived(time.monotonic(), Finish("leave", ExitCode.OK, why)))

    def _make_nursery(self, sent: Sent | None = None) -> Nursery:
        spec = self._config.spec
        nursery = Nursery(
            env=self._env,
            on_exit=self._on_child_exit,
            warm=self._config.warm,
            # A spare node takes all ranks of a lost one over at once.
            spares=max(spec.spares, spec.local_world) if self._config.spare else spec.spares,
            log_file=self._config.log_file and f"{self._config.log_file}.nursery",
            sent=sent,
        )
        nursery.on_lost = self._on_nursery_lost
        nursery.on_stop = self._stirred.set
        return nursery

    async def _keep_nursery(self) -> None:
        while True:
            if not self._nursery.alive:
                self._nursery_ready.clear()
                await self._nursery.start()
                self._nursery_ready.set()
            elif is_stopped(self._nursery.pid):
                # It holds the exit codes of everybody; whoever stopped it did not mean that.
                self._log.warning("nursery_stopped", pid=self._nursery.pid)
                os.kill(self._nursery.pid, SIGCONT)
            await _wait(self._nursery_lost, CALM_TICK_S)

    def _on_nursery_lost(self) -> None:
        self._log.warning("nursery_lost")
        self._nursery_ready.clear()
        self._nursery = self._make_nursery()
        self._nursery_lost.set()

    # --- the manager -------------------------------------------------------------------------------------

    def _on_order(self, order: Order) -> None:
        self._apply(OrderReceived(time.monotonic(), order))

    def _announce(self) -> Announce:
        self._apply(ConversationBegan(time.monotonic()))
        config = self._config
        return Announce(
            node=config.node,
            wants_rank=config.wants_rank,
            addr=config.addr,
            host=socket.gethostname(),
            pid=os.getpid(),
            boot_id=boot_id(),
            local_world=config.spec.local_world,
            free_port=find_free_port(config.addr),
            phase=self._state.phase,
            generation=self._state.generation,
            plan=self._state.plan,
            workers=tuple(self._with_progress(view) for view in self._state.workers.values()),
            options=config.spec.options(),
            spare=config.spare,
        )

    def _with_progress(self, view: WorkerView) -> WorkerView:
        seen = self._seen(view.rank)
        if seen is None:
            return view
        joined = seen.state is not BeatState.NEW and view.state is WorkerState.RUNNING
        return replace(
            view,
            state=WorkerState.JOINED if joined else view.state,
            step=max(seen.step, view.step),
            ready=seen.state is BeatState.READY,
            let_go=seen.state is BeatState.LET_GO,
        )

    # --- time --------------------------------------------------------------------------------------------

    async def _keep_time(self) -> None:
        started = last_beat = last_look = time.monotonic()
        while True:
            await _wait(self._stirred, self._rest_s())
            now = time.monotonic()
            self._apply(Ticked(now))
            self._uplink.resend_due(now)
            if now - last_beat >= BEAT_S:
                last_beat = now
                self._beat()
            if now - last_look >= self._config.spec.monitor_interval_s:
                last_look = now
                self._look_for_vanished(now)
            self._check_unanswered(now)
            self._check_alone(now)
            self._end_hung(now)
            if not self._uplink.heard_manager and now - started > self._config.spec.join_timeout_s:
                self._lifeline.say(fatal="no manager was reached in time; check its address and port")
                return
            self._stirred.clear()  # what was done just now was seen just now

    def _rest_s(self) -> float:
        """Return how long nothing needs to be looked at, unless something stirs."""
        node = self._state
        calm = node.phase is NodePhase.RUNNING and not (
            node.leavers
            or node.standby_plan
            or node.missing
            or self._uplink.pending
            or self._hangs.testimonies
            or any(view.state is WorkerState.FAILED for view in node.workers.values())
        )
        rest_s = CALM_TICK_S if calm else TICK_S
        if self._hangs.due_at is not None:
            rest_s = min(rest_s, max(0.0, self._hangs.due_at - time.monotonic()))
        return rest_s

    def _check_unanswered(self, now: float) -> None:
        """Leave if a failed rank found nobody to decide about it for as long as the user allows."""
        waiting = self._state.phase is NodePhase.RUNNING and any(
            view.state is WorkerState.FAILED for view in self._state.workers.values()
        )
        if not waiting:
            self._failed_since = now
        elif 0 < self._answer_limit_s < now - self._failed_since:
            why = f"a failed rank found no answer for {self._answer_limit_s:g} s (TASKD_REPORT_FAULT_TIMEOUT)"
            self._apply(OrderReceived(now, Finish("unanswered", ExitCode.FAILED, why)))

    def _check_alone(self, now: float) -> None:
        """Say when the manager stays away; leave if it stays away for as long as a start may take.

        The training goes on meanwhile: it needs no manager until something happens.
        """
        since = self._uplink.alone_since
        if since is None:
            self._said_alone = False
            return
        away_s, limit_s = now - since, self._config.spec.join_timeout_s
        if away_s > ALONE_S and not self._said_alone:
            self._said_alone = True
            self._lifeline.say(
                notice=f"the manager has not answered for {ALONE_S:g} s; the training goes on, and this node "
                f"leaves with code {ExitCode.NODES_MISSING.value} if it stays away for {limit_s:g} s"
            )
        if away_s > limit_s:
            why = f"the manager was away for {limit_s:g} s"
            self._apply(OrderReceived(now, Finish("alone", ExitCode.NODES_MISSING, why)))

    def _end_hung(self, now: float) -> None:
        """End ranks that were stopped, where a recovery from memory can replace them."""
        ranks: dict[int, Living] = {}
        for rank, view in self._state.workers.items():
            birth = self._births.get(rank)
            if birth is not None and view.state.alive and view.pid:
                stopped_at = self._nursery.stopped_at(view.pid)
                ranks[rank] = Living(view.pid, birth.page, birth.files, stopped_at, birth.newcomer)
        for rank, hung in self._hangs.look(now, ranks).items():
            self._births[rank].hung = hung
            self._log.warning("hung", rank=rank, why=hung.why)
            self._nursery.signal(ranks[rank].pid, SIGKILL)

    def _beat(self) -> None:
        alive = {rank: view for rank, view in self._state.workers.items() if view.state.alive}
        pages = {rank: seen for rank in alive if (seen := self._seen(rank)) is not None}
        beat = Beat(
            self._state.generation,
            {rank: seen.step for rank, seen in pages.items()},
            tuple(rank for rank, seen in pages.items() if seen.state is not BeatState.NEW),
            tuple(rank for rank, view in alive.items() if is_paused(view.pid)),
            tuple(rank for rank, seen in pages.items() if seen.state is BeatState.READY),
            self._hangs.testimonies,
        )
        self._uplink.beat(beat)

    def _look_for_vanished(self, now: float) -> None:
        """Fall back on looking, for a kernel that does not tell: every death is known by then at the latest.

        A process that ended but was not reaped still has its entry, so what is missing here is beyond asking.
        One that is missing for the first time may have been reaped a moment ago, with its exit on the way.
        """
        before, self._missing_pids = self._missing_pids, set()
        for rank, view in list(self._state.workers.items()):
            if view.state.alive and view.pid and not Path(f"/proc/{view.pid}").exists():
                self._missing_pids.add(view.pid)
                if view.pid not in before:
                    continue
                self._log.warning("vanished", rank=rank, pid=view.pid)
                birth = self._births[rank].generation
                self._on_child_exit(ChildExit(f"g{birth}/r{rank}", view.pid, Exit(), now))

    def _seen(self, rank: int) -> BeatView | None:
        birth = self._births.get(rank)
        return birth.page.read() if birth is not None else None

    # --- the machine -------------------------------------------------------------------------------------

    def _apply(self, event: NodeEvent) -> None:
        self._state, effects = machine.step(self._state, event)
        if not isinstance(event, Ticked):
            self._stirred.set()
        for effect in effects:
            self._carry_out(effect)

    def _carry_out(self, effect: NodeEffect) -> None:
        match effect:
            case Execute():
                self._ledger.write(effect.order, effect.generation)
            case SpawnProcesses():
                work = self._spawn(effect.plan, effect.place, effect.ranks, standby=effect.standby)
                self._background(work)
            case Promote():
                for rank in effect.ranks:
                    self._promote(rank)
            case EndProcesses():
                self._kill(effect.pids)
            case InterruptProcesses():
                self._interrupt(effect)
            case SignalProcesses():
                self._signal(effect.ranks, effect.signal)
            case Tell():
                self._uplink.tell(effect.report)
            case TellStopped():
                free_port = find_free_port(self._config.addr)
                self._uplink.tell(WorkersStopped(effect.generation, free_port))
            case DoFault():
                self._background(self._do_fault(effect.order))
            case Leave():
                self._lifeline.say(finished=effect.code, reason=effect.reason, report=effect.report)
                self._left.set()
            case RefuseOrder():
                self._log.info("order_refused", order=effect.order, why=effect.why)

    def _background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- processes ---------------------------------------------------------------------------------------

    async def _spawn(self, plan: Plan, place: NodePlace, ranks: tuple[int, ...], *, standby: bool) -> None:
        wanted = ranks or tuple(place.ranks)
        try:
            async with asyncio.timeout(60.0):
                await self._nursery_ready.wait()
                if self._config.warm and not self._has_spawned:
                    # One import shared by all ranks is quicker than one in each; and it is under way already.
                    await self._nursery.warm_ready(FIRST_WARM_S, parked=plan.generation == 1)
            launches = []
            for rank in wanted:
                local_rank = rank - place.first_rank
                files = self._prepare_files(plan, place, local_rank, newcomer=bool(ranks), standby=standby)
                launch = make_launch(self._config, plan, place, local_rank, self._env, self._cwd, files)
                launches.append(with_newcomer(launch, standby=standby) if ranks else launch)
            self._has_spawned = True
            children = await self._nursery.spawn_all(launches)
        except (OSError, TimeoutError, SpawnError, NurseryLostError) as error:
            why = f"the processes could not be started: {error}"
            self._log.exception("spawn_failed")
            if standby:
                self._apply(StandbysStarted(time.monotonic(), plan.generation, error=why))
            else:
                self._apply(SpawnFailed(time.monotonic(), plan.generation, why))
            return
        views: list[WorkerView] = []
        sources: dict[int, str] = {}
        for rank, child in zip(wanted, children, strict=True):
            sources[rank] = child.source
            birth = self._standbys[rank] if standby else self._births[rank]
            log = birth.files.directory
            view = WorkerView(rank, rank - place.first_rank, child.pid, WorkerState.RUNNING, log=log)
            if not (standby and birth.ended):
                views.append(view)
        if standby:
            self._apply(StandbysStarted(time.monotonic(), plan.generation, tuple(views)))
            return
        self._apply(ProcessesStarted(time.monotonic(), plan.generation, tuple(views), sources))

    def _promote(self, rank: int) -> None:
        """Let a standby be its rank."""
        old = self._births.get(rank)
        if old is not None:
            self._past.append(old)
        birth = self._births[rank] = self._standbys.pop(rank)
        birth.standby = False
        self._hangs.forget(rank)

    def _prepare_files(
        self, plan: Plan, place: NodePlace, local_rank: int, *, newcomer: bool, standby: bool
    ) -> RankFiles:
        rank = place.first_rank + local_rank
        old = self._births.get(rank)
        before = old.files if old is not None and newcomer else None
        files = rank_files(self._config, plan, place, local_rank, before, standby=standby)
        directory = Path(files.directory)
        directory.mkdir(parents=True, exist_ok=True)
        Path(files.error_file).unlink(missing_ok=True)
        Path(self._config.shm_dir).mkdir(parents=True, exist_ok=True)
        clear_answers(files.page)
        if not newcomer:
            # What a rank kept for its replacement belongs to the run that ends here.
            clear_memory(self._config.shm_dir, rank)
        page = Page(files.page, create_generation=plan.generation)
        birth = _Birth(plan.generation, rank, local_rank, time.monotonic(), files, page, standby, newcomer)
        if standby:
            self._standbys[rank] = birth
        else:
            if old is not None:
                old.page.close()
            self._births[rank] = birth
            self._hangs.forget(rank)
        host = socket.gethostname()
        out = console_view(self._config.spec, rank, local_rank, STDOUT, host)
        if out.shown:
            self._console.follow(files.stdout, stream="stdout", prefix=out.prefix)
        err = console_view(self._config.spec, rank, local_rank, STDERR, host)
        if err.shown:
            self._console.follow(files.stderr, stream="stderr", prefix=err.prefix)
        return files

    def _on_child_exit(self, child: ChildExit) -> None:
        generation, rank = (int(part[1:]) for part in child.key.split("/"))
        lives = [*self._past, *(each[rank] for each in (self._births, self._standbys) if rank in each)]
        birth = next((each for each in lives if (each.generation, each.rank) == (generation, rank)), None)
        if birth is None or birth.ended:
            return
        birth.ended = True
        files = birth.files
        error = None if child.exit.ok else read_error_file(files.error_file)
        for path in (files.stdout, files.stderr):
            self._console.unfollow(path)
        if birth.standby or child.pid in self._state.leavers:
            self._on_other_exit(birth, child, error.message if error else "")
            return
        view = birth.page.read()
        words = last_words(files.page)
        if words is not None and birth.hung is None:
            why = f"it did not come out of {words.call} to recover; stack in {words.file}"
            birth.hung = Hung(why, words.stack, child.noticed_at)
        report = WorkerExited(
            generation=self._state.generation,
            rank=rank,
            local_rank=birth.local_rank,
            pid=child.pid,
            exit=child.exit,
            step=view.step if view else -1,
            lived_s=child.noticed_at - birth.at,
            # A rank that hung was lost when it stopped, not when it was ended for it.
            noticed_at=birth.hung.since if birth.hung else child.noticed_at,
            failed_stamp=error.stamp if error else 0.0,
            error=birth.hung.why if birth.hung else error.message if error else "",
            place=error.place if error else "",
            log=files.directory,
            stack=birth.hung.stack if birth.hung else "",
        )
        self._apply(ProcessExited(time.monotonic(), report))

    def _on_other_exit(self, birth: _Birth, child: ChildExit, error: str) -> None:
        """A process is gone that was not a rank yet, or not any more."""
        now = time.monotonic()
        if birth in self._past:
            self._past.remove(birth)
            birth.page.close()
        if birth.standby:
            self._standbys.pop(birth.rank, None)
            birth.page.close()
            for name in (birth.files.page, birth.files.slot):
                Path(name).unlink(missing_ok=True)
            why = describe_exit(child.exit) + (f": {error}" if error else "")
            self._apply(StandbyExited(now, birth.generation, birth.rank, why))
        self._apply(LeaverExited(now, child.pid))

    def _interrupt(self, effect: InterruptProcesses) -> None:
        """Raise the generation over living workers: in their pages, which nobody can lose, and by a call."""
        for rank in effect.ranks:
            if rank in self._births:
                page, leaving = self._births[rank].page, rank in effect.leaving
                page.raise_generation(effect.generation, effect.leader, gentle=effect.gentle, leaving=leaving)
        interrupt = Interrupt(effect.generation, effect.leader, effect.gentle, effect.leaving)
        self._uplink.tell_workers(interrupt)

    def _signal(self, ranks: tuple[int, ...], sig: int) -> None:
        for rank in ranks:
            view = self._state.workers.get(rank)
            if view is None or not view.pid:
                continue
            # A stopped process does not act on SIGTERM, and it was given up already.
            effective = SIGKILL if sig == SIGTERM and is_paused(view.pid) else sig
            self._nursery.signal(view.pid, effective)

    def _kill(self, pids: Iterable[int]) -> None:
        for pid in pids:
            self._nursery.signal(pid, SIGKILL)

    async def _do_fault(self, order: Inject) -> None:
        pid = 0
        if order.rank >= 0:
            view = self._state.workers.get(order.rank)
            pid = view.pid if view is not None and view.state.alive else 0
        ok, detail = do_fault(order, pid, self._uplink.proxy_pid)
        self._uplink.tell(OrderDone(order.order, ok=ok, detail=detail))
        if ok and order.whole_node:
            await self._lose_node()
        elif ok and order.role == "agent":
            await self._uplink.flush(ANSWER_S)
            os.kill(os.getpid(), 19 if order.kind == "hang" else SIGKILL)

    async def _lose_node(self) -> None:
        """Be a node that lost its power: processes, relay, memory and files are gone at once."""
        await self._uplink.flush(ANSWER_S)
        views = (*self._state.workers.values(), *self._state.standbys.values())
        self._kill((*self._state.leavers, *(view.pid for view in views if view.state.alive)))
        if self._uplink.proxy_pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._uplink.proxy_pid, SIGKILL)
        remove_tree(self._config.shm_dir)
        remove_tree(self._config.tmp_dir)
        os.kill(os.getpid(), SIGKILL)


async def _wait(event: asyncio.Event, limit_s: float) -> None:
    """Wait for an event, which is used up by that, for a time at most."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            await event.wait()
    event.clear()
