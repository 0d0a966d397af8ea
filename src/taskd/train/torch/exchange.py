"""Move registered state from one rank to another, to the bit.

A replica's state is sent over the group that has just been made, point to point. ``torch.save`` would copy
everything twice and hold it in one piece; here the tensors' own memory is the message. What is sent:

1. a head: the states without their tensors (``pickling``), and what is needed to make those (type, shape,
   strides);
2. the tensors' bytes: large ones straight from their memory in pieces, small ones gathered into a piece;
3. a tail: a checksum of each piece. It comes last so that the sums are taken while the pieces travel.

The receiver loads nothing before all sums are right: a state that is half of one step and half of another
is worse than none. Loading goes through ``load_state_dict`` (see ``loading``), so parameters stay the objects
that they are.

A device's tensors go from process to process, not through the host, where both are on one machine
(``neighbours``): then the head has handles instead, and two words are exchanged, that the receiver can use
them and that it has done so.

What becomes of tied weights, views and DTensors is said in ``pickling`` and ``spread``.
"""

import hashlib
import pickle
import struct
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist

from taskd.train.torch import neighbours
from taskd.train.torch.loading import load_state
from taskd.train.torch.pickling import Placing, Shape, aligned, buffer_of, bytes_of, take_out
from taskd.train.torch.spread import Meshes, local_part

PIECE_BYTES = 64 * 2**20
GATHER_BYTES = 2**20  # smaller tensors are gathered, larger ones are sent from where they are
AHEAD = 2  # pieces under way at once

_LENGTHS = struct.Struct("<4q")  # magic, length of the head, number of pieces, bytes in them
_MAGIC = 0x7461736B64583031
_WORD = struct.Struct("<q")
_NO, _YES = 0, 1


class Stateful(Protocol):
    """Anything that a user registers: modules, optimizers, schedulers, scalers, loaders."""

    def state_dict(self) -> Any:  # noqa: ANN401 - each kind has its own
        """Return the state."""

    def load_state_dict(self, state_dict: Any, /) -> Any:  # noqa: ANN401 - as above
        """Take a state over."""


