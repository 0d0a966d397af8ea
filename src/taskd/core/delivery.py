"""Deliver messages once and in order, over links that lose, repeat and reorder, between peers that die.

The manager and an agent do not share a connection: a proxy stands between them, and each of the three may
be replaced at any moment. So the promise is made end to end. Each side numbers what it sends and keeps it
until the other side has acknowledged it; the receiver takes the next number only.

A peer's *incarnation* names one life of it. Numbers mean something only between two given incarnations: when
either side is born again, both forget what was under way, and the newborn is told the whole state by an
``Announce`` instead of the messages it missed. What belongs to an earlier life is refused, with the reason.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

M = TypeVar("M")

RESEND_AFTER_S = 1.0


@dataclass(frozen=True, slots=True)
class Packet(Generic[M]):
    """What travels. ``seq`` 0 is outside the numbering: a beat, or a bare acknowledgement."""

    sender: str
    receiver: str
    seq: int
    ack: int
    message: M | None


@dataclass(frozen=True, slots=True)
class Received(Generic[M]):
    """What a packet led to: messages to act on, and why something was refused, if it was."""

    messages: tuple[M, ...] = ()
    refused: str = ""
    owes_ack: bool = False


@dataclass(slots=True)
class Channel(Generic[M]):
    """One end of a conversation between two incarnations."""

    me: str
    peer: str
    next_seq: int = 1
    expected: int = 1
    _unacked: dict[int, M] = field(default_factory=dict)
    _sent_at: float = 0.0

    @property
    def pending(self) -> tuple[M, ...]:
        """Return what the peer has not acknowledged yet, oldest first."""
        return tuple(self._unacked.values())

    def send(self, message: M, now: float) -> Packet[M]:
        """Number a message and keep it until it is acknowledged."""
        seq = self.next_seq
        self.next_seq += 1
        if not self._unacked:
            self._sent_at = now
        self._unacked[seq] = message
        return self._packet(seq, message)

    def send_unreliable(self, message: M) -> Packet[M]:
        """Wrap a message that nobody misses if it is lost."""
        return self._packet(0, message)

    def acknowledge(self) -> Packet[M]:
        """Make a packet that carries only the acknowledgement."""
        return self._packet(0, None)

    def resend_all(self, now: float) -> Iterator[Packet[M]]:
        """Yield everything unacknowledged again, after a link came back."""
        self._sent_at = now
        for seq, message in self._unacked.items():
            yield self._packet(seq, message)

    def resend_due(self, now: float) -> Iterator[Packet[M]]:
        """Yield what waits too long for its acknowledgement."""
        if self._unacked and now - self._sent_at >= RESEND_AFTER_S:
            yield from self.resend_all(now)

    def receive(self, packet: Packet[M], now: float) -> Received[M]:
        """Take a packet in: note its acknowledgement, and accept its message if it is the next one."""
        if packet.sender != self.peer:
            return Received(refused=f"from incarnation {packet.sender}, not {self.peer}")
        if packet.receiver not in (self.me, ""):
            return Received(refused=f"meant for incarnation {packet.receiver}, not {self.me}")
        for seq in [seq for seq in self._unacked if seq <= packet.ack]:
            del self._unacked[seq]
            self._sent_at = now
        if packet.seq == 0:
            return Received(() if packet.message is None else (packet.message,))
        if packet.seq < self.expected:
            return Received(refused=f"seq {packet.seq} was seen before", owes_ack=True)
        if packet.seq > self.expected:
            return Received(refused=f"seq {packet.seq} came before {self.expected}", owes_ack=True)
        self.expected += 1
        return Received(() if packet.message is None else (packet.message,), owes_ack=True)

    def _packet(self, seq: int, message: M | None) -> Packet[M]:
        return Packet(self.me, self.peer, seq, self.expected - 1, message)


@dataclass(slots=True)
class Conversations(Generic[M]):
    """A manager's conversations, at most one with each node.

    One that ended is never taken up again: its announcement may be repeated by a slow link long after the
    agent acted on orders that it does not mention. Whoever is still there opens another one.
    """

    me: str
    _open: dict[str, Channel[M]] = field(default_factory=dict)
    _former: set[str] = field(default_factory=set)

    def with_node(self, node: str) -> Channel[M] | None:
        """Return the conversation with a node, if there is one."""
        return self._open.get(node)

    def all(self) -> list[tuple[str, Channel[M]]]:
        """Return every conversation with its node."""
        return list(self._open.items())

    def find(self, node: str, packet: Packet[M], *, opens: bool) -> Channel[M] | None:
        """Return the conversation of a packet; ``opens`` tells whether the packet may begin one."""
        channel = self._open.get(node)
        if channel is not None and channel.peer == packet.sender:
            return channel
        if not opens or packet.receiver != self.me or packet.sender in self._former:
            return None
        self.end(node)
        self._open[node] = Channel(self.me, packet.sender)
        return self._open[node]

    def end(self, node: str) -> None:
        """Forget the conversation with a node for good."""
        channel = self._open.pop(node, None)
        if channel is not None:
            self._former.add(channel.peer)
