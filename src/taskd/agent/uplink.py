"""An agent's line to its manager: through the proxy, numbered, and told everything after a change.

It is the same for an agent that owns its processes and for one whose processes belong to somebody else, so
it knows neither. The proxy and the manager may each be away or be replaced at any time; reports wait here,
and a manager that is new is told the whole state first.
"""

import asyncio
import os
import secrets
import time
from collections.abc import Callable

from taskd.core.delivery import Channel, Packet
from taskd.core.messages import (
    MANAGER,
    Announce,
    Beat,
    LocalHello,
    Notes,
    NotesWanted,
    Order,
    Upstream,
    agent_address,
    proxy_address,
    worker_address,
)
from taskd.kit.logs import Log
from taskd.links.local import LocalLink, connect_local
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

RECONNECT_S = 0.05
LAST_WORDS_S = 2.0


class Uplink:
    """One agent's end of the line.

    ``announce`` describes the agent as it is at that moment, ``generation`` is the one it obeys, and
    ``on_order`` gets each order once. ``on_absent`` is called whenever the proxy cannot be reached, and
    ``on_question`` answers a rank of another node.
    """

    def __init__(
        self,
        *,
        job: str,
        node: str,
        socket: str,
        log: Log,
        announce: Callable[[], Announce],
        generation: Callable[[], int],
        on_order: Callable[[Order], None],
        on_absent: Callable[[], None] | None = None,
        on_question: Callable[[NotesWanted], Notes] | None = None,
    ) -> None:
        """Describe the line; ``keep`` holds it."""
        self._job = job
        self._node = node
        self._socket = socket
        self._log = log
        self._announce = announce
        self._generation = generation
        self._on_order = on_order
        self._on_absent = on_absent
        self._on_question = on_question
        self._link: LocalLink | None = None
        self._channel: Channel[Message] | None = None
        self.incarnation = secrets.token_hex(6)
        self._conversations = 0
        self.heard_manager = False
        self.alone_since: float | None = None
        self.proxy_pid = 0

    @property
    def pending(self) -> bool:
        """Tell whether the manager has not acknowledged everything yet."""
        return self._channel is not None and bool(self._channel.pending)

    async def keep(self) -> None:
        """Hold the line for ever: connect, listen, and connect again."""
        while True:
            try:
                link = await connect_local(self._socket, timeout_s=1.0)
            except (OSError, TimeoutError):
                if self._on_absent is not None:
                    self._on_absent()
                await asyncio.sleep(RECONNECT_S)
                continue
            self._link = link
            self.proxy_pid = link.peer_pid
            me, proxy = agent_address(self._node), proxy_address(self._node)
            hello = LocalHello(me, self.incarnation, os.getpid())
            link.send(encode_envelope(pack(self._job, me, proxy, hello, sender=self.incarnation)))
            while (data := await link.receive()) is not None:
                self._take(data)
            self._link = None
            self._log.info("proxy_lost")
            await link.close()

    def tell(self, report: Message) -> None:
        """Report to the manager; repeated until acknowledged. A manager yet unknown gets an announcement."""
        if self._channel is not None:
            self._push(self._channel.send(report, time.monotonic()))

    def tell_workers(self, message: Message) -> None:
        """Tell all workers of this node something, through the proxy; lost if it is away."""
        if self._link is not None:
            me, workers = agent_address(self._node), worker_address(self._node, -1)
            self._link.send(encode_envelope(pack(self._job, me, workers, message, sender=self.incarnation)))

    def beat(self, beat: Beat) -> None:
        """Send a sign of life, which nobody misses if it is lost."""
        if self._channel is not None:
            self._push(self._channel.send_unreliable(beat))

    def resend_due(self, now: float) -> None:
        """Repeat what waits too long for its acknowledgement."""
        if self._channel is not None:
            for packet in self._channel.resend_due(now):
                self._push(packet)

    async def flush(self, limit_s: float = LAST_WORDS_S) -> None:
        """Give what was told a moment to arrive, before this process goes."""
        deadline = time.monotonic() + limit_s
        while self.pending and time.monotonic() < deadline:
            await asyncio.sleep(0.005)

    def _take(self, data: bytes) -> None:
        try:
            envelope = decode_envelope(data)
            if envelope.kind == Upstream.__name__:
                upstream = unpack(envelope)
                if isinstance(upstream, Upstream) and upstream.incarnation:
                    self.alone_since = None
                    self._meet(upstream.incarnation, anew=upstream.anew)
                elif self.heard_manager and self.alone_since is None:
                    self.alone_since = time.monotonic()
                return
            if envelope.kind == NotesWanted.__name__:
                self._answer(envelope)
                return
            packet = unpack_packet(envelope)
        except WireError as error:
            self._log.warning("bad_message", why=str(error))
            return
        if envelope.job != self._job or self._channel is None:
            self._log.info("refused", kind=envelope.kind, why=f"of job {envelope.job!r}, or nobody asked")
            return
        received = self._channel.receive(packet, time.monotonic())
        if received.refused:
            self._log.info("refused", kind=envelope.kind, why=received.refused)
        for message in received.messages:
            if isinstance(message, Order):
                self._on_order(message)
            else:
                self._log.warning("unexpected", kind=envelope.kind)
        if received.owes_ack:
            self._push(self._channel.acknowledge())

    def _answer(self, envelope: Envelope) -> None:
        """Answer whoever asks, outside of the numbering: it asks again if the answer is lost."""
        wanted = unpack(envelope)
        if isinstance(wanted, NotesWanted) and self._on_question and self._link and envelope.job == self._job:
            answer = self._on_question(wanted)
            me = agent_address(self._node)
            self._link.send(
                encode_envelope(pack(self._job, me, envelope.src, answer, sender=self.incarnation))
            )

    def _meet(self, incarnation: str, *, anew: bool) -> None:
        """Speak to this manager from now on; a new one is told everything, the same one what it missed."""
        self.heard_manager = True
        now = time.monotonic()
        if self._channel is not None and self._channel.peer == incarnation and not anew:
            for packet in self._channel.resend_all(now):
                self._push(packet)
            return
        # Each conversation has a name of its own, so that no number of an earlier one fits into it.
        self._conversations += 1
        self._channel = Channel(f"{self.incarnation}.{self._conversations}", incarnation)
        announce = self._announce()
        self._log.info("announcing", manager=incarnation, phase=announce.phase)
        self._push(self._channel.send(announce, now))

    def _push(self, packet: Packet[Message]) -> None:
        if self._link is None:
            return
        envelope = pack_packet(self._job, agent_address(self._node), MANAGER, self._generation(), packet)
        self._link.send(encode_envelope(envelope))
