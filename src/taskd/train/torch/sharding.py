"""Which part of the job's state a rank has."""

from collections.abc import Iterable, Mapping
from typing import Any


def shard_key(objects: Mapping[str, Any], wraps: Iterable[Any]) -> str:
    """Return a name that is equal on two ranks if one can take the other's state over."""
    del objects, wraps
    return ""
