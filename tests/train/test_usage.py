"""The bits are the same for scripts that train in other ways than one optimizer and one backward pass."""

import os
from pathlib import Path

import pytest

from tests.roles.harness import RunningJob, running
from tests.train.test_recovery import assert_same, read_run

pytestmark = pytest.mark.slow

SCRIPT = str(Path(__file__).with_name("usage_job.py"))
KINDS = {
    "zero": ["forward:1:5", "updated:0:6", "after:3:5"],
    "two": ["between:2:5", "updated:0:6", "after:1:5", "before:3:7"],
    "after": ["updated:1:5", "after:0:6", "forward:2:5"],
    "accumulate": ["forward:1:5", "updated:2:6"],
    "scaler": ["forward:0:5", "updated:1:2", "after:2:8"],
    "loader": ["before:1:4", "forward:0:12", "updated:3:3"],
}
SAMPLE = [("zero", "forward:1:5"), ("two", "between:2:5"), ("after", "updated:1:5"), ("loader", "before:1:4")]
EVERY = [(kind, death) for kind, deaths in KINDS.items() for death in deaths]
CASES = EVERY if os.environ.get("TASKD_MATRIX") else SAMPLE

_references: dict[str, dict[int, tuple[dict[int, str], str]]] = {}


def train(home: Path, kind: str, *more: str) -> RunningJob:
    home.mkdir(exist_ok=True)
    script = (SCRIPT, "--kind", kind, "--out", str(home), *more)
    with running(home, "--nproc-per-node", "4", "--spares", "2", *script) as job:
        assert 0 == job.wait(90), job.err
    return job


@pytest.mark.parametrize(("kind", "death"), CASES)
def test_a_kill_costs_no_bit(tmp_path: Path, kind: str, death: str) -> None:
    """Two optimizers, a collective after the update, accumulation, a scaler, a loader, ZeRO-1."""
    if kind not in _references:
        train(tmp_path / "reference", kind)
        _references[kind] = read_run(tmp_path / "reference")
    job = train(tmp_path / "run", kind, "--die", death)

    _, rank, _ = death.split(":")
    assert_same(_references[kind], tmp_path / "run", (int(rank),))
    assert ["recovered"] == [incident["outcome"] for incident in job.timeline()]