class StateDamaged(RuntimeError):
    """What arrived is not what was sent; nothing was loaded."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the state of {name!r} arrived damaged; nothing was loaded")
        self.name = name


class StateMismatch(RuntimeError):
    """The two ranks have not registered the same things; nothing was loaded."""

    def __init__(self, sent: Sequence[str], registered: Sequence[str]) -> None:
        super().__init__(f"received the state of {list(sent)}, but {list(registered)} are registered here")


@dataclass(frozen=True, slots=True)
class _Span:
    """Bytes ``start`` to ``end`` of a tensor."""

    tensor: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Piece:
    """One message: a part of one large tensor, or several small ones, each at an aligned place."""

    name: str
    spans: tuple[_Span, ...]
    length: int


@dataclass(frozen=True, slots=True)
class _Head:
    states: dict[str, bytes]
    shapes: list[Shape]
    pieces: list[_Piece]
    extra: bytes
    offer: neighbours.Offer | None = None  # of the tensors that are on a device,
    rest: tuple[_Piece, ...] = ()  # and the pieces of all others


def send_state(objects: Mapping[str, Stateful], dst: int, *, extra: bytes = b"") -> int:
    """Send the state of these objects, and ``extra``, to a rank of the default group; return the bytes sent.

    The objects must not change meanwhile.
    """
    states: dict[str, bytes] = {}
    tensors: list[torch.Tensor] = []
    ends: list[tuple[str, int]] = []
    for name, thing in objects.items():
        states[name] = take_out(name, thing.state_dict(), tensors, "sent to another rank")
        ends.append((name, len(tensors)))
    shapes = [Shape.of(tensor) for tensor in tensors]
    pieces = list(_plan(shapes, ends))
    offer = neighbours.offer(tensors)
    offered = set() if offer is None else {number for number, _, _ in offer.tensors}
    rest = tuple(_plan(shapes, ends, offered)) if offered else ()
    whole = _Head(states, shapes, pieces, extra, offer, rest)
    head = pickle.dumps(whole, protocol=pickle.HIGHEST_PROTOCOL)
    total = sum(piece.length for piece in pieces)
    dist.send(_as_tensor(_LENGTHS.pack(_MAGIC, len(head), len(pieces), total)), dst)
    dist.send(_as_tensor(head), dst)
    taken = offer is not None and _receive_word(dst) == _YES
    if taken:
        pieces = list(rest)
        total = sum(piece.length for piece in pieces)
    sums: list[int] = []
    under_way: list[tuple[dist.Work | None, torch.Tensor]] = []
    for piece in pieces:
        data = _gather(piece, tensors)
        under_way.append((dist.isend(data, dst), data))
        sums.append(checksum(data))
        if len(under_way) >= AHEAD:
            _wait(under_way.pop(0)[0])
    for work, _ in under_way:
        _wait(work)
    tail = struct.pack(f"<{len(sums) + 1}I", zlib.crc32(head), *sums)
    dist.send(_as_tensor(tail), dst)
    if taken:
        _receive_word(dst)  # until then the memory must stay as it is
    return _LENGTHS.size + len(head) + total + len(tail)


def receive_state(objects: Mapping[str, Stateful], src: int) -> bytes:
    """Receive what a rank of the default group sends into these objects; return its ``extra``.

    Raises StateDamaged or StateMismatch before anything is loaded.
    """
    lengths = bytes(_receive_bytes(_LENGTHS.size, src))
    magic, head_length, _, _ = _LENGTHS.unpack(lengths)
    if magic != _MAGIC:
        raise StateDamaged("the head")
    raw_head = bytes(_receive_bytes(head_length, src))
    # The pickle comes from a rank of the same job, over a connection of its group.
    try:
        head: _Head = pickle.loads(raw_head)  # noqa: S301 - see above
    except Exception as error:
        raise StateDamaged("the head") from error
    opened = None if head.offer is None else neighbours.open_offer(head.offer)
    if head.offer is not None:
        dist.send(_as_tensor(_WORD.pack(_NO if opened is None else _YES)), src)
    pieces = head.pieces if opened is None else list(head.rest)
    tensors = _make_tensors(head, on_device=opened is not None)
    sums = _receive_pieces(pieces, tensors, src)
    piece_count = len(pieces)
    tail = struct.unpack(f"<{piece_count + 1}I", bytes(_receive_bytes(4 * (piece_count + 1), src)))
    if opened is not None:
        damaged = _take_over(opened, tensors, src)
        if damaged:
            raise StateDamaged(f"tensors {damaged} on the device")
    if tail[0] != zlib.crc32(raw_head):
        raise StateDamaged("the head")
    for piece, expected, got in zip(pieces, tail[1:], sums, strict=True):
        if expected != got:
            raise StateDamaged(piece.name)
    if head.states.keys() != objects.keys():
        raise StateMismatch(sorted(head.states), sorted(objects))
    meshes = Meshes(objects.values())
    for name, thing in objects.items():
        # One at a time: a device holds one object's state twice, not everybody's.
        load_state(thing, Placing(head.states[name], meshes, head.shapes, tensors).load())
    return head.extra


def digest(objects: Mapping[str, Stateful]) -> str:
    """Return a SHA-256 over names and states: equal if and only if all tensors and scalars are."""
    total = hashlib.sha256()
    for name in sorted(objects):
        total.update(f"object {name}\n".encode())
        _digest_value(total, objects[name].state_dict())
    return total.hexdigest()


def checksum(data: torch.Tensor) -> int:
    """Return the CRC of a CPU byte tensor; several times as fast as the connection."""
    return zlib.crc32(buffer_of(data)) if data.numel() else 0


def _as_tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


# --- pieces ------------------------------------------------------------------------------------------------


def _plan(
    shapes: list[Shape], ends: list[tuple[str, int]], without: Collection[int] = ()
) -> Iterator[_Piece]:
    """Cut the tensors into pieces. A piece belongs to one object, so that damage has a name."""
    start = 0
    for name, end in ends:
        small: list[_Span] = []
        used = 0
        for number in range(start, end):
            length = 0 if number in without else shapes[number].length
            if length > GATHER_BYTES:
                for offset in range(0, length, PIECE_BYTES):
                    upto = min(offset + PIECE_BYTES, length)
                    yield _Piece(name, (_Span(number, offset, upto),), upto - offset)
            elif length:
                if used + length > PIECE_BYTES:
                    yield _Piece(name, tuple(small), used)
                    small, used = [], 0
                small.append(_Span(number, 0, length))
                used += aligned(length)
        if small:
            yield _Piece(name, tuple(small), used)
        start = end


def _offsets(piece: _Piece) -> Iterator[tuple[_Span, int]]:
    offset = 0
    for span in piece.spans:
        yield span, offset
        offset += aligned(span.end - span.start)


def _gather(piece: _Piece, tensors: list[torch.Tensor]) -> torch.Tensor:
    if len(piece.spans) == 1 and piece.length == piece.spans[0].end - piece.spans[0].start:
        span = piece.spans[0]
        return bytes_of(tensors[span.tensor])[span.start : span.end].cpu()
    data = torch.zeros(piece.length, dtype=torch.uint8)
    for span, offset in _offsets(piece):
        data[offset : offset + span.end] = bytes_of(tensors[span.tensor])
    return data


def _make_tensors(head: _Head, *, on_device: bool) -> list[torch.Tensor]:
    """Make the tensors to receive into: on the host, or those that come from a device on one."""
    return [shape.make(shape.device if on_device else None) for shape in head.shapes]


def _take_over(opened: neighbours.Opened, tensors: list[torch.Tensor], src: int) -> list[int]:
    """Copy what another process of this machine has on a device, and tell it that it is done."""
    try:
        return opened.copy(tensors)
    finally:
        opened.close()
        dist.send(_as_tensor(_WORD.pack(_YES)), src)


def _receive_pieces(pieces: list[_Piece], tensors: list[torch.Tensor], src: int) -> list[int]:
    sums: list[int] = []
    under_way: list[tuple[dist.Work | None, _Piece, torch.Tensor]] = []

    def finish() -> None:
        work, piece, data = under_way.pop(0)
        _wait(work)
        sums.append(checksum(data))
        if len(piece.spans) > 1 or piece.length != piece.spans[0].end - piece.spans[0].start:
            for span, offset in _offsets(piece):
                bytes_of(tensors[span.tensor]).copy_(data[offset : offset + span.end])

    for piece in pieces:
        span = piece.spans[0]
        if len(piece.spans) == 1 and piece.length == span.end - span.start:
            data = bytes_of(tensors[span.tensor])[span.start : span.end]
        else:
            data = torch.empty(piece.length, dtype=torch.uint8)
        under_way.append((dist.irecv(data, src), piece, data))
        if len(under_way) >= AHEAD:
            finish()
    while under_way:
        finish()
    return sums


def _receive_bytes(length: int, src: int) -> memoryview:
    data = torch.empty(length, dtype=torch.uint8)
    dist.recv(data, src)
    return memoryview(bytes(buffer_of(data)))


def _receive_word(src: int) -> int:
    word: int = _WORD.unpack(_receive_bytes(_WORD.size, src))[0]
    return word


def _wait(work: dist.Work | None) -> None:
    if work is not None:
        work.wait()


# --- digest ------------------------------------------------------------------------------------------------


class _Hash(Protocol):
    def update(self, data: bytes | memoryview, /) -> None:
        """Take more bytes."""


def _digest_value(total: _Hash, value: object) -> None:
    if isinstance(value, torch.Tensor):
        value = local_part(value)
        tensor = value.detach() if value.layout is torch.strided else value.detach().to_dense()
        tensor = tensor.resolve_conj().resolve_neg().cpu().contiguous()
        total.update(f"tensor {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        if tensor.numel():
            total.update(buffer_of(bytes_of(tensor)))
    elif isinstance(value, Mapping):
        # Sorted: an optimizer's entries come in the order in which parameters got their first gradient.
        total.update(f"mapping {len(value)}\n".encode())
        for key in sorted(value, key=lambda key: (type(key).__name__, repr(key))):
            total.update(f"key {key!r}\n".encode())
            _digest_value(total, value[key])
    elif isinstance(value, (list, tuple)):
        total.update(f"sequence {len(value)}\n".encode())
        for item in value:
            _digest_value(total, item)
    elif isinstance(value, (set, frozenset)):
        total.update(f"set {sorted(map(repr, value))}\n".encode())
    elif type(value).__repr__ is object.__repr__ and hasattr(value, "__dict__"):
        # Its repr is an address.
        total.update(f"object {type(value).__qualname__}\n".encode())
        _digest_value(total, vars(value))
    else:
        total.update(f"value {value!r}\n".encode())
