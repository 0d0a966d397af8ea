"""A long run under random faults of all kinds: nothing is lost, nothing counts twice, nothing leaks.

``make soak`` runs the long form (TASKD_SOAK is how many faults, TASKD_SEED which ones); the short form is in
``make test``.
"""

import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.roles.harness import RunningJob, eventually
from tests.train.runs import Run, assert_same, start

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]

FAULTS = int(os.environ.get("TASKD_SOAK", "6"))
SEED = int(os.environ.get("TASKD_SEED", "1"))
CALM_STEPS = (6, 14)  # between two faults
STEPS = 40 + FAULTS * 30  # a fault and the calm after it take a second or two
NODES = ("--local-nodes", "2", "--nproc-per-node", "2", "--spares", "2", "--spare-nodes", "1")
# How far counts of descriptors and threads may differ between two moments of a healthy process.
ROOM = 20


class Vandal:
    """Breaks a job at random, and remembers whom it broke."""

    def __init__(self, job: RunningJob, rng: random.Random) -> None:
        self._job = job
        self._rng = rng
        self.deaths = dict.fromkeys(range(4), 0)
        self.done: list[str] = []

    def break_something(self) -> None:
        """Do one fault; now and then a second one before the first is over."""
        kinds = [
            *[self._kill_rank] * 5,
            self._kill_two,
            self._stop_rank,
            *[self._inject] * 4,
            self._kill_manager,
            self._kill_proxy,
            self._kill_agent,
            self._lose_node,
        ]
        self._rng.choice(kinds)()
        if self._rng.random() < 0.2:
            time.sleep(self._rng.random() * 0.3)
            self._rng.choice([self._kill_rank, self._kill_manager, self._kill_proxy])()

    def _status(self) -> dict[str, Any]:
        def seen() -> dict[str, Any] | None:
            status = self._job.status()
            return status if len(status.get("ranks", [])) == 4 else None

        found: dict[str, Any] = eventually(seen, "a status with all ranks")
        return found

    def _kill(self, pid: int, sig: int = signal.SIGKILL) -> None:
        if pid > 1:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, sig)

    def _rank(self, sig: int) -> None:
        victim = self._rng.choice(self._status()["ranks"])
        self.deaths[victim["rank"]] += 1
        self._kill(victim["pid"], sig)

    def _kill_rank(self) -> None:
        self.done.append("kill a rank")
        self._rank(signal.SIGKILL)

    def _kill_two(self) -> None:
        self.done.append("kill two ranks")
        for victim in self._rng.sample(self._status()["ranks"], 2):
            self.deaths[victim["rank"]] += 1
            self._kill(victim["pid"])

    def _stop_rank(self) -> None:
        self.done.append("stop a rank")
        self._rank(signal.SIGSTOP)

    def _inject(self) -> None:
        kind = self._rng.choice(["raise", "uce", "network"])
        self.done.append(kind)
        self._job.cli("inject", kind, "--rank", str(self._rng.randrange(4)), check=False)

    def _kill_manager(self) -> None:
        self.done.append("kill the manager")
        self._kill(self._status()["manager_pid"])

    def _kill_proxy(self) -> None:
        self.done.append("kill a proxy")
        self._kill(self._rng.choice(self._status()["nodes"])["proxy_pid"])

    def _kill_agent(self) -> None:
        self.done.append("kill an agent")
        status = self._status()
        node = self._rng.choice(status["nodes"])
        self._count_node(status, node["node"])
        self._kill(node["agent_pid"])

    def _lose_node(self) -> None:
        self.done.append("lose a node")
        status = self._status()
        members = sorted({rank["node_rank"] for rank in status["ranks"]})
        node_rank = self._rng.choice(members)
        for rank in status["ranks"]:
            if rank["node_rank"] == node_rank:
                self.deaths[rank["rank"]] += 1
        self._job.cli("inject", "kill", "--node", str(node_rank), check=False)

    def _count_node(self, status: dict[str, Any], node: str) -> None:
        for rank in status["ranks"]:
            if rank["node"] == node:
                self.deaths[rank["rank"]] += 1


def sizes(pids: list[int]) -> dict[int, tuple[int, int]]:
    """Return how many descriptors and threads living processes have."""
    found: dict[int, tuple[int, int]] = {}
    for pid in pids:
        try:
            process = psutil.Process(pid)
            found[pid] = process.num_fds(), process.num_threads()
        except psutil.Error:
            continue
    return found


def test_a_long_run_under_random_faults_ends_with_the_same_bits(
    tmp_path: Path, reference: Callable[..., Run]
) -> None:
    """Steps only grow, none is lost or counts twice, and no descriptor, thread or shared memory is left."""
    expected = reference(steps=STEPS)
    rng = random.Random(SEED)
    at_first: dict[int, tuple[int, int]] = {}
    in_the_end: dict[int, tuple[int, int]] = {}
    vandals: list[Vandal] = []

    def faults(job: RunningJob) -> None:
        vandal = Vandal(job, rng)
        vandals.append(vandal)
        at = 5
        while len(vandal.done) < FAULTS and at < STEPS - 10:
            status = job.at_step(at)
            pids = [rank["pid"] for rank in status["ranks"]]
            seen_before = set(in_the_end)
            in_the_end.clear()
            in_the_end.update(sizes([job.process.pid, *pids]))
            for pid in seen_before & set(in_the_end):
                at_first.setdefault(pid, in_the_end[pid])  # not the first time: it may be just beginning
            vandal.break_something()
            at = max(rank["step"] for rank in status["ranks"]) + rng.randint(*CALM_STEPS)

    with start(tmp_path, "--pause", "0.1", steps=STEPS, nodes=NODES) as job:
        faults(job)
        (tmp_path / "hurry").touch()
        assert 0 == job.wait(60 + 2 * STEPS), job.err[-4000:]
    (vandal,) = vandals
    print(f"{len(vandal.done)} faults, {len(job.timeline())} incidents in {STEPS} steps")
    assert len(vandal.done) >= FAULTS, f"the run was over too soon: {vandal.done}"
    assert_same(expected, tmp_path, tuple(rank for rank in vandal.deaths for _ in range(vandal.deaths[rank])))
    restarts = [incident for incident in job.timeline() if incident["strategy"] == "restart"]
    assert [] == [(incident["what"], incident["reason"]) for incident in restarts]
    for pid in set(in_the_end) & set(at_first):
        fds, threads = in_the_end[pid]
        assert fds <= at_first[pid][0] + ROOM, (
            f"process {pid} has {fds} descriptors, {at_first[pid]} at first"
        )
        assert threads <= at_first[pid][1] + ROOM, f"process {pid} has {threads} threads"
    left = subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, text=True, check=False).stdout
    assert "" == left
