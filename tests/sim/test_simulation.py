"""The real machines, under every fault that the simulation knows, on virtual time.

A seed that fails is played again, with everything that happened, by
``python -m taskd.testing.simulation --seed N``.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from taskd.core import endings, nodestate, restarting
from taskd.core import job as job_machine
from taskd.core import node as node_machine
from taskd.core.delivery import Channel, Packet, Received
from taskd.core.jobstate import Job, SendOrder
from taskd.core.launch import Plan
from taskd.core.nodestate import NodeState
from taskd.testing import simulation
from taskd.testing.sim_checks import InvariantBroken
from taskd.testing.simulation import simulate

JOBS = 10_000 if os.environ.get("TASKD_MATRIX") else 1_500


def play(seeds: range) -> list[str]:
    """Play many seeds; returns what went wrong in each that failed."""
    failures = []
    for seed in seeds:
        try:
            simulate(seed)
        except InvariantBroken as broken:
            failures.append(str(broken))
    for failure in failures[:3]:
        print(failure)
    return [failure.splitlines()[0] for failure in failures]


def test_every_promise_holds_in_several_hundred_jobs() -> None:
    """Whatever dies, is cut off or comes back in jobs of one to five nodes: all invariants hold."""
    assert [] == play(range(400))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_promise_holds_in_thousands_of_jobs() -> None:
    """The same, with seeds that the fast test does not see."""
    assert [] == play(range(100_000, 100_000 + JOBS))


def test_a_seed_is_a_whole_run() -> None:
    """Playing a seed again gives the same run, line by line; another seed gives another one."""
    first, again, other = simulate(11), simulate(11), simulate(12)

    assert first == again
    assert first.trace != other.trace


def test_the_seeds_reach_the_interesting_situations() -> None:
    """The scenarios are not tame: everything fails, also in the middle of a recovery and at the end."""
    results = [simulate(seed) for seed in range(200)]
    lines = [line for result in results for line in result.trace]

    def count(*words: str) -> int:
        return sum(all(word in line for word in words) for line in lines)

    for phase in ("gathering", "starting", "running", "stopping", "finishing"):
        assert 0 < count("manager", f"is killed in {phase}"), phase
    for sight in ("proxy", "agent"):
        assert 0 < count(sight, "is killed")
    for what in (
        "is cut",
        "loses its power",
        "gone for ever",
        "is lost",
        "announces running",
        "interrupted by",
    ):
        assert 0 < count(what), what
    assert 0 < count("refuses", "carried out before")
    assert max(result.generations for result in results) > 3


def test_the_command_shows_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    """Replaying a seed prints the scenario, the trace and the sums, and succeeds if nothing broke."""
    assert 0 == simulation.main(["--seed", "3"])

    shown = capsys.readouterr().out
    assert "Scenario(seed=3" in shown
    assert "seed 3:" in shown


# --- the checker itself ----------------------------------------------------------------------------------


def _forget(node: NodeState, order: str) -> NodeState:
    return node


def _down_at_once(node: object, generation: int = 0) -> bool:
    return True


def _spawn_beside(node: NodeState, order: Any) -> Any:
    place = order.plan.place_of(node.key)
    executed = nodestate.Execute(order.order, order.plan.generation)
    node, effects = node_machine._spawn(node, order.plan, place)
    return node, (executed, *effects)


def _start_again(job: Job, plan: Plan, nodes: list[Any]) -> Any:
    plan = replace(plan, generation=max(1, plan.generation - 1))
    return ORDER_START(replace(job, plan=plan, generation=plan.generation), plan, nodes)


def _never_give_up(job: Job, culprit: object) -> None:
    return None


def _accept_everything(channel: Channel[Any], packet: Packet[Any], now: float) -> Received[Any]:
    return Received(() if packet.message is None else (packet.message,), owes_ack=packet.seq > 0)


def _leave_nothing_told(job: Job, now: float, ending: Any) -> Any:
    job, effects = FINISH(job, now, ending)
    return job, tuple(effect for effect in effects if not isinstance(effect, SendOrder))


ORDER_START = restarting.order_start
FINISH = endings.finish

Patch = tuple[object, str, Callable[..., Any]]
IMPATIENT: list[Patch] = [
    (job_machine, "is_down", _down_at_once),
    (restarting, "is_down", _down_at_once),
    (restarting, "is_quiet", _down_at_once),
]

# Where two rules guard the same promise, one of them alone may be broken without harm: both are then.
MUTANTS: dict[str, tuple[list[Patch], str]] = {
    "an agent that forgets its orders": ([(node_machine, "_remember", _forget)], "twice"),
    "a manager that does not wait for the stop": (IMPATIENT, "still runs"),
    "nobody waits for older processes": ([*IMPATIENT, (node_machine, "_start", _spawn_beside)], "at once"),
    "a manager that does not raise the generation": (
        [(job_machine, "order_start", _start_again), (restarting, "order_start", _start_again)],
        "generation",
    ),
    "a manager that ignores the budget": ([(restarting, "decide_give_up", _never_give_up)], "restarts"),
    "a manager that does not tell the agents": (
        [(job_machine, "finish", _leave_nothing_told), (restarting, "finish", _leave_nothing_told)],
        "told",
    ),
    "a numbering that accepts everything": ([(Channel, "receive", _accept_everything)], ""),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_rule_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulation is worth something only if it fails when the machines are wrong."""
    patches, symptom = MUTANTS[name]
    for owner, attribute, replacement in patches:
        monkeypatch.setattr(owner, attribute, replacement)

    assert play_until_broken(range(400), symptom)


def play_until_broken(seeds: range, symptom: str) -> bool:
    """Play until a promise is broken in the way that is looked for."""
    for seed in seeds:
        try:
            simulate(seed)
        except InvariantBroken as broken:
            if symptom in str(broken).splitlines()[0]:
                return True
    return False
