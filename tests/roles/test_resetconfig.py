"""A whole job that follows its mounted reset-config, as in a cluster without process-level recovery."""

from pathlib import Path

import pytest

from taskd.core.faults.texts.reset import RankStatus, Reset, ResetRank
from tests.manager.mounted import Mounted
from tests.roles.harness import eventually, running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

STEPS = str(Path(__file__).with_name("steps.py"))


def marked(status: RankStatus) -> dict[str, str]:
    return Reset((ResetRank(1, status=status, policy="reset", initial_policy="reset"),)).data()


def test_training_stops_for_a_reset_and_starts_again_after_it(tmp_path: Path) -> None:
    """`unrecovered` ends all processes, `recovered` starts them; a higher count restarts them once more."""
    mounted = Mounted(tmp_path / "config")
    mounted.publish(Reset().data())
    flags = ("--standalone", "--nproc-per-node", "2", STEPS, "100000", "0.02")
    with running(tmp_path, *flags, env={"TASKD_RESET_CONFIG": str(mounted.place)}) as job:
        job.at_step(3)
        before = job.pids()
        mounted.publish(marked(RankStatus.UNRECOVERED))
        eventually(lambda: job.saved_status().get("phase") == "gathering", "the job to stand still")
        assert "the device of rank 1 is being reset" == job.saved_status()["reason"]
        mounted.publish(marked(RankStatus.RECOVERED))
        after = job.pids()
        job.at_step(5)
        generation = job.saved_status()["generation"]
        mounted.publish(Reset(retry_time=1).data())
        job.past_generation(generation)
        last = job.pids()
        told = [incident["reason"] for incident in job.timeline()]

    assert set(before.values()).isdisjoint(after.values())
    assert set(after.values()).isdisjoint(last.values())
    assert 2 == len(told), told
    assert "RetryTime 1" in told[1]
