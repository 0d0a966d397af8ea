"""Reads `clusterd-config-cm`: each key on its own, and a bad one leaves the last good one in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import yaml

from taskd.core.faults import policy
from taskd.core.faults.events import PolicySeen
from taskd.core.faults.policy import Relations, Separation
from taskd.core.faults.reading import Refused

T = TypeVar("T")


def read_policies(data: Mapping[str, str], now: Relations) -> tuple[PolicySeen, tuple[str, ...]]:
    """What the ConfigMap sets, and why parts of it are not used. A key that is not there sets nothing."""
    refused: list[str] = []
    separation = _part(data, policy.SEPARATION_KEY, _separation, refused)
    table = _part(data, policy.PUBLIC_KEY, policy.read_public_table, refused)
    rules = _part(data, policy.RELATION_KEY, policy.read_relations, refused)
    windows = _part(data, policy.DURATION_KEY, policy.read_windows, refused)
    relations = None
    if rules is not None or windows is not None:
        relations = Relations(
            now.rules if rules is None else rules, now.windows if windows is None else windows
        )
    return PolicySeen(separation, relations, table), tuple(refused)


def _part(
    data: Mapping[str, str], key: str, read: Callable[[str], T | Refused], refused: list[str]
) -> T | None:
    text = data.get(key)
    if text is None:
        return None
    found = read(text)
    if isinstance(found, Refused):
        refused.append(f"{key}: {found.reason}")
        return None
    return found


def _separation(text: str) -> Separation | Refused:
    try:
        value: Any = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        return Refused("not YAML: " + " ".join(str(error).split())[:200])
    return policy.read_separation(value)
