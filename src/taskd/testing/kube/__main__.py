"""Command line of the proving ground.

``python -m taskd.testing.kube build [PROGRAM ...]`` finds or builds the programs (default: all that the
cluster tests need) and prints where they are; 2 where that is not possible. ``... build --if-possible`` does
so where Go is there and is silent otherwise, unless CI is set, where leaving something out is a failure.
``... shown`` prints one line if the cluster tests could not be run here. ``... up`` starts a control plane
with two nodes and a Volcano stand-in for a look around with kubectl, until Ctrl-C.
"""

import os
import sys

from taskd.testing.kube import binaries

USAGE = "usage: python -m taskd.testing.kube build [--if-possible | PROGRAM ...] | shown | up"


def main(arguments: list[str]) -> int:
    """Do what the command line asks; 2 for what cannot be had here."""
    match arguments:
        case ["build", "--if-possible"]:
            missing = binaries.missing()
            if missing is not None and not os.environ.get("CI"):
                return 0
            return _build(binaries.CONTROL_PLANE, quiet=True)
        case ["build", *programs]:
            return _build(programs or binaries.CONTROL_PLANE, quiet=False)
        case ["shown"]:
            missing = binaries.missing()
            if missing is not None:
                sys.stdout.write(f"NOT SHOWN: {binaries.NOT_SHOWN} ({missing})\n")
            return 0
        case ["up"]:
            from taskd.testing.kube.playground import run

            return run()
        case _:
            sys.stderr.write(f"{USAGE}\n")
            return 2


def _build(programs: "tuple[str, ...] | list[str]", *, quiet: bool) -> int:
    try:
        found = binaries.require(*programs)
    except (binaries.Unavailable, ValueError) as error:
        sys.stderr.write(f"kube: {error}\n")
        return 2
    if not quiet:
        for name, path in found.items():
            sys.stdout.write(f"{name}\t{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
