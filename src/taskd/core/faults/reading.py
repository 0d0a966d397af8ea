"""Reading what others wrote: a value of the right shape, or one sentence on what is wrong with it.

ConfigMaps and requests come from other programs and from people. None of them may end the process, so each
reader is a function from text to a value or a `Refused`; inside, the first wrong thing raises `Malformed` and
`reader` turns it into the refusal.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn, ParamSpec, TypeVar

from taskd.core.gojson import check_code, compact

P = ParamSpec("P")
T = TypeVar("T")

INT64: Final = 2**63
INT32: Final = 2**31
SHOWN: Final = 80


@dataclass(frozen=True, slots=True)
class Refused:
    """Input that is not used, and why; what was known before stays."""

    reason: str


class Malformed(Exception):
    """The first thing that is wrong with an input."""


def reader(function: Callable[P, T]) -> Callable[P, T | Refused]:
    """Turn what is wrong with the input into a value."""

    @functools.wraps(function)
    def read(*args: P.args, **kwargs: P.kwargs) -> T | Refused:
        try:
            return function(*args, **kwargs)
        except Malformed as error:
            return Refused(str(error))

    return read


def decode(text: str, what: str) -> Any:  # noqa: ANN401 - any JSON value
    """The JSON value of a text that somebody else wrote."""
    try:
        value = json.loads(text, parse_constant=_no_constant)
        # A lone surrogate can be written as an escape, and no UTF-8 can hold it.
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise Malformed(f"{what} has text that is not Unicode") from error
    except RecursionError as error:
        raise Malformed(f"{what} is nested too deeply") from error
    except ValueError as error:
        raise Malformed(f"{what} is not JSON: {error}") from error
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number in JSON")


def shown(value: object) -> str:
    """A value in a message: short, and on one line."""
    text = repr(value)
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."


def as_object(value: object, what: str) -> Mapping[str, Any]:
    """A JSON object."""
    if not isinstance(value, dict):
        raise Malformed(f"{what} is {shown(value)}, not an object")
    return value


def as_list(value: object, what: str) -> list[Any]:
    """A JSON list; null is an empty one, as Go writes it."""
    if value is None:
        return []
    if not isinstance(value, list | tuple):
        raise Malformed(f"{what} is {shown(value)}, not a list")
    return list(value)


def as_text(value: object, what: str) -> str:
    """A string."""
    if not isinstance(value, str):
        raise Malformed(f"{what} is {shown(value)}, not a string")
    return value


def as_int(value: object, what: str, limit: int = INT64) -> int:
    """A whole number that fits; neither a boolean nor 1.0 is one, as in Go."""
    if isinstance(value, bool) or not isinstance(value, int) or not -limit <= value < limit:
        raise Malformed(f"{what} is {shown(value)}, not a whole number of {limit.bit_length()} bits")
    return value


def names(text: str) -> tuple[str, ...]:
    """The entries of a list with commas, blanks and empty ones left out."""
    return tuple(part for piece in text.split(",") if (part := piece.strip()))


def verify(payload: object, code: object, what: str) -> None:
    """Check a payload, already in the order of its fields, against the code that came with it."""
    if not isinstance(code, str) or not code:
        raise Malformed(f"{what} has no check code")
    if check_code(compact(payload)) != code:
        raise Malformed(f"{what} does not agree with its check code {shown(code)}")
