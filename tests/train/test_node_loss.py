"""A lost node's ranks come back from memory: on a spare node, or on the node itself when it is back."""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.roles.harness import RunningJob, eventually
from tests.train.runs import TWO_NODES, Run, assert_same, count_processes, finish, start

pytestmark = pytest.mark.slow

# Slow until the faults are over: commands take their time on a busy machine.
AGREEING = ("--agree", "--pause", "0.8")

Fault = Callable[[RunningJob, dict[str, Any]], object]


def train(home: Path, fault: Fault, *flags: str) -> RunningJob:
    """Run the job on two local nodes, with a fault at step 5."""
    with start(home, *AGREEING, nodes=TWO_NODES, flags=flags) as job:
        before = job.at_step(5)
        fault(job, before)
        job.past_generation(before["generation"])
        finish(job)
    return job


def lose(node: int) -> Fault:
    """Take a node away, with its processes, its memory and its files."""
    return lambda job, _: job.cli("inject", "kill", "--node", str(node))


def assert_agreed(home: Path, processes: int) -> None:
    """See that each process of a rank was told the same before its loop."""
    told: dict[int, list[Any]] = {}
    for path in home.glob("agreed-*.json"):
        told.setdefault(int(path.name.split("-")[1]), []).append(json.loads(path.read_text()))
    assert processes == sum(map(len, told.values()))
    (name,) = {each[0] for rank in told for each in told[rank]}
    for rank, each in told.items():
        assert [[name, ["rank-0", "rank-1", "rank-2", "rank-3"], 10, 10 * rank]] * len(each) == each


@pytest.mark.parametrize("node", [0, 1])
def test_a_lost_node_comes_up_on_a_spare_one(tmp_path: Path, undisturbed: Run, node: int) -> None:
    """Its ranks get their state from replicas, and from their buddies what was theirs alone.

    That is also what they were told before the loop: a seed, names, numbers.
    """
    job = train(tmp_path, lose(node), "--spare-nodes", "1")

    lost = (2 * node, 2 * node + 1)
    assert_same(undisturbed, tmp_path, lost)
    assert [2 if rank in lost else 1 for rank in range(4)] == count_processes(tmp_path)
    (incident,) = job.timeline()
    assert ("recover", "recovered") == (incident["strategy"], incident["outcome"])
    assert "replaced on node spare0" in incident["reason"]
    assert_agreed(tmp_path, processes=6)


def test_without_a_spare_the_survivors_wait_for_the_node(tmp_path: Path, undisturbed: Run) -> None:
    """The launcher starts its agent again, its memory is gone, and still nothing is lost."""
    job = train(tmp_path, lose(1))

    assert_same(undisturbed, tmp_path, (2, 3))
    assert [1, 1, 2, 2] == count_processes(tmp_path)
    assert ["recover-in-place"] == [incident["strategy"] for incident in job.timeline()]
    assert_agreed(tmp_path, processes=6)


def test_a_killed_agent_costs_only_its_own_ranks(tmp_path: Path, undisturbed: Run) -> None:
    """Its ranks end with it and are made again by the next agent; all others keep their processes."""

    def kill(_job: RunningJob, status: dict[str, Any]) -> None:
        agents = {node["node"]: node["agent_pid"] for node in status["nodes"]}
        os.kill(agents["0"], signal.SIGKILL)

    train(tmp_path, kill)

    assert_same(undisturbed, tmp_path, (0, 1))
    assert [2, 2, 1, 1] == count_processes(tmp_path)


def test_news_of_a_death_that_come_late(tmp_path: Path, undisturbed: Run) -> None:
    """Ranks whose connections broke have nobody's word for it yet, and may not try again on their own.

    So it is where a pod is deleted: they wait for the word, and keep their processes.
    """
    flags = ("--recover-strategy", "recover-in-place")
    with start(tmp_path, "--pause", "0.15", nodes=TWO_NODES, flags=flags) as job:
        before = job.at_step(5)
        agent = before["nodes"][1]["agent_pid"]
        os.kill(agent, signal.SIGSTOP)
        os.kill(before["ranks"][2]["pid"], signal.SIGKILL)
        time.sleep(1)  # this is the fault: nobody hears of the death for so long
        os.kill(agent, signal.SIGCONT)
        job.past_generation(before["generation"])
        finish(job)
    assert_same(undisturbed, tmp_path, (2,))
    assert [1, 1, 2, 1] == count_processes(tmp_path)


def test_a_node_is_lost_during_a_recovery_and_the_manager_with_it(tmp_path: Path, undisturbed: Run) -> None:
    """A rank of one node, the other node and the manager at once: the next manager finds its way."""

    def kill(job: RunningJob, status: dict[str, Any]) -> None:
        os.kill(status["ranks"][0]["pid"], signal.SIGKILL)
        job.cli("inject", "kill", "--node", "1")
        os.kill(status["manager_pid"], signal.SIGKILL)
        eventually(lambda: took_over(job, status["manager_pid"]), "a manager that knows the job")

    train(tmp_path, kill, "--spare-nodes", "1")

    assert_same(undisturbed, tmp_path, (0, 2, 3))
    assert 1 == count_processes(tmp_path)[1]


def took_over(job: RunningJob, old: int) -> bool:
    """Tell whether another manager has found all nodes."""
    status = job.status()
    return status.get("manager_pid") not in (None, 0, old) and "running" == status["phase"]


@pytest.mark.matrix
def test_a_new_manager_finds_what_was_agreed_on(tmp_path: Path, undisturbed: Run) -> None:
    """What a lost node's ranks were told before the loop is kept on another node, and by no manager."""
    with start(tmp_path, *AGREEING, nodes=TWO_NODES, flags=("--spare-nodes", "1")) as job:
        status = job.at_step(1)
        os.kill(status["manager_pid"], signal.SIGKILL)
        eventually(lambda: took_over(job, status["manager_pid"]), "a manager that knows the job")
        job.cli("inject", "kill", "--node", "1")
        job.past_generation(status["generation"])
        finish(job)

    assert_same(undisturbed, tmp_path, (2, 3))
    assert [1, 1, 2, 2] == count_processes(tmp_path)
    assert ["recover"] == [incident["strategy"] for incident in job.timeline()]
    assert_agreed(tmp_path, processes=6)


@pytest.mark.matrix
def test_what_was_agreed_on_moves_along(tmp_path: Path, undisturbed: Run) -> None:
    """A node's ranks are moved to a spare one; then the other is lost, and with it who told all others."""
    with start(tmp_path, *AGREEING, nodes=TWO_NODES, flags=("--spare-nodes", "1")) as job:
        job.at_step(1)
        job.cli("switch", "job", "--node", "1")
        generation = job.status()["generation"]
        job.cli("inject", "kill", "--node", "0")
        job.past_generation(generation)
        finish(job)

    assert_same(undisturbed, tmp_path, (0, 1))
    assert [2, 2, 2, 2] == count_processes(tmp_path)
    assert ["hot-switch", "recover"] == [incident["strategy"] for incident in job.timeline()]
    assert_agreed(tmp_path, processes=8)
