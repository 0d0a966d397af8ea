"""What the controller counts."""

from __future__ import annotations

from dataclasses import replace

from taskd.core.acjob import conditions, names
from taskd.core.acjob.conditions import Condition
from taskd.core.acjob.status import Status
from taskd.operator.metrics import Metrics

RAW = {"metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"}}
RUNNING = Condition(names.RUNNING, names.JOB_RUNNING, "it runs")
SUSPENDED = Condition(names.CREATED, names.JOB_SUSPENDED, "it is suspended")


def told(status: Status, news: Condition, now: str) -> Status:
    return replace(
        status,
        conditions=conditions.tell(status.conditions, news, now),
        stable=news.type == names.RUNNING,
    )


def test_the_time_to_running_is_taken_once_in_the_life_of_a_job() -> None:
    """A job that was suspended for a night and resumed did not take a night to start."""
    metrics = Metrics()
    running = told(Status(), RUNNING, "2026-01-01T00:00:10Z")
    suspended = told(running, SUSPENDED, "2026-01-01T00:00:20Z")
    resumed = told(suspended, RUNNING, "2026-01-02T00:00:00Z")
    for before, after in ((Status(), running), (running, suspended), (suspended, resumed)):
        metrics.stored(RAW, before, after)
    assert 1.0 == metrics.registry.get_sample_value("taskd_controller_time_to_running_seconds_count")
    assert 10.0 == metrics.registry.get_sample_value("taskd_controller_time_to_running_seconds_sum")
