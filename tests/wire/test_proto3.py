import contextlib
import dataclasses
from collections.abc import Mapping
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given, settings
from hypothesis import strategies as st

from taskd.wire.observing import CONFIG, FAULT, JOB
from taskd.wire.proto3 import ProtoError, Service, Tag, decode, encode
from taskd.wire.recover import RECOVER, ProcessFaultRequest, Status, StopCompleteRequest
from taskd.wire.telling import PUB_FAULT, TRACE
from tests.plane.stubs import message, services

SERVICES = {service.name: service for service in (RECOVER, FAULT, JOB, CONFIG, TRACE, PUB_FAULT)}


def pairs() -> list[tuple[type, Any]]:
    """Every message that a call takes or gives, ours beside protobuf's."""
    found: dict[type, Any] = {}
    for name, service in SERVICES.items():
        for method in service.methods:
            request, response, _ = services()[name][method.name]
            found[method.request] = request
            found[method.response] = response
    return sorted(found.items(), key=lambda pair: pair[0].__name__)


PAIRS = pairs()
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def ours(kind: type) -> st.SearchStrategy[Any]:
    """Messages of a kind with any content."""
    hints = get_type_hints(kind, include_extras=True)
    made = {}
    for field in dataclasses.fields(kind):
        inner, tag = get_args(hints[field.name])[:2]
        made[field.name] = values(inner, tag)
    return st.builds(kind, **made)


def values(inner: Any, tag: Tag) -> st.SearchStrategy[Any]:
    if get_origin(inner) is tuple:
        return st.lists(values(get_args(inner)[0], tag), max_size=3).map(tuple)
    if get_origin(inner) is Mapping:
        return st.dictionaries(texts, values(get_args(inner)[1], tag), max_size=3)
    if inner is str:
        return texts
    if inner is bool:
        return st.booleans()
    if inner is int:
        return st.integers(-(1 << tag.bits - 1), (1 << tag.bits - 1) - 1)
    if dataclasses.is_dataclass(inner):
        return ours(inner)  # type: ignore[arg-type]
    return st.none() | ours(get_args(inner)[0])


@pytest.mark.parametrize("service", SERVICES.values(), ids=lambda service: service.name)
def test_services_have_the_calls_of_the_proto_files(service: Service) -> None:
    """Every call has its name, its path, and is a stream or not, as the specification says."""
    want = {name: stream for name, (_, _, stream) in services()[service.name].items()}

    assert want == {method.name: method.stream for method in service.methods}
    assert f"/{service.name}/{service.methods[0].name}" == service.path(service.methods[0].name)


@pytest.mark.parametrize(("kind", "reference"), PAIRS, ids=lambda value: getattr(value, "__name__", ""))
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_what_is_written_is_what_protobuf_writes(kind: type, reference: Any, data: st.DataObject) -> None:
    """Byte for byte; and what protobuf has read and written again is read back as it was.

    In which order the entries of a map come is nobody's promise, so several are compared as they are read.
    """
    value = data.draw(ours(kind))
    written = encode(value)

    theirs = reference.FromString(written).SerializeToString()

    assert value == decode(kind, theirs)
    assert sorted(theirs) == sorted(written)
    assert theirs == written or "{" in repr(value)


@pytest.mark.parametrize(("kind", "reference"), PAIRS, ids=lambda value: getattr(value, "__name__", ""))
@given(raw=st.binary(max_size=40))
@example(raw=b"\x0a\x01\xff")
@example(raw=b"\x12\x00\x12\x04\x0a\x00\x10\x01")
@settings(max_examples=60, deadline=None)
def test_any_bytes_are_read_as_protobuf_reads_them(kind: type, reference: Any, raw: bytes) -> None:
    """What protobuf refuses is refused; what it accepts has the same content here."""
    try:
        theirs = reference.FromString(raw)
    except DecodeError:
        with pytest.raises(ProtoError):
            decode(kind, raw)
        return

    theirs.DiscardUnknownFields()

    assert theirs == reference.FromString(encode(decode(kind, raw)))


@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_a_message_that_was_cut_or_bent_is_refused_or_read(data: st.DataObject) -> None:
    """Real messages with a few bytes changed: no error but ProtoError comes out."""
    kind, _ = data.draw(st.sampled_from(PAIRS))
    raw = bytearray(encode(data.draw(ours(kind))))
    for _ in range(data.draw(st.integers(0, 4))):
        if raw:
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(raw)))
    with contextlib.suppress(ProtoError):
        decode(kind, bytes(raw[:cut]))


def test_a_message_that_is_not_there_differs_from_an_empty_one() -> None:
    """A report without its status can be told from one with an empty status."""
    without = message("StopCompleteRequest")(jobId="j").SerializeToString()
    empty = message("StopCompleteRequest")(jobId="j", status={}).SerializeToString()

    assert StopCompleteRequest("j") == decode(StopCompleteRequest, without)
    assert StopCompleteRequest("j", Status()) == decode(StopCompleteRequest, empty)


def test_numbers_may_come_packed_or_one_by_one() -> None:
    """Both forms of a list of numbers are read."""
    kind = next(method.request for method in PUB_FAULT.methods)
    one_by_one = b"\x18\x01\x18\x02"
    packed = b"\x1a\x02\x01\x02"
    for form in (one_by_one, packed):
        fault = b"\x3a" + bytes([len(form)]) + form
        raw = b"\x2a" + bytes([len(fault)]) + fault

        assert (1, 2) == decode(kind, raw).faults[0].influence[0].deviceIds


def test_a_field_of_a_later_version_is_skipped() -> None:
    """A message of somebody newer loses only what is not known here."""
    raw = message("ProcessFaultRequest")(jobId="j").SerializeToString() + b"\xf8\x01\x05\xfa\x01\x01x"

    assert ProcessFaultRequest("j") == decode(ProcessFaultRequest, raw)


def test_a_field_without_a_number_is_a_mistake_of_ours() -> None:
    """It is noticed at the first use, not on the wire."""

    @dataclasses.dataclass(frozen=True, slots=True)
    class Bad:
        text: str = ""

    with pytest.raises(TypeError, match="no Tag"):
        encode(Bad("x"))
