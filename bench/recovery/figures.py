"""A figure, what it should be, and whether it is: rows of one table, and the same as JSON.

A median without its spread says little, so each row has the range and the number of samples. What could not
be measured counts as not met: a skipped comparison is no success.
"""

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from table import print_columns, show_digits, show_number


@dataclass(frozen=True, slots=True)
class Figure:
    """One row. Without a target it only tells; with ``skipped`` it says why there is nothing to tell."""

    name: str
    samples: tuple[float, ...] = ()
    unit: str = "ms"
    target: float | None = None
    skipped: str = ""
    flaw: str = ""

    @property
    def measured(self) -> float | None:
        """Return the median."""
        return statistics.median(self.samples) if self.samples else None

    @property
    def ratio(self) -> float | None:
        """Return the measured value as a multiple of the target."""
        if self.measured is None or not self.target:
            return None
        return self.measured / self.target

    @property
    def met(self) -> bool | None:
        """Tell whether the target is met; None where there is none."""
        if self.target is None:
            return None
        return self.measured is not None and not self.flaw and self.measured <= self.target

    def as_dict(self) -> dict[str, object]:
        """Return the row for a machine."""
        return {
            "figure": self.name.strip(),
            "unit": self.unit,
            "measured": self.measured,
            "target": self.target,
            "ratio": self.ratio,
            "met": self.met,
            "skipped": self.skipped,
            "flaw": self.flaw,
            "samples": list(self.samples),
        }


@dataclass(slots=True)
class Section:
    """What one part of the benchmark found."""

    name: str
    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(
        self,
        name: str,
        samples: Sequence[float],
        unit: str = "ms",
        target: float | None = None,
        flaw: str = "",
    ) -> None:
        """Add a row; one that has a target and no samples is a failure, and should say why in ``flaw``."""
        self.figures.append(Figure(name, tuple(samples), unit, target, "", flaw))

    def skip(self, name: str, why: str, target: float | None = None, unit: str = "") -> None:
        """Add a row that could not be measured here."""
        self.figures.append(Figure(name, (), unit, target, why))

    def note(self, text: str) -> None:
        """Add a remark."""
        self.notes.append(text)


def print_sections(sections: Sequence[Section]) -> None:
    """Print one table, then the remarks."""
    head = ("figure", "measured", "target", "ratio", "met", "range", "n")
    lines = [_line(figure) for section in sections for figure in section.figures]
    print_columns(head, lines, right=(1, 2, 3, 6))
    for section in sections:
        for figure in section.figures:
            for text in (figure.skipped, figure.flaw):
                if text:
                    print(f"{section.name}: {figure.name.strip()}: {text}")
        for note in section.notes:
            print(f"{section.name}: {note}")


def write_json(path: Path, sections: Sequence[Section], about: dict[str, object]) -> None:
    """Write the same for a machine."""
    body = {
        **about,
        "sections": [
            {"name": each.name, "figures": [row.as_dict() for row in each.figures], "notes": each.notes}
            for each in sections
        ],
    }
    path.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")


def _line(figure: Figure) -> tuple[str, ...]:
    measured = figure.measured
    if measured is None:
        shown = "SKIPPED" if figure.skipped else "FAILED" if figure.flaw else "-"
    else:
        shown = show_number(measured, figure.unit)
    return (
        figure.name,
        shown,
        "" if figure.target is None else f"<= {show_number(figure.target, figure.unit)}",
        "" if figure.ratio is None else f"{figure.ratio:.2f}",
        "" if figure.met is None else "yes" if figure.met else "NO",
        _range(figure),
        str(len(figure.samples)) if figure.samples else "",
    )


def _range(figure: Figure) -> str:
    if len(figure.samples) < 2:
        return ""
    low, high = min(figure.samples), max(figure.samples)
    return f"{show_digits(low, figure.unit)} to {show_digits(high, figure.unit)}"
