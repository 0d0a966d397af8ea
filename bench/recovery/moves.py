"""Figures: the loss of a whole node with a warm one waiting, and a planned move of a rank."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from table import tell

from recovery.contestants import JOB, base_env, start_taskd
from recovery.figures import Section
from recovery.ledgers import WORLD, Records
from recovery.phases import Incident, check_sum, describe, incident_of
from recovery.processes import Group
from recovery.runs import Fault, NotMeasured, Run, new_group, running
from taskd.cli.flagtable import FLAGS

SPARES = 2
SETTLED_STEPS = 25
BETWEEN_STEPS = 15
NODE_LIMIT_MS = 1000.0
SWITCH_STEPS = 1.0
READY_S = 120.0
LOST_NODE = "loss of a local node (2 of 4 ranks and their agent)"
SWITCH = "hot switch of a rank: pause"


def measure_nodes(*, rounds: int, home: Path, leaks: list[str]) -> Section:
    """Lose node 1 of two, with a third one waiting; a new job for each loss."""
    section = Section("nodes")
    if "spare-nodes" not in {flag.name for flag in FLAGS}:
        section.skip(LOST_NODE, "taskd run has no --spare-nodes yet", NODE_LIMIT_MS, "ms")
        return section
    faults: list[Fault] = []
    pairs: list[tuple[Fault, Incident]] = []
    flaws: list[str] = []
    for number in range(rounds):
        name = f"taskd-nodes-{number}"
        try:
            with running(name, new_group(home, name, base_env()), _start_nodes, leaks) as run:
                run.wait_steps(SETTLED_STEPS)
                run.wait_spares(SPARES * 3)
                node = _processes_of(run, 1)
                fault = run.break_it(lambda _, node=node: _lose(node), (number + 0.5) / rounds)
                faults.append(fault)
                incident = incident_of(fault, run.timeline())
                if incident is not None:
                    pairs.append((fault, incident))
                tell(f"node {number + 1} of {rounds}: {fault.down:.2f} s")
        except (NotMeasured, subprocess.TimeoutExpired) as error:
            flaws.append(str(error))
            tell(f"{name}: {error}\n{getattr(error, 'last', '')}")
    flaw = f"{len(flaws)} of {rounds} failed: {flaws[0]}" if flaws else ""
    down = [fault.down * 1000.0 for fault in faults]
    section.add(f"{LOST_NODE} (less one step)", down, "ms", NODE_LIMIT_MS, flaw)
    again = [float(fault.recomputed) for fault in faults]
    section.add("  steps computed again", [max(again)] if again else [], "steps", 0.0, flaw)
    check_sum(section, pairs, "nodes")
    describe(section, [incident for _, incident in pairs], "TaskD, nodes")
    return section


def _start_nodes(group: Group) -> None:
    start_taskd(group, "--local-nodes", "2", "--spare-nodes", "1", nproc=2, spares=SPARES)


def _processes_of(run: Run, node_rank: int) -> list[int]:
    """Return a node's agent, proxy and ranks; whatever else it has ends with the agent."""
    status = run.status()
    nodes, ranks = status["nodes"], status["ranks"]
    if not isinstance(nodes, list) or not isinstance(ranks, list):
        raise NotMeasured("the status has no nodes")
    (node,) = [each for each in nodes if each["node_rank"] == node_rank]
    mine = [rank["pid"] for rank in ranks if rank["node_rank"] == node_rank]
    return [node["agent_pid"], node["proxy_pid"], *mine]


def _lose(node: list[int]) -> None:
    """Let a node lose its power. An order to do so would take its way first, and the node would die later."""
    for pid in node:
        os.kill(pid, signal.SIGKILL)


def measure_switches(*, rounds: int, home: Path, leaks: list[str]) -> Section:
    """Move one rank after the other to a spare."""
    section = Section("switches")
    if not _has_switch():
        section.skip(SWITCH, "there is no `taskd switch` yet", SWITCH_STEPS, "steps")
        return section
    pauses: list[float] = []
    flaw = ""
    try:
        with running("taskd-switches", new_group(home, "switches", base_env()), start_taskd, leaks) as run:
            run.wait_steps(SETTLED_STEPS)
            for number in range(rounds):
                run.wait_spares(SPARES)
                pauses.append(_switch(run, number % WORLD))
                tell(f"switch {number + 1} of {rounds}: {pauses[-1]:.2f} steps")
    except (NotMeasured, subprocess.TimeoutExpired) as error:
        flaw = str(error)
        tell(f"{error}\n{getattr(error, 'last', '')}")
    section.add(SWITCH, pauses, "steps", SWITCH_STEPS, flaw)
    return section


def _switch(run: Run, rank: int) -> float:
    """Move a rank; returns the pause between the last old and the first new commit, in steps, less one."""
    records = run.read()
    old, step_s = records.pid_of(rank), records.step_s(time.monotonic())
    answer = run.ask("switch", "--rank", str(rank), JOB, limit_s=READY_S)
    if answer.returncode != 0:
        raise NotMeasured(f"taskd switch: {answer.stderr.strip() or answer.stdout.strip()}")
    records = run.wait("the rank's new process", lambda now: now.pid_of(rank) != old, READY_S)
    records = run.wait_steps(BETWEEN_STEPS, after=time.monotonic())
    return _pause(records, rank, old) / step_s - 1.0


def _pause(records: Records, rank: int, old: int) -> float:
    theirs = records.of_rank(rank)
    moved = 1 + max(index for index, commit in enumerate(theirs) if commit.pid == old)
    last_old, first_new = theirs[moved - 1].step, theirs[moved].step
    ends = records.full_steps(0.0)
    if last_old not in ends or first_new not in ends:
        raise NotMeasured("a step of the switch was not committed by all")
    return ends[first_new] - ends[last_old]


def _has_switch() -> bool:
    answer = subprocess.run(
        [sys.executable, "-m", "taskd.cli.main", "switch", "--help"], capture_output=True, check=False
    )
    return answer.returncode == 0
