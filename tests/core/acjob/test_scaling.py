"""Groups of an inference service start in the order of their rule."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskd.core.acjob.scaling import BadRule, may_start, read_rule


def rule(*sizes: dict[str, int], servers: int = 1) -> str:
    entries = [
        {
            "group_list": [
                {"group_name": name, "group_num": str(number), "server_num_per_group": str(servers)}
                for name, number in size.items()
            ]
        }
        for size in sizes
    ]
    return json.dumps({"version": "1.0", "elastic_scaling_list": entries})


def test_the_smallest_size_is_reached_first() -> None:
    sizes = read_rule(rule({"prefill": 3, "decode": 2}, {"prefill": 1, "decode": 1}))
    assert may_start(sizes, {}, "prefill")
    assert not may_start(sizes, {"prefill": 1}, "prefill"), "decode is short now"
    assert may_start(sizes, {"prefill": 1}, "decode")
    assert may_start(sizes, {"prefill": 1, "decode": 1}, "prefill")
    assert not may_start(sizes, {"prefill": 3, "decode": 2}, "prefill"), "the service is whole"


def test_a_group_that_the_rule_does_not_name_waits() -> None:
    assert not may_start(read_rule(rule({"prefill": 1})), {}, "other")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "cannot be read"),
        ("{}", "empty"),
        (rule({"a": 1}, {"b": 1}), "not exist in previous state"),
        (rule({"a": 1}, {"a": 2}), "group_num in index<1>"),
        ('{"elastic_scaling_list": [{"group_list": [{"group_name": "a"}]}]}', "cannot be read"),
    ],
)
def test_a_bad_rule_is_named(text: str, words: str) -> None:
    with pytest.raises(BadRule, match=words):
        read_rule(text)


@given(st.integers(1, 5), st.integers(1, 5))
def test_starting_whoever_may_start_reaches_the_full_size(prefill: int, decode: int) -> None:
    sizes = read_rule(rule({"p": prefill, "d": decode}, {"p": 1, "d": 1}))
    running = {"p": 0, "d": 0}
    for _ in range(prefill + decode):
        group = next(name for name in running if may_start(sizes, running, name))
        running[group] += 1
    assert running == {"p": prefill, "d": decode}
