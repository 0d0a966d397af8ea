"""The manager's shell on virtual time: ``taskd.manager.server`` without sockets and clocks.

It must do what the real shell does and nothing more, or the simulation proves the wrong thing: each method
here has its counterpart of the same name there.
"""

from taskd.core import job as machine
from taskd.core.delivery import Conversations, Packet
from taskd.core.failures import Budget
from taskd.core.incidents import close_left_open
from taskd.core.jobstate import (
    Consult,
    Effect,
    EndJob,
    Event,
    Job,
    NodeAnnounced,
    NodeLost,
    RecordIncident,
    Refuse,
    Reported,
    SendOrder,
    SendWorkers,
    StopRequested,
    Ticked,
)
from taskd.core.messages import (
    MANAGER,
    AgentGone,
    Announce,
    Beat,
    OrderDone,
    ProxyHello,
    Upstream,
    WorkerExited,
    WorkersStarted,
    WorkersStopped,
    agent_address,
    proxy_address,
)
from taskd.core.status import JobPhase
from taskd.testing.sim_network import Connection, Parcel
from taskd.testing.sim_world import NODE_LOST_S, World, end_connections
from taskd.wire.envelope import Message

TICK_S = 0.25
LAST_WORDS_S = 0.2
ASK_EVERY_S = 1.0


