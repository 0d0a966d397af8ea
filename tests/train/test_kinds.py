"""The bits are the same for states that are more than tensors which an update changes in place."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.train.runs import A_PAIR, KINDS, Run, assert_same, train

pytestmark = pytest.mark.slow

STEPS = 8
EVERY = [
    ("clip", "unscaled:1:4"),
    ("fused", "unscaled:0:4"),
    ("fused", "backward:1:0"),
    ("fused", "updated:0:4"),
    ("closure", "call1:0:4"),
    ("lbfgs", "call2:1:4"),
    ("sparse", "update1:1:4"),
    ("master", "backward:0:4"),
    ("muon", "share3:1:4"),
    ("compiled", "backward:1:4"),
]
SAMPLE = [case for case in EVERY if case[0] in {"clip", "muon"}]
CASES = EVERY if os.environ.get("TASKD_MATRIX") else SAMPLE


@pytest.mark.parametrize(("kind", "death"), CASES)
def test_a_kill_costs_no_bit_of_any_kind_of_state(
    tmp_path: Path, reference: Callable[..., Run], kind: str, death: str
) -> None:
    """A scaler's notes, a closure's collectives, lists and numbers in an optimizer, types of its tensors."""
    job = train(tmp_path, "--kind", kind, "--die", death, script=KINDS, steps=STEPS, nodes=A_PAIR)

    point, rank, _ = death.split(":")
    undisturbed = reference("--kind", kind, script=KINDS, steps=STEPS, world=2)
    # Where the step counts the killed rank took its own result of it along.
    assert_same(undisturbed, tmp_path, (int(rank),) if point == "updated" else ())
    assert ["recovered"] == [incident["outcome"] for incident in job.timeline()]
