"""Any role may die, also in the middle of an order: the training does not notice, or is restarted once."""

import collections
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.roles.harness import RunningJob, eventually, job_files, running

pytestmark = pytest.mark.slow

STEPS = str(Path(__file__).with_name("steps.py"))
ROUNDS = int(os.environ.get("TASKD_ROUNDS", "2"))

POINTS = [
    "manager.deciding",
    "manager.sent",
    "manager.reported",
    "manager.acknowledged",
    "proxy.delivered",
    "proxy.forwarded",
    "proxy.reporting",
    "proxy.reported",
]


def role_pid(status: dict[str, Any], role: str) -> int:
    pid: int = status["manager_pid"] if role == "manager" else status["nodes"][0][f"{role}_pid"]
    return pid


@pytest.mark.parametrize("role", ["manager", "proxy"])
@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGSTOP])
def test_a_dead_or_hung_manager_or_proxy_does_not_touch_the_training(
    tmp_path: Path, role: str, sig: signal.Signals
) -> None:
    """The same processes go on, a successor takes over, and the next fault is answered."""
    with running(tmp_path, "--nproc-per-node", "2", STEPS, "100000", "0.02") as job:
        status = job.at_step(3)
        before = job.pids()
        victim = role_pid(status, role)
        os.kill(victim, sig)
        eventually(lambda: role_pid(job.saved_status(), role) != victim, f"another {role}")
        eventually(lambda: job.saved_status().get("phase") == "running", "the job seen as running")
        assert before == job.pids()
        assert 1 == job.saved_status()["generation"]

        os.kill(before[1], signal.SIGKILL)
        eventually(lambda: job.saved_status().get("generation") == 2, "a restart by the successor")
        assert 2 == len(job.pids())
        job.cli("stop", "job")
        assert 143 == job.wait()

    assert no_order_twice(job) > 0


def test_a_dead_agent_takes_its_workers_along_and_is_replaced(tmp_path: Path) -> None:
    """Kill -9 of the agent: no orphan trains on, the group restarts under a new agent."""
    with running(tmp_path, "--nproc-per-node", "2", STEPS, "60", "0.05") as job:
        status = job.at_step(3)
        before = job.pids()
        os.kill(role_pid(status, "agent"), signal.SIGKILL)
        eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in before.values()), "no orphan")
        assert 0 == job.wait()

    (incident,) = job.timeline()
    assert ("node", "recovered") == (incident["kind"], incident["outcome"])


def test_manager_and_agent_killed_together_are_one_more_fault(tmp_path: Path) -> None:
    """Nobody is left who knows; what is on disk keeps the count, and the timeline tells."""
    with running(tmp_path, "--nproc-per-node", "2", STEPS, "60", "0.05") as job:
        status = job.at_step(3)
        os.kill(role_pid(status, "agent"), signal.SIGKILL)
        os.kill(role_pid(status, "manager"), signal.SIGKILL)
        assert 0 == job.wait()

    assert (2, 1) == (job.saved_status()["generation"], job.saved_status()["restarts"])
    (incident,) = job.timeline()
    assert "lost together" in incident["what"]
    assert "recovered" == incident["outcome"]


def test_a_stopped_nursery_is_continued(tmp_path: Path) -> None:
    """SIGSTOP of the processes' parent: the exit codes arrive all the same."""
    with running(tmp_path, "--nproc-per-node", "2", STEPS, "60", "0.02") as job:
        job.at_step(3)
        (nursery,) = [p for p in job.family() if "nursery_main" in " ".join(p.cmdline())]
        nursery.suspend()
        assert 0 == job.wait()

    assert [] == job.timeline()


def test_a_lost_local_node_loses_its_directories_and_comes_back(tmp_path: Path) -> None:
    """Agent, proxy, workers and both directories are gone; the node returns and the job ends well."""
    with running(tmp_path, "--local-nodes", "2", "--nproc-per-node", "1", STEPS, "60", "0.05") as job:
        status = job.at_step(3)
        node = status["nodes"][1]
        pid = job.pids()[1]
        kept = [path for path in job_files(job) if "taskd-job-1-" in path]
        marks = [Path(path) / "mark" for path in kept]
        for mark in marks:
            mark.touch()
        job.cli("inject", "kill", "--node", "1", "job")
        eventually(lambda: not Path(f"/proc/{pid}").exists(), "the rank to be gone")
        eventually(lambda: not Path(f"/proc/{node['agent_pid']}").exists(), "the agent to be gone")
        eventually(lambda: not Path(f"/proc/{node['proxy_pid']}").exists(), "the proxy to be gone")
        eventually(lambda: job.saved_status().get("generation") == 2, "the second generation")
        assert 2 == len(marks)
        assert [] == [str(mark) for mark in marks if mark.exists()]
        assert 0 == job.wait()

    assert [] == job_files(job)


@pytest.mark.parametrize("role", ["manager", "proxy", "agent"])
def test_roles_die_on_request_at_a_step(tmp_path: Path, role: str) -> None:
    """``{"step": 5, "role": …}``: the job ends with every step done."""
    faults = tmp_path / "faults.jsonl"
    faults.write_text(f'{{"step": 5, "role": "{role}", "kind": "kill"}}\n')
    with running(tmp_path, "--nproc-per-node", "2", "--faults", str(faults), STEPS, "60", "0.05") as job:
        assert 0 == job.wait()

    assert f"the {role}" in job.err
    for rank in range(2):
        steps = [int(line.split()[0]) for line in (tmp_path / f"done-{rank}.txt").read_text().splitlines()]
        assert list(range(60)) == steps


@pytest.mark.parametrize("point", POINTS)
def test_every_order_is_carried_out_once(tmp_path: Path, point: str) -> None:
    """A role dies between order and acknowledgement: nothing is lost, nothing is done twice."""
    trap = tmp_path / "trap"
    with running(
        tmp_path,
        *("--local-nodes", "2", "--nproc-per-node", "1"),
        *(STEPS, "100000", "0.02"),
        env={"TASKD_FAILPOINT": str(trap)},
    ) as job:
        for round_number in range(ROUNDS):
            before = job.pids()
            generation = job.saved_status()["generation"]
            trap.with_suffix(".new").write_text(point)
            trap.with_suffix(".new").rename(trap)
            os.kill(before[round_number % 2], signal.SIGKILL)
            eventually(lambda: not trap.exists(), f"a death at {point}")
            job.past_generation(generation)
            job.pids()
        job.cli("stop", "job")
        assert 143 == job.wait()

    assert no_order_twice(job) > 0
    starts = collections.Counter(line["order"] for line in job.ledger() if line["order"].endswith("/start"))
    assert {2} == set(starts.values()), starts
    generations = sorted(int(order.split("/")[0]) for order in starts)
    assert list(range(1, generations[-1] + 1)) == generations


def no_order_twice(job: RunningJob) -> int:
    """Check the agents' books; returns how many orders there were."""
    orders = collections.Counter((line["node"], line["incarnation"], line["order"]) for line in job.ledger())
    assert [] == [order for order, count in orders.items() if count > 1]
    return len(orders)
