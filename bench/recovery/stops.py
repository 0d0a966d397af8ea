"""Figures: a rank that is stopped (SIGSTOP), and a collective that fails although nobody died."""

import json
import signal
from pathlib import Path

from table import tell

from recovery.contestants import base_env, start_taskd
from recovery.figures import Section
from recovery.ledgers import WORLD, Records
from recovery.phases import Incident, check_sum, describe, incident_of, phases_of
from recovery.runs import Fault, NotMeasured, new_group, running, shares
from taskd.core.launch import FaultKind

SPARES = 2
SETTLED_STEPS = 25
BETWEEN_STEPS = 15
RELEASE_LIMIT_MS = 250.0
STOP_STEPS, STOP_EXTRA_S = 3.0, 0.8
RETRY_STEPS = 1.5


def measure_stops(*, rounds: int, home: Path, leaks: list[str]) -> Section:
    """Stop one rank after the other."""
    section = Section("stops")
    pairs: list[tuple[Fault, Incident]] = []
    faults: list[Fault] = []
    flaw = ""
    try:
        with running("taskd-stops", new_group(home, "stops", base_env()), start_taskd, leaks) as run:
            run.wait_steps(SETTLED_STEPS)
            for number, share in enumerate(shares(rounds)):
                run.wait_spares(SPARES)
                fault = run.kill(number % WORLD, share, signal.SIGSTOP)
                faults.append(fault)
                run.wait_steps(BETWEEN_STEPS, after=fault.back)
                tell(f"stop {number + 1} of {rounds}: {fault.down:.2f} s")
            incidents = run.timeline()
    except NotMeasured as error:
        flaw, incidents = str(error), []
        tell(f"{error}\n{error.last}")
    for fault in faults:
        incident = incident_of(fault, incidents)
        if incident is not None:
            pairs.append((fault, incident))
    release = [phases_of(incident).get("release", 0.0) for _, incident in pairs]
    section.add("SIGSTOP of a rank: decision to all survivors out", release, "ms", RELEASE_LIMIT_MS, flaw)
    step = max((fault.step for fault in faults), default=0.1)
    limit = (STOP_STEPS * step + STOP_EXTRA_S) * 1000.0
    down = [fault.down * 1000.0 for fault in faults]
    section.add("SIGSTOP of a rank: downtime (less one step)", down, "ms", limit, flaw)
    check_sum(section, pairs, "stops")
    describe(section, [incident for _, incident in pairs], "TaskD, stops")
    return section


def measure_retries(*, rounds: int, home: Path, leaks: list[str]) -> Section:
    """Let a step fail in one rank after the other; no process is lost."""
    section = Section("retries")
    kind = "network" if "network" in list(FaultKind) else "raise"
    group = new_group(home, "retries", base_env())
    steps = [SETTLED_STEPS + BETWEEN_STEPS * number for number in range(rounds)]
    lines = [
        json.dumps({"step": step, "rank": number % WORLD, "kind": kind}) for number, step in enumerate(steps)
    ]
    schedule = group.place / "faults.jsonl"
    schedule.write_text("\n".join(lines) + "\n", encoding="ascii")
    costs: list[float] = []
    flaw = ""
    incidents: list[Incident] = []
    records = Records()
    try:
        with running(
            "taskd-retries", group, lambda it: start_taskd(it, "--faults", str(schedule)), leaks
        ) as run:
            last = steps[-1] + BETWEEN_STEPS
            records = run.wait("all faults", lambda now: last in now.full_steps(0.0), 60.0 + last)
            incidents = run.timeline()
    except NotMeasured as error:
        flaw = str(error)
        tell(f"{error}\n{error.last}")
    if len({(commit.pid, commit.rank) for commit in records.commits}) > WORLD:
        flaw = flaw or "a process was replaced, so this was no retry"
    if len(incidents) < rounds:
        flaw = flaw or f"{len(incidents)} incidents instead of {rounds}"
    ends = records.full_steps(0.0)
    for step in steps:
        if step in ends and step - 1 in ends:
            before = [ends[each] - ends[each - 1] for each in range(step - 10, step - 1)]
            costs.append((ends[step] - ends[step - 1]) / sorted(before)[len(before) // 2] - 1.0)
    section.add(f"retry of a failed step ({kind}): what it costs", costs, "steps", RETRY_STEPS, flaw)
    describe(section, incidents, "TaskD, retries")
    if kind != "network":
        section.note("faults of kind network do not exist yet; an exception in the step stands for one")
    return section
