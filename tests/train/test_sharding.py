from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from taskd.train.torch.sharding import shard_key
from tests.train.crew import run_crew

# Who has the same part as whom: equal letters.
PARTITIONS = {
    "ddp": "aaaa",
    "other shape": "abcd",
    "equal contents": "aaaa",
    "other contents": "abcd",
    "stages": "aabb",
    "hsdp": "abab",
    "fsdp": "abcd",
    "tp": "abab",
    "ours": "abab",
}


@pytest.mark.slow
def test_a_key_names_the_part_and_the_part_travels_alone(tmp_path: Path) -> None:
    """Equal on replicas and on nobody else, before and after the first step; two ranks suffice to move it."""
    results = run_crew("sharding_ranks.py", 4, tmp_path, limit_s=240)

    for name, letters in PARTITIONS.items():
        keys = [results[rank]["keys"][name] for rank in range(4)]
        assert letters == "".join("abcd"[list(dict.fromkeys(keys)).index(key)] for key in keys), name
    for result in results.values():
        assert result["keys"]["hsdp"] == result["keys"]["hsdp later"]
        assert result["before"] == result["after"]
    assert results[0]["after"] == results[2]["after"] != results[1]["after"]


def test_a_key_is_short_and_says_what_it_rests_on() -> None:
    module: Any = nn.Linear(2, 2)
    key = shard_key({"model": module, "step": torch.optim.SGD(module.parameters())}, [])

    assert key.startswith("content-")
    assert 32 > len(key)
