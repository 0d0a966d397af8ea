"""What faults cost a job in real pods, beside what the same fault, or a bare pod, costs on this machine.

Each figure is measured in one run on one cluster of three nodes, in turns with what it is compared with.
Times are the ranks' own: all are processes of this machine and write the same monotonic clock into their
ledgers. The downtime of a fault is the time to the next step that every rank has committed after it, less a
step; where a limit counts from an act (a pod deleted, a cable cut), it is the time from that act.
"""

import argparse
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path

from table import Result, print_table, read_load, show_number, tell

from taskd.testing.cluster import (
    ChipFault,
    ControllerProcess,
    DevicePlugins,
    JobForm,
    PodJob,
    RealCluster,
)

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "demo" / "train_in_pods.py"
CRD = ROOT / "deploy" / "crd" / "ascendjobs.yaml"
PAUSE_S = 0.1
SETTLED, BETWEEN = 15, 12
FOREVER = 100_000
PODS, PER_POD = 3, 2
MEMORY_ERROR, BROKEN, SLOW = "80E01801", "80E18005", "81B38009"
IN_POD_LIMIT, READY_MORE_S, CUT_LIMIT_S, ORDER_LIMIT_MS = 1.5, 1.0, 5.0, 500.0
STANDBY_LIMIT_S, STANDBY_CUT_LIMIT_S = 1.0, 3.0
STANDBY_PODS = "taskd.io/standby-pods"
WARM_S = 4.0
PATIENCE_S = 90.0
CUT_SETTLES_S = 0.5


@dataclass(slots=True)
class Bench:
    """The cluster, and where things are kept."""

    cluster: RealCluster
    home: Path
    rounds: int
    count: "itertools.count[int]" = field(default_factory=itertools.count)

    @contextmanager
    def job(
        self,
        strategy: str = "",
        *,
        devices: bool = False,
        labels: Mapping[str, str] | None = None,
        standbys: int = 0,
    ) -> Iterator[PodJob]:
        """Run a job under a controller that is a control plane; it has settled, and trains on and on."""
        number = next(self.count)
        home = self.home / f"job-{number}"
        home.mkdir()
        with self.cluster.namespace("bench") as namespace:
            controller = ControllerProcess(self.cluster, namespace, home / "controller.log", plane=True)
            with controller:
                out = home / "out"
                form = JobForm(
                    f"{SCRIPT} --out {out} --steps {FOREVER} --pause {PAUSE_S}",
                    strategy,
                    plane=controller.plane,
                    spares=1,
                    backoff=100,
                    devices=devices,
                    labels=labels or {},
                    annotations={STANDBY_PODS: str(standbys)} if standbys else {},
                    grace_s=1,
                )
                job = PodJob(self.cluster, namespace, out, form)
                job.submit()
                job.wait_step(SETTLED)
                yield job
                self.cluster.kubectl("delete", "acjob", "-n", namespace, job.form.name, "--wait=false")
                self.cluster.wait(
                    lambda: not self.cluster.api.items(f"/api/v1/namespaces/{namespace}/pods"), timeout_s=60
                )


def settled(job: PodJob, done: int = BETWEEN) -> None:
    """Let a job train for some steps."""
    job.wait_step(job.step() + done)


def step_s(job: PodJob, before: float) -> float:
    """Return the usual time of a step of rank 0 before a moment."""
    times = [at for at in job.committed(0).values() if at <= before][-SETTLED:]
    return statistics.median(later - sooner for sooner, later in itertools.pairwise(times))


def to_next_step(
    job: PodJob, act: Callable[[], object], *, struck: Callable[[], object] | None = None
) -> tuple[float, float]:
    """Do something to a job; returns how long it took to the next whole step, and the usual step.

    Some acts take a moment to strike, and steps go on until then: only those after ``struck`` count.
    """
    began = time.monotonic()
    usual = step_s(job, began)
    act()
    after = began
    if struck is not None:
        job.cluster.wait(struck, timeout_s=PATIENCE_S, every_s=0.02)
        after = time.monotonic()
    end = job.cluster.wait(lambda: job.next_step_at(after), timeout_s=PATIENCE_S, every_s=0.05)
    assert end is not None
    return end - began, usual


# ------------------------------------------------------------------------------------------- a killed process


def measure_kills(bench: Bench) -> Result:
    """Kill a rank in a pod, and the same under `taskd run` without Kubernetes, in turns."""
    in_pods: list[float] = []
    local: list[float] = []
    for _ in range(2):
        with bench.job("recover-in-place") as job:
            in_pods += [kill_rank(job, 2 + number % 4) for number in range(bench.rounds)]
        local += kill_locally(bench, bench.rounds)
    result = Result()
    result.add("process killed in a pod, recover-in-place: downtime", [each * 1000 for each in in_pods])
    result.add("the same under local taskd run", [each * 1000 for each in local])
    ratio = statistics.median(in_pods) / statistics.median(local)
    result.add("ratio of the medians", [ratio], "", median=IN_POD_LIMIT)
    return result


