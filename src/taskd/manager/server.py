"""The job's brain: it feeds the recovery machine and carries out what it says.

All knowledge is in ``core.job``. Here are only the clock, the streams of the proxies, the numbering of
messages, and the record for people. The manager may be killed at any moment: its successor hears from the
agents how far things are, so nothing needs to be written down for its sake.
"""

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import time
from dataclasses import replace

import msgspec

from taskd.core import job as machine
from taskd.core.delivery import Conversations
from taskd.core.exits import ExitCode
from taskd.core.failures import Budget
from taskd.core.incidents import describe_news
from taskd.core.jobstate import (
    Consult,
    Effect,
    Ending,
    EndJob,
    Event,
    Job,
    NodeAnnounced,
    NodeLost,
    RecordIncident,
    Refuse,
    Reported,
    ResetRead,
    SendOrder,
    SendWorkers,
    StopRequested,
    SwitchRequested,
    Ticked,
)
from taskd.core.messages import (
    MANAGER,
    Ack,
    AgentGone,
    Announce,
    Beat,
    Coming,
    Denied,
    Farewell,
    FaultDue,
    Inject,
    Notes,
    NotesWanted,
    OrderDone,
    PlaceAsked,
    Prepared,
    Progress,
    ProxyHello,
    Regroup,
    Report,
    RosterKept,
    Save,
    Saved,
    Standing,
    Through,
    Trouble,
    Upstream,
    WorkerExited,
    WorkerOrder,
    WorkerOrderDone,
    WorkersStarted,
    WorkersStopped,
    agent_address,
    proxy_address,
    worker_address,
)
from taskd.core.reach import Patience
from taskd.core.status import IncidentStatus, JobPhase, JobStatus
from taskd.core.switching import why_not
from taskd.kit import jobs
from taskd.kit.failpoints import failpoint
from taskd.kit.lifeline import Lifeline
from taskd.kit.logs import Log
from taskd.kit.machine import boot_id
from taskd.links.plane import PlaneAddress
from taskd.links.rpc import ServerStream, serve_rpc
from taskd.manager.calls import CallError, answer_call
from taskd.manager.config import ManagerConfig
from taskd.manager.history import load_history
from taskd.manager.injection import Injector
from taskd.manager.inquiries import Inquiries
from taskd.manager.liaison import Liaison
from taskd.manager.office import Office, begin_succession
from taskd.manager.parts import keep_running
from taskd.manager.questions import confirm, pass_on
from taskd.manager.reaching import Doors
from taskd.manager.resetconfig import ResetWatch, reset_directory
from taskd.manager.view import Surroundings, make_status
from taskd.wire.envelope import (
    Envelope,
    Message,
    WireError,
    decode_envelope,
    encode_envelope,
    pack,
    pack_packet,
    unpack,
    unpack_packet,
)

# While something is under way or another manager may be elected, and while nothing is.
TICK_S, CALM_TICK_S = 0.2, 0.5
STATUS_EVERY_S = 1.0
LAST_WORDS_S = 0.2
SOON_S = 0.005
ASK_EVERY_S = 1.0


