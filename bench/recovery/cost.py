"""Figure: what TaskD costs while nothing fails, in step time and in processor time.

A percent of a step is a millisecond, and a shared machine drifts by more than that within minutes. So three
jobs are there at once, the bare script twice and the same under TaskD, and take turns in blocks of two
seconds: while one steps the others wait at a lock and use nothing. The order changes from cycle to cycle, and
each block is compared only with those of its own cycle. Bare against bare says what such a comparison is
worth; unless that is small the cost is not claimed.

Both kinds of ranks have one thread, a core that they keep to, the same model, sleep and ledger. TaskD's other
processes (launcher, manager, proxy, agent, nursery, spares) are there in the bare blocks too; what they use
then is told.
"""

import fcntl
import itertools
import os
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from table import tell

from recovery.contestants import base_env, start_bare, start_taskd
from recovery.figures import Section
from recovery.processes import cpu_s
from recovery.runs import NotMeasured, Run, new_group, running

BLOCK = 20
LEFT_OUT = 3  # a job that has waited is slow at first: caches, and threads that fell asleep
CYCLES_PER_ROUND = 5
STEP_S = 0.1
COST_LIMIT, NOISE_LIMIT = 1.0, 0.5
TRIM = 0.1
READY_S = 180.0
NAMES = ("bare", "taskd", "bare again")


class Gates:
    """One lock per block of a job, all held until the block's turn comes."""

    def __init__(self, place: Path, count: int) -> None:
        place.mkdir(parents=True)
        self._held = []
        for number in range(count):
            file = os.open(place / str(number), os.O_RDWR | os.O_CREAT, 0o644)
            fcntl.flock(file, fcntl.LOCK_EX)
            self._held.append(file)

    def open_next(self) -> None:
        """Let the next block run."""
        os.close(self._held.pop(0))

    def open_all(self) -> None:
        """Hold nobody any more."""
        while self._held:
            self.open_next()


@dataclass(slots=True)
class Job:
    """One of the three, and what its blocks brought."""

    run: Run
    gates: Gates
    members: list[int] = field(default_factory=list)
    blocks: int = 0
    medians: list[float] = field(default_factory=list)
    means: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def block(self) -> None:
        """Let it do one block, and keep what that took."""
        last = BLOCK * (self.blocks + 1) - 1
        before = cpu_s(self.members)
        self.gates.open_next()
        # Looking costs time too, and must not fall into the block.
        time.sleep(0.9 * BLOCK * STEP_S)
        records = self.run.wait("the end of a block", lambda now: last in now.full_steps(0.0), READY_S, 0.05)
        time.sleep(0.05)
        self.cpu.append((cpu_s(self.members) - before) / BLOCK)
        ends = records.full_steps(0.0)
        first = last - BLOCK + 1 + LEFT_OUT
        times = sorted(ends[step] - ends[step - 1] for step in range(first, last + 1))
        cut = int(TRIM * len(times))
        self.medians.append(statistics.median(times))
        self.means.append(statistics.mean(times[cut : len(times) - cut]))
        self.blocks += 1


def measure_cost(*, rounds: int, home: Path, leaks: list[str]) -> Section:
    """Let the three take turns."""
    section = Section("cost")
    cycles = max(2, CYCLES_PER_ROUND * rounds)
    try:
        jobs, idle = _take_turns(home, cycles, leaks)
    except NotMeasured as error:
        section.add("cost when nothing fails", [], "%", COST_LIMIT, str(error))
        return section
    _report(section, jobs, idle)
    return section


def _take_turns(home: Path, cycles: int, leaks: list[str]) -> tuple[dict[str, Job], float]:
    orders = list(itertools.permutations(NAMES))
    with ExitStack() as stack:
        jobs: dict[str, Job] = {}
        for name in NAMES:
            label = f"cost-{name.replace(' ', '-')}"
            gates = Gates(home / f"{label}-gates", cycles + 2)
            env = {**base_env(), "BENCH_BLOCK": str(BLOCK), "BENCH_GATES": str(home / f"{label}-gates")}
            env["BENCH_PIN"] = "1"
            start = start_taskd if name == "taskd" else start_bare
            run = stack.enter_context(running(f"{name}-cost", new_group(home, label, env), start, leaks))
            stack.callback(gates.open_all)
            jobs[name] = Job(run, gates)
            _settle(jobs[name])
        jobs["taskd"].run.wait_spares(2)
        idle_before, idle_s = 0.0, 0.0
        for number in range(cycles):
            for name in orders[number % len(orders)]:
                jobs[name].block()
                if name != "taskd":
                    continue
                idle_before, idle_s = cpu_s(jobs["taskd"].members), time.monotonic()
            if (number + 1) % 10 == 0:
                tell(f"cost: {number + 1} of {cycles} cycles")
        # What TaskD's processes use while its ranks wait at the gate.
        time.sleep(2.0)
        idle = (cpu_s(jobs["taskd"].members) - idle_before) / (time.monotonic() - idle_s)
        if jobs["taskd"].run.timeline():
            raise NotMeasured("something failed in the job that should not fail")
    return jobs, idle


def _settle(job: Job) -> None:
    """Do a first block, which does not count, and then know all processes of the job."""
    job.gates.open_next()
    job.run.wait("the first block", lambda now: BLOCK - 1 in now.full_steps(0.0), READY_S)
    job.blocks = 1
    job.members = job.run.group.members()


def _report(section: Section, jobs: dict[str, Job], idle: float) -> None:
    bare, ours, again = (jobs[name] for name in NAMES)
    noise = _percent(bare.medians, again.medians)
    noise_median = abs(statistics.median(noise))
    section.add("bare against bare, medians of blocks", [noise_median], "%", NOISE_LIMIT)
    both = [(a + b) / 2 for a, b in zip(bare.medians, again.medians, strict=True)]
    means = [(a + b) / 2 for a, b in zip(bare.means, again.means, strict=True)]
    flaw = (
        ""
        if noise_median < NOISE_LIMIT
        else f"not claimed: bare against bare differs by {noise_median:.2f} %"
    )
    cost = _percent(ours.medians, both)
    section.add("cost when nothing fails: step time, medians of blocks", cost, "%", COST_LIMIT, flaw)
    section.add("  the same from trimmed means of blocks", _percent(ours.means, means), "%")
    section.add("  bare against bare from trimmed means", _percent(bare.means, again.means), "%")
    section.add("  step of the bare script", [each * 1000.0 for each in both])
    section.add("  step under TaskD", [each * 1000.0 for each in ours.medians])
    bare_cpu = [(a + b) / 2 * 1000.0 for a, b in zip(bare.cpu, again.cpu, strict=True)]
    section.add("  processor time per step of all ranks, bare", bare_cpu)
    section.add("  processor time per step, TaskD, all its processes", [each * 1000.0 for each in ours.cpu])
    section.note(
        f"{len(cost)} cycles of three blocks of {BLOCK} steps; standard error of the median cost "
        f"{_error(cost):.2f} %, of bare against bare {_error(noise):.2f} %"
    )
    section.note(f"TaskD's processes use {idle * 1000.0:.1f} ms a second while their ranks wait")


def _error(samples: Sequence[float]) -> float:
    """Return the standard error of their median."""
    return 1.25 * statistics.stdev(samples) / len(samples) ** 0.5 if len(samples) > 1 else float("nan")


def _percent(some: Sequence[float], base: Sequence[float]) -> list[float]:
    return [(a / b - 1.0) * 100.0 for a, b in zip(some, base, strict=True)]
