"""The launcher's figures: detection, replacement, restart, start-up and fan-out, in one table.

    make bench-launcher
    make bench-launcher ARGS="--quick"
    make bench-launcher ARGS="--only deaths --only fleet"

Every figure is measured on real processes. Contestants take turns within the run, and the machine's load is
printed beside the results: compare within one table, not across tables.
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from deaths import measure_deaths
from fleet import measure_fleet
from jobrun import BenchError
from replacements import measure_replacements
from restarts import measure_restarts
from startup import measure_startup
from table import Result, print_table, read_load, tell

FIGURES: dict[str, Callable[..., Result]] = {
    "deaths": measure_deaths,
    "replacements": measure_replacements,
    "restarts": measure_restarts,
    "startup": measure_startup,
    "fleet": measure_fleet,
}


def main() -> int:
    """Measure what was asked for and print the table; 1 if a figure could not be measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", action="append", choices=list(FIGURES), metavar="NAME", help=", ".join(FIGURES)
    )
    parser.add_argument("--quick", action="store_true", help="fewer samples: to see that it works")
    args = parser.parse_args()
    chosen = args.only or list(FIGURES)
    sections: list[tuple[str, Result]] = []
    loads: list[str] = []
    failed = False
    for name in chosen:
        before, began = read_load(), time.monotonic()
        tell(f"{name}: {before}")
        home = Path(tempfile.mkdtemp(prefix=f"taskd-bench-{name}-"))
        try:
            result = FIGURES[name](quick=args.quick, home=home)
        except BenchError as error:
            failed = True
            result = Result(notes=[f"not measured: {error}"])
        finally:
            shutil.rmtree(home, ignore_errors=True)
        sections.append((name, result))
        loads.append(f"{name}: before, {before}; after {time.monotonic() - began:.0f} s, {read_load()}")
    print_table(sections)
    print("\n".join(loads))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
