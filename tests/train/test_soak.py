"""A long run under random faults of all kinds: nothing is lost, nothing counts twice, nothing leaks.

How many incidents there are can only be bounded from below: faults that come close together join one, and
a rank that cannot be called back from a collective ends itself, which is one more.

``make soak`` runs the long form (TASKD_SOAK is how many faults, TASKD_SEED which ones); the short form is in
``make test``.
"""

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.roles.harness import RunningJob, eventually, job_files
from tests.train.runs import Run, assert_same, start

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]

FAULTS = int(os.environ.get("TASKD_SOAK", "6"))
SEED = int(os.environ.get("TASKD_SEED", "1"))
CALM_STEPS = (4, 9)  # between a fault and the next one: every rank has gone on by then
STEPS = 40 + FAULTS * 35  # a fault and the calm after it take some seconds, on a busy machine
NODES = ("--local-nodes", "2", "--nproc-per-node", "2", "--spares", "2", "--spare-nodes", "1")
# How far counts of descriptors and threads may differ between two moments of a healthy process.
ROOM = 20


# Roles are replaced beside the training, which does not stop for them.
UNSEEN = {"kill the manager", "kill a proxy", "kill a spare node's agent"}
FIRED_S = 10.0  # an armed rank does its fault when its next step begins


class Vandal:
    """Breaks a job at random, and remembers what took place and whom it broke."""

    def __init__(self, job: RunningJob, rng: random.Random) -> None:
        self._job = job
        self._rng = rng
        self.deaths = dict.fromkeys(range(4), 0)
        self.done: list[str] = []
        self.refused: list[str] = []
        self.answers = 0  # how many times something was broken that an incident must tell of

    def break_something(self) -> None:
        """Do one fault; now and then a second one before the first is over."""
        kinds = [
            *[self._kill_rank] * 5,
            self._kill_two,
            self._stop_rank,
            *[self._inject] * 5,
            self._switch_rank,
            self._kill_manager,
            self._kill_proxy,
            self._kill_agent,
            self._lose_node,
        ]
        before = len(self.done)
        self._rng.choice(kinds)()
        if self._rng.random() < 0.2:
            time.sleep(self._rng.random() * 0.3)
            self._rng.choice([self._kill_rank, self._kill_manager, self._kill_proxy])()
        broken = set(self.done[before:])
        # A manager that dies with the rank may take what it had heard along.
        self.answers += bool(broken - UNSEEN) and "kill the manager" not in broken

    def _status(self) -> dict[str, Any]:
        def seen() -> dict[str, Any] | None:
            status = self._job.status()
            return status if len(status.get("ranks", [])) == 4 else None

        found: dict[str, Any] = eventually(seen, "a status with all ranks")
        return found

    def _note(self, what: str, *, took_place: bool) -> bool:
        """Count a fault if it took place."""
        (self.done if took_place else self.refused).append(what)
        return took_place

    def _send(self, pid: int, sig: int = signal.SIGKILL) -> bool:
        """Send a signal; False if there is no such process, as while it is being replaced."""
        if pid <= 1:
            return False
        try:
            os.kill(pid, sig)
        except ProcessLookupError:
            return False
        return True

    def _hit(self, what: str, count: int = 1, sig: int = signal.SIGKILL) -> None:
        victims = self._rng.sample(self._status()["ranks"], count)
        hit = [victim["rank"] for victim in victims if self._send(victim["pid"], sig)]
        self._note(what, took_place=bool(hit))
        self._count(hit)

    def _kill_rank(self) -> None:
        self._hit("kill a rank")

    def _kill_two(self) -> None:
        self._hit("kill two ranks", 2)

    def _stop_rank(self) -> None:
        self._hit("stop a rank", 1, signal.SIGSTOP)

    def _inject(self) -> None:
        """Arm a rank, and see whether it does what it was told: it may die of something else before."""
        kind = self._rng.choice(["raise", "uce", "network", "exit"])
        code = ("--code", "7") if kind == "exit" else ()
        told = self._job.cli("inject", kind, "--rank", str(self._rng.randrange(4)), *code, check=False)
        order = told.stdout.partition(":")[0]
        self._note(kind, took_place=told.returncode == 0 and self._fired(order))

    def _fired(self, order: str) -> bool:
        mark = self._job.directory / "fired" / order.replace("/", "-")
        deadline = time.monotonic() + FIRED_S
        while not mark.exists():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True

    def _switch_rank(self) -> None:
        """Move a rank, and wait until it is moved."""
        told = self._job.cli("switch", "job", "--rank", str(self._rng.randrange(4)), check=False)
        self._note("switch", took_place="moved to" in told.stdout)

    def _kill_manager(self) -> None:
        self._note("kill the manager", took_place=self._send(self._status()["manager_pid"]))

    def _kill_proxy(self) -> None:
        node = self._rng.choice(self._status()["nodes"])
        self._note("kill a proxy", took_place=self._send(node["proxy_pid"]))

    def _kill_agent(self) -> None:
        status = self._status()
        node = self._rng.choice(status["nodes"])
        ranks = [rank["rank"] for rank in status["ranks"] if rank["node"] == node["node"]]
        what = "kill an agent" if ranks else "kill a spare node's agent"
        if self._note(what, took_place=self._send(node["agent_pid"])):
            self._count(ranks)

    def _lose_node(self) -> None:
        ranks = self._status()["ranks"]
        node_rank = self._rng.choice(sorted({rank["node_rank"] for rank in ranks}))
        told = self._job.cli("inject", "kill", "--node", str(node_rank), check=False)
        if self._note("lose a node", took_place=told.returncode == 0):
            self._count(rank["rank"] for rank in ranks if rank["node_rank"] == node_rank)

    def _count(self, ranks: Iterable[int]) -> None:
        for rank in ranks:
            self.deaths[rank] += 1


