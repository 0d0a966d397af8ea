"""Where the time goes between the deletion of a pod and the next step of its job.

The API server's audit log has what the cluster did, a module that every Python of the pods loads has what
happened inside the new one, and the ranks' ledgers have the steps; all by this machine's clock. Processor
time says what a stage costs where the machine is shared. ``python bench/pod_anatomy.py --rounds 5``.
"""

import argparse
import os
import sys
import tempfile
import time
from datetime import datetime
from functools import partial
from pathlib import Path

from cluster import (
    CRD,
    FOREVER,
    PAUSE_S,
    SCRIPT,
    SETTLED,
    Bench,
    bare_pod_s,
    is_another,
    settled,
    to_next_step,
)
from table import Result, print_table, read_load, tell

from taskd.testing.cluster import ControllerProcess, JobForm, PodJob, RealCluster

STAMPING = Path(__file__).with_name("stamping")
STAMPS_VARIABLE = "TASKD_BENCH_STAMPS"
JOINED = "taskd.train.torch.devices.gloo"


def look_into(cluster: RealCluster, job: PodJob, bench: Bench, stamps: Path) -> dict[str, float]:
    """Delete a pod; returns when what had happened, in seconds after the command, in order."""
    name = job.places()[2]
    path = f"/api/v1/namespaces/{job.namespace}/pods/{name}"
    uid = cluster.api.get(path)["metadata"]["uid"]
    for file in stamps.iterdir():
        file.unlink()
    mark, offset = cluster.audit.mark(), time.time() - time.monotonic()
    began = time.monotonic()
    delete = partial(cluster.kubectl, "delete", "pod", "-n", job.namespace, name, "--wait=false")
    took, _ = to_next_step(job, delete, struck=partial(is_another, bench, path, uid))
    writes = cluster.audit.writes(since=mark, namespace=job.namespace, resource="pods")
    times: dict[str, list[float]] = {}
    for write in writes:
        if write.name in {name, ""}:
            at = datetime.fromisoformat(write.received_at).timestamp() - offset - began
            times.setdefault(f"{write.verb} {write.subresource}".strip(), []).append(at)
    told, free = times["delete"][0], min(at for at in times["delete"][1:] if at > times["delete"][0])
    found = {
        "the API server has the deletion": told,
        "its kubelet reports that its containers have ended": max(
            at for at in times["patch status"] if at < free
        ),
        "its name is free": free,
        "its successor is created": times["create"][0],
    }
    inside: dict[str, float] = {}
    for file in stamps.iterdir():
        for line in file.read_text().splitlines():
            at_text, _, what = line.split(" ", 2)
            at = float(at_text) - began
            inside[what] = (
                max(at, inside.get(what, at)) if what.endswith("gloo") else min(at, inside.get(what, at))
            )
    found["its first Python"] = inside["begins"]
    found["the import of torch begins"] = _second(stamps, "torch") - began
    found["torch is there"] = inside["taskd.train.session"]
    found["the import of what optimizers and DDP load begins"] = inside["torch._dynamo"]
    found["its ranks have joined"] = inside[JOINED]
    found["the next step is committed"] = took
    return found


def _second(stamps: Path, what: str) -> float:
    """When the process that imports it looked for a module: the launcher only asks where it is."""
    for file in stamps.iterdir():
        lines = [line.split(" ", 2) for line in file.read_text().splitlines()]
        if any(line[2] == "torch._dynamo" for line in lines):
            return min(float(line[0]) for line in lines if line[2] == what)
    raise LookupError(f"nobody imported {what}")


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[1] / "src"), str(STAMPING)])
    rounds: list[dict[str, float]] = []
    ready: list[float] = []
    with tempfile.TemporaryDirectory(prefix="taskd-bench-") as text, RealCluster(audit=True) as cluster:
        home = Path(text)
        out, stamps = home / "out", home / "stamps"
        stamps.mkdir()
        cluster.apply_yaml(CRD.read_text())
        bench = Bench(cluster, home, args.rounds)
        with (
            cluster.namespace("anatomy") as namespace,
            ControllerProcess(cluster, namespace, home / "controller.log", plane=True) as controller,
        ):
            form = JobForm(
                f"{SCRIPT} --out {out} --steps {FOREVER} --pause {PAUSE_S}",
                "recover",
                plane=controller.plane,
                spares=1,
                backoff=100,
                env={STAMPS_VARIABLE: str(stamps)},
                writable=[stamps],
                grace_s=1,
            )
            job = PodJob(cluster, namespace, out, form)
            job.submit()
            job.wait_step(SETTLED)
            for number in range(args.rounds):
                settled(job, 25)
                ready.append(bare_pod_s(bench, job))
                rounds.append(look_into(cluster, job, bench, stamps))
                tell(f"round {number}: {rounds[-1]['the next step is committed']:.2f} s; {read_load()}")
    print(read_load())
    result = Result()
    result.add("a bare pod, from its creation to Ready", ready, "s")
    for stage in rounds[0]:
        result.add(stage, [each[stage] for each in rounds], "s")
    print_table([("after the command that deletes a pod", result)])
    return 0


if __name__ == "__main__":
    sys.exit(main())
