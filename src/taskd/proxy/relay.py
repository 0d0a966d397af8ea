"""The container's relay: agent and workers below, the manager above.

It decides nothing. It keeps what goes up while the manager is away (as long as it is the same manager that
comes back), tells its children which manager they speak to, sees at once when its agent dies, and answers
an order to all workers of the node with one message instead of one per worker.
"""

import asyncio
import os
import random
import secrets
from collections import deque
from dataclasses import dataclass, field

from taskd.core.messages import (
    MANAGER,
    AgentGone,
    LocalHello,
    OrderDone,
    ProxyHello,
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
from taskd.kit.failpoints import failpoint
from taskd.kit.logs import Log
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

    def __init__(self, config: ProxyConfig, log: Log) -> None:
        """Make a proxy; ``run`` makes it work."""
        self._config = config
        self._log = log
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

    async def _keep_upstream(self) -> None:
        retry_s = FIRST_RETRY_S
        while True:
            try:
                async with connect_rpc(self._config.manager, self._config.token, timeout_s=2.0) as stream:
                    await self._speak(stream)
                    retry_s = FIRST_RETRY_S
            except ConnectionError as error:
                self._log.info("manager_unreachable", address=self._config.manager, why=str(error))
            # Spread out, so that a thousand proxies do not come back in the same instant.
            await asyncio.sleep(retry_s * (0.5 + random.random()))
            retry_s = min(retry_s * 2, LAST_RETRY_S)

    async def _speak(self, stream: ClientStream) -> None:
        hello = ProxyHello(self._config.node, os.getpid(), self.incarnation)
        await stream.send(encode_envelope(self._to_manager(hello)))
        sender: asyncio.Future[None] | None = None
        try:
            while (data := await stream.receive()) is not None:
                self._from_above(data)
                if sender is None:
                    # The manager's first message says who it is: only now is it clear what may be sent.
                    sender = asyncio.ensure_future(self._send_up(stream))
        finally:
            if sender is not None:
                sender.cancel()
                await asyncio.gather(sender, return_exceptions=True)
            self._log.info("manager_left", incarnation=self._manager_incarnation)
            if self._agent is not None:
                self._tell_upstream(self._agent, agent_address(self._config.node), gone=True)

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
        if not isinstance(message, Upstream):
            return
        if message.incarnation != self._manager_incarnation:
            # What was kept was meant for a manager that is gone; the children will announce themselves.
            self._outbound.clear()
        self._manager_incarnation = message.incarnation
        if self._agent is not None:
            self._tell_upstream(self._agent, agent_address(self._config.node))

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
