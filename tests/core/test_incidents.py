"""The phases of an incident add up to its downtime."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskd.core.incidents import INTERRUPTED, ORDER, RECOVERING, Incident, close_left_open, is_over
from taskd.core.status import PhaseName


def make_incident(started_at: float = 10.0) -> Incident:
    return Incident(1, started_at, 0.0, "process", "rank 1 was killed", 1, "0", 5, 2)


@given(st.dictionaries(st.sampled_from(ORDER), st.floats(0.0, 1000.0)), st.floats(0.0, 1000.0))
def test_phases_are_never_negative_and_add_up(marks: dict[PhaseName, float], started_at: float) -> None:
    """Whatever was marked and in whatever order: the sum is the time from the start to the last mark."""
    incident = make_incident(started_at)
    for phase, at in marks.items():
        incident = incident.mark(phase, at)

    phases = incident.phases_ms()

    assert all(ms >= 0.0 for ms in phases.values())
    downtime_ms = (max([started_at, *marks.values()]) - started_at) * 1000.0
    assert downtime_ms == pytest.approx(incident.status().downtime_ms, abs=1e-6)
    assert set(phases) == {phase.value for phase in marks}


def test_a_fault_that_another_one_interrupts_is_not_over() -> None:
    """Whoever waits for the end of the recovery waits for the second fault, too."""
    outcomes = [RECOVERING, f"{INTERRUPTED} 2", "recovered", "failed: nobody has the state"]
    assert [False, False, True, True] == [
        is_over(replace(make_incident(), outcome=each)) for each in outcomes
    ]


def test_a_missing_phase_leaves_no_hole() -> None:
    """A script that never joins has no such phase; the next one begins where the last one ended."""
    incident = make_incident(10.0).mark(PhaseName.SPAWN, 11.0).mark(PhaseName.FIRST_STEP, 13.0)

    assert {"spawn": 1000.0, "first step": 2000.0} == incident.phases_ms()


def test_the_first_mark_counts() -> None:
    """A phase ends once, however often its end is reported."""
    incident = make_incident(10.0).mark(PhaseName.SPAWN, 11.0)

    assert incident is incident.mark(PhaseName.SPAWN, 15.0)


def test_an_incident_found_open_by_a_newborn_manager_gets_an_outcome() -> None:
    """Nobody else will ever close it."""
    incident = make_incident()
    assert RECOVERING == incident.outcome

    assert "interrupted by the end of the manager" == close_left_open(incident).outcome
