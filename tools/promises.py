"""Write into docs/ascendjob.md which tests show which promise of the acceptance list.

    python tools/promises.py             fill in the table
    python tools/promises.py --check     change nothing, and fail where the table is not up to date

A test says what it shows in its name: ``test_s4_25_…`` one promise, ``test_s4_1_s4_5_…`` two, and
``test_s4_49_to_s4_51_…`` all from the first to the last. A promise without a test stays marked.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GUIDE = ROOT / "docs/ascendjob.md"
OPEN = "TODO(check)"
TEST = re.compile(r"^ *(?:async )?def (test_s4_\w+)\(", re.MULTILINE)
NUMBERS = re.compile(r"(?:(to)_)?s4_(\d+)")
ROW = re.compile(r"^(\| S4-(\d+) \| .* \| )(?:.*)( \|)$", re.MULTILINE)


def promised(test: str) -> Iterator[int]:
    """Return the numbers in a test's name."""
    last = 0
    for to, digits in NUMBERS.findall(test):
        number = int(digits)
        yield from range(last + 1, number + 1) if to else (number,)
        last = number


def shown() -> dict[int, list[str]]:
    """Return the tests of each promise, as ``folder/file.py::test`` below tests/."""
    found: dict[int, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for test in TEST.findall(path.read_text("utf-8")):
            for number in promised(test):
                found.setdefault(number, []).append(f"{path.relative_to(ROOT / 'tests')}::{test}")
    return found


def filled(text: str) -> str:
    """Return the guide with its table filled in."""
    tests = shown()

    def row(match: re.Match[str]) -> str:
        names = tests.get(int(match[2]))
        return f"{match[1]}{', '.join(f'`{name}`' for name in names) if names else OPEN}{match[3]}"

    return ROW.sub(row, text)


def main(arguments: Sequence[str]) -> int:
    """Write the table, or look whether it is as it would be written; say what is still open."""
    if [*arguments] not in ([], ["--check"]):
        print("usage: tools/promises.py [--check]", file=sys.stderr)
        return 2
    text = GUIDE.read_text("utf-8")
    wanted = filled(text)
    if not arguments:
        GUIDE.write_text(wanted, "utf-8")
    unshown = [number for number in range(1, 57) if number not in shown()]
    print(f"promises: {56 - len(unshown)} of 56 have a test; open: {unshown or 'none'}")
    if arguments and wanted != text:
        print("promises: docs/ascendjob.md is not up to date: run python tools/promises.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
