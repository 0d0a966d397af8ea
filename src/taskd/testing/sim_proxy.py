"""The proxy's shell on virtual time: ``taskd.proxy.relay`` for one agent, without workers."""

from collections import deque

from taskd.core.messages import (
    MANAGER,
    AgentGone,
    ProxyHello,
    Upstream,
    agent_address,
    proxy_address,
)
from taskd.core.routing import Hop, decide_route
from taskd.testing.sim_network import Connection, Lane, Parcel
from taskd.testing.sim_world import World

FIRST_RETRY_S, LAST_RETRY_S = 0.05, 1.0
SEEN_TWICE = 0.3


class SimProxy:
    """One life of a node's proxy."""

    def __init__(self, world: World, node: str) -> None:
        """Be born with nothing kept."""
        self._world = world
        self.node = node
        self.alive = True
        self.incarnation = f"proxy{node}.{next(world.numbers)}"
        self._outbound: deque[Parcel] = deque()
        self._upstream: Connection | None = None
        self._greeted = False
        self._manager_incarnation = ""
        self._retry_s = FIRST_RETRY_S
        self._last_sent: Parcel | None = None
        self.agent: Connection | None = None
        self._connect()

    @property
    def upstream(self) -> Connection | None:
        """Return the connection to the manager."""
        return self._upstream

    def kill(self) -> None:
        """Die at once; what was kept is gone."""
        self._world.note(f"proxy {self.node}", f"is killed with {len(self._outbound)} kept")
        self.alive = False
        if self._upstream is not None:
            self._upstream.cut(self._world.local_notice_s())
        if self.agent is not None:
            self.agent.cut(self._world.local_notice_s(), lossless=True)

    # --- above -------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        if not self.alive:
            return
        manager = self._world.manager
        if manager is None or self.node in self._world.cut:
            self._retry_later()
            return
        delay = self._world.scenario.link_delay_s
        scheduler = self._world.scheduler
        connection = Connection(
            Lane(
                scheduler,
                delay,
                lambda p: manager.take(connection, p),
                lambda: manager.left(self.node, connection),
            ),
            Lane(scheduler, delay, lambda p: self._from_above(connection, p), lambda: self._lost(connection)),
        )
        self._upstream, self._greeted, self._last_sent = connection, False, None
        manager.accept(connection)
        hello = ProxyHello(self.node, 1, self.incarnation)
        connection.up.send(Parcel(proxy_address(self.node), MANAGER, hello))

    def _retry_later(self) -> None:
        self._world.scheduler.after(self._retry_s * (0.5 + self._world.rng.random()), self._connect)
        self._retry_s = min(self._retry_s * 2, LAST_RETRY_S)

    def _lost(self, connection: Connection) -> None:
        if not self.alive or self._upstream is not connection:
            return
        self._upstream = None
        if self._last_sent is not None and self._world.rng.random() < SEEN_TWICE:
            # The write was under way when the stream broke: it failed here, and may have arrived there.
            self._outbound.appendleft(self._last_sent)
        self._retry_s = FIRST_RETRY_S
        self._retry_later()

    def _from_above(self, connection: Connection, parcel: Parcel) -> None:
        if not self.alive or self._upstream is not connection:
            return
        match decide_route(self.node, parcel.dst, from_above=True).hop:
            case Hop.SELF if isinstance(parcel.content, Upstream):
                self._for_me(parcel.content)
            case Hop.AGENT:
                if self.agent is not None:
                    self.agent.down.send(parcel)
            case other:
                raise TypeError(f"{parcel} goes {other}")
        self._greeted = True
        self._flush()

    def _for_me(self, upstream: Upstream) -> None:
        if upstream.incarnation != self._manager_incarnation:
            self._outbound.clear()
        self._manager_incarnation = upstream.incarnation
        if self.agent is not None:
            self._tell_upstream(self.agent)

    def _flush(self) -> None:
        if self._upstream is None or not self._greeted:
            return
        while self._outbound:
            self._last_sent = self._outbound.popleft()
            self._upstream.up.send(self._last_sent)

    # --- below -------------------------------------------------------------------------------------------

    def accept_agent(self, connection: Connection) -> None:
        """Take an agent in, and tell it which manager there is."""
        if not self.alive:
            return
        self.agent = connection
        self._tell_upstream(connection)

    def agent_left(self, connection: Connection, incarnation: str) -> None:
        """Notice the end of an agent, and tell."""
        if not self.alive or self.agent is not connection:
            return
        self.agent = None
        self._send(Parcel(proxy_address(self.node), MANAGER, AgentGone(self.node, incarnation)))

    def from_below(self, parcel: Parcel) -> None:
        """Relay what the agent sends."""
        if not self.alive:
            return
        match decide_route(self.node, parcel.dst, from_above=False).hop:
            case Hop.UP:
                self._send(parcel)
            case other:
                raise TypeError(f"{parcel} goes {other}")

    def _send(self, parcel: Parcel) -> None:
        self._outbound.append(parcel)
        self._flush()

    def _tell_upstream(self, connection: Connection) -> None:
        message = Upstream(self._manager_incarnation)
        connection.down.send(Parcel(proxy_address(self.node), agent_address(self.node), message))
