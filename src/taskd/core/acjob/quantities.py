"""Amounts as Kubernetes writes them: "500m", "1Gi", "2e3", 8.

Added and compared exactly, and written back in the one form that Kubernetes itself would choose, so that an
object that we apply is byte for byte what the API server already has.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from functools import lru_cache
from typing import Final

_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY: Final = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_NUMBER: Final = re.compile(
    r"(?P<sign>[+-]?)(?P<digits>\d+(\.\d*)?|\.\d+)(?P<suffix>[numkMGTPE]|[KMGTPE]i|[eE][+-]?\d{1,3})?"
)
_KI: Final = 1024
_NANO: Final = 10**9


class QuantityError(ValueError):
    """A text that is no amount."""

    def __init__(self, text: object) -> None:
        super().__init__(f"{text!r} is not a quantity; write for example 500m, 1.5, 8 or 64Gi")


class Form(Enum):
    """How an amount was written, which decides how it is written again."""

    DECIMAL = "decimal"
    BINARY = "binary"
    EXPONENT = "exponent"


@dataclass(frozen=True, slots=True)
class Quantity:
    """An exact amount."""

    value: Fraction
    form: Form = Form.DECIMAL

    def __add__(self, other: Quantity) -> Quantity:
        # As in Kubernetes the first operand decides the form, unless it is nothing.
        return Quantity(self.value + other.value, self.form if self.value else other.form)

    def __mul__(self, times: int) -> Quantity:
        return Quantity(self.value * times, self.form)

    def __str__(self) -> str:
        if self.form is Form.BINARY and abs(self.value) >= _KI and self.value.denominator == 1:
            whole, power = self.value.numerator, 0
            while power < len(_BINARY) and whole % _KI == 0:
                whole //= _KI
                power += 1
            return f"{whole}{list(_BINARY)[power - 1] if power else ''}"
        digits, exponent = self._scaled()
        if self.form is Form.EXPONENT:
            return f"{digits}e{exponent}" if exponent else str(digits)
        suffix = next(name for name, power in _DECIMAL.items() if power == exponent)
        return f"{digits}{suffix}"

    def _scaled(self) -> tuple[int, int]:
        """The amount as digits and a power of ten that is a multiple of three, with the fewest digits."""
        digits = -((-self.value * _NANO) // 1)  # what is smaller than a billionth is rounded up
        exponent = -9
        if not digits:
            return 0, 0
        while exponent < _DECIMAL["E"] and digits % 1000 == 0:
            digits //= 1000
            exponent += 3
        return int(digits), exponent


def parse(text: object) -> Quantity:
    """The amount that a text or number means; raises QuantityError."""
    found = None if isinstance(text, bool) else _parse(str(text).strip())
    if found is None:
        raise QuantityError(text)
    return found


@lru_cache(maxsize=1024)  # templates repeat the same few
def _parse(text: str) -> Quantity | None:
    found = _NUMBER.fullmatch(text)
    if found is None:
        return None
    value, suffix = Fraction(found["digits"]), found["suffix"] or ""
    form = Form.DECIMAL
    if suffix in _BINARY:
        value, form = value * _KI ** _BINARY[suffix], Form.BINARY
    elif suffix in _DECIMAL:
        value *= Fraction(10) ** _DECIMAL[suffix]
    else:
        value, form = value * Fraction(10) ** int(suffix[1:]), Form.EXPONENT
    return Quantity(-value if found["sign"] == "-" else value, form)


def largest(one: Quantity, other: Quantity) -> Quantity:
    """The larger of the two; the first where they are equal."""
    return other if other.value > one.value else one
