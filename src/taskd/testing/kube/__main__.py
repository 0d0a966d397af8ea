"""Command line of the proving ground.

``python -m taskd.testing.kube build [PROGRAM ...]`` finds or builds the programs (default: all that the
cluster tests need) and prints where they are. ``... up`` starts a control plane with two nodes and a
Volcano stand-in for a look around with kubectl, until Ctrl-C.
"""

import sys

from taskd.testing.kube import binaries

USAGE = "usage: python -m taskd.testing.kube build [PROGRAM ...] | up"


def main(arguments: list[str]) -> int:
    """Do what the command line asks; 2 for what cannot be had here."""
    match arguments:
        case ["build", *programs]:
            try:
                for name, path in binaries.require(*(programs or binaries.CONTROL_PLANE)).items():
                    sys.stdout.write(f"{name}\t{path}\n")
            except (binaries.Unavailable, ValueError) as error:
                sys.stderr.write(f"kube: {error}\n")
                return 2
            return 0
        case ["up"]:
            from taskd.testing.kube.playground import run

            return run()
        case _:
            sys.stderr.write(f"{USAGE}\n")
            return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
