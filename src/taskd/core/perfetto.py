"""Turn a timeline into a trace that Perfetto and ``chrome://tracing`` open.

The format is Chrome's trace JSON: complete events ("X") with a start and a length in microseconds. Each
incident has a track of its own, because a second fault may begin while the first is still being repaired
and events of one track must nest. On the track, one event spans the downtime and one event per phase lies
inside it; the phases are laid end to end, so what one sees adds up to what is reported.
"""

from collections.abc import Iterable, Mapping

from taskd.core.status import IncidentStatus, PhaseName

_PROCESS = 1
_US_PER_S = 1_000_000
_US_PER_MS = 1_000
_ORDER = {str(name): place for place, name in enumerate(PhaseName)}

TraceEvent = dict[str, object]


def order_phases(phases_ms: Mapping[str, float]) -> list[tuple[str, float]]:
    """Return the phases in the order in which they happen; names nobody knows come last."""
    return sorted(phases_ms.items(), key=lambda phase: (_ORDER.get(phase[0], len(_ORDER)), phase[0]))


def compute_trace(job: str, incidents: Iterable[IncidentStatus]) -> dict[str, object]:
    """Compute the trace of a job's incidents, with time zero at the first of them."""
    ordered = sorted(incidents, key=lambda incident: incident.number)
    origin = min((incident.stamp for incident in ordered), default=0.0)
    events: list[TraceEvent] = [_name("process_name", 0, f"job {job}")]
    for incident in ordered:
        events.append(_name("thread_name", incident.number, _title(incident)))
        events.append(_meta("thread_sort_index", incident.number, {"sort_index": incident.number}))
        events.extend(_events_of(incident, (incident.stamp - origin) * _US_PER_S))
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"job": job, "time_zero_stamp": origin},
    }


def _events_of(incident: IncidentStatus, start_us: float) -> list[TraceEvent]:
    phases = []
    at_us = start_us
    for name, length_ms in order_phases(incident.phases_ms):
        phases.append(_span(name, "phase", incident.number, at_us, length_ms * _US_PER_MS))
        at_us += length_ms * _US_PER_MS
    whole = _span(_title(incident), "incident", incident.number, start_us, at_us - start_us)
    whole["args"] = {
        "what": incident.what,
        "kind": incident.kind,
        "rank": incident.rank,
        "node": incident.node,
        "step": incident.step,
        "strategy": incident.strategy,
        "reason": incident.reason,
        "notes": list(incident.notes),
        "outcome": incident.outcome,
        "generation": incident.generation,
        "downtime_ms": incident.downtime_ms,
    }
    # The enclosing event comes first: where two begin together, viewers nest in the order of the file.
    return [whole, *phases]


def _title(incident: IncidentStatus) -> str:
    where = f"rank {incident.rank}" if incident.rank >= 0 else incident.node or "job"
    return f"#{incident.number} {where}: {incident.kind}"


def _span(name: str, category: str, track: int, start_us: float, length_us: float) -> TraceEvent:
    # Both ends are rounded, not start and length, so that neighbours meet to the nanosecond.
    first = round(start_us, 3)
    last = round(start_us + length_us, 3)
    return {
        "name": name,
        "cat": category,
        "ph": "X",
        "ts": first,
        "dur": round(last - first, 3),
        "pid": _PROCESS,
        "tid": track,
    }


def _name(kind: str, track: int, name: str) -> TraceEvent:
    return _meta(kind, track, {"name": name})


def _meta(kind: str, track: int, args: TraceEvent) -> TraceEvent:
    return {"name": kind, "ph": "M", "pid": _PROCESS, "tid": track, "args": args}
