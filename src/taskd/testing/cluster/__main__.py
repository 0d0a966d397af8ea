"""Command line of the cluster with real nodes.

``python -m taskd.testing.cluster up [NUMBER]`` builds what is missing, starts a cluster that stays, and
prints its KUBECONFIG line; ``... down [NUMBER]`` ends it and clears what is left, also of a killed one.
``... build`` only installs and builds; ``... build --if-possible`` does so where it can and is silent
otherwise, unless CI is set. ``... shown`` prints one line if there can be no nodes here. ``... hold NUMBER``
is what `up` leaves running: the owner of the cluster.
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Final

from taskd.testing.cluster import leftovers, prerequisites
from taskd.testing.cluster.ground import RealCluster
from taskd.testing.cluster.layout import FOR_PEOPLE, Layout
from taskd.testing.kube.binaries import Unavailable
from taskd.testing.kube.processes import ProgramFailed

USAGE: Final = (
    "usage: python -m taskd.testing.cluster up [N] | down [N] | build [--if-possible] | shown | hold N"
)
_UP_TIMEOUT_S: Final = 120.0


def main(arguments: list[str]) -> int:
    """Do what the command line asks; 2 for what cannot be had here."""
    try:
        match arguments:
            case ["up"]:
                return up(FOR_PEOPLE)
            case ["up", number] if number.isdigit():
                return up(int(number))
            case ["down"]:
                return down(FOR_PEOPLE)
            case ["down", number] if number.isdigit():
                return down(int(number))
            case ["hold", number] if number.isdigit():
                return hold(int(number))
            case ["build", "--if-possible"]:
                if prerequisites.missing() is None or os.environ.get("CI"):
                    prerequisites.require()
            case ["build"]:
                prerequisites.require()
            case ["shown"]:
                missing = prerequisites.missing()
                if missing is not None:
                    sys.stdout.write(f"NOT SHOWN: {prerequisites.NOT_SHOWN} ({missing})\n")
            case _:
                sys.stderr.write(f"{USAGE}\n")
                return 2
    except (Unavailable, ProgramFailed, ValueError, TimeoutError, RuntimeError) as error:
        sys.stderr.write(f"cluster: {error}\n")
        return 2
    return 0


def up(number: int) -> int:
    """Start a cluster in a process of its own, and say how to use it when it is ready."""
    prerequisites.require()
    layout = Layout(number)
    # Says so at once where somebody has it; the process below claims it again.
    leftovers.Claim(layout).release()
    with tempfile.TemporaryFile() as output:
        owner = subprocess.Popen(
            [sys.executable, "-m", "taskd.testing.cluster", "hold", str(number)],
            cwd=Path("/"),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        started = time.monotonic()
        try:
            state = _wait_ready(layout, owner)
        except BaseException:
            # Also for who has lost patience.
            owner.kill()
            owner.wait()
            leftovers.down(layout)
            raise
        if state is None:
            output.seek(0)
            sys.stderr.write(output.read().decode(errors="replace"))
            leftovers.down(layout)
            return 2
    sys.stdout.write(
        f"cluster: ready after {time.monotonic() - started:.1f} s; `make cluster-down` ends it\n"
        f"export KUBECONFIG={state.kubeconfig}\n"
    )
    return 0


def _wait_ready(layout: Layout, owner: "subprocess.Popen[bytes]") -> leftovers.State | None:
    """Wait until the owner says that the cluster is ready; None if it ended instead."""
    deadline = time.monotonic() + _UP_TIMEOUT_S
    while owner.poll() is None:
        state = leftovers.State.read(layout)
        if state is not None and state.ready and state.owner.pid == owner.pid:
            return state
        if time.monotonic() > deadline:
            raise TimeoutError(f"the cluster was not ready within {_UP_TIMEOUT_S:g} s")
        time.sleep(0.05)
    return None


def down(number: int) -> int:
    """End a cluster; what there was is gone afterwards."""
    found = leftovers.down(Layout(number))
    sys.stdout.write("cluster: gone\n" if found else "cluster: there was none\n")
    return 0


def hold(number: int) -> int:
    """Own a cluster until somebody asks for its end."""
    ended = threading.Event()
    for how in (signal.SIGINT, signal.SIGTERM):
        signal.signal(how, lambda *_: ended.set())
    with RealCluster(number):
        ended.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
