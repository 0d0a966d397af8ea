"""The bits are the same for scripts that train in other ways than one optimizer and one backward pass."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.train.runs import COUNTED, USAGE, Run, assert_same, read_logs, train

pytestmark = pytest.mark.slow

STEPS = 14
KINDS = {
    "zero": ["forward:1:5", "updated:0:6", "after:3:5"],
    "two": ["between:2:5", "updated:0:6", "after:1:5", "before:3:7"],
    "after": ["updated:1:5", "after:0:6", "forward:2:5"],
    "accumulate": ["forward:1:5", "updated:2:6"],
    "scaler": ["forward:0:5", "updated:1:2", "after:2:8"],
    "loader": ["before:1:4", "forward:0:12", "updated:3:3"],
    "habits": ["frozen:1:5", "updated:2:7", "forward:3:6", "after:0:8", "before:1:6"],
    "epochs": ["forward:1:7", "after:2:9", "before:0:10", "before:3:12"],
}
SAMPLE = [
    ("zero", "forward:1:5"),
    ("two", "between:2:5"),
    ("after", "updated:1:5"),
    ("loader", "before:1:4"),
    ("epochs", "before:0:10"),
    ("habits", "frozen:1:5"),
    ("habits", "updated:2:7"),
]
EVERY = [(kind, death) for kind, deaths in KINDS.items() for death in deaths]
CASES = EVERY if os.environ.get("TASKD_MATRIX") else SAMPLE


@pytest.mark.parametrize(("kind", "death"), CASES)
def test_a_kill_costs_no_bit(tmp_path: Path, reference: Callable[..., Run], kind: str, death: str) -> None:
    """Two optimizers, a collective after the update, accumulation, a scaler, loaders, ZeRO-1, habits."""
    job = train(tmp_path, "--kind", kind, "--die", death, script=USAGE, steps=STEPS)

    point, rank, _ = death.split(":")
    may_miss = (int(rank),) if point in COUNTED else ()
    assert_same(reference("--kind", kind, script=USAGE, steps=STEPS), tmp_path, may_miss)
    assert ["recovered"] == [incident["outcome"] for incident in job.timeline()]


def test_a_collective_between_two_steps_is_named_once(tmp_path: Path) -> None:
    """It is not promised, and can be seen; a script that has none hears nothing."""
    two = ("--nproc-per-node", "2")
    train(tmp_path / "talks", "--kind", "talks", script=USAGE, steps=4, nodes=two)
    assert 1 == read_logs(tmp_path / "talks").count("collectives are called between two steps (after step 0)")

    train(tmp_path / "quiet", "--kind", "after", script=USAGE, steps=4, nodes=two)
    assert "between two steps" not in read_logs(tmp_path / "quiet")