def furthest(home: Path) -> int:
    """Return the highest step that any rank was told of."""
    lines = [path.read_text().splitlines()[-1] for path in home.glob("ledger-*")]
    return max(int(json.loads(line)["step"]) for line in lines)


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
            # Counted from here on, so that the next round meets a job that has answered this one.
            at = furthest(tmp_path) + rng.randint(*CALM_STEPS)

    with start(tmp_path, "--pause", "0.2", steps=STEPS, nodes=NODES) as job:
        faults(job)
        (tmp_path / "hurry").touch()
        assert 0 == job.wait(60 + 2 * STEPS), job.err[-4000:]
    (vandal,) = vandals
    incidents = job.timeline()
    print(f"{len(vandal.done)} faults ({len(vandal.refused)} more did not take place), ", end="")
    print(f"{len(incidents)} incidents, at least {vandal.answers} expected, in {STEPS} steps")
    assert len(vandal.done) >= FAULTS, f"the run was over too soon: {vandal.done}, not {vandal.refused}"
    assert_same(expected, tmp_path, tuple(rank for rank in vandal.deaths for _ in range(vandal.deaths[rank])))
    restarts = [incident for incident in incidents if incident["strategy"] == "restart"]
    assert [] == [(incident["what"], incident["reason"]) for incident in restarts]
    assert vandal.answers <= len(incidents), f"{vandal.done}: {[each['what'] for each in incidents]}"
    assert vandal.done.count("switch") == [each["outcome"] for each in incidents].count("switched")
    for pid in set(in_the_end) & set(at_first):
        fds, threads = in_the_end[pid]
        assert fds <= at_first[pid][0] + ROOM, (
            f"process {pid} has {fds} descriptors, {at_first[pid]} at first"
        )
        assert threads <= at_first[pid][1] + ROOM, f"process {pid} has {threads} threads"
    left = subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, text=True, check=False).stdout
    assert "" == left
    assert [] == job_files(job)
