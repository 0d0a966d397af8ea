"""Pods without a cluster: each a network, process and host name of its own, with what the operator gives it.

The environment is made by the operator's own functions, so it cannot drift from what a pod really gets. What
a cluster adds is played: addresses on a bridge, names by a hosts file (the headless Service), and an address
of the leader that leads to whichever pod has rank 0 now, or to nobody (its Service).
"""

import contextlib
import itertools
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from taskd.core.acjob import names
from taskd.core.acjob.environment import Addresses
from taskd.core.acjob.job import Job, Slot
from taskd.core.acjob.pods import PodMaker
from tests.core.acjob.samples import make_job, make_template
from tests.roles.harness import RunningJob, eventually

LEADER_IP = "10.213.0.254"
UNSHARE = ("unshare", "--net", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc")
FORWARDER = Path(__file__).with_name("forward.py")

NEEDS = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("unshare") is None,
        reason="network namespaces need root, ip and unshare",
    ),
]


def cpu_job(workers: int, processes: int, strategy: str = "", standbys: int = 0, **labels: str) -> Job:
    """An AscendJob without devices."""
    annotations = {names.PROCESSES_PER_POD: str(processes), names.STANDBY_PODS: str(standbys)}
    annotations |= {names.RECOVER_STRATEGY: strategy} if strategy else {}
    template = make_template(devices=0, container={"ports": [{"containerPort": 9601, "name": "taskd-port"}]})
    return make_job(workers=workers, leader=template, worker=template, annotations=annotations, labels=labels)


def environment(manifest: Mapping[str, Any], address: str) -> dict[str, str]:
    """What the kubelet makes of a pod's environment."""
    (container,) = manifest["spec"]["containers"]
    fields = {"status.podIP": address}
    return {
        entry["name"]: entry["value"]
        if "value" in entry
        else fields[entry["valueFrom"]["fieldRef"]["fieldPath"]]
        for entry in container["env"]
    }


