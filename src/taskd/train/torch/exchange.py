"""Move registered state from one rank to another, to the bit.

A replica's state is sent over the group that has just been made, point to point. ``torch.save`` would copy
everything twice and hold it in one piece; here the tensors' own memory is the message. What is sent:

1. a head: the states as a pickle in which every tensor is replaced by its number, and what is needed to
   make the tensors (type, shape, strides);
2. the tensors' bytes: large ones straight from their memory in pieces, small ones gathered into a piece;
3. a tail: a checksum of each piece. It comes last so that the sums are taken while the pieces travel.

The receiver loads nothing before all sums are right: a state that is half of one step and half of another
is worse than none. Loading goes through ``load_state_dict``, so parameters stay the objects they are.

A device's tensors go from process to process, not through the host, where both are on one machine
(``neighbours``): then the head has handles instead, and two words are exchanged, that the receiver can use
them and that it has done so.

Tensors that are the very same view of the same memory (tied weights) travel once. Tensors that overlap in
another way arrive with the right values and memory of their own. Of a DTensor the sender's part travels, and
becomes the receiver's (see ``sharding``). Other tensor subclasses and sparse or quantized tensors travel
inside the pickle.
"""

import ctypes
import hashlib
import io
import pickle
import struct
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist

from taskd.train.torch import neighbours
from taskd.train.torch.sharding import as_parts, from_parts, local_part

PIECE_BYTES = 64 * 2**20
GATHER_BYTES = 2**20  # smaller tensors are gathered, larger ones are sent from where they are
AHEAD = 2  # pieces under way at once

_ALIGN = 64
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
class _Shape:
    """What is needed to make a tensor to receive into."""

    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    device: str

    @property
    def length(self) -> int:
        length = self.dtype.itemsize
        for extent in self.size:
            length *= extent
        return length


@dataclass(frozen=True, slots=True)
class _Span:
    """Bytes ``start`` to ``end`` of a tensor."""

    tensor: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Piece:
    """One message: a part of one large tensor, or several small ones, each beginning at a multiple of 64."""

    name: str
    spans: tuple[_Span, ...]
    length: int


@dataclass(frozen=True, slots=True)
class _Head:
    states: dict[str, bytes]
    shapes: list[_Shape]
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
        states[name] = _pickle_around_tensors(name, as_parts(thing.state_dict()), tensors)
        ends.append((name, len(tensors)))
    shapes = [_shape(tensor) for tensor in tensors]
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
    for name, thing in objects.items():
        # One at a time: a device holds one object's state twice, not everybody's.
        state = _Unpickler(head.states[name], head.shapes, tensors).load()
        thing.load_state_dict(from_parts(state, objects))
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
    return zlib.crc32(_buffer(data)) if data.numel() else 0


# --- the pickle around the tensors -------------------------------------------------------------------------


def _is_plain(value: object) -> bool:
    """Tell whether a tensor's bytes say all about it."""
    return (
        type(value) in {torch.Tensor, torch.nn.Parameter}
        and isinstance(value, torch.Tensor)
        and value.layout is torch.strided
        and not value.is_quantized
        and not value.is_meta
    )


class _Pickler(pickle.Pickler):
    """Keeps the tensors aside and leaves their numbers."""

    def __init__(self, file: io.BytesIO, tensors: list[torch.Tensor]) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._tensors = tensors
        # With the tensor itself, or its memory might become another one's while we work.
        self._seen: dict[tuple[object, ...], tuple[int, torch.Tensor]] = {}

    def persistent_id(self, obj: object) -> int | None:
        if not _is_plain(obj):
            return None
        assert isinstance(obj, torch.Tensor)  # noqa: S101 - for the type checker
        tensor = obj.detach().resolve_conj().resolve_neg()
        place = (tensor.data_ptr(), tensor.dtype, tensor.device, tensor.size(), tensor.stride())
        if tensor.data_ptr() and place in self._seen:
            return self._seen[place][0]
        self._seen[place] = len(self._tensors), tensor
        self._tensors.append(_densely(tensor))
        return len(self._tensors) - 1


