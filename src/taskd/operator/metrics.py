"""What the controller counts, in Prometheus's words. No label names a job or a pod.

There may be thousands.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from taskd.core.acjob import names
from taskd.core.acjob import status as statuses
from taskd.core.acjob.status import Status, moment
from taskd.kube.objects import Json
from taskd.kube.transport import Call

_FINE = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
_COARSE = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)


@dataclass(slots=True)
class Metrics:
    """The counters of one controller process; also the hooks of its work queue and of its client."""

    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    jobs: Gauge = field(init=False)
    restarts: Counter = field(init=False)
    to_running: Histogram = field(init=False)
    queue_depth: Gauge = field(init=False)
    queue_wait: Histogram = field(init=False)
    reconcile: Histogram = field(init=False)
    retries: Counter = field(init=False)
    requests: Counter = field(init=False)
    request_time: Histogram = field(init=False)
    leading: Gauge = field(init=False)

    def __post_init__(self) -> None:
        own = self.registry
        self.jobs = Gauge("taskd_controller_jobs", "Jobs by state.", ["state"], registry=own)
        self.restarts = Counter("taskd_controller_restarts", "Restarts by cause.", ["cause"], registry=own)
        self.to_running = Histogram(
            "taskd_controller_time_to_running_seconds",
            "From the creation of a job to all of its pods at work.",
            buckets=_COARSE,
            registry=own,
        )
        self.queue_depth = Gauge("taskd_controller_queue_depth", "Jobs that wait for a look.", registry=own)
        self.queue_wait = Histogram(
            "taskd_controller_queue_wait_seconds", "How long they wait.", buckets=_FINE, registry=own
        )
        self.reconcile = Histogram(
            "taskd_controller_reconcile_seconds", "How long a look takes.", buckets=_FINE, registry=own
        )
        self.retries = Counter("taskd_controller_retries", "Looks that have to be repeated.", registry=own)
        self.requests = Counter(
            "taskd_controller_api_requests",
            "Requests to the API server.",
            ["method", "resource", "code"],
            registry=own,
        )
        self.request_time = Histogram(
            "taskd_controller_api_seconds", "How long they take.", ["method"], buckets=_FINE, registry=own
        )
        self.leading = Gauge("taskd_controller_leading", "1 while this replica acts.", registry=own)

    # ------------------------------------------------------------------------- hooks of the work queue

    def depth(self, waiting: int) -> None:
        """So many jobs wait."""
        self.queue_depth.set(waiting)

    def waited(self, seconds: float) -> None:
        """A job waited so long."""
        self.queue_wait.observe(seconds)

    def worked(self, seconds: float) -> None:
        """A look took so long."""
        self.reconcile.observe(seconds)

    def retried(self) -> None:
        """A look has to be repeated."""
        self.retries.inc()

    def called(self, call: Call) -> None:
        """A request was answered, or was not (code 0)."""
        self.requests.labels(call.method, call.resource, str(call.status)).inc()
        self.request_time.labels(call.method).observe(call.seconds)

    # ----------------------------------------------------------------------------------- what happens

    def stored(self, raw: Json, before: Status, after: Status) -> None:
        """A status was written."""
        for cause, count in after.causes.items():
            more = count - before.causes.get(cause, 0)
            if more > 0:
                self.restarts.labels(cause).inc(more)
        ran = any(condition.type == names.RUNNING for condition in before.conditions)
        if after.stable and not ran:
            began = moment(str(raw["metadata"].get("creationTimestamp", "")))
            now = moment(after.conditions[-1].updated) if after.conditions else None
            if began is not None and now is not None:
                self.to_running.observe(max(0.0, now - began))

    def expose(self, jobs: Iterable[Json]) -> bytes:
        """The page, with the jobs counted as they are now."""
        states = Tally(
            status.last.type if (status := statuses.read(raw)).last is not None else "" for raw in jobs
        )
        for state in ("", "Created", "Running", "Restarting", "Succeeded", "Failed"):
            self.jobs.labels(state or "New").set(states[state])
        return generate_latest(self.registry)
