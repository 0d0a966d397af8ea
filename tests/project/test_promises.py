"""The table of the guides' promises names each of them once, and only tests that there are."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TABLE = (ROOT / "docs/promises.md").read_text("utf-8")
COUNTS = {0: 20, 1: 23, 2: 26, 3: 15}
ROWS = re.findall(r"^\| ([^|]+) \| [^|]+ \| [^|]+ \|$", TABLE, re.MULTILINE)
TESTS = sorted(set(re.findall(r"`(\w[\w/]*\.py)::(test_\w+)`", TABLE)))


def test_every_promise_has_one_row() -> None:
    """In their order."""
    named = [(int(guide), int(row)) for cell in ROWS for guide, row in re.findall(r"S(\d)-(\d+)", cell)]

    assert [(guide, row + 1) for guide, count in COUNTS.items() for row in range(count)] == named


@pytest.mark.parametrize(("file", "test"), TESTS, ids=[f"{file}::{test}" for file, test in TESTS])
def test_a_named_test_exists(file: str, test: str) -> None:
    """Whoever renames one finds it here."""
    assert f"def {test}(" in (ROOT / "tests" / file).read_text("utf-8")
