"""The agent's shell on virtual time: ``taskd.agent.supervisor`` and ``taskd.agent.uplink``.

Its processes exist only on paper, and as stubbornly as real ones: they take time to be born and to end, some
ignore SIGTERM, and what ended is noticed a moment later.
"""

from taskd.core import node as machine
from taskd.core.delivery import Channel, Packet
from taskd.core.exits import Exit
from taskd.core.launch import NodePlace, Plan
from taskd.core.messages import (
    MANAGER,
    Announce,
    Beat,
    Finish,
    Inject,
    Start,
    Stop,
    Upstream,
    WorkerExited,
    WorkersStopped,
    WorkerState,
    WorkerView,
    agent_address,
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
    Tell,
    TellStopped,
    Ticked,
)
from taskd.testing.sim_checks import Process
from taskd.testing.sim_network import Connection, Lane, Parcel
from taskd.testing.sim_world import World
from taskd.wire.envelope import Message

TICK_S = 0.25
RECONNECT_S = 0.05
LAST_WORDS_S = 2.0
LOCAL_DELAY_S = 0.0005
SIGKILL, SIGTERM = 9, 15


class SimAgent:
    """One life of a node's agent, with the node's processes."""

    def __init__(self, world: World, node: str) -> None:
        """Be born idle."""
        self._world = world
        self.node = node
        self.alive = True
        self.incarnation = f"agent{node}-{next(world.numbers)}"
        self.state = NodeState(node)
        self.processes: dict[int, Process] = {}
        self.left = False
        self._link: Connection | None = None
        self._channel: Channel[Message] | None = None
        self._conversations = 0
        self._beat_next = False
        self._ports = 1000
        world.note(f"agent {node}", f"born as {self.incarnation}")
        world.scheduler.between(0.0, 0.05, self._connect)
        world.scheduler.between(0.0, TICK_S, self._tick)

    def kill(self) -> None:
        """Die at once, and the processes with it."""
        self._world.note(f"agent {self.node}", f"{self.incarnation} is killed in {self.state.phase}")
        self._end()

    def _end(self) -> None:
        self.alive = False
        for process in list(self.processes.values()):
            if process.alive:
                self._world.checks.died(process)
        if self._link is not None:
            self._link.cut(self._world.local_notice_s(), lossless=True)

    # --- the link ----------------------------------------------------------------------------------------

    def _connect(self) -> None:
        if not self.alive:
            return
        proxy = self._world.proxies.get(self.node)
        if proxy is None or not proxy.alive:
            self._world.scheduler.after(RECONNECT_S, self._connect)
            return
        scheduler, me = self._world.scheduler, self.incarnation
        connection = Connection(
            Lane(scheduler, LOCAL_DELAY_S, proxy.from_below, lambda: proxy.agent_left(connection, me)),
            Lane(scheduler, LOCAL_DELAY_S, self._take, lambda: self._lost(connection)),
        )
        self._link = connection
        proxy.accept_agent(connection)

    def _lost(self, connection: Connection) -> None:
        if self.alive and self._link is connection:
            self._link = None
            self._connect()

    def _take(self, parcel: Parcel) -> None:
        if not self.alive:
            return
        if isinstance(parcel.content, Upstream):
            if parcel.content.incarnation:
                self._meet(parcel.content.incarnation, anew=parcel.content.anew)
            return
        if self._channel is None or not isinstance(parcel.content, Packet):
            return
        received = self._channel.receive(parcel.content, self._world.now)
        for message in received.messages:
            if isinstance(message, Start | Stop | Finish | Inject):
                self.apply(OrderReceived(self._world.now, message))
        if received.owes_ack:
            self._push(self._channel.acknowledge())

    def _meet(self, incarnation: str, *, anew: bool) -> None:
        now = self._world.now
        if self._channel is not None and self._channel.peer == incarnation and not anew:
            for packet in self._channel.resend_all(now):
                self._push(packet)
            return
        self._conversations += 1
        self._channel = Channel(f"{self.incarnation}.{self._conversations}", incarnation)
        self._push(self._channel.send(self._announce(), now))

    def _announce(self) -> Announce:
        return Announce(
            node=self.node,
            wants_rank=-1,
            addr="127.0.0.1",
            host="simulated",
            pid=1,
            boot_id="simulated",
            local_world=self._world.scenario.local_world,
            free_port=self._free_port(),
            phase=self.state.phase,
            generation=self.state.generation,
            plan=self.state.plan,
            workers=tuple(self._with_progress(view) for view in self.state.workers.values()),
        )

    def _with_progress(self, view: WorkerView) -> WorkerView:
        step = self._step_of(view.rank)
        state = WorkerState.JOINED if step >= 0 and view.state is WorkerState.RUNNING else view.state
        return WorkerView(
            view.rank, view.local_rank, view.pid, state, max(step, view.step), view.exit, view.log
        )

    def _push(self, packet: Packet[Message]) -> None:
        if self._link is not None:
            self._link.up.send(Parcel(agent_address(self.node), MANAGER, packet))

    # --- time --------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        if not self.alive:
            return
        now = self._world.now
        self.apply(Ticked(now))
        if self._channel is not None:
            for packet in self._channel.resend_due(now):
                self._push(packet)
            self._beat_next = not self._beat_next
            if self._beat_next:
                self._beat(self._channel)
        self._world.scheduler.after(TICK_S, self._tick)

    def _beat(self, channel: Channel[Message]) -> None:
        steps = {rank: self._step_of(rank) for rank, view in self.state.workers.items() if view.state.alive}
        joined = tuple(rank for rank, step in steps.items() if step >= 0)
        self._push(channel.send_unreliable(Beat(self.state.generation, steps, joined)))

    def _step_of(self, rank: int) -> int:
        process = self.processes.get(rank)
        return process.step_at(self._world.now) if process is not None and process.alive else -1

    # --- the machine -------------------------------------------------------------------------------------

    def apply(self, event: NodeEvent) -> None:
        """Give the machine an event and do what it says."""
        if not self.alive:
            return
        self.state, effects = machine.step(self.state, event)
        self._world.checks.now = self._world.now
        self._world.checks.saw(self.incarnation, self.state.generation)
        for effect in effects:
            self._carry_out(effect)

    def _carry_out(self, effect: NodeEffect) -> None:
        world = self._world
        match effect:
            case Execute():
                world.note(f"agent {self.node}", f"carries out {effect.order}")
                world.checks.execute(self.incarnation, effect.order, effect.generation)
            case SpawnProcesses():
                self._spawn(effect.plan, effect.place)
            case SignalProcesses():
                self._signal(effect.ranks, effect.signal)
            case Promote() | EndProcesses():
                pass  # nobody switches here
            case InterruptProcesses():
                world.note(f"agent {self.node}", f"interrupts {effect.ranks}")
            case Tell():
                self._tell(effect.report)
            case TellStopped():
                running = [each for each in self.processes.values() if each.alive]
                world.checks.require(not running, f"{self.incarnation} says stopped with {running} alive")
                self._tell(WorkersStopped(effect.generation, self._free_port()))
            case DoFault():
                pass
            case Leave():
                world.note(f"agent {self.node}", f"leaves with {effect.code}")
                self.left = True
                world.finished.add(self.node)
                self._last_words(world.now + LAST_WORDS_S)
            case RefuseOrder():
                world.note(f"agent {self.node}", f"refuses {effect.order}: {effect.why}")

    def _tell(self, report: Message) -> None:
        if self._channel is not None:
            self._push(self._channel.send(report, self._world.now))

    def _last_words(self, deadline: float) -> None:
        if not self.alive:
            return
        if self._channel is not None and self._channel.pending and self._world.now < deadline:
            self._world.scheduler.after(0.01, lambda: self._last_words(deadline))
            return
        self._world.note(f"agent {self.node}", "is gone")
        self._end()

    def _free_port(self) -> int:
        self._ports += 1
        return self._ports

    # --- processes ---------------------------------------------------------------------------------------

    def _spawn(self, plan: Plan, place: NodePlace) -> None:
        world = self._world
        world.checks.spawn(self.incarnation, plan, world.reachable())
        if not world.calm and world.rng.random() < world.scenario.spawn_failures:
            world.scheduler.between(0.01, 1.0, lambda: self._spawn_failed(plan))
        else:
            world.scheduler.between(0.02, 1.0, lambda: self._be_born(plan, place))

    def _spawn_failed(self, plan: Plan) -> None:
        self._world.note(f"agent {self.node}", f"cannot spawn generation {plan.generation}")
        self.apply(SpawnFailed(self._world.now, plan.generation, "no more processes"))

    def _be_born(self, plan: Plan, place: NodePlace) -> None:
        if not self.alive:
            return
        world = self._world
        world.note(f"agent {self.node}", f"processes of generation {plan.generation} exist")
        self.processes = {}
        views: list[WorkerView] = []
        for local_rank, rank in enumerate(place.ranks):
            process = Process(
                node=self.node,
                pid=next(world.numbers),
                rank=rank,
                generation=plan.generation,
                born=world.now,
                ignores_term=world.rng.random() < world.scenario.obstinate,
                joins=world.scenario.joins,
            )
            self.processes[rank] = process
            world.checks.born(process)
            views.append(WorkerView(rank, local_rank, process.pid, WorkerState.RUNNING))
            if not world.scenario.endless:
                self._end_after(world.scenario.work_s * world.rng.uniform(0.8, 1.2), process, Exit(code=0))
        started = tuple(views)
        world.scheduler.between(
            0.0, 0.05, lambda: self.apply(ProcessesStarted(world.now, plan.generation, started, {}))
        )

    def fail(self, process: Process, how: Exit) -> None:
        """Have a process fail now; an interpreter takes its time to end after an error."""
        if not self.alive or not process.alive:
            return
        world = self._world
        world.note(f"agent {self.node}", f"rank {process.rank} of {process.generation} fails: {how}")
        own_error = bool(how.code)
        slow = world.rng.uniform(0.0, 0.8) if own_error else 0.0
        self._end_after(slow, process, how, world.now if own_error else 0.0)

    def _signal(self, ranks: tuple[int, ...], sig: int) -> None:
        for rank in ranks:
            process = self.processes.get(rank)
            if process is None or not process.alive or (sig == SIGTERM and process.ignores_term):
                continue
            slowest = 0.05 if sig == SIGKILL else 0.5
            self._end_after(self._world.rng.uniform(0.0, slowest), process, Exit(signal=sig))

    def _end_after(self, delay_s: float, process: Process, how: Exit, failed_stamp: float = 0.0) -> None:
        self._world.scheduler.after(delay_s, lambda: self._ended(process, how, failed_stamp))

    def _ended(self, process: Process, how: Exit, failed_stamp: float) -> None:
        if not process.alive or not self.alive:
            return
        world = self._world
        step = process.step_at(world.now)
        world.checks.died(process)
        report = WorkerExited(
            generation=process.generation,
            rank=process.rank,
            local_rank=0,
            pid=process.pid,
            exit=how,
            step=step,
            lived_s=world.now - process.born,
            noticed_at=world.now,
            failed_stamp=failed_stamp,
        )
        world.scheduler.between(0.0, 0.01, lambda: self.apply(ProcessExited(world.now, report)))
