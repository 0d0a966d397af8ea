"""A trace shows the same times as the timeline."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from taskd.core.perfetto import compute_trace, order_phases
from taskd.core.status import IncidentStatus, PhaseName


def make_incident(number: int, stamp: float, phases_ms: dict[str, float], rank: int = 1) -> IncidentStatus:
    """Build an incident of which only the times matter."""
    return IncidentStatus(
        number=number,
        stamp=stamp,
        kind="killed",
        what="rank 1 was killed",
        rank=rank,
        node="node-0",
        step=20,
        strategy="recover",
        reason="1 of 4 ranks lost",
        outcome="recovered",
        generation=2,
        phases_ms=phases_ms,
    )


def spans(trace: dict[str, Any], category: str, number: int) -> list[dict[str, Any]]:
    """Pick the events of one incident."""
    events = trace["traceEvents"]
    return [one for one in events if one["ph"] == "X" and one["cat"] == category and one["tid"] == number]


def test_phases_come_in_the_order_in_which_they_happen() -> None:
    """A mapping has no order of its own; names nobody knows come last."""
    phases = {"zeal": 1.0, "first step": 2.0, "join": 3.0, "detect": 4.0}

    assert ["detect", "join", "first step", "zeal"] == [name for name, _ in order_phases(phases)]


def test_each_incident_has_a_named_track() -> None:
    """Perfetto shows one line per incident, which says whom it struck."""
    trace = compute_trace(
        "train", [make_incident(1, 5.0, {"detect": 1.0}), make_incident(2, 6.0, {}, rank=-1)]
    )

    names = {
        event["tid"]: event["args"]["name"]
        for event in json.loads(json.dumps(trace))["traceEvents"]
        if event["name"] == "thread_name"
    }
    assert {1: "#1 rank 1: killed", 2: "#2 node-0: killed"} == names


def test_a_job_without_faults_is_a_trace_too() -> None:
    """Nothing happened, and the file opens and says so."""
    trace: dict[str, Any] = compute_trace("train", [])

    assert ["M"] == [event["ph"] for event in trace["traceEvents"]]


@given(
    st.lists(
        st.tuples(
            st.floats(1.7e9, 1.8e9),
            st.dictionaries(
                st.sampled_from([str(name) for name in PhaseName]), st.floats(0, 1e5), max_size=7
            ),
        ),
        max_size=4,
    )
)
def test_phases_lie_end_to_end_and_add_up(drawn: list[tuple[float, dict[str, float]]]) -> None:
    """For every incident: no gap, no overlap, and the sum is the downtime to the microsecond."""
    incidents = [
        make_incident(number, stamp, phases) for number, (stamp, phases) in enumerate(drawn, start=1)
    ]

    trace = json.loads(json.dumps(compute_trace("train", incidents)))

    for incident in incidents:
        [whole] = spans(trace, "incident", incident.number)
        parts = spans(trace, "phase", incident.number)
        at = whole["ts"]
        for part in parts:
            assert abs(part["ts"] - at) <= 0.1
            at = part["ts"] + part["dur"]
        assert abs(sum(part["dur"] for part in parts) - incident.downtime_ms * 1000) <= 1.0
        assert abs(whole["dur"] - incident.downtime_ms * 1000) <= 1.0