def kill_rank(job: PodJob, rank: int) -> float:
    """Kill a rank's process from outside; returns the downtime."""
    victim = job.processes(rank // PER_POD)[rank]
    took, usual = to_next_step(job, lambda: os.kill(victim.pid, signal.SIGKILL))
    settled(job)
    return max(took - usual, 0.0)


def kill_locally(bench: Bench, rounds: int) -> list[float]:
    """Do the same to a job of three nodes on this machine."""
    home = bench.home / f"local-{next(bench.count)}"
    out = home / "out"
    out.mkdir(parents=True)
    command = [sys.executable, "-m", "taskd.cli.main", "run", "--job", "local", "--local-nodes", str(PODS)]
    command += ["--nproc-per-node", str(PER_POD), "--spares", "1", "--recover-strategy", "recover-in-place"]
    command += [str(SCRIPT), "--out", str(out), "--steps", str(FOREVER), "--pause", str(PAUSE_S)]
    env = {**os.environ, "TASKD_HOME": str(home / "taskd"), "PYTHONPATH": str(ROOT / "src")}
    with (home / "run.log").open("wb") as log:
        run = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env)
    # Its ledger is read like that of a job in pods; there is no pod to ask for anything else.
    job = PodJob(bench.cluster, "default", out, JobForm("", pods=PODS, per_pod=PER_POD))
    found = []
    try:
        wait_for(lambda: job.step() >= SETTLED)
        for number in range(rounds):
            pid = int(job.entries(2 + number % 4)[-1]["pid"])
            took, usual = to_next_step(job, lambda pid=pid: os.kill(pid, signal.SIGKILL))
            found.append(max(took - usual, 0.0))
            reached = job.step() + BETWEEN
            wait_for(lambda reached=reached: job.step() >= reached)
    finally:
        run.terminate()
        run.wait(60)
    return found


def wait_for(what: Callable[[], bool]) -> None:
    """Wait until something is so."""
    RealCluster.wait(what, timeout_s=PATIENCE_S, every_s=0.05)


# --------------------------------------------------------------------------------------------- a deleted pod


def measure_deletions(bench: Bench) -> Result:
    """Delete a pod of a job, and create a bare one of the same image, in turns."""
    ready: list[float] = []
    took: list[float] = []
    with bench.job("recover") as job:
        for _ in range(bench.rounds):
            ready.append(bare_pod_s(bench, job))
            name = job.places()[2]
            path = f"/api/v1/namespaces/{job.namespace}/pods/{name}"
            uid = bench.cluster.api.get(path)["metadata"]["uid"]
            delete = partial(job.cluster.kubectl, "delete", "pod", "-n", job.namespace, name, "--wait=false")
            took.append(to_next_step(job, delete, struck=partial(is_another, bench, path, uid))[0])
            settled(job)
    result = Result()
    result.add("bare pod of the same image: creation to Ready", ready, "s")
    limit = statistics.median(ready) + READY_MORE_S
    result.add("pod deleted, recover: deletion to the next step", took, "s", median=limit)
    result.note(f"the limit of the deletion is the bare pod's median + {READY_MORE_S:g} s")
    return result


def is_another(bench: Bench, path: str, uid: str) -> bool:
    """Tell whether a new pod has the name."""
    found = bench.cluster.api.find(path)
    return found is not None and found["metadata"]["uid"] != uid


def bare_pod_s(bench: Bench, job: PodJob) -> float:
    """Return how long a pod that only sleeps needs from its creation until it is Ready."""
    parts = bench.cluster.training_volumes([job.out])
    spec = {"terminationGracePeriodSeconds": 0, "volumes": parts.volumes}
    spec |= {"containers": [parts.container("sleep", "1000")]}
    path = f"/api/v1/namespaces/{job.namespace}/pods"
    began = time.monotonic()
    bench.cluster.api.create(path, {"metadata": {"name": "bare"}, "spec": spec})
    bench.cluster.wait_pod_ready(job.namespace, "bare")
    took = time.monotonic() - began
    bench.cluster.api.delete(f"{path}/bare", grace_s=0)
    bench.cluster.wait(lambda: bench.cluster.api.find(f"{path}/bare") is None, timeout_s=30)
    return took


# ------------------------------------------------------------------------------------------ faults of devices


