"""Messages as bytes: one envelope for the unix socket, for gRPC and for a simulation.

A proxy routes thousands of messages that it need not understand, so the body stays encoded inside the
envelope and is decoded only where it is acted on.
"""

import msgspec

from taskd.core import messages, succession
from taskd.core.delivery import Packet

Message = (
    messages.Announce
    | messages.WorkersStarted
    | messages.WorkerExited
    | messages.WorkersStopped
    | messages.OrderDone
    | messages.Prepared
    | messages.Progress
    | messages.Standing
    | messages.Trouble
    | messages.Saved
    | messages.Coming
    | messages.Through
    | messages.PlaceAsked
    | messages.PlaceHeld
    | messages.NotesWanted
    | messages.Notes
    | messages.Beat
    | messages.ProxyHello
    | messages.RosterKept
    | succession.Roster
    | messages.AgentGone
    | messages.FaultDue
    | messages.Start
    | messages.Stop
    | messages.Recover
    | messages.Prepare
    | messages.Release
    | messages.Part
    | messages.Dismiss
    | messages.Interrupt
    | messages.Regroup
    | messages.Denied
    | messages.Farewell
    | messages.Save
    | messages.Finish
    | messages.Inject
    | messages.WorkerOrder
    | messages.WorkerOrderDone
    | messages.Upstream
    | messages.LocalHello
    | messages.Ack
)


class Envelope(msgspec.Struct, array_like=True, frozen=True):
    """What travels. The numbers belong to ``core.delivery``; ``generation`` is the sender's."""

    job: str
    src: str
    dst: str
    sender: str
    receiver: str
    generation: int
    seq: int
    ack: int
    kind: str
    body: msgspec.Raw


class WireError(ValueError):
    """Bytes that are no message of ours."""


_encode = msgspec.msgpack.Encoder().encode
_decode_envelope = msgspec.msgpack.Decoder(Envelope).decode
_decoders: dict[str, msgspec.msgpack.Decoder[Message]] = {
    cls.__name__: msgspec.msgpack.Decoder(cls) for cls in Message.__args__
}


def encode_envelope(envelope: Envelope) -> bytes:
    """Encode an envelope as it is."""
    return _encode(envelope)


def decode_envelope(data: bytes) -> Envelope:
    """Decode an envelope, not its body."""
    try:
        return _decode_envelope(data)
    except msgspec.MsgspecError as error:
        raise WireError(f"not an envelope: {error}") from error


def pack(
    job: str,
    src: str,
    dst: str,
    message: Message,
    *,
    sender: str = "",
    receiver: str = "",
    generation: int = 0,
) -> Envelope:
    """Wrap a message that is outside the numbering."""
    body = msgspec.Raw(_encode(message))
    return Envelope(job, src, dst, sender, receiver, generation, 0, 0, type(message).__name__, body)


def pack_packet(job: str, src: str, dst: str, generation: int, packet: Packet[Message]) -> Envelope:
    """Wrap a packet of a channel."""
    message = packet.message if packet.message is not None else messages.Ack()
    body = msgspec.Raw(_encode(message))
    kind = type(message).__name__
    return Envelope(
        job, src, dst, packet.sender, packet.receiver, generation, packet.seq, packet.ack, kind, body
    )


def unpack(envelope: Envelope) -> Message:
    """Decode the message of an envelope."""
    decoder = _decoders.get(envelope.kind)
    if decoder is None:
        raise WireError(f"unknown message kind {envelope.kind!r} from {envelope.src}")
    try:
        return decoder.decode(envelope.body)
    except msgspec.MsgspecError as error:
        raise WireError(f"bad {envelope.kind} from {envelope.src}: {error}") from error


def unpack_packet(envelope: Envelope) -> Packet[Message]:
    """Decode an envelope as a packet of a channel."""
    message = unpack(envelope)
    content = None if isinstance(message, messages.Ack) else message
    return Packet(envelope.sender, envelope.receiver, envelope.seq, envelope.ack, content)
