"""Check TaskD's own account of a recovery against what the ledgers show from outside.

The timeline splits a recovery into phases that add up by construction; whether they add up to the *downtime*
is another question: what was missed before the first mark or after the last one would be in no phase.
"""

import statistics
from collections.abc import Sequence

from recovery.figures import Section
from recovery.runs import Fault

LIMIT_PERCENT = 2.0
ORDER = ("detect", "decide", "release", "spawn", "join", "restore", "first step")

Incident = dict[str, object]


def phases_of(incident: Incident) -> dict[str, float]:
    """Return an incident's phases in milliseconds."""
    raw = incident.get("phases_ms")
    return {str(name): float(ms) for name, ms in raw.items()} if isinstance(raw, dict) else {}


def incident_of(fault: Fault, incidents: Sequence[Incident]) -> Incident | None:
    """Return the incident that began first after a fault."""
    later = [each for each in incidents if _began(each) > fault.at - 0.001]
    return min(later, key=_began, default=None)


def check_sum(
    section: Section, pairs: Sequence[tuple[Fault, Incident]], what: str, *, death: bool = False
) -> None:
    """Add the row that says how far the phases are from the downtime.

    With ``death`` the time from the signal to the kernel's word that the process is gone counts as a phase
    of its own: the kernel first takes the memory of the process apart, and nobody can know before.
    """
    off = []
    before, behind = [], []
    for fault, incident in pairs:
        total = sum(phases_of(incident).values())
        dying = (_began(incident) - fault.at) * 1000.0
        known = total + dying if death else total
        off.append(abs(known - fault.whole * 1000.0) / (fault.whole * 1000.0) * 100.0)
        before.append(dying)
        behind.append((_began(incident) + total / 1000.0 - fault.back) * 1000.0)
    if death:
        section.add("  of it: from kill -9 to the kernel's word that the process is gone", before)
    section.add(f"  sum of the phases differs from the downtime, {what}", off, "%", LIMIT_PERCENT)
    if off:
        within = sum(each <= LIMIT_PERCENT for each in off)
        section.note(
            f"{what}: phases add up within {LIMIT_PERCENT:g} % in {within} of {len(off)}; the first phase "
            f"begins {statistics.median(before):.1f} ms after the fault, the last ends "
            f"{statistics.median(behind):+.1f} ms from the last rank's commit (medians)"
        )


def describe(section: Section, incidents: Sequence[Incident], what: str) -> None:
    """Note where the time went."""
    split = [phases_of(incident) for incident in incidents]
    if not split:
        return
    parts = [
        f"{name} {statistics.median(each.get(name, 0.0) for each in split):.0f}"
        for name in ORDER
        if any(name in each for each in split)
    ]
    section.note(f"{what}: median ms per phase: {', '.join(parts)} (the first step includes a whole step)")


def _began(incident: Incident) -> float:
    return float(str(incident.get("started_at", 0.0)))
