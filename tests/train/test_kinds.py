"""The bits are the same for states that are more than tensors which an update changes in place."""

import json
from pathlib import Path

import pytest

from tests.roles.harness import RunningJob, running

pytestmark = pytest.mark.slow

SCRIPT = str(Path(__file__).with_name("kinds_job.py"))
CASES = [
    ("clip", "unscaled:1:4"),
    ("fused", "unscaled:0:4"),
    ("fused", "backward:1:0"),
    ("fused", "updated:0:4"),
    ("closure", "call1:0:4"),
    ("lbfgs", "call2:1:4"),
    ("sparse", "update1:1:4"),
    ("master", "backward:0:4"),
    ("compiled", "backward:1:4"),
]


def train(home: Path, kind: str, *more: str) -> RunningJob:
    home.mkdir()
    script = (SCRIPT, "--kind", kind, "--out", str(home), *more)
    with running(home, "--nproc-per-node", "2", "--spares", "1", *script) as job:
        assert 0 == job.wait(90), job.err
    return job


def read(home: Path) -> dict[int, tuple[dict[int, str], str]]:
    """Return each rank's losses and what its state was at the end."""
    run = {}
    for rank in range(2):
        lines = [json.loads(line) for line in (home / f"ledger-{rank}.jsonl").read_text().splitlines()]
        assert len(lines) == len({line["step"] for line in lines}), f"rank {rank} did a step twice"
        losses = {line["step"]: line["loss"] for line in lines}
        run[rank] = losses, (home / f"digest-{rank}.txt").read_text()
    return run


@pytest.mark.parametrize(("kind", "death"), CASES)
def test_a_kill_costs_no_bit_of_any_kind_of_state(tmp_path: Path, kind: str, death: str) -> None:
    """A scaler's notes, a closure's collectives, lists and numbers in an optimizer, types of its tensors."""
    train(tmp_path / "reference", kind)
    job = train(tmp_path / "run", kind, "--die", death)

    reference, run = read(tmp_path / "reference"), read(tmp_path / "run")
    if death.startswith("updated"):
        # The step counts, and the killed rank took its own result of it along.
        del reference[int(death.split(":")[1])][0][int(death.split(":")[2])]
    assert reference == run
    assert ["recovered"] == [incident["outcome"] for incident in job.timeline()]