class Pod(RunningJob):
    """One pod; its launcher is process 1 of a process namespace of its own, so nothing outlives it."""

    def __init__(
        self, home: Path, town: "Town", manifest: Mapping[str, Any], address: str, *words: str
    ) -> None:
        self.name: str = manifest["spec"].get("hostname", manifest["metadata"]["name"])
        self.address = address
        self.town = town
        self._manifest = manifest
        self._begin(home, words)

    def _begin(self, home: Path, words: tuple[str, ...]) -> None:
        home.mkdir(parents=True)
        self.home = home
        env = environment(self._manifest, self.address)
        self.job_name = env["MINDX_TASK_ID"]
        self.env = {**os.environ, "TASKD_HOME": str(home / "taskd"), **env}
        self.env |= {"GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"}
        self._out, self._err = (home / "out.txt").open("wb"), (home / "err.txt").open("wb")
        inside = (
            f"hostname {self.name} && mount --bind {self.town.hosts} /etc/hosts && "
            'mount -t tmpfs shm /dev/shm && ip link set lo up && read _ && exec "$@"'
        )
        self.process = subprocess.Popen(
            [*UNSHARE, "bash", "-c", inside, "pod", *words],
            cwd=home,
            env=self.env,
            stdin=subprocess.PIPE,
            stdout=self._out,
            stderr=self._err,
        )
        self.init = self.town.connect(self.process.pid, self.address)
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.close()

    @property
    def directory(self) -> Path:
        return self.home / "taskd" / "jobs" / self.job_name

    def cli(self, *args: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Call a command of TaskD in the pod, as `kubectl exec` does."""
        inside = ["nsenter", "-t", str(self.init), "--mount", "--net", "--pid", "--uts"]
        words = [*inside, sys.executable, "-m", "taskd.cli.main", *args]
        done = subprocess.run(words, env=self.env, capture_output=True, text=True, timeout=200, check=False)
        assert not check or done.returncode == 0, f"{args}: {done.returncode}\n{done.stderr}\n{self.err}"
        return done

    def timeline(self) -> list[dict[str, Any]]:
        """What its manager has recorded; the last line of an incident is how it ended."""
        return [json.loads(line) for line in (self.directory / "timeline.jsonl").read_text().splitlines()]

    def kill(self) -> None:
        """End all of it at once, as a node that loses its power does."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.init, signal.SIGKILL)
        self.process.wait(10)

    def terminate(self) -> None:
        """Ask it to end, as the kubelet does with a pod that is deleted."""
        os.kill(self.init, signal.SIGTERM)

    def close(self) -> None:
        self.kill()
        self._out.close()
        self._err.close()


class Town:
    """The network of a job's pods."""

    def __init__(self, home: Path, job: Job, *words: str) -> None:
        self.home, self.job = home, job
        self._words = words
        self._maker = PodMaker(job, Addresses(LEADER_IP, 2222, "10.213.0.253"), gang=False)
        self._numbers = itertools.count(1)
        self._mark = secrets.token_hex(3)
        self._bridge = f"br{self._mark}"
        self._cables: dict[str, str] = {}
        self._lock = threading.Lock()
        self.hosts = home / "hosts"
        self.hosts.write_text("127.0.0.1 localhost\n")
        self._names: dict[str, str] = {}
        self.pods: list[Pod] = []
        self._anchor = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        theirs, ours = Path(f"/proc/{self._anchor.pid}/ns/net"), Path("/proc/self/ns/net").readlink()
        eventually(lambda: theirs.readlink() != ours, "a namespace")
        self._in_bridge("ip link set lo up")
        self._in_bridge(f"ip link add {self._bridge} type bridge")
        self._in_bridge(f"ip link set {self._bridge} up")
        self._in_bridge(f"ip addr add {LEADER_IP}/24 dev {self._bridge}")
        self._target = home / "leader"
        self._target.write_text("")
        self._forwarder = subprocess.Popen(
            [
                "nsenter",
                f"--net=/proc/{self._anchor.pid}/ns/net",
                sys.executable,
                str(FORWARDER),
                LEADER_IP,
                "9601,2222",
                str(self._target),
            ]
        )

    def _in_bridge(self, command: str) -> None:
        subprocess.run(["nsenter", f"--net=/proc/{self._anchor.pid}/ns/net", *command.split()], check=True)

    def connect(self, pid: int, address: str) -> int:
        """Give a pod its address; returns its first process."""
        children = Path(f"/proc/{pid}/task/{pid}/children")
        eventually(lambda: children.read_text().split(), "its first process")
        init = int(children.read_text().split()[0])
        with self._lock:
            link = f"v{self._mark}{next(self._numbers)}"
        self._in_bridge(f"ip link add {link} type veth peer name eth0 netns {init}")
        self._in_bridge(f"ip link set {link} master {self._bridge} up")
        self._cables[address] = link
        inside = ["nsenter", f"--net=/proc/{init}/ns/net", "ip"]
        subprocess.run([*inside, "addr", "add", f"{address}/24", "dev", "eth0"], check=True)
        subprocess.run([*inside, "link", "set", "eth0", "up"], check=True)
        return init

    def start(self, rank: int, *words: str, version: int = 0, name: str = "") -> Pod:
        """Create the pod of a rank, at an address that no pod had before, and publish its name."""
        slot = Slot("Master", 0) if rank == 0 else Slot("Worker", rank - 1)
        manifest = self._maker.pod(slot, version, name=name)
        return self._start(manifest, words, leads=rank == 0 and not name)

    def start_standby(self, number: int = 0) -> Pod:
        """Create a pod that is kept ready."""
        return self._start(self._maker.standby(number, 0), (), leads=False)

    def cut(self, pod: Pod) -> None:
        """Pull the cable of a pod: what it runs goes on, and nobody hears of it."""
        self._in_bridge(f"ip link set {self._cables[pod.address]} down")

    def mend(self, pod: Pod) -> None:
        """Plug it in again."""
        self._in_bridge(f"ip link set {self._cables[pod.address]} up")

    def _start(self, manifest: Mapping[str, Any], words: tuple[str, ...], *, leads: bool) -> Pod:
        number = next(self._numbers)
        address = f"10.213.0.{number}"
        host = manifest["spec"]["hostname"]
        self._names[host] = address
        listed = "".join(f"{ip} {each} {each}.acjob-pods\n" for each, ip in self._names.items())
        self.hosts.write_text(f"127.0.0.1 localhost\n{listed}")  # in place: pods have this very file mounted
        if leads:
            self._target.write_text(address)
        pod = Pod(self.home / f"{host}-{number}", self, manifest, address, *(words or self._words))
        self.pods.append(pod)
        return pod

    def lead_to(self, pod: Pod) -> None:
        """Let the leader's address lead to a pod, as its Service does when the pod before it is gone."""
        self._target.write_text(pod.address)

    def forget_leader(self) -> None:
        """Let the leader's address lead to nobody, as its Service does while there is no pod."""
        self._target.write_text("")

    def close(self) -> None:
        for pod in self.pods:
            pod.close()
        for process in (self._forwarder, self._anchor):
            process.kill()
            process.wait(10)


@contextlib.contextmanager
def town(home: Path, job: Job, *words: str) -> Iterator[Town]:
    """Build a network for the pods of a job, and take it away again."""
    place = Town(home, job, *words)
    try:
        yield place
    finally:
        place.close()


def taskd_run(*words: str) -> tuple[str, ...]:
    """The short way: what a pod's command is."""
    return (sys.executable, "-m", "taskd.cli.main", "run", *words)
