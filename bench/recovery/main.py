"""What a fault costs, and what readiness costs: the figures of recovery in one table.

    make bench-peers                               # once: the contestants' environments
    make bench-recovery
    make bench-recovery ARGS="--rounds 2 --only kills --contestants taskd,torchrun"
    make bench-recovery ARGS="--json out/recovery.json"

All contestants take turns within the run on one workload (see scripts/workload.py), and every time comes from
the ranks' ledgers, computed the same way for all. Compare within one table, not across tables.
"""

import argparse
import importlib
import importlib.util
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from table import Result, read_load, tell

from recovery.contestants import ALL, JOB
from recovery.cost import measure_cost
from recovery.figures import Figure, Section, print_sections, write_json
from recovery.kills import measure_kills
from recovery.moves import measure_nodes, measure_switches
from recovery.processes import become_reaper, find_marked_below, own_children
from recovery.stops import measure_retries, measure_stops

ROUNDS = 10
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - it is looked at, not written to
Measure = Callable[..., Section]
FIGURES: dict[str, Measure] = {
    "kills": measure_kills,
    "stops": measure_stops,
    "retries": measure_retries,
    "nodes": measure_nodes,
    "switches": measure_switches,
    "cost": measure_cost,
}
DUMPS = "dumps"


def main() -> int:
    """Measure, print, and say what was left behind; 1 if something was."""
    args = _parse()
    become_reaper()
    before, began = read_load(), time.monotonic()
    tell(before)
    leaks: list[str] = []
    sections: list[Section] = []
    home = Path(tempfile.mkdtemp(prefix="taskd-bench-recovery-", dir=args.place))
    try:
        for name in args.only or [*FIGURES, DUMPS]:
            place = home / name
            place.mkdir()
            tell(f"{name}: {read_load()}")
            if name == DUMPS:
                sections.append(_dumps(place))
            elif name == "kills":
                chosen = tuple(args.contestants.split(",")) if args.contestants else ()
                section = measure_kills(
                    rounds=args.rounds, home=place, peers=args.peers.resolve(), leaks=leaks, chosen=chosen
                )
                sections.append(section)
            else:
                sections.append(FIGURES[name](rounds=args.rounds, home=place, leaks=leaks))
            if not args.keep:
                shutil.rmtree(place, ignore_errors=True)
        leaks += [f"process {pid} is left" for pid in (*find_marked_below(home), *own_children())]
        leaks += [f"shared memory {name} is left" for name in _segments()]
    finally:
        if not args.keep:
            shutil.rmtree(home, ignore_errors=True)
    sections.append(_leaks(leaks))
    print_sections(sections)
    about = (
        f"torch {torch.__version__}; before: {before}; after {time.monotonic() - began:.0f} s: {read_load()}"
    )
    print(about)
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        write_json(args.json, sections, {"about": about, "rounds": args.rounds})
    return 1 if leaks else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [*FIGURES, DUMPS]
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="samples of each figure (10)")
    parser.add_argument("--only", action="append", choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--contestants", help="of the kills: " + ",".join(each.name for each in ALL))
    parser.add_argument("--peers", type=Path, default=Path("out/peers"), help="the contestants' environments")
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    parser.add_argument("--place", help="directory for the runs' files (default: the temporary one)")
    parser.add_argument("--keep", action="store_true", help="keep the runs' files")
    return parser.parse_args()


def _dumps(home: Path) -> Section:
    """Take the figures of bench/dumps.py, which are about disks and not about recovery."""
    section = Section(DUMPS)
    if importlib.util.find_spec(DUMPS) is None:
        section.skip("dump of 1 GB / sequential write", "there is no bench/dumps.py yet", 1.3)
        return section
    result: Result = importlib.import_module(DUMPS).measure_dumps(quick=False, home=home)
    for row in result.rows:
        section.figures.append(Figure(row.name, row.samples, row.unit, row.median_limit))
    section.notes += result.notes
    return section


def _leaks(leaks: list[str]) -> Section:
    section = Section("leaks")
    section.add("processes and shared memory left behind", [float(len(leaks))], "", 0.0)
    section.notes += leaks
    return section


def _segments() -> list[str]:
    """Return what our jobs left in shared memory; DLRover never removes its own, so they are removed."""
    left = []
    for path in SHARED_MEMORY.glob(f"*{JOB}*"):
        if path.name.startswith("taskd"):
            left.append(path.name)
        else:
            path.unlink(missing_ok=True)
    return sorted(left)


if __name__ == "__main__":
    sys.exit(main())
