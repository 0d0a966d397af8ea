"""Which changes of the status are stored at once."""

from dataclasses import replace

from taskd.core.acjob import names, telling
from taskd.core.acjob.conditions import Condition
from taskd.core.acjob.status import Status

RUNNING = Condition(names.RUNNING, names.JOB_RUNNING, "it runs", "True")
RESTARTING = Condition(names.RESTARTING, names.JOB_RESTARTING, "a pod is missing", "True")


def test_a_pod_on_its_way_out_does_not_hurry_the_status() -> None:
    """Its going and the restart that follows some milliseconds later are one write."""
    before = Status(conditions=(RUNNING,), stable=True)
    leaving = replace(before, conditions=(RESTARTING,))
    assert not telling.urgent(before, leaving)


def test_a_restart_that_is_counted_is_stored_at_once() -> None:
    before = Status(conditions=(RUNNING,), stable=True)
    begun = replace(before, conditions=(RESTARTING,), stable=False, restarts=1)
    assert telling.urgent(before, begun)


def test_a_job_that_runs_says_so_at_once() -> None:
    assert telling.urgent(
        Status(conditions=(RESTARTING,), restarts=1), Status(conditions=(RUNNING,), restarts=1)
    )
