"""Where the time of a recovery goes: many kills of one job, phase by phase, and the newcomer's own way.

    make anatomy ARGS="--kills 20"

The timeline tells the phases as the manager sees them. The newcomer's ledger tells what it did meanwhile:
when its script began, had joined, had built its model and had its wrapper; the other ranks' ledgers tell when
the step came. A phase that is long because of the newcomer is seen here to be so.
"""

import argparse
import shutil
import statistics
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from table import read_load, tell

from recovery.contestants import base_env, start_taskd
from recovery.figures import Section, print_sections
from recovery.phases import ORDER, check_sum, incident_of, phases_of
from recovery.processes import become_reaper
from recovery.runs import Fault, Run, new_group, running, shares

PLACES = ("first_line", "imported", "joined", "built", "wrapped")
SETTLED_STEPS = 25
BETWEEN_STEPS = 12


def main() -> int:
    """Kill, and print the medians."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--spares", type=int, default=2)
    parser.add_argument("--rank", type=int, default=-1, help="always this one (default: in turn)")
    args = parser.parse_args()
    become_reaper()
    home = Path(tempfile.mkdtemp(prefix="taskd-anatomy-"))
    leaks: list[str] = []
    tell(read_load())
    try:
        section = measure(home, args.kills, args.spares, args.rank, leaks)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    print_sections([section])
    print("\n".join([*leaks, read_load()]))
    return 0


def measure(home: Path, kills: int, spares: int, rank: int, leaks: list[str]) -> Section:
    """Kill a rank again and again and take each recovery apart."""
    section = Section("anatomy")
    faults: list[Fault] = []
    places: defaultdict[str, list[float]] = defaultdict(list)
    group = new_group(home, "anatomy", base_env())
    with running("taskd-anatomy", group, lambda it: start_taskd(it, spares=spares), leaks) as run:
        run.wait_steps(SETTLED_STEPS)
        for number, share in enumerate(shares(kills)):
            run.wait_spares(spares)
            fault = run.kill(number % 4 if rank < 0 else rank, share)
            faults.append(fault)
            for name, at in _newcomer(run, fault).items():
                places[name].append(at * 1000.0)
            run.wait_steps(BETWEEN_STEPS, after=fault.back)
            tell(f"{number + 1} of {kills}: {fault.down * 1000.0:.0f} ms")
        incidents = run.timeline()
    pairs = [(fault, found) for fault in faults if (found := incident_of(fault, incidents)) is not None]
    section.add(
        "kill to the full world's next step, less one step", [fault.down * 1000.0 for fault in faults]
    )
    section.add("  the step that was taken off", [fault.step * 1000.0 for fault in faults])
    for phase in ORDER:
        section.add(f"phase: {phase}", [phases_of(each).get(phase, 0.0) for _, each in pairs])
    over = [phases_of(each).get("first step", 0.0) - fault.step * 1000.0 for fault, each in pairs]
    section.add("  the first step beyond a usual one", over)
    check_sum(section, pairs, "kills", death=True)
    for name in PLACES:
        section.add(f"newcomer: kill to {name}", places[name])
    section.add("last survivor or newcomer: kill to its wrapper", places["last_wrapped"])
    slow = [f"{fault.rank}: {fault.down * 1000.0:.0f}" for fault in faults]
    section.note(f"by rank, in ms: {', '.join(slow)}; median step {_median_step(faults):.1f} ms")
    return section


def _newcomer(run: Run, fault: Fault) -> dict[str, float]:
    """Return how long after the kill the replacement was where."""
    records = run.read()
    born = {pid: marks for pid, marks in records.marks.items() if marks and marks[-1][0] > fault.at}
    found: dict[str, float] = {}
    for marks in born.values():
        for at, name in marks:
            if name in PLACES and at > fault.at:
                found[name] = at - fault.at
    last = records.last("wrapped", fault.at, fault.back)
    if last is not None:
        found["last_wrapped"] = last - fault.at
    return found


def _median_step(faults: list[Fault]) -> float:
    return statistics.median(fault.step for fault in faults) * 1000.0


if __name__ == "__main__":
    sys.exit(main())
