"""The benchmark of recovery counts what a fault had computed again, whether or not it was committed again."""

from importlib import import_module
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
FAULT = 10.0
# Two steps of two ranks, and the fault comes while they compute the third.
BEFORE = """
begin 1.0 0 {rank}
step 2.0 0 {rank} 2
begin 3.0 1 {rank}
step 4.0 1 {rank} 2
begin 9.0 2 {rank}
"""


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        # What a recovery from memory shows: only what nobody had committed.
        ("begin 11.0 2 0\nstep 12.0 2 0 2", 0),
        # Computed again, and not committed a second time.
        ("begin 11.0 1 0\nbegin 12.0 2 0", 1),
        # A restart from a checkpoint, seen when its first step has just begun.
        ("begin 11.0 0 0", 2),
        ("begin 11.0 0 0\nstep 12.0 0 0 2\nbegin 12.5 1 0", 2),
    ],
)
def test_beginnings_tell_what_is_computed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: str, expected: int
) -> None:
    """A step is computed again if it begins after some rank has committed it."""
    monkeypatch.syspath_prepend(str(BENCH))
    for rank in range(2):
        (tmp_path / f"10{rank}").write_text(BEFORE.format(rank=rank))
    (tmp_path / "102").write_text(after + "\n")
    records = import_module("recovery.ledgers").read(tmp_path)

    assert expected == records.recomputed(FAULT)