class _Unpickler(pickle.Unpickler):
    """Puts the tensors back, on the kind of device that they came from."""

    def __init__(self, data: bytes, shapes: list[_Shape], tensors: list[torch.Tensor]) -> None:
        super().__init__(io.BytesIO(data))
        self._shapes = shapes
        self._tensors = tensors
        self._moved: dict[int, torch.Tensor] = {}

    def persistent_load(self, pid: Any) -> torch.Tensor:  # noqa: ANN401 - pickle's own signature
        number = int(pid)
        kind = self._shapes[number].device
        if kind == "cpu":
            return self._tensors[number]
        if number not in self._moved:
            # To the current device of its kind: the sender's number means nothing here.
            self._moved[number] = self._tensors[number].to(kind)
        return self._moved[number]


def _pickle_around_tensors(name: str, state: object, tensors: list[torch.Tensor]) -> bytes:
    file = io.BytesIO()
    try:
        _Pickler(file, tensors).dump(state)
    except Exception as error:
        error.add_note(f"the state of {name!r} cannot be sent to another rank")
        raise
    return file.getvalue()


# --- tensors as bytes --------------------------------------------------------------------------------------


def _densely(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor itself if its elements fill one stretch of memory (in any order), else a copy."""
    expected = 1
    for stride, extent in sorted(zip(tensor.stride(), tensor.size(), strict=True)):
        if extent == 1:
            continue
        if stride != expected:
            return tensor.contiguous()
        expected *= extent
    return tensor


def _shape(tensor: torch.Tensor) -> _Shape:
    return _Shape(tensor.dtype, tuple(tensor.size()), tuple(tensor.stride()), tensor.device.type)


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """View a dense tensor's memory as bytes."""
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def _as_tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _buffer(data: torch.Tensor) -> memoryview:
    """Give a CPU byte tensor to a function that wants a buffer, without NumPy and without a copy."""
    return memoryview((ctypes.c_ubyte * data.numel()).from_address(data.data_ptr()))


# --- pieces ------------------------------------------------------------------------------------------------


def _plan(
    shapes: list[_Shape], ends: list[tuple[str, int]], without: Collection[int] = ()
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
                used += -(-length // _ALIGN) * _ALIGN
        if small:
            yield _Piece(name, tuple(small), used)
        start = end


def _offsets(piece: _Piece) -> Iterator[tuple[_Span, int]]:
    offset = 0
    for span in piece.spans:
        yield span, offset
        offset += -(-(span.end - span.start) // _ALIGN) * _ALIGN


def _gather(piece: _Piece, tensors: list[torch.Tensor]) -> torch.Tensor:
    if len(piece.spans) == 1 and piece.length == piece.spans[0].end - piece.spans[0].start:
        span = piece.spans[0]
        return _bytes_of(tensors[span.tensor])[span.start : span.end].cpu()
    data = torch.zeros(piece.length, dtype=torch.uint8)
    for span, offset in _offsets(piece):
        data[offset : offset + span.end] = _bytes_of(tensors[span.tensor])
    return data


def _make_tensors(head: _Head, *, on_device: bool) -> list[torch.Tensor]:
    """Make the tensors to receive into: on the host, or those that come from a device on one."""
    return [
        torch.empty_strided(
            shape.size, shape.stride, dtype=shape.dtype, device=shape.device if on_device else None
        )
        for shape in head.shapes
    ]


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
                _bytes_of(tensors[span.tensor]).copy_(data[offset : offset + span.end])

    for piece in pieces:
        span = piece.spans[0]
        if len(piece.spans) == 1 and piece.length == span.end - span.start:
            data = _bytes_of(tensors[span.tensor])[span.start : span.end]
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
    return memoryview(bytes(_buffer(data)))


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
            total.update(_buffer(_bytes_of(tensor)))
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
