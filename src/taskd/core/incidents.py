"""One fault from its first sign to the first step after it, as marks on one clock.

Each phase is the time between two neighbouring marks, so the phases add up to the downtime by construction
and a missing mark (a script that never joins has no ``joined``) leaves no hole.
"""

from dataclasses import dataclass, field, replace
from typing import TypeVar

from taskd.core.launch import DUMP
from taskd.core.status import IncidentStatus, PhaseName

RECOVERING = "recovering"
INTERRUPTED = "interrupted by fault"
RESTART = "restart"
SWITCH = "switch"
SWITCHED = "switched"
AnIncident = TypeVar("AnIncident", "Incident", IncidentStatus)

ORDER = (
    PhaseName.DETECT,
    PhaseName.DECIDE,
    PhaseName.RELEASE,
    PhaseName.SPAWN,
    PhaseName.JOIN,
    PhaseName.RESTORE,
    PhaseName.FIRST_STEP,
    PhaseName.SAVE,
)


@dataclass(frozen=True, slots=True)
class Incident:
    """A fault and the recovery from it. ``marks`` tells when each phase ended.

    ``notes`` are what was learned on the way, and not known when the ``reason`` was given: who got its state
    from where, and which copies differed.
    """

    number: int
    started_at: float
    stamp: float
    kind: str
    what: str
    rank: int
    node: str
    step: int
    generation: int
    strategy: str = RESTART
    reason: str = ""
    outcome: str = RECOVERING
    failed_stamp: float = 0.0
    stack: str = ""
    marks: dict[PhaseName, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def mark(self, phase: PhaseName, now: float) -> "Incident":
        """Note that a phase ended now; the first note counts."""
        if phase in self.marks:
            return self
        return replace(self, marks={**self.marks, phase: now})

    def phases_ms(self) -> dict[str, float]:
        """Compute how long each phase took."""
        last = self.started_at
        phases: dict[str, float] = {}
        for phase in ORDER:
            if phase in self.marks:
                at = max(last, self.marks[phase])
                phases[phase.value] = (at - last) * 1000.0
                last = at
        return phases

    def status(self) -> IncidentStatus:
        """Return the incident as it is shown."""
        return IncidentStatus(
            number=self.number,
            stamp=self.stamp,
            kind=self.kind,
            what=self.what,
            rank=self.rank,
            node=self.node,
            step=self.step,
            strategy=self.strategy,
            reason=self.reason,
            outcome=self.outcome,
            generation=self.generation,
            phases_ms=self.phases_ms(),
            started_at=self.started_at,
            stack=self.stack,
            notes=self.notes,
        )


def is_over(incident: Incident) -> bool:
    """Tell whether a fault was answered, well or not; one that another interrupted goes on with that."""
    return incident.outcome != RECOVERING and not incident.outcome.startswith(INTERRUPTED)


def close_left_open(incident: AnIncident) -> AnIncident:
    """Say of an incident that a newborn manager finds open that nobody saw its end; others stay as they are.

    What its predecessor was in the middle of goes on, or comes up again as an incident of its own.
    """
    if incident.outcome != RECOVERING:
        return incident
    return replace(incident, outcome="interrupted by the end of the manager")


def describe_news(incident: IncidentStatus) -> str:
    """Say what is new about an incident, for the console; empty if there is nothing to say yet."""
    if incident.outcome == "recovering" and not incident.reason:
        return incident.what
    if incident.outcome == "recovered":
        parts = ", ".join(f"{name} {ms:.0f}" for name, ms in incident.phases_ms.items())
        if PhaseName.FIRST_STEP.value not in incident.phases_ms:
            spent = f"in {incident.downtime_ms:.0f} ms ({parts})"
            return f"started again after fault {incident.number} {spent}; the script reports no steps"
        deed = "started again after" if incident.strategy == RESTART else "recovered from"
        return f"{deed} fault {incident.number} in {incident.downtime_ms:.0f} ms ({parts})"
    if incident.outcome == SWITCHED:
        parts = ", ".join(f"{name} {ms:.0f}" for name, ms in incident.phases_ms.items())
        return f"{incident.what}: {incident.downtime_ms:.0f} ms from step to step ({parts})"
    if incident.kind == SWITCH and incident.outcome.startswith("cancelled"):
        return f"the move was {incident.outcome}"
    if incident.strategy == DUMP and incident.outcome != RECOVERING:
        return incident.outcome
    return ""
