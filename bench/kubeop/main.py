"""What the operator needs for its work, against a real API server and beside other operators.

    make bench-operator                                   # all of it
    make bench-operator ARGS=--quick                      # fewer pods and rounds, no slow contestants
    make bench-operator ARGS="--only one --rounds 5 --json out/operator.json"

A bare client with 8 connections that makes the same objects is the floor; Kubeflow's training-operator and
JobSet are the others. All take turns within the run. Times and writes come from the API server's audit log.
What the other operators need is built from Go modules on first use (``tools/kube``); what cannot be built is
SKIPPED, and a comparison with it counts as not met.
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from recovery.figures import Section, print_sections, write_json
from table import read_load, tell

from kubeop.contestants import OTHERS
from kubeop.creation import measure_growth, measure_many, measure_one
from kubeop.ground import Ground, Rivals
from kubeop.idle import measure_idle
from kubeop.loss import measure_loss
from taskd.testing.kube import ApiError, ControlPlane, ProgramFailed, Unavailable

ROUNDS = 3
SCENES = ("one", "many", "loss", "idle", "growth")


def main() -> int:
    """Measure and print; 1 if a limit is missed, 2 if nothing can be measured here."""
    args = _parse()
    before, began = read_load(), time.monotonic()
    tell(before)
    home = Path(tempfile.mkdtemp(prefix="taskd-bench-operator-"))
    rivals = Rivals.find()
    try:
        # No scheduler: it would write events about each pod that has nowhere to go.
        with ControlPlane(audit=True, scheduler=False) as kube:
            ground = Ground(kube, home)
            ground.install(rivals)
            sections = [_play(name, scene) for name, scene in _scenes(ground, args)]
    except Unavailable as error:
        tell(f"nothing can be measured: {error}")
        return 2
    finally:
        if not args.keep:
            shutil.rmtree(home, ignore_errors=True)
    print_sections(sections)
    about = f"before: {before}; after {time.monotonic() - began:.0f} s: {read_load()}"
    print(about)
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        write_json(args.json, sections, {"about": about, "rounds": args.rounds})
    missed = [figure.name for section in sections for figure in section.figures if figure.met is False]
    print(f"{len(missed)} limits missed" if missed else "all limits met")
    return 1 if missed else 0


def _scenes(ground: Ground, args: argparse.Namespace) -> list[tuple[str, Callable[[], Section]]]:
    quick = args.quick
    rounds = 1 if quick else args.rounds
    others = tuple(each for each in OTHERS if not (args.alone or ((quick or args.no_slow) and each.slow)))
    scenes: dict[str, Callable[[], Section]] = {
        "one": lambda: measure_one(ground, rounds=rounds, pods=1000, chosen=others),
        "many": lambda: measure_many(
            ground, rounds=rounds, jobs=200, pods=4, chosen=others[:1] if quick else others
        ),
        "loss": lambda: measure_loss(ground, pods=1000, losses=5 if quick else 30),
        "idle": lambda: measure_idle(
            ground, running=100 if quick else 500, waiting=50 if quick else 200, seconds=10 if quick else 30
        ),
        "growth": lambda: measure_growth(ground, sizes=() if quick else (2500, 5000)),
    }
    return [(name, scenes[name]) for name in args.only or SCENES]


def _play(name: str, scene: Callable[[], Section]) -> Section:
    """Measure one scene; one that cannot be brought to its end is a failure, and the others go on."""
    tell(f"{name}: {read_load()}")
    try:
        return scene()
    except (TimeoutError, ProgramFailed, ApiError, AssertionError) as error:
        section = Section(name)
        section.add(f"{name}: measured to the end", (), "", 1.0, flaw=f"{type(error).__name__}: {error}")
        return section


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="three minutes: a look, not a verdict")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="turns of each contestant (3)")
    parser.add_argument("--only", action="append", choices=SCENES, metavar="SCENE", help=", ".join(SCENES))
    parser.add_argument("--no-slow", action="store_true", help="leave out contestants that take minutes")
    parser.add_argument("--alone", action="store_true", help="leave out all other operators")
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    parser.add_argument("--keep", action="store_true", help="keep the operators' logs")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