def measure_devices(bench: Bench) -> Result:
    """Report memory errors as a device plugin does, and see when the manager has its order."""
    orders: list[float] = []
    repeated: list[float] = []
    with DevicePlugins(bench.cluster, 4) as plugins, bench.job("retry,recover", devices=True) as job:
        for _ in range(max(bench.rounds, 5)):
            pod = bench.cluster.api.get(f"/api/v1/namespaces/{job.namespace}/pods/{job.places()[1]}")
            node, chip = str(pod["spec"]["nodeName"]), plugins.chips_of(pod)[0]
            count = len(signals(job, "stopTrain"))
            stamp, began = time.time(), time.monotonic()
            plugins.report(node, ChipFault(chip, MEMORY_ERROR, "RestartBusiness"))
            wait_for(lambda count=count: len(signals(job, "stopTrain")) > count)
            orders.append((signals(job, "stopTrain")[count] - stamp) * 1000)
            wait_for(lambda count=count: len(signals(job, "changeStrategy")) > count)
            plugins.report(node)
            settled(job)
            repeated.append(longest_gap(job, began) * 1000)
    result = Result()
    result.add("device fault to its order, ConfigMap to manager", orders, median=ORDER_LIMIT_MS)
    result.add("UCE by ConfigMap, retry: longest time between two steps", repeated)
    return result


def signals(job: PodJob, kind: str) -> list[float]:
    """Return when the manager got signals of a kind, from its own log."""
    look = 'cat $(find "$HOME/.local/state/taskd" -name manager.log)'
    pod = job.places()[0]
    said = job.cluster.kubectl("exec", "-n", job.namespace, pod, "--", "sh", "-c", look, check=False)
    found = []
    for line in said.splitlines():
        with suppress(ValueError):
            entry = json.loads(line)
            if entry.get("event") == "plane_signal" and entry["signal"]["kind"] == kind:
                found.append(datetime.fromisoformat(entry["timestamp"]).timestamp())
    return found


def longest_gap(job: PodJob, after: float) -> float:
    """Return the longest time between two committed steps of any rank since a moment."""
    gaps = []
    for rank in range(job.world):
        times = [at for at in job.committed(rank).values() if at > after - PAUSE_S]
        gaps += [later - sooner for sooner, later in itertools.pairwise(times)]
    return max(gaps)


# ----------------------------------------------------------------------------------------------- hot switches


