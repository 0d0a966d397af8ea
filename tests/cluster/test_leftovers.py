"""Nothing of a cluster stays behind: not after its orderly end, not after a crash in any state.

The look at the machine does not use the code under test: it asks the kernel, for everything that carries the
names and addresses of one cluster, and for the namespaces that its programs had.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from taskd.testing.cluster import BorrowedCluster
from taskd.testing.cluster.layout import Layout
from taskd.testing.cluster.leftovers import State, traces
from tests.cluster.pods import make_pod

NUMBER = 7  # no cluster that is started without a number has this one
LAYOUT = Layout(NUMBER)
PATIENCE_S = 120.0
OF_THE_MACHINE = ("vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops", "net/ipv4/ip_forward")
NOT_MADE = ("/run/netns", "/run/containerd", "/var/lib/cni", "/var/lib/kubelet", "/var/log/pods")


def ask(*command: str) -> list[str]:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def processes() -> list[str]:
    """Those whose command line or control group says that they are of this cluster."""
    marks = (f"taskd-nodes-{NUMBER}-", f"/taskd-{NUMBER}/", str(LAYOUT.address))
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            text = (place / "cmdline").read_text() + (place / "cgroup").read_text()
            ended = (place / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            continue
        # What has ended is buried by the machine's first process, in its own time.
        if not ended and any(mark in text for mark in marks):
            found.append(f"{place.name} {text}")
    return found


def namespaces() -> set[str]:
    """All network and mount namespaces in which somebody is."""
    found = set()
    for place in Path("/proc").glob("[0-9]*"):
        for kind in ("net", "mnt"):
            try:
                found.add(str((place / "ns" / kind).readlink()))
            except OSError:
                continue
    return found


def look() -> dict[str, object]:
    """Everything on this machine that belongs to this cluster, and what it might have changed."""
    return {
        "links": [line for line in ask("ip", "-br", "link") if line.startswith(LAYOUT.bridge)],
        "routes": [line for line in ask("ip", "route", "show", "table", "all") if LAYOUT.bridge in line],
        "rules": [line for line in ask("iptables-save") if not line.startswith("#")],
        "mounts": [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if "taskd" in line],
        "cgroups": sorted(map(str, Path("/sys/fs/cgroup").glob(f"*/taskd-{NUMBER}"))),
        "directories": sorted(map(str, Path(tempfile.gettempdir()).glob(f"taskd-nodes-{NUMBER}-*"))),
        "place": LAYOUT.place.exists(),
        "made": [name for name in NOT_MADE if Path(name).exists()],
        "settings": [Path("/proc/sys", name).read_text() for name in OF_THE_MACHINE],
        "processes": processes(),
    }


class Owner:
    """A process that owns the cluster, as `make cluster` leaves it running."""

    def __init__(self, directory: Path) -> None:
        self.log = directory / "owner.log"
        with self.log.open("ab") as output:
            command = [sys.executable, "-m", "taskd.testing.cluster", "hold", str(NUMBER)]
            self.process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)

    def wait(self, *, ready: bool) -> State:
        """Wait until it has begun, or is ready."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            state = State.read(LAYOUT)
            mine = state is not None and state.owner.pid == self.process.pid
            if state is not None and mine and (state.ready or (state.programs and not ready)):
                return state
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.02)
        raise TimeoutError(self.log.read_text())

    def kill(self) -> None:
        """Without a word."""
        self.process.kill()
        self.process.wait()


def command(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the command line on this cluster."""
    call = [sys.executable, "-m", "taskd.testing.cluster", *words, str(NUMBER)]
    return subprocess.run(call, capture_output=True, text=True, check=False, timeout=PATIENCE_S)


def run_pod(state: State) -> int:
    """Run a pod in it; returns the process id of its container on this machine."""
    with TemporaryDirectory() as directory:
        cluster = BorrowedCluster(LAYOUT, state, Path(directory))
        make_pod(cluster, "default", "p", "sleep", "1000", node="node-1")
        cluster.wait_pod_ready("default", "p", timeout_s=60)
        (process,) = cluster.pids_in_pod("default", "p")
        return process.pid


@pytest.fixture
def before(nodes_possible: None) -> dict[str, object]:
    """The machine without the cluster."""
    command("down")
    return look()


def test_after_a_crash_in_operation(before: dict[str, object], tmp_path: Path) -> None:
    """The owner and a kubelet are killed while a pod runs; `down` clears everything, and again nothing.

    While it is up, a second start says who has it and touches nothing.
    """
    owner = Owner(tmp_path)
    state = owner.wait(ready=True)
    pod = run_pod(state)
    second = command("up")
    assert 2 == second.returncode
    assert f"cluster {NUMBER} is up, owned by process {owner.process.pid}" in second.stderr
    assert 1 == len(second.stderr.splitlines())
    theirs = {str(Path(f"/proc/{pod}/ns", kind).readlink()) for kind in ("net", "mnt")}

    os.kill(state.programs["kubelet node-2"].pid, signal.SIGKILL)
    owner.kill()
    assert Path(f"/proc/{pod}").exists(), "the container must outlive its owner, or this shows nothing"
    assert "cluster: gone\n" == command("down").stdout

    assert before == look()
    assert not theirs & namespaces()
    assert [] == traces(LAYOUT)
    assert "cluster: there was none\n" == command("down").stdout


@pytest.mark.slow
def test_after_a_crash_during_the_start(before: dict[str, object], tmp_path: Path) -> None:
    """The owner is killed in the middle of its start; the next start clears that, runs, and ends in order."""
    first = Owner(tmp_path)
    state = first.wait(ready=False)
    first.kill()
    assert Path(state.directory).exists()

    second = Owner(tmp_path)
    run_pod(second.wait(ready=True))
    assert not Path(state.directory).exists()
    second.process.send_signal(signal.SIGTERM)
    assert 0 == second.process.wait(PATIENCE_S), second.log.read_text()
    assert before == look()
