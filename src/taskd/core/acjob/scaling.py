"""When a part of an inference service may start its pods.

The parts of a service (prefill and decode groups) are jobs of their own with a common `jobID`. A rule, in a
ConfigMap, lists how many groups of each kind there should be, from the full size down to the smallest that
still serves. A job may start when its own kind is short in the smallest size that is not reached yet, so that
a service that has lost machines comes up small and complete rather than large and useless.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import Final

from taskd.core.acjob.job import Json, mapping

RULE_KEY: Final = "elastic_scaling.json"


class BadRule(ValueError):
    """The rule cannot be read; the text says why."""


def read_rule(text: str) -> tuple[Mapping[str, int], ...]:
    """The sizes of the rule, largest first: how many groups of each name."""
    try:
        entries = mapping(json.loads(text)).get("elastic_scaling_list") or ()
        listed = [_entry(mapping(entry)) for entry in entries]
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise BadRule(f"the scaling rule cannot be read: {error}") from error
    if not listed:
        raise BadRule("the scaling rule is empty")
    for index, (before, entry) in enumerate(itertools.pairwise(listed), start=1):
        for name, (number, servers) in entry.items():
            if name not in before:
                raise BadRule(f"the group {name} is not exist in previous state")
            if servers > before[name][1]:
                raise BadRule(
                    f"the server_num_per_group in index<{index}> can not be increased compared to the "
                    "previous state"
                )
            if number > before[name][0]:
                raise BadRule(
                    f"the group_num in index<{index}> can not be increased compared to the previous state"
                )
    return tuple({name: number for name, (number, _) in entry.items()} for entry in listed)


def _entry(entry: Json) -> dict[str, tuple[int, int]]:
    return {
        str(group["group_name"]): (int(group["group_num"]), int(group["server_num_per_group"]))
        for group in entry["group_list"]
    }


def may_start(sizes: tuple[Mapping[str, int], ...], running: Mapping[str, int], group: str) -> bool:
    """Whether a job of this group may create its pods, given how many of each group run."""
    for size in reversed(sizes):
        if any(running.get(name, 0) < number for name, number in size.items()):
            return running.get(group, 0) < size.get(group, 0)
    return False