class Manager:
    """One job's manager."""

    def __init__(
        self, config: ManagerConfig, log: Log, lifeline: Lifeline, plane: PlaneAddress | None = None
    ) -> None:
        """Make a manager; ``run`` makes it work."""
        self._config = config
        self._log = log
        self._lifeline = lifeline
        self.incarnation = secrets.token_hex(6)
        self.job = Job(config.options, since=time.monotonic(), budget=Budget(config.options.max_restarts))
        self.job = begin_succession(self.job, config.succession)
        self._office = Office(config, time.monotonic())
        self._held: list[Event] = []
        self._said_alone = config.succession is not None  # its launcher assumes it until it hears otherwise
        self._ticked_at = time.monotonic()
        self.port = 0
        self._boot_id = boot_id()
        self._started_stamp = time.time()
        self._streams: dict[str, ServerStream] = {}
        self._proxy_pids: dict[str, int] = {}
        self._conversations: Conversations[Message] = Conversations(self.incarnation)
        self._seen: dict[str, float] = {}
        self._asked: dict[str, float] = {}
        self._paused: frozenset[int] = frozenset()
        self._incidents: dict[int, IncidentStatus] = {}
        self._inquiries = Inquiries()
        self._injector = Injector(self, config.faults)
        self._doors = Doors(
            Patience(config.reach_s), self._streams.keys, self._office.may_spare, self._give_up
        )
        self._liaison = Liaison(plane, self, log) if plane is not None else None
        place = reset_directory(os.environ)
        self._resets = ResetWatch(place, self, log) if place is not None else None
        self._over = asyncio.Event()
        self._ending: Ending | None = None

    # --- life --------------------------------------------------------------------------------------------

    async def run(self) -> Ending:
        """Serve until the job has ended; returns how it ended."""
        history = load_history(self._config, self.job)
        self.job, self._incidents = history.job, history.incidents
        self._started_stamp = history.started_stamp or self._started_stamp
        address = f"{self._config.host}:{self._config.port}"
        server, self.port = await serve_rpc(
            address,
            self._config.token,
            self._serve_proxy,
            self._serve_call,
            reserved=self._config.port_reserved,
            papers=self._config.papers,
        )
        self._lifeline.say(listening=self.port)
        self._log.info("manager_started", port=self.port, incarnation=self.incarnation)
        ticker = asyncio.ensure_future(self._keep_time())
        over = asyncio.ensure_future(self._over.wait())
        parts = (self._doors, self._liaison, self._resets)
        others = [asyncio.ensure_future(keep_running(part, self._log)) for part in parts if part]
        try:
            await asyncio.wait({ticker, over}, return_when=asyncio.FIRST_COMPLETED)
            if ticker.done():
                ticker.result()
        finally:
            self._save_status()
            await asyncio.sleep(LAST_WORDS_S)
            for task in (ticker, over, *others):
                task.cancel()
            await server.stop(0.2)
        if self._ending is None:
            raise RuntimeError("the manager stopped before the job did")
        return self._ending

    def request_stop(self, why: str, code: int, *, save: bool = False) -> None:
        """End the job in order; with ``save`` after a dump, where the job's strategies have that."""
        self.apply(StopRequested(time.monotonic(), why, code, time.time(), save))

    def agent_died(self, node: str, pid: int) -> None:
        """The launcher saw an agent of this machine end."""
        known = self.job.nodes.get(node)
        if known is not None and known.announce.pid == pid:
            self._give_up(node, "its agent died")

    async def _keep_time(self) -> None:
        last, saved = time.monotonic(), 0.0
        while True:
            await asyncio.sleep(CALM_TICK_S if self._is_calm() else TICK_S)
            now = time.monotonic()
            if now - last > self._config.pace.stall_s:
                # This process did not run for a while (stopped, or starved): nobody else is to blame.
                self._seen = dict.fromkeys(self._seen, now)
                self._office.forget_all(now)
            last = self._ticked_at = now
            self._check_office(now)
            self._check_leases(now)
            self.apply(Ticked(now, time.time()))
            for node, channel in self._conversations.all():
                for packet in channel.resend_due(now):
                    self._push(node, pack_packet(*self._heading(node), packet))
            if now - saved >= STATUS_EVERY_S:
                saved = now
                self._save_status()

    def _is_calm(self) -> bool:
        waiting = any(channel.pending for _, channel in self._conversations.all())
        return self.job.phase is JobPhase.RUNNING and self._config.succession is None and not waiting

    def _check_office(self, now: float) -> None:
        """Keep the roster; tell the launcher when nothing may be decided, and go if that stays so."""
        decides = self._decides(now)
        alone_s = self._office.alone_s(now, decides=decides)
        limit_s = self.job.options.join_timeout_s
        if not decides:
            self._lifeline.say(alone=alone_s, elected=self._office.elected)
            if alone_s > limit_s:
                why = f"more than half of the machines were out of reach for {limit_s:g} s"
                self._lifeline.say(fatal=why, code=ExitCode.NODES_MISSING)
        elif self._said_alone:
            self._lifeline.say(alone=0.0, elected=True)
        self._said_alone = not decides
        roster, nodes = self._office.review(now, self.job, self._streams)
        if roster is not None:
            for node in nodes:
                to = proxy_address(node)
                self._push(node, pack(self._config.job, MANAGER, to, roster, sender=self.incarnation))

    def _decides(self, now: float) -> bool:
        """Tell whether this manager may decide now; not if it cannot know who is there."""
        if now - self._ticked_at > self._config.pace.stall_s and self._config.succession is not None:
            return False
        return self._office.may_decide(now, self._streams)

    def _check_leases(self, now: float) -> None:
        for node, seen in list(self._seen.items()):
            if now - seen > self._config.node_lost_s:
                self._give_up(node, f"no sign of life for {self._config.node_lost_s:g} s")

    def _give_up(self, node: str, why: str, *, cut: bool = False) -> None:
        """Count a node as lost; if it speaks again it must announce itself again."""
        self._seen.pop(node, None)
        channel = self._conversations.with_node(node)
        if channel is not None:
            self._log.warning("given_up", node=node, why=why)
            self._conversations.end(node)
            self.apply(NodeLost(time.monotonic(), time.time(), node, channel.peer, why, cut))

    # --- streams -----------------------------------------------------------------------------------------

    async def _serve_proxy(self, stream: ServerStream) -> None:
        node = ""
        try:
            while (data := await stream.receive()) is not None:
                try:
                    envelope = decode_envelope(data)
                    node = self._take(envelope, stream) or node
                except WireError as error:
                    self._log.warning("bad_message", why=str(error))
        finally:
            if node and self._streams.get(node) is stream:
                del self._streams[node]
                self._log.info("proxy_left", node=node)

    def _take(self, envelope: Envelope, stream: ServerStream) -> str | None:
        """Act on one envelope; returns the node if it introduced its proxy."""
        if envelope.job != self._config.job:
            self._log.warning("refused", why=f"of job {envelope.job!r}", src=envelope.src)
            return None
        node, now = envelope.src.partition("/")[2].partition("/")[0], time.monotonic()
        self._office.hear(node, now)
        self._doors.hear(node, now)
        if envelope.kind == Notes.__name__ and envelope.dst.startswith("worker/"):
            self._push(envelope.dst.split("/")[1], envelope)
            return None
        if envelope.src.startswith("agent/"):
            self._take_from_agent(envelope)
            return None
        message = unpack(envelope)
        match message:
            case ProxyHello():
                return message.node if self._welcome(message, stream) else None
            case AgentGone():
                self._log.warning("agent_gone", node=message.node)
                channel = self._conversations.with_node(message.node)
                if channel is not None and channel.peer.partition(".")[0] == message.agent_incarnation:
                    self._give_up(message.node, "its agent died")
            case Progress() | Standing() | Trouble() | Saved() | Coming() | Through():
                known = self.job.nodes.get(node)
                if known is not None:
                    self.apply(Reported(now, time.time(), node, known.incarnation, message))
            case NotesWanted():
                if self.job.plan is not None:  # otherwise it asks again
                    self._push(*pass_on(self.job.plan, envelope, message))
            case PlaceAsked():
                held = confirm(self.job.plan, envelope, message) if self.job.plan else None
                if held is not None and self._decides(now):
                    self._push(*held)
            case RosterKept():
                self._office.kept(message)
                to = proxy_address(message.node)
                self._push(message.node, pack(self._config.job, MANAGER, to, Ack(), sender=self.incarnation))
            case WorkerOrderDone():
                self._inquiries.workers_answered(message)
            case FaultDue():
                self._injector.due(message)
            case _:
                self._log.warning("unexpected", kind=envelope.kind, src=envelope.src)
        return None

    def _greeting(self, node: str, *, replaced: bool = False) -> Envelope:
        """Say who manages; or, to a launcher that a later one has replaced, that it has to go."""
        why = (
            f"node {node} was started anew and the job goes on there; all of it here ends" if replaced else ""
        )
        message = Upstream(self.incarnation, term=self._office.term, replaced=why)
        return pack(self._config.job, MANAGER, proxy_address(node), message, sender=self.incarnation)

    def _welcome(self, hello: ProxyHello, stream: ServerStream) -> bool:
        old = self._streams.get(hello.node)
        if old is not None and old is not stream and self._office.is_replaced(hello, time.monotonic()):
            self._log.warning("refused", why="replaced by a later launcher of its node", node=hello.node)
            stream.send(encode_envelope(self._greeting(hello.node, replaced=True)))
            return False
        if old is not None and old is not stream:
            old.close()
        self._streams[hello.node] = stream
        self._proxy_pids[hello.node] = hello.pid
        self._office.welcome(hello, time.monotonic())
        if hello.standby is not None and hello.standby.lookout:
            self._doors.open(hello.node, hello.standby.lookout)
        self._log.info("proxy_joined", node=hello.node, pid=hello.pid)
        stream.send(encode_envelope(self._greeting(hello.node)))
        channel = self._conversations.with_node(hello.node)
        if channel is not None:
            for packet in channel.resend_all(time.monotonic()):
                self._push(hello.node, pack_packet(*self._heading(hello.node), packet))
        return True

    def _take_from_agent(self, envelope: Envelope) -> None:
        node = envelope.src.split("/", 1)[1]
        now = time.monotonic()
        packet = unpack_packet(envelope)
        channel = self._conversations.find(node, packet, opens=isinstance(packet.message, Announce))
        if channel is None:
            self._log.info("refused", src=envelope.src, kind=envelope.kind, why="not announced yet")
            if self._conversations.with_node(node) is None:
                self._ask_anew(node, packet.receiver, now)
            return
        self._seen[node] = now
        received = channel.receive(packet, now)
        if received.refused:
            self._log.info("refused", src=envelope.src, kind=envelope.kind, why=received.refused)
        reports = [m for m in received.messages if isinstance(m, WorkersStarted | WorkersStopped)]
        if reports:
            failpoint("manager.reported")
        for message in received.messages:
            self._understand(node, channel.peer, message, now)
        if received.owes_ack:
            self._push(node, pack_packet(*self._heading(node), channel.acknowledge()))
        if reports:
            asyncio.get_running_loop().call_later(SOON_S, failpoint, "manager.acknowledged")

    def _ask_anew(self, node: str, meant: str, now: float) -> None:
        """Ask an agent that was given up, and is there after all, to announce itself again."""
        if meant != self.incarnation or now - self._asked.get(node, 0.0) < ASK_EVERY_S:
            return
        self._asked[node] = now
        question = Upstream(self.incarnation, anew=True, term=self._office.term)
        self._push(
            node,
            pack(self._config.job, MANAGER, agent_address(node), question, sender=self.incarnation),
        )

    def _understand(self, node: str, incarnation: str, message: Message, now: float) -> None:
        stamp = time.time()
        match message:
            case Announce():
                self._log.info("announced", node=node, phase=message.phase, generation=message.generation)
                self._adopt(message)
                self.apply(NodeAnnounced(now, stamp, incarnation, message))
            case WorkerExited():
                if self._boot_of(node) != self._boot_id:
                    message = replace(message, noticed_at=now)
                self._log.info("worker_exited", node=node, rank=message.rank, exit=message.exit)
                self.apply(Reported(now, stamp, node, incarnation, message))
            case OrderDone():
                self._inquiries.agent_answered(message)
                self.apply(Reported(now, stamp, node, incarnation, message))
            case Beat():
                mine = frozenset(message.steps)
                self._paused = (self._paused - mine) | frozenset(message.paused)
                self.apply(Reported(now, stamp, node, incarnation, message))
            case WorkersStarted() | WorkersStopped() | Prepared():
                self.apply(Reported(now, stamp, node, incarnation, message))
            case _:
                self._log.warning("unexpected", kind=type(message).__name__, node=node)

    def _adopt(self, announce: Announce) -> None:
        """Take the launcher's wishes where the manager was started without any."""
        if not self._config.adopt_options or announce.options is None or self.job.nodes:
            return
        mine, options = self.job.options, announce.options
        if mine.max_nodes:  # 0: a manager.py that leaves the number of nodes to the launchers
            options = replace(options, min_nodes=mine.min_nodes, max_nodes=mine.max_nodes)
        self.job = replace(self.job, options=options, budget=Budget(options.max_restarts))

    def _boot_of(self, node: str) -> str:
        known = self.job.nodes.get(node)
        return known.announce.boot_id if known else ""

    # --- effects -----------------------------------------------------------------------------------------

    def apply(self, event: Event) -> None:
        """Feed an event into the machine, and carry out what it says."""
        if not isinstance(event, StopRequested) and not self._decides(time.monotonic()):
            # Ticks, beats and what workers say come again; the rest is acted on when others are there.
            kept = NodeAnnounced | NodeLost | ResetRead | Report
            if isinstance(event.report if isinstance(event, Reported) else event, kept):
                self._held.append(event)
            return
        if self._held:
            held, self._held = self._held, []
            for each in held:
                self.apply(each)
        before, decided = (self.job.phase, self.job.generation), self.job.ending is not None
        self.job, effects = machine.step(self.job, event)
        if self.job.ending is not None and not decided:
            self._save_status()  # before anybody hears of it: a successor must not go on
        for effect in effects:
            self._carry_out(effect)
        if (self.job.phase, self.job.generation) != before:
            self._log.info("phase", phase=self.job.phase, generation=self.job.generation, why=self.job.reason)
            self._lifeline.say(phase=self.job.phase.value, generation=self.job.generation)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case SendOrder():
                self.send_order(effect.node, effect.order)
            case SendWorkers():
                self._tell_workers(effect.node, effect.message)
            case Consult():
                if self._liaison is not None:
                    self._liaison.consult(effect)
            case RecordIncident():
                if self._liaison is not None:
                    self._liaison.recorded(effect.incident)
                status = effect.incident.status()
                self._incidents[status.number] = status
                self._tell(status)
                with contextlib.suppress(OSError, jobs.JobLookupError):
                    jobs.append_incident(self._config.job, status)
            case EndJob():
                self._ending = effect.ending
                self._over.set()
            case Refuse():
                self._log.info("refused", node=effect.node, why=effect.why)

    def _tell(self, incident: IncidentStatus) -> None:
        """Tell the person at the console: through the launcher, or by ourselves where there is none."""
        self._lifeline.say(incident=incident)
        news = describe_news(incident)
        if news and not self._lifeline.attached:
            logging.getLogger("taskd").warning("taskd: %s", news)

    def _tell_workers(self, node: str, message: Regroup | Denied | Save | Farewell) -> None:
        """Tell all workers of a node; a worker that misses it says again where it stands."""
        to = worker_address(node, -1)
        self._push(
            node,
            pack(
                self._config.job,
                MANAGER,
                to,
                message,
                sender=self.incarnation,
                generation=message.generation,
            ),
        )

    def send_order(self, node: str, order: Message) -> None:
        """Give an order to an agent; it is repeated until acknowledged."""
        channel = self._conversations.with_node(node)
        if channel is None:
            return
        packet = channel.send(order, time.monotonic())
        failpoint("manager.deciding")
        self._push(node, pack_packet(*self._heading(node), packet))
        asyncio.get_running_loop().call_later(SOON_S, failpoint, "manager.sent")

    def _heading(self, node: str) -> tuple[str, str, str, int]:
        return self._config.job, MANAGER, agent_address(node), self.job.generation

    def _push(self, node: str, envelope: Envelope) -> None:
        stream = self._streams.get(node)
        if stream is not None:
            stream.send(encode_envelope(envelope))

    # --- orders with answers -----------------------------------------------------------------------------

    async def order_agent(self, node: str, order: Inject) -> OrderDone:
        """Give an order to an agent and wait for its answer."""
        return await self._inquiries.ask_agent(node, order, self.send_order)

    async def order_workers(self, order: WorkerOrder, nodes: list[str]) -> dict[int, str]:
        """Give an order to workers of many nodes and gather what they answer."""
        # The order is encoded once; only the address differs from node to node.
        template = pack(
            self._config.job, MANAGER, "", order, sender=self.incarnation, generation=self.job.generation
        )

        def send(node: str) -> None:
            self._push(node, msgspec.structs.replace(template, dst=worker_address(node, -1)))

        return await self._inquiries.ask_workers(order, self._streams.keys() & set(nodes), send)

    # --- for people --------------------------------------------------------------------------------------

    def status(self) -> JobStatus:
        """Return the job as it is now."""
        newest = max(self._incidents, default=0)
        now, job = time.monotonic(), self.job
        if not self._decides(now):
            job = replace(job, reason=self._office.describe(now, self._streams))
        return make_status(
            job,
            Surroundings(
                job=self._config.job,
                manager_pid=os.getpid(),
                manager_addr=f"{self._config.host}:{self.port}",
                started_stamp=self._started_stamp,
                stamp=time.time(),
                connected=frozenset(self._streams),
                proxy_pids=self._proxy_pids,
                paused=self._paused,
                last_fault=self._incidents[newest].what if newest else "",
            ),
        )

    def timeline(self) -> list[IncidentStatus]:
        """Return the incidents, oldest first."""
        return [self._incidents[number] for number in sorted(self._incidents)]

    async def inject(self, params: dict[str, object]) -> dict[str, str]:
        """Do a fault to the job on purpose."""
        return await self._injector.inject(params)

    def switch(self, rank: int, node_rank: int) -> int:
        """Begin to move a rank or a node's ranks; returns the number of the entry in the timeline."""
        request = SwitchRequested(time.monotonic(), time.time(), rank, node_rank)
        why = why_not(self.job, request)
        if why:
            raise CallError(why)
        self.apply(request)
        return self.job.incidents

    async def ping(self) -> dict[str, object]:
        """Ask every worker for a sign of life; a worker answers at its next step."""
        began = time.monotonic()
        order = WorkerOrder(f"ping/{secrets.token_hex(4)}", "ping")
        results = await self.order_workers(order, list(self._streams))
        return {
            "acks": sum(answer == "ok" for answer in results.values()),
            "asked": len(results),
            "took_ms": (time.monotonic() - began) * 1000.0,
        }

    def die(self, kind: str) -> None:
        """Carry out a fault of the manager itself."""
        sig = signal.SIGSTOP if kind == "hang" else signal.SIGKILL
        asyncio.get_running_loop().call_later(0.05, os.kill, os.getpid(), sig)

    async def _serve_call(self, request: bytes) -> bytes:
        return await answer_call(self, request)

    def _save_status(self) -> None:
        try:
            jobs.write_status(self.status())
        except (OSError, jobs.JobLookupError) as error:
            self._log.warning("status_not_written", why=str(error))
