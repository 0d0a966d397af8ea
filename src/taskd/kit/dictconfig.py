"""Read the dictionaries that users of the reference system pass: keys, types, ports, ranks, addresses.

The documented functions answer a wrong dictionary with False, and a user who sees only that has nothing to
go by. So every problem is a sentence that names the key, what it holds and what it should hold. A None
stands for a key that is not there, because that is what ``os.getenv`` gives.
"""

import ipaddress
import logging
import socket
from collections.abc import Mapping
from typing import TypeVar

LAST_PORT = 65535

log = logging.getLogger("taskd")

Kinds = Mapping[str, type | tuple[type, ...]]
T = TypeVar("T")


class DictConfigError(ValueError):
    """A dictionary that cannot be used; the text says why and what to do."""


def read_dict(what: str, config: object, kinds: Kinds) -> dict[str, object]:
    """Return the known keys of a caller's dictionary, types checked; the dictionary stays as it was."""
    if not isinstance(config, dict):
        raise DictConfigError(f"{what}: the config is {_name(config)}, not a dict; pass a dict")
    unknown = sorted(str(key) for key in config if key not in kinds)
    if unknown:
        log.warning("%s: ignored %s; known keys are %s", what, ", ".join(unknown), ", ".join(kinds))
    values: dict[str, object] = {}
    for key, kind in kinds.items():
        value = config.get(key)
        if value is None:
            continue
        wanted = kind if isinstance(kind, tuple) else (kind,)
        # True is an int to Python, but nobody who writes it means a number.
        if not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted):
            names = " or ".join(each.__name__ for each in wanted)
            raise DictConfigError(f"{what}: {key} is {_name(value)} ({value!r}); make it {names}")
        values[key] = value
    return values


def get(values: Mapping[str, object], key: str, kind: type[T], default: T) -> T:
    """Return a checked value, with its type."""
    value = values.get(key, default)
    return value if isinstance(value, kind) else default


def parse_port(what: str, key: str, text: str) -> int:
    """Read a port written as digits."""
    if not _digits(text) or not 0 < int(text) <= LAST_PORT:
        raise DictConfigError(f"{what}: {key} is {text!r}, not a port; give digits from 1 to {LAST_PORT}")
    return int(text)


def parse_rank(what: str, key: str, text: str) -> int:
    """Read a node's rank written as digits."""
    if not _digits(text):
        raise DictConfigError(f"{what}: {key} is {text!r}, not a node rank; give digits, such as '0'")
    return int(text)


def parse_address(what: str, key: str, text: str) -> str:
    """Check an address and return it without brackets.

    A name is accepted where it resolves, and stays a name: it may stand for another pod tomorrow.
    """
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if not bare:
        raise DictConfigError(f"{what}: {key} is empty; give an IP address or a name")
    try:
        return str(ipaddress.ip_address(bare))
    except ValueError:
        pass
    try:
        socket.getaddrinfo(bare, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise DictConfigError(
            f"{what}: {key} is {text!r}, neither an IP address nor a name that resolves ({error}); correct it"
        ) from error
    return bare


def join_address(host: str, port: int) -> str:
    """Write host and port as one address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _digits(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _name(value: object) -> str:
    return f"of type {type(value).__name__}"
