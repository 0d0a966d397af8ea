"""The job in Prometheus's words. No label names a rank: a job may have thousands."""

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from taskd.core.status import IncidentStatus, JobPhase, JobStatus


def expose(status: JobStatus, timeline: list[IncidentStatus]) -> bytes:
    """Return the metrics as text."""
    registry = CollectorRegistry()

    def gauge(name: str, text: str, value: float, **labels: str) -> None:
        Gauge(name, text, ["job", *labels], registry=registry).labels(job=status.job, **labels).set(value)

    gauge("taskd_generation", "Number of the plan that runs.", status.generation)
    gauge("taskd_restarts", "How often all ranks were restarted.", status.restarts)
    gauge("taskd_world_size", "How many ranks the plan has.", status.world_size)
    gauge("taskd_faults", "How many faults were seen.", len(timeline))
    alive = sum(rank.state in ("running", "joined") for rank in status.ranks)
    gauge("taskd_ranks_alive", "How many ranks run.", alive)
    gauge("taskd_step", "The step that every rank has reached.", _common_step(status))
    downtime = sum(incident.downtime_ms for incident in timeline) / 1000.0
    gauge("taskd_downtime_seconds", "Time lost to faults.", downtime)
    phases = Gauge("taskd_phase", "1 for the phase the job is in.", ["job", "phase"], registry=registry)
    for phase in JobPhase:
        phases.labels(job=status.job, phase=phase.value).set(phase is status.phase)
    return generate_latest(registry)


def _common_step(status: JobStatus) -> int:
    return min((rank.step for rank in status.ranks), default=-1)
