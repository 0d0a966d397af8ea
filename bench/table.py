"""What a measurement turned out to be, against what it should be, as one table.

A time on a busy machine says little by itself, so each row has its spread and how many samples it rests on,
the machine's load stands beside the table, and what is compared was measured in turns within one run.
"""

import os
import statistics
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Row:
    """One line: samples in one unit, and perhaps limits: of their median, their worst, their least."""

    name: str
    samples: tuple[float, ...]
    unit: str = "ms"
    median_limit: float | None = None
    worst_limit: float | None = None
    least_limit: float | None = None

    @property
    def median(self) -> float:
        """Return the middle sample."""
        return statistics.median(self.samples) if self.samples else float("nan")

    @property
    def worst(self) -> float:
        """Return the largest sample."""
        return max(self.samples, default=float("nan"))

    @property
    def verdict(self) -> str:
        """Return yes or no; nothing where there is no limit."""
        limits = [(self.median, self.median_limit), (self.worst, self.worst_limit)]
        checks = [value <= limit for value, limit in limits if limit is not None]
        if self.least_limit is not None:
            checks.append(min(self.samples, default=float("nan")) >= self.least_limit)
        return ("yes" if all(checks) else "NO") if checks else ""

    @property
    def limit(self) -> str:
        """Return the limits in words."""
        parts = []
        if self.median_limit is not None:
            parts.append(f"median {self.median_limit:g}")
        if self.worst_limit is not None:
            parts.append(f"worst {self.worst_limit:g}")
        said = [" ".join(["<=", ", ".join(parts), self.unit])] if parts else []
        if self.least_limit is not None:
            said.append(f">= {self.least_limit:g} {self.unit}")
        return " and ".join(said).rstrip()


@dataclass(slots=True)
class Result:
    """All that one figure measured: its rows, and remarks on where the time went."""

    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(
        self,
        name: str,
        samples: Sequence[float],
        unit: str = "ms",
        *,
        median: float | None = None,
        worst: float | None = None,
        least: float | None = None,
    ) -> None:
        """Add a row."""
        self.rows.append(Row(name, tuple(samples), unit, median, worst, least))

    def note(self, text: str) -> None:
        """Add a remark."""
        self.notes.append(text)


def read_load() -> str:
    """Describe how busy the machine is, with everything that runs on it."""
    one, five, _ = os.getloadavg()
    pressure = ""
    try:
        first = Path("/proc/pressure/cpu").read_text(encoding="ascii").split("\n", 1)[0]
        pressure = f", processes wait for a core {first.split('avg10=')[1].split()[0]} % of the time"
    except (OSError, IndexError):
        pass
    return f"load {one:.2f} (5 min {five:.2f}) on {os.cpu_count()} cores{pressure}"


def tell(text: str) -> None:
    """Say on stderr what is being done, so that stdout holds the table alone."""
    sys.stderr.write(f"bench: {text}\n")
    sys.stderr.flush()


def print_table(sections: Sequence[tuple[str, Result]]) -> None:
    """Print every figure's rows in one table, then the remarks."""
    head = ("figure", "median", "worst", "n", "limit", "met")
    lines = [
        (
            row.name,
            show_number(row.median, row.unit),
            show_number(row.worst, row.unit),
            str(len(row.samples)),
            row.limit,
            row.verdict,
        )
        for _, result in sections
        for row in result.rows
    ]
    print_columns(head, lines, right=(1, 2, 3))
    for name, result in sections:
        for note in result.notes:
            print(f"{name}: {note}")


def print_columns(head: Sequence[str], lines: Sequence[Sequence[str]], right: Collection[int]) -> None:
    """Print lines of cells under their heads, as wide as the widest; the columns ``right`` hold numbers."""
    widths = [max(len(line[column]) for line in [head, *lines]) for column in range(len(head))]
    for line in [head, ["-" * width for width in widths], *lines]:
        cells = [
            text.rjust(width) if column in right else text.ljust(width)
            for column, (text, width) in enumerate(zip(line, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())


def show_number(value: float, unit: str) -> str:
    """Return a value with its unit, and with as many digits as mean something."""
    return f"{show_digits(value, unit)} {unit}".rstrip()


def show_digits(value: float, unit: str) -> str:
    """Return a value without its unit, as rounded as it would be with it; a ratio keeps three digits."""
    digits = 3 if unit == "" else 2 if abs(value) < 10 else 1 if abs(value) < 1000 else 0
    return f"{value:.{digits}f}"
