"""The container's relay: agent and workers below, the manager above.

It decides nothing. It keeps what goes up while the manager is away (as long as it is the same manager that
comes back), tells its children which manager they speak to, sees at once when its agent dies, and answers
an order to all workers of the node with one message instead of one per worker.

In a job of several machines it also keeps the roster of those who could host the manager, and goes where its
launcher says when another one does. It never obeys a manager of an earlier term than the one before.
"""

import asyncio
import os
import random
import secrets
from collections import deque
from dataclasses import dataclass, field

from taskd.core.exits import ExitCode
from taskd.core.messages import (
    MANAGER,
    AgentGone,
    LocalHello,
    OrderDone,
    ProxyHello,
    RosterKept,
    Start,
    Stop,
    Upstream,
    WorkerOrder,
    WorkerOrderDone,
    WorkersStarted,
    WorkersStopped,
    agent_address,
    proxy_address,
)
from taskd.core.routing import ALL_RANKS, Hop, decide_route
from taskd.core.succession import Roster, Term
from taskd.kit.failpoints import failpoint
from taskd.kit.lifeline import Lifeline
from taskd.kit.logs import Log
from taskd.kit.rosters import read_roster, write_roster
from taskd.links.local import LocalLink, serve_local
from taskd.links.rpc import ClientStream, connect_rpc
from taskd.proxy.config import ProxyConfig
from taskd.wire.envelope import (
    Envelope,
    Message,
    WireError,
    decode_envelope,
    encode_envelope,
    pack,
    unpack,
)

KEPT_MESSAGES = 4096
WORKER_ORDER_LIMIT_S = 10.0
FIRST_RETRY_S, LAST_RETRY_S = 0.05, 1.0
SOON_S = 0.005
ORDERS = frozenset({Start.__name__, Stop.__name__})
REPORTS = frozenset({WorkersStarted.__name__, WorkersStopped.__name__})


@dataclass(slots=True)
class _Gathering:
    """An order to workers, and who has answered."""

    waiting: set[int]
    results: dict[int, str] = field(default_factory=dict)


