"""Amounts as Kubernetes writes them, and sums of them."""

import re
from collections.abc import Mapping
from typing import Any, Final

_SUFFIXES: Final = {
    "": 1.0,
    "n": 1e-9,
    "u": 1e-6,
    "m": 1e-3,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "P": 1e15,
    "E": 1e18,
    "Ki": 2.0**10,
    "Mi": 2.0**20,
    "Gi": 2.0**30,
    "Ti": 2.0**40,
    "Pi": 2.0**50,
    "Ei": 2.0**60,
}
_QUANTITY: Final = re.compile(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)([A-Za-z]{0,2})")

Amounts = dict[str, float]


def quantity(text: str | float) -> float:
    """Read one amount: 8, "500m", "1Ti"."""
    found = _QUANTITY.fullmatch(str(text))
    if found is None or found[2] not in _SUFFIXES:
        raise ValueError(f"not a quantity: {text!r}")
    return float(found[1]) * _SUFFIXES[found[2]]


def amounts(raw: Mapping[str, Any] | None) -> Amounts:
    """Read a resource list."""
    return {name: quantity(value) for name, value in (raw or {}).items()}


def requested(pod: Mapping[str, Any]) -> Amounts:
    """Return what a pod's containers ask for together, itself counted as one pod."""
    total: Amounts = {"pods": 1}
    for container in pod["spec"]["containers"]:
        add(total, amounts((container.get("resources") or {}).get("requests")))
    return total


def add(total: Amounts, more: Mapping[str, float], sign: int = 1) -> None:
    """Add amounts to a total, in place."""
    for name, value in more.items():
        total[name] = total.get(name, 0) + sign * value


def lacking(wanted: Mapping[str, float], free: Mapping[str, float]) -> str | None:
    """Say which resource does not suffice, or None."""
    for name in sorted(wanted):
        # Sums of decimals may be off by a little.
        if wanted[name] > free.get(name, 0) + 1e-6:
            return f"insufficient {name}: {wanted[name]:g} requested, {max(free.get(name, 0), 0):g} free"
    return None