def measure_switches(bench: Bench) -> Result:
    """Report a slow device, and see for how long the job paused when its pod was replaced."""
    pauses: list[float] = []
    meanwhile: list[float] = []
    steps: list[float] = []
    for _ in range(max(bench.rounds // 2, 1)):
        labels = {"subHealthyStrategy": "hotSwitch"}
        with DevicePlugins(bench.cluster, 4) as plugins, bench.job(devices=True, labels=labels) as job:
            old = job.places()[1]
            pod = bench.cluster.api.get(f"/api/v1/namespaces/{job.namespace}/pods/{old}")
            began, at = job.step(), time.monotonic()
            usual = step_s(job, at)
            plugins.report(
                str(pod["spec"]["nodeName"]), ChipFault(plugins.chips_of(pod)[0], SLOW, "SubHealthFault")
            )
            wait_for(lambda: [each["outcome"] for each in job.timeline()] == ["switched"])
            (incident,) = job.timeline()
            settled(job)
            meanwhile.append(float(incident["step"] - began))
            around = range(incident["step"] - 2, incident["step"] + 3)
            pause = max(
                times[later] - times[sooner]
                for times in (job.committed(rank) for rank in range(job.world))
                for sooner, later in itertools.pairwise(each for each in around if each in times)
            )
            pauses.append(pause * 1000)
            steps.append(usual * 1000)
    result = Result()
    result.add("a step of the job that is switched", steps)
    result.add("hot switch: longest step", pauses, worst=2 * statistics.median(steps))
    result.add("hot switch: steps of the old ranks meanwhile", meanwhile, "steps", least=10)
    return result


# -------------------------------------------------------------------------------------------------- cut links


def has_passed(moment: float) -> bool:
    """Tell whether a moment is over."""
    return time.monotonic() > moment


def measure_cuts(bench: Bench) -> Result:
    """Cut the cable of a node on which a pod trains, with two other nodes that have room."""
    result = Result()
    took: list[float] = []
    for _ in range(max(bench.rounds // 2, 1)):
        with bench.job("recover") as job:
            pod = bench.cluster.api.get(f"/api/v1/namespaces/{job.namespace}/pods/{job.places()[2]}")
            node = str(pod["spec"]["nodeName"])
            try:
                # A step that was on its way when the cable was cut may still be committed.
                struck = partial(has_passed, time.monotonic() + CUT_SETTLES_S)
                took.append(to_next_step(job, partial(bench.cluster.cut_link, node), struck=struck)[0])
            except TimeoutError:
                result.note(f"cut link: no step within {PATIENCE_S:g} s after the cut")
            finally:
                bench.cluster.mend_link(node)
                bench.cluster.wait(
                    lambda node=node: bench.cluster.node_ready(node),
                    timeout_s=60,
                    every_s=0.2,
                )
    result.add("link of a node cut, a free node: cut to the next step", took, "s", median=CUT_LIMIT_S)
    return result


# ----------------------------------------------------------------------------------- pods that are kept ready


def measure_standbys(bench: Bench) -> Result:
    """Delete a pod, and cut the cable of a node, of a job that keeps a pod ready."""
    result = Result()
    deleted: list[float] = []
    cut: list[float] = []
    with bench.job("recover", standbys=1) as job:
        for _ in range(bench.rounds):
            wait_standby(job)
            name = job.places()[2]
            began = time.monotonic()
            job.cluster.kubectl("delete", "pod", "-n", job.namespace, name, "--wait=false")
            wait_for(lambda name=name: job.places().get(2, name) != name)
            settled(job)
            deleted.append(resumed_s(job, began))
    for _ in range(max(bench.rounds // 2, 1)):
        with bench.job("recover", standbys=1) as job:
            standby = wait_standby(job)
            pods = bench.cluster.api.items(f"/api/v1/namespaces/{job.namespace}/pods")
            nodes = {str(pod["metadata"]["name"]): str(pod["spec"]["nodeName"]) for pod in pods}
            places = job.places()
            free = {nodes[places[1]], nodes[places[2]]} - {nodes[places[0]], nodes[standby]}
            if not free:
                result.note("cut link: every worker shared its node with the master or the standby; once")
                continue
            node = min(free)
            began = time.monotonic()
            try:
                bench.cluster.cut_link(node)
                wait_for(lambda began=began: has_passed(began + CUT_SETTLES_S))
                settled(job)
                cut.append(resumed_s(job, began))
            finally:
                bench.cluster.mend_link(node)
                bench.cluster.wait(partial(bench.cluster.node_ready, node), timeout_s=60, every_s=0.2)
    result.add("pod deleted, a standby: deletion to the next step", deleted, "s", median=STANDBY_LIMIT_S)
    result.add("link of a node cut, a standby: cut to the next step", cut, "s", median=STANDBY_CUT_LIMIT_S)
    return result


def wait_standby(job: PodJob) -> str:
    """Wait until a pod that is kept ready has joined and its processes are warm; returns its name."""

    def ready() -> str:
        pods = job.cluster.api.items(f"/api/v1/namespaces/{job.namespace}/pods")
        names = [
            str(pod["metadata"]["name"])
            for pod in pods
            if (pod["metadata"].get("annotations") or {}).get("podType") == "standby"
            and not pod["metadata"].get("deletionTimestamp")
        ]
        leader = job.places()[0]
        said = job.cluster.kubectl("exec", "-n", job.namespace, leader, "--", "taskd", "status", check=False)
        return next((name for name in names if name in said), "")

    name: str = job.cluster.wait(ready, timeout_s=PATIENCE_S, every_s=0.3)
    time.sleep(WARM_S)
    settled(job)
    return name


def resumed_s(job: PodJob, began: float) -> float:
    """Return how long after a moment the longest pause of any rank since then was over."""
    ends = []
    for rank in range(job.world):
        times = [at for at in job.committed(rank).values() if at > began - PAUSE_S]
        ends.append(max((after - before, after) for before, after in itertools.pairwise(times))[1])
    return max(ends) - began


FIGURES: dict[str, Callable[[Bench], Result]] = {
    "kills": measure_kills,
    "deletions": measure_deletions,
    "devices": measure_devices,
    "switches": measure_switches,
    "cuts": measure_cuts,
    "standbys": measure_standbys,
}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--only", nargs="*", choices=sorted(FIGURES), default=[])
    parser.add_argument("--json", type=Path, help="write the samples here, too")
    args = parser.parse_args()
    chosen = args.only or list(FIGURES)
    sections = []
    with tempfile.TemporaryDirectory(prefix="taskd-bench-") as home, RealCluster() as cluster:
        cluster.apply_yaml(CRD.read_text())
        bench = Bench(cluster, Path(home), args.rounds)
        for name in chosen:
            tell(f"{name}; {read_load()}")
            result = FIGURES[name](bench)
            sections.append((name, result))
            for row in result.rows:
                tell(f"  {row.name}: median {show_number(row.median, row.unit)}, n {len(row.samples)}")
    print(read_load())
    print_table(sections)
    if args.json:
        found = {row.name: row.samples for _, result in sections for row in result.rows}
        args.json.write_text(json.dumps(found, indent=1))
    return 1 if any(row.verdict == "NO" for _, result in sections for row in result.rows) else 0


if __name__ == "__main__":
    sys.exit(main())