class Proxy:
    """The relay of one container."""

    def __init__(self, config: ProxyConfig, log: Log, lifeline: Lifeline) -> None:
        """Make a proxy; ``run`` makes it work."""
        self._config = config
        self._log = log
        self._lifeline = lifeline
        self._manager = config.manager
        self._term = config.term
        self._roster = read_roster(config.roster_file) if config.roster_file else None
        self._moved = asyncio.Event()
        self._refused = False
        self.incarnation = secrets.token_hex(6)
        self._agent: LocalLink | None = None
        self._agent_incarnation = ""
        self._workers: dict[int, list[LocalLink]] = {}  # a rank that is being moved has two processes
        self._manager_incarnation = ""
        self._outbound: deque[bytes] = deque(maxlen=KEPT_MESSAGES)
        self._more = asyncio.Event()
        self._orders: dict[str, _Gathering] = {}

    async def run(self) -> None:
        """Relay until cancelled."""
        server = await serve_local(self._config.socket, self._serve_child)
        try:
            await self._keep_upstream()
        finally:
            server.close()

    # --- above -------------------------------------------------------------------------------------------

    def follow(self, manager: str, term: Term) -> None:
        """Go to another manager."""
        if term >= self._term:
            self._log.info("following", address=manager, term=term.number)
            self._manager, self._term = manager, term
            self._moved.set()

    async def _keep_upstream(self) -> None:
        retry_s = FIRST_RETRY_S
        while True:
            self._moved.clear()
            visit = asyncio.ensure_future(self._visit())
            moved = asyncio.ensure_future(self._moved.wait())
            try:
                await asyncio.wait({visit, moved}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (visit, moved):
                    task.cancel()
                results = await asyncio.gather(visit, moved, return_exceptions=True)
            if isinstance(results[0], Exception):
                raise results[0]
            if results[0] is True or self._moved.is_set():
                retry_s = FIRST_RETRY_S
            # Spread out, so that a thousand proxies do not come back in the same instant.
            await asyncio.sleep(retry_s * (0.5 + random.random()))
            retry_s = min(retry_s * 2, LAST_RETRY_S)

    async def _visit(self) -> bool:
        """Speak to the manager for as long as it is there; tells whether it was."""
        address, config = self._manager, self._config
        try:
            async with connect_rpc(address, config.token, 2.0, config.papers) as stream:
                await self._speak(stream)
                return True
        except ConnectionError as error:
            self._log.info("manager_unreachable", address=address, why=str(error))
            self._lifeline.say(manager="away")
            return False

    async def _speak(self, stream: ClientStream) -> None:
        roster = self._roster
        hello = ProxyHello(
            self._config.node,
            os.getpid(),
            self.incarnation,
            standby=self._config.standby,
            term=roster.term if roster else Term(),
            version=roster.version if roster else 0,
        )
        await stream.send(encode_envelope(self._to_manager(hello)))
        tasks: list[asyncio.Future[None]] = []
        try:
            while (data := await self._receive(stream)) is not None:
                self._from_above(data)
                if self._refused:
                    self._refused = False
                    return
                if not tasks:
                    # The manager's first message says who it is: only now is it clear what may be sent.
                    tasks = [asyncio.ensure_future(self._send_up(stream))]
                    if self._config.standby is not None:
                        tasks.append(asyncio.ensure_future(self._tell_kept()))
                    self._lifeline.say(manager="joined", term=self._term, address=self._manager)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._log.info("manager_left", incarnation=self._manager_incarnation)
            self._lifeline.say(manager="away")
            if self._agent is not None:
                self._tell_upstream(self._agent, agent_address(self._config.node), gone=True)

    async def _receive(self, stream: ClientStream) -> bytes | None:
        """Receive; where another machine could take over, a manager that says nothing counts as away."""
        if self._config.standby is None:
            return await stream.receive()
        try:
            async with asyncio.timeout(self._config.pace.silence_s):
                return await stream.receive()
        except TimeoutError:
            self._log.warning("manager_silent", incarnation=self._manager_incarnation)
            return None

    async def _tell_kept(self) -> None:
        """Say which roster is kept, and with it that this node is there; the manager answers each time."""
        while True:
            self._say_kept()
            await asyncio.sleep(self._config.pace.kept_every_s)

    def _say_kept(self) -> None:
        term, version = (self._roster.term, self._roster.version) if self._roster else (Term(), 0)
        self._send(encode_envelope(self._to_manager(RosterKept(self._config.node, term, version))))

    async def _send_up(self, stream: ClientStream) -> None:
        while True:
            while self._outbound:
                try:
                    await stream.send(self._outbound[0])
                except ConnectionError:
                    return
                self._outbound.popleft()
            self._more.clear()
            await self._more.wait()

    def _from_above(self, data: bytes) -> None:
        try:
            envelope = decode_envelope(data)
        except WireError as error:
            self._log.warning("bad_message_from_manager", why=str(error))
            return
        route = decide_route(self._config.node, envelope.dst, from_above=True)
        match route.hop:
            case Hop.SELF:
                self._for_me(envelope)
            case Hop.AGENT:
                if envelope.kind in ORDERS:
                    failpoint("proxy.delivered")
                if self._agent is not None:
                    self._agent.send(data)
                if envelope.kind in ORDERS:
                    failpoint("proxy.forwarded")
            case Hop.WORKERS:
                self._order_workers(envelope, data, route.rank)
            case Hop.UP | Hop.NOWHERE:
                self._log.warning("no_route", dst=envelope.dst, why=route.why)

    def _for_me(self, envelope: Envelope) -> None:
        message = self._understand(envelope)
        if isinstance(message, Roster):
            self._keep_roster(message)
        if not isinstance(message, Upstream):
            return
        if message.replaced:
            self._lifeline.say(fatal=message.replaced, code=ExitCode.NODES_MISSING)
            self._refused = True
            return
        if message.term < self._term:
            # It was the manager once, and does not know yet that it is not any more.
            self._log.warning(
                "refused", why=f"a manager of term {message.term.number}", term=self._term.number
            )
            self._refused = True
            return
        self._term = message.term
        if message.incarnation != self._manager_incarnation:
            # What was kept was meant for a manager that is gone; the children will announce themselves.
            self._outbound.clear()
        self._manager_incarnation = message.incarnation
        if self._agent is not None:
            self._tell_upstream(self._agent, agent_address(self._config.node))

    def _keep_roster(self, roster: Roster) -> None:
        """Keep a roster where the launcher finds it too, and only then say so."""
        if not self._config.roster_file or roster.term < self._term:
            return
        try:
            write_roster(self._config.roster_file, roster)
        except OSError as error:
            self._log.warning("roster_not_kept", why=str(error))
            return
        self._roster = roster
        self._lifeline.say(roster=roster.version)
        self._say_kept()

    # --- below -------------------------------------------------------------------------------------------

    async def _serve_child(self, link: LocalLink) -> None:
        first = await link.receive()
        if first is None:
            return
        try:
            hello = unpack(decode_envelope(first))
        except WireError as error:
            self._log.warning("bad_hello", why=str(error))
            return
        if not isinstance(hello, LocalHello):
            self._log.warning("bad_hello", why=f"got {type(hello).__name__}")
            return
        if hello.address == agent_address(self._config.node):
            await self._serve_agent(link, hello)
            return
        route = decide_route(self._config.node, hello.address, from_above=True)
        if route.hop is Hop.WORKERS and route.rank >= 0:
            await self._serve_worker(link, route.rank)
            return
        self._log.warning("bad_hello", why=f"{hello.address} does not belong to this container")

    async def _serve_agent(self, link: LocalLink, hello: LocalHello) -> None:
        self._agent, self._agent_incarnation = link, hello.incarnation
        self._tell_upstream(link, hello.address)
        while (data := await link.receive()) is not None:
            self._from_below(data)
        if self._agent is link:
            self._agent = None
            self._log.warning("agent_gone", incarnation=hello.incarnation)
            gone = AgentGone(self._config.node, hello.incarnation)
            self._send(encode_envelope(self._to_manager(gone)))

    async def _serve_worker(self, link: LocalLink, rank: int) -> None:
        links = self._workers.setdefault(rank, [])
        links.append(link)
        while (data := await link.receive()) is not None:
            self._from_below(data)
        links.remove(link)
        if not links:
            del self._workers[rank]
            for order in list(self._orders):
                self._answered(order, rank, "gone")

    def _from_below(self, data: bytes) -> None:
        try:
            envelope = decode_envelope(data)
        except WireError as error:
            self._log.warning("bad_message_from_below", why=str(error))
            return
        route = decide_route(self._config.node, envelope.dst, from_above=False)
        match route.hop:
            case Hop.UP:
                if envelope.kind in REPORTS:
                    failpoint("proxy.reporting")
                self._send(data)
                if envelope.kind in REPORTS:
                    asyncio.get_running_loop().call_later(SOON_S, failpoint, "proxy.reported")
            case Hop.AGENT:
                if self._agent is not None:
                    self._agent.send(data)
            case Hop.SELF:
                message = self._understand(envelope)
                if isinstance(message, OrderDone):
                    rank = int(envelope.src.rsplit("/", 1)[-1])
                    self._answered(message.order, rank, message.detail or "ok")
            case Hop.WORKERS:
                for link in self._workers_at(route.rank):
                    link.send(data)
            case Hop.NOWHERE:
                self._log.warning("no_route", dst=envelope.dst, why=route.why)

    def _send(self, data: bytes) -> None:
        """Send up now, or as soon as the same manager is back."""
        self._outbound.append(data)
        self._more.set()

    # --- orders to workers -------------------------------------------------------------------------------

    def _workers_at(self, rank: int) -> list[LocalLink]:
        if rank == ALL_RANKS:
            return [link for links in self._workers.values() for link in links]
        return list(self._workers.get(rank, ()))

    def _order_workers(self, envelope: Envelope, data: bytes, rank: int) -> None:
        if envelope.kind != WorkerOrder.__name__:
            for worker in self._workers_at(rank):
                worker.send(data)
            return
        message = self._understand(envelope)
        if not isinstance(message, WorkerOrder):
            return
        wanted = set(message.ranks) or ({rank} if rank != ALL_RANKS else set(self._workers))
        gathering = _Gathering(set(wanted))
        self._orders[message.order] = gathering
        for each in sorted(wanted):
            # To each of its processes; the first answer counts, and a fault happens once.
            sent = [link.send(data) for link in self._workers.get(each, ())]
            if not any(sent):
                self._answered(message.order, each, "not joined")
        if not wanted:
            self._close_order(message.order)
        else:
            asyncio.get_running_loop().call_later(WORKER_ORDER_LIMIT_S, self._close_order, message.order)

    def _answered(self, order: str, rank: int, result: str) -> None:
        gathering = self._orders.get(order)
        if gathering is None or rank not in gathering.waiting:
            return
        gathering.waiting.discard(rank)
        gathering.results[rank] = result
        if not gathering.waiting:
            self._close_order(order)

    def _close_order(self, order: str) -> None:
        gathering = self._orders.pop(order, None)
        if gathering is None:
            return
        results = {**gathering.results, **dict.fromkeys(gathering.waiting, "no answer")}
        self._send(encode_envelope(self._to_manager(WorkerOrderDone(order, self._config.node, results))))

    # --- small things ------------------------------------------------------------------------------------

    def _to_manager(self, message: Message) -> Envelope:
        return pack(
            self._config.job, proxy_address(self._config.node), MANAGER, message, sender=self.incarnation
        )

    def _tell_upstream(self, link: LocalLink, address: str, *, gone: bool = False) -> None:
        message = Upstream("" if gone else self._manager_incarnation)
        link.send(
            encode_envelope(
                pack(
                    self._config.job,
                    proxy_address(self._config.node),
                    address,
                    message,
                    sender=self.incarnation,
                )
            )
        )

    def _understand(self, envelope: Envelope) -> Message | None:
        try:
            return unpack(envelope)
        except WireError as error:
            self._log.warning("bad_message", why=str(error))
            return None
