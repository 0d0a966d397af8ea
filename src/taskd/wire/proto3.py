"""Protocol buffers (proto3) for frozen dataclasses: the wire of a control plane without generated code.

Managers written for the reference control plane speak protobuf. Its runtime and generated modules would be
a dependency of every role and a tenth of a second at each start, for messages of a few short fields. So a
message is a dataclass whose annotations carry the field numbers, and this module writes and reads it.

What is written is byte for byte what protobuf writes with sorted map keys. What is read follows the rules of
the format: unknown fields are skipped, also a known number with another wire type; the last of several
scalars counts and messages merge; lists of numbers may be packed or not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from enum import IntEnum
from functools import cache
from types import UnionType
from typing import Annotated, Any, Final, TypeVar, get_args, get_origin, get_type_hints

M = TypeVar("M")

_VARINT_BYTES: Final = 10
_MASK_64: Final = (1 << 64) - 1
_TAG_LIMIT: Final = 1 << 32
_GROUP_DEPTH: Final = 100


class ProtoError(ValueError):
    """Bytes that are no message of the kind that was expected."""


class Wire(IntEnum):
    """How many bytes follow a tag."""

    VARINT = 0
    FIXED64 = 1
    BYTES = 2
    GROUP = 3
    GROUP_END = 4
    FIXED32 = 5


@dataclasses.dataclass(frozen=True, slots=True)
class Tag:
    """The number of a field, and the width of an integer."""

    number: int
    bits: int = 64


@dataclasses.dataclass(frozen=True, slots=True)
class _Field:
    name: str
    number: int
    kind: type
    bits: int
    repeated: bool
    mapped: bool
    message: bool
    scalar: bool
    """It is a number, which lists pack."""


@cache
def _fields(kind: type) -> tuple[_Field, ...]:
    hints = get_type_hints(kind, include_extras=True)
    found = [_field(each.name, hints[each.name]) for each in dataclasses.fields(kind)]
    return tuple(sorted(found, key=lambda field: field.number))


@cache
def _by_number(kind: type) -> dict[int, _Field]:
    return {field.number: field for field in _fields(kind)}


def _field(name: str, hint: object) -> _Field:
    if get_origin(hint) is not Annotated:
        raise TypeError(f"{name} has no Tag")
    kind, tag = get_args(hint)[:2]
    repeated = get_origin(kind) is tuple
    mapped = get_origin(kind) is Mapping
    if repeated:
        kind = get_args(kind)[0]
    elif mapped:
        kind = get_args(kind)[1]
    elif isinstance(kind, UnionType):
        kind = next(each for each in get_args(kind) if each is not type(None))
    message, scalar = dataclasses.is_dataclass(kind), kind in {int, bool}
    return _Field(name, tag.number, kind, tag.bits, repeated, mapped, message, scalar)


# ------------------------------------------------------------------------------------------------- writing


def encode(message: Any) -> bytes:  # noqa: ANN401 - any of the dataclasses with tags
    """Write a message."""
    out = bytearray()
    for field in _fields(message.__class__):
        value = getattr(message, field.name)
        if field.mapped:
            for key in sorted(value):
                entry = _one(1, key) + _one(2, value[key])
                out += _varint(field.number << 3 | Wire.BYTES) + _varint(len(entry)) + entry
        elif field.repeated and field.scalar:
            if value:
                packed = b"".join(_varint(int(each) & _MASK_64) for each in value)
                out += _varint(field.number << 3 | Wire.BYTES) + _varint(len(packed)) + packed
        elif field.repeated:
            for each in value:
                out += _one(field.number, each)
        elif value is not None and (field.message or value):
            out += _one(field.number, value)
    return bytes(out)


def _one(number: int, value: object) -> bytes:
    """Write one value with its tag, also where it is the default."""
    match value:
        case str():
            data = value.encode()
        case int():
            return _varint(number << 3 | Wire.VARINT) + _varint(int(value) & _MASK_64)
        case _:
            data = encode(value)
    return _varint(number << 3 | Wire.BYTES) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    if value < 0x80:  # noqa: PLR2004 - seven bits fit in one byte
        return bytes((value,))
    out = bytearray()
    while value > 0x7F:  # noqa: PLR2004 - seven bits to a byte
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# ------------------------------------------------------------------------------------------------- reading


def decode(kind: type[M], data: bytes) -> M:
    """Read a message; raises ProtoError with what is wrong and where."""
    return kind(**_read(kind, data))


def _read(kind: type, data: bytes) -> dict[str, Any]:
    fields = _by_number(kind)
    found: dict[str, Any] = {}
    parts: dict[str, bytes] = {}
    at, end = 0, len(data)
    while at < end:
        # Nearly all tags and lengths of ours are one byte.
        tag = data[at]
        if 8 <= tag < 0x80:  # noqa: PLR2004 - a tag of one byte, and not field 0
            at += 1
        else:
            tag, at = _read_tag(data, at)
        number, wire = tag >> 3, tag & 7
        field = fields.get(number)
        if wire == Wire.BYTES:
            size = data[at] if at < end else 0x80
            if size < 0x80:  # noqa: PLR2004 - a length of one byte
                at += 1
            else:
                size, at = _read_varint(data, at)
            if size > end - at:
                raise ProtoError(f"{kind.__name__}: field {number} ends after the message")
            chunk = data[at : at + size]
            at += size
            if field is not None:
                _take_bytes(kind, field, chunk, found, parts)
        elif wire == Wire.VARINT:
            value, at = _read_varint(data, at)
            if field is not None and field.scalar and not field.mapped:
                _take_number(field, value, found)
        else:
            at = _skip(data, at, number, wire, 0)
    for name, merged in parts.items():
        found[name] = decode(next(f.kind for f in fields.values() if f.name == name), merged)
    for name, value in found.items():
        if isinstance(value, list):
            found[name] = tuple(value)
    return found


def _take_number(field: _Field, value: int, found: dict[str, Any]) -> None:
    if field.repeated:
        found.setdefault(field.name, []).append(_number(field, value))
    else:
        found[field.name] = _number(field, value)


def _take_bytes(
    kind: type, field: _Field, chunk: bytes, found: dict[str, Any], parts: dict[str, bytes]
) -> None:
    if field.mapped:
        key, value = _read_entry(field, chunk)
        found.setdefault(field.name, {})[key] = value
    elif field.scalar:
        if field.repeated:
            values = found.setdefault(field.name, [])
            at = 0
            while at < len(chunk):
                value, at = _read_varint(chunk, at)
                values.append(_number(field, value))
    elif field.message:
        if field.repeated:
            found.setdefault(field.name, []).append(decode(field.kind, chunk))
        else:
            # Several parts of one message merge, which is what reading them in a row does; but each for
            # itself has to be a message.
            if field.name in parts:
                _read(field.kind, parts[field.name])
                _read(field.kind, chunk)
            parts[field.name] = parts.get(field.name, b"") + chunk
    else:
        text = _text(f"{kind.__name__}.{field.name}", chunk)
        if field.repeated:
            found.setdefault(field.name, []).append(text)
        else:
            found[field.name] = text


def _read_entry(field: _Field, chunk: bytes) -> tuple[str, object]:
    """Read one entry of a map: a message with the key as field 1 and the value as field 2."""
    entry = _TEXT_ENTRY if field.kind is str else _message_entry(field.kind)
    read = _read(entry, chunk)
    default = "" if field.kind is str else None
    value = read.get("value", default)
    return read.get("key", ""), field.kind() if value is None else value


@dataclasses.dataclass(frozen=True, slots=True)
class _TextEntry:
    key: Annotated[str, Tag(1)] = ""
    value: Annotated[str, Tag(2)] = ""


_TEXT_ENTRY: Final = _TextEntry


@cache
def _message_entry(kind: type) -> type:
    return dataclasses.make_dataclass(
        f"{kind.__name__}Entry",
        [("key", Annotated[str, Tag(1)], ""), ("value", Annotated[kind | None, Tag(2)], None)],
        frozen=True,
        slots=True,
    )


def _number(field: _Field, value: int) -> int | bool:
    if field.kind is bool:
        return bool(value)
    if field.bits < 64:  # noqa: PLR2004 - a shorter integer keeps its low bits
        value &= (1 << field.bits) - 1
    sign = 1 << field.bits - 1
    return value - (sign << 1) if value & sign else value


def _text(where: str, chunk: bytes) -> str:
    try:
        return chunk.decode()
    except UnicodeDecodeError as error:
        raise ProtoError(f"{where} is not UTF-8: {error.reason}") from error


def _read_tag(data: bytes, at: int) -> tuple[int, int]:
    tag, at = _read_varint(data, at)
    if tag >= _TAG_LIMIT or tag >> 3 == 0:
        raise ProtoError(f"no field has the tag {tag}")
    return tag, at


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    for _ in range(_VARINT_BYTES):
        if at >= len(data):
            raise ProtoError("the message ends within a number")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004 - the last byte has no continuation bit
            if value > _MASK_64:
                break
            return value, at
        shift += 7
    raise ProtoError("a number is longer than 64 bits")


def _skip(data: bytes, at: int, number: int, wire: int, depth: int) -> int:
    """Return where the next field begins."""
    match wire:
        case Wire.VARINT:
            return _read_varint(data, at)[1]
        case Wire.FIXED64 | Wire.FIXED32:
            end = at + (8 if wire == Wire.FIXED64 else 4)
        case Wire.BYTES:
            size, at = _read_varint(data, at)
            end = at + size
        case Wire.GROUP if depth < _GROUP_DEPTH:
            while True:
                tag, at = _read_tag(data, at)
                if tag & 7 == Wire.GROUP_END:
                    if tag >> 3 != number:
                        raise ProtoError(f"group {number} is closed as {tag >> 3}")
                    return at
                at = _skip(data, at, tag >> 3, tag & 7, depth + 1)
        case _:
            raise ProtoError(f"field {number} has the wire type {wire}, which cannot stand here")
    if end > len(data):
        raise ProtoError(f"field {number} ends after the message")
    return end


# ------------------------------------------------------------------------------------------------ services


@dataclasses.dataclass(frozen=True, slots=True)
class Method:
    """One call of a service: what goes in, what comes out, and whether one or many come out."""

    name: str
    request: type
    response: type
    stream: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Service:
    """The calls of a service under its full name."""

    name: str
    methods: tuple[Method, ...]

    def path(self, method: str) -> str:
        """Return where a call is found; a name that there is not is a mistake of the caller."""
        found = next(each for each in self.methods if each.name == method)
        return f"/{self.name}/{found.name}"
