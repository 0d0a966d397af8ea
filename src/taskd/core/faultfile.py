"""Read a schedule of faults: the file behind ``taskd run --faults``.

A schedule makes a faulty run repeatable: each line says at which step what happens to whom. It is written
by hand, so a mistake is answered with its line and its remedy before anything starts, rather than by a
fault that silently never fires.

One JSON object per line; blank lines and lines that begin with ``#`` are skipped::

    {"step": 20, "rank": 1, "kind": "kill"}
    {"step": 30, "node": 0, "kind": "kill"}
    {"step": 40, "role": "manager", "kind": "hang"}
    {"step": 50, "rank": 2, "kind": "exit", "code": 3}
    {"step": 60, "rank": 3, "kind": "uce"}
"""

import json
from collections.abc import Mapping

from taskd.core.launch import FaultKind, ScheduledFault

ROLES = ("manager", "proxy", "agent")
MAX_EXIT_CODE = 255

# Only training code can raise, choose its exit code, or lose tensors and connections;
# a node or a role can be killed or stopped.
KINDS_FOR_RANKS_ONLY = frozenset(
    {FaultKind.RAISE, FaultKind.EXIT, FaultKind.UCE, FaultKind.DOUBT, FaultKind.NETWORK}
)

_KEYS = ("step", "kind", "rank", "node", "role", "code")
_VICTIMS = ("rank", "node", "role")
_MAX_NUMBER = 2**31 - 1


class FaultFileError(ValueError):
    """A line of the schedule that cannot be meant as it is written."""

    def __init__(self, line: int, why: str) -> None:
        """Keep the line for the caller, who knows the name of the file."""
        super().__init__(f"line {line}: {why}")
        self.line = line
        self.why = why


def parse_faults(text: str) -> tuple[ScheduledFault, ...]:
    """Parse a whole schedule, in the order of its lines.

    The identity of a fault is its line, so that a fault which has fired is known again by a replacement
    process that reads the same file.
    """
    faults = []
    # Not splitlines(): that also cuts at separators which JSON allows inside a string.
    for number, raw in enumerate(text.split("\n"), start=1):
        line = raw.strip()
        if line and not line.startswith("#"):
            faults.append(_parse_line(number, line))
    return tuple(faults)


def _parse_line(number: int, line: str) -> ScheduledFault:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        detail = getattr(error, "msg", "too deep or too long a value")
        raise FaultFileError(number, f"not a JSON object ({detail}); {_EXAMPLE}") from error
    if not isinstance(entry, dict):
        raise FaultFileError(number, f"a fault is a JSON object, this is {_kind_of(entry)}; {_EXAMPLE}")
    unknown = sorted(set(entry) - set(_KEYS))
    if unknown:
        raise FaultFileError(number, f'unknown key "{unknown[0]}"; the keys are {", ".join(_KEYS)}')

    kind = _parse_kind(number, entry)
    victim = _parse_victim(number, entry)
    if kind in KINDS_FOR_RANKS_ONLY and victim != "rank":
        raise FaultFileError(number, f'"{kind}" happens inside a training process; name it with "rank"')
    if "code" in entry and kind is not FaultKind.EXIT:
        raise FaultFileError(number, f'"code" belongs to kind "exit", not to "{kind}"; leave it out')
    if "step" not in entry:
        raise FaultFileError(number, '"step" is missing; say at which step the fault happens')
    return ScheduledFault(
        fault_id=f"file-{number}",
        kind=kind,
        rank=_number(number, entry, "rank", -1),
        node=_number(number, entry, "node", -1),
        role=str(entry.get("role", "")),
        step=_number(number, entry, "step", -1),
        code=_number(number, entry, "code", 1, MAX_EXIT_CODE),
    )


def _parse_kind(number: int, entry: Mapping[str, object]) -> FaultKind:
    known = ", ".join(FaultKind)
    if "kind" not in entry:
        raise FaultFileError(number, f'"kind" is missing; it is one of {known}')
    value = entry["kind"]
    if not isinstance(value, str) or value not in list(FaultKind):
        raise FaultFileError(number, f'"kind" is one of {known}, not {_shown(value)}')
    return FaultKind(value)


def _parse_victim(number: int, entry: Mapping[str, object]) -> str:
    named = [key for key in _VICTIMS if key in entry]
    if len(named) != 1:
        found = " and ".join(named) or "none"
        why = f'exactly one of "rank", "node" and "role" names the victim; found {found}'
        raise FaultFileError(number, why)
    if named == ["role"] and entry["role"] not in ROLES:
        raise FaultFileError(number, f'"role" is one of {", ".join(ROLES)}, not {_shown(entry["role"])}')
    return named[0]


def _number(number: int, entry: Mapping[str, object], key: str, absent: int, limit: int = _MAX_NUMBER) -> int:
    if key not in entry:
        return absent
    value = entry[key]
    # In Python, and only there, true is an int.
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= limit:
        raise FaultFileError(number, f'"{key}" is a whole number from 0 to {limit}, not {_shown(value)}')
    return value


def _kind_of(value: object) -> str:
    names: dict[type, str] = {list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def _shown(value: object) -> str:
    """Quote a value of the file, short enough for one line."""
    limit = 40
    text = json.dumps(value)
    return text if len(text) <= limit else text[:limit] + "…"


_EXAMPLE = 'write for example {"step": 20, "rank": 1, "kind": "kill"}'