class SimManager:
    """One life of the manager."""

    def __init__(self, world: World) -> None:
        """Be born; what a predecessor wrote down is all that is known."""
        self._world = world
        self.incarnation = f"manager.{next(world.numbers)}"
        self.alive = True
        options = world.scenario.options
        self.job = Job(options, since=world.now, budget=Budget(options.max_restarts))
        self._load()
        self.streams: dict[str, Connection] = {}
        self._connections: list[Connection] = []
        self._conversations: Conversations[Message] = Conversations(self.incarnation)
        self._seen: dict[str, float] = {}
        self._asked: dict[str, float] = {}
        world.note("manager", f"born as {self.incarnation}")
        world.scheduler.after(TICK_S, self._tick)

    def _load(self) -> None:
        disk = self._world.disk
        disk.incidents = {number: close_left_open(each) for number, each in disk.incidents.items()}
        self.job = machine.take_over(self.job, max(disk.incidents, default=0), disk.ending)

    def kill(self) -> None:
        """Die at once."""
        self._world.note("manager", f"{self.incarnation} is killed in {self.job.phase}")
        self._end()

    def _end(self) -> None:
        self.alive = False
        end_connections(self._world, self._connections)
        if self._world.manager is self:
            self._world.manager = None

    def request_stop(self, why: str, code: int) -> None:
        """End the job in order."""
        self._apply(StopRequested(self._world.now, why, code))

    def _tick(self) -> None:
        if not self.alive:
            return
        now = self._world.now
        for node, seen in list(self._seen.items()):
            if now - seen > NODE_LOST_S:
                self._give_up(node, "no sign of life")
        self._apply(Ticked(now))
        for node, channel in self._conversations.all():
            for packet in channel.resend_due(now):
                self._push(node, packet)
        self._world.scheduler.after(TICK_S, self._tick)

    def _give_up(self, node: str, why: str) -> None:
        self._seen.pop(node, None)
        channel = self._conversations.with_node(node)
        if channel is not None:
            self._conversations.end(node)
            self._apply(NodeLost(self._world.now, self._world.now, node, channel.peer, why))

    # --- streams -----------------------------------------------------------------------------------------

    def accept(self, connection: Connection) -> None:
        """Take a new stream in."""
        self._connections.append(connection)

    def left(self, node: str, connection: Connection) -> None:
        """Notice that a stream ended."""
        if self.streams.get(node) is connection:
            del self.streams[node]

    def take(self, connection: Connection, parcel: Parcel) -> None:
        """Act on what came over a stream."""
        if not self.alive:
            return
        match parcel.content:
            case Packet() as packet:
                self._take_from_agent(parcel.src.split("/", 1)[1], packet)
            case ProxyHello() as hello:
                self._welcome(hello.node, connection)
            case AgentGone() as gone:
                channel = self._conversations.with_node(gone.node)
                if channel is not None and channel.peer.partition(".")[0] == gone.agent_incarnation:
                    self._give_up(gone.node, "its agent died")
            case other:
                raise TypeError(f"nobody sends {other} to a simulated manager")

    def _welcome(self, node: str, connection: Connection) -> None:
        old = self.streams.get(node)
        if old is not None and old is not connection:
            old.cut(self._world.remote_notice_s())
        self.streams[node] = connection
        connection.down.send(Parcel(MANAGER, proxy_address(node), Upstream(self.incarnation)))
        channel = self._conversations.with_node(node)
        if channel is not None:
            for packet in channel.resend_all(self._world.now):
                self._push(node, packet)

    def _take_from_agent(self, node: str, packet: Packet[Message]) -> None:
        channel = self._conversations.find(node, packet, opens=isinstance(packet.message, Announce))
        if channel is None:
            if self._conversations.with_node(node) is None:
                self._ask_anew(node, packet.receiver)
            return
        self._seen[node] = self._world.now
        received = channel.receive(packet, self._world.now)
        for message in received.messages:
            self._understand(node, channel.peer, message)
        if received.owes_ack:
            self._push(node, channel.acknowledge())

    def _ask_anew(self, node: str, meant: str) -> None:
        now = self._world.now
        stream = self.streams.get(node)
        if meant != self.incarnation or now - self._asked.get(node, -ASK_EVERY_S) < ASK_EVERY_S:
            return
        self._asked[node] = now
        if stream is not None:
            stream.down.send(Parcel(MANAGER, agent_address(node), Upstream(self.incarnation, anew=True)))

    def _understand(self, node: str, incarnation: str, message: Message) -> None:
        now = self._world.now
        match message:
            case Announce():
                shown = f"{incarnation} announces {message.phase}, generation {message.generation}"
                self._world.note("manager", shown)
                self._apply(NodeAnnounced(now, now, incarnation, message))
            case WorkerExited() | WorkersStarted() | WorkersStopped() | OrderDone():
                self._world.note("manager", f"{incarnation} tells {_brief(message)}")
                self._apply(Reported(now, now, node, incarnation, message))
            case Beat():
                self._apply(Reported(now, now, node, incarnation, message))
            case other:
                raise TypeError(f"nobody tells {other} to a simulated manager")

    # --- effects -----------------------------------------------------------------------------------------

    def _apply(self, event: Event) -> None:
        if not self.alive or self._world.disk.ended:
            return
        before = self.job
        self.job, effects = machine.step(before, event)
        if (before.phase, before.generation) != (self.job.phase, self.job.generation):
            shown = f"{self.job.phase}, generation {self.job.generation}: {self.job.reason}"
            self._world.note("manager", shown)
            self._world.on_phase(self.job.phase)
        for key, node in self.job.nodes.items():
            if node.lost and (key not in before.nodes or not before.nodes[key].lost):
                self._world.note("manager", f"node {key} is lost: {node.lost}")
                self._world.checks.give_up(key)
        if self.job.generation != before.generation:
            for key in self._world.agents:
                if key not in self.job.nodes or not self.job.nodes[key].usable:
                    self._world.checks.give_up(key)
        self._world.disk.ending = self._world.disk.ending or self.job.ending
        for effect in effects:
            self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case SendOrder():
                channel = self._conversations.with_node(effect.node)
                if channel is not None:
                    self._world.note("manager", f"orders {effect.order.order} of node {effect.node}")
                    self._push(effect.node, channel.send(effect.order, self._world.now))
            case SendWorkers():
                self._world.note("manager", f"tells the workers of node {effect.node}")
            case RecordIncident():
                incident = effect.incident
                self._world.disk.incidents[incident.number] = incident
                self._world.note("manager", f"incident {incident.number} {incident.outcome}: {incident.what}")
            case EndJob():
                self._world.note("manager", f"the job ended: {effect.ending.reason}")
                self._world.disk.ended = True
                for key in self._world.agents:
                    known = self.job.nodes.get(key)
                    if known is None or known.lost or key not in self.streams:
                        self._world.out_of_reach.add(key)
                self._world.scheduler.after(LAST_WORDS_S, self._end)
            case Refuse():
                self._world.note("manager", f"refuses node {effect.node}: {effect.why}")
            case Consult():
                self._world.note("manager", "asks a plane that is not in this world")

    def _push(self, node: str, packet: Packet[Message]) -> None:
        stream = self.streams.get(node)
        if stream is not None:
            stream.down.send(Parcel(MANAGER, agent_address(node), packet))

    @property
    def running(self) -> bool:
        """Tell whether the job runs, as far as this manager knows."""
        return self.job.phase is JobPhase.RUNNING


def _brief(message: Message) -> str:
    generation = getattr(message, "generation", "")
    rank = getattr(message, "rank", "")
    shown_rank = f" rank {rank} {getattr(message, 'exit', '')}" if rank != "" else ""
    return f"{type(message).__name__} {generation}{shown_rank}"
