"""Real runs of four ranks, what they wrote down, and what a fault may change of it.

A run's cost is its start, some eight seconds of processor time, so undisturbed runs are shared by all tests
(``reference`` in conftest), and a run whose fault is over is told to hurry.
"""

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.roles.harness import RunningJob, running

HERE = Path(__file__).parent
DDP = str(HERE / "ddp_job.py")
TOPOLOGY = str(HERE / "topology_job.py")
USAGE = str(HERE / "usage_job.py")
KINDS = str(HERE / "kinds_job.py")

WORLD = 4
STEPS = 20
MANY_STEPS = 60  # where commands are given one after the other while it trains
# Where in a step a rank may be killed when the step counts already; before that nobody may miss a line of it.
COUNTED = {"vote", "in-vote", "voted", "inside", "updated", "after"}
ONE_NODE = ("--nproc-per-node", "4", "--spares", "2")
A_PAIR = ("--nproc-per-node", "2", "--spares", "1")
TWO_NODES = ("--local-nodes", "2", "--nproc-per-node", "2", "--spares", "1")

# The losses and the digest at the end, of each rank.
Run = dict[int, tuple[dict[int, str], str]]


@contextmanager
def start(
    home: Path,
    *script_args: str,
    script: str = DDP,
    steps: int = STEPS,
    flags: tuple[str, ...] = (),
    nodes: tuple[str, ...] = ONE_NODE,
    env: dict[str, str] | None = None,
) -> Iterator[RunningJob]:
    """Start a script that keeps a ledger in ``home``, and kill whoever comes to its end there."""
    home.mkdir(exist_ok=True)
    words = (script, "--out", str(home), "--steps", str(steps), *script_args)
    over = threading.Event()
    executioner = threading.Thread(target=kill_the_doomed, args=(home, over))
    executioner.start()
    try:
        with running(home, *nodes, *flags, *words, env=env) as job:
            yield job
    finally:
        over.set()
        executioner.join()


def kill_the_doomed(home: Path, over: threading.Event) -> None:
    """Kill each process that marks the place at which it is to die."""
    while not over.wait(0.003):
        for mark in home.glob("doomed-*"):
            os.kill(int(mark.name.partition("-")[2]), signal.SIGKILL)
            mark.unlink()


def finish(job: RunningJob) -> None:
    """Let the rest of a run that pauses in each step go quickly, and see that it ends well."""
    (job.home / "hurry").touch()
    assert 0 == job.wait(90), job.err[-8000:]


def train(
    home: Path,
    *script_args: str,
    script: str = DDP,
    steps: int = STEPS,
    flags: tuple[str, ...] = (),
    nodes: tuple[str, ...] = ONE_NODE,
    env: dict[str, str] | None = None,
) -> RunningJob:
    """Run a script to its end."""
    with start(home, *script_args, script=script, steps=steps, flags=flags, nodes=nodes, env=env) as job:
        assert 0 == job.wait(90 + steps / 10), job.err[-8000:]
    return job


def write_faults(home: Path, *faults: dict[str, object]) -> tuple[str, str]:
    """Write a schedule of faults; returns the flags that use it."""
    file = home / "faults.jsonl"
    file.write_text("".join(json.dumps(fault) + "\n" for fault in faults))
    return "--faults", str(file)


def read_ledger(home: Path, rank: int) -> dict[int, str]:
    """Return the loss of each step; one that counts twice, or after a later one, fails here."""
    losses: dict[int, str] = {}
    last = -1
    for line in (home / f"ledger-{rank}.jsonl").read_text().splitlines():
        entry = json.loads(line)
        assert last < entry["step"], f"rank {rank}: step {entry['step']} after {last}"
        last = entry["step"]
        losses[last] = entry["loss"]
    return losses


def read_run(home: Path, world: int = WORLD) -> Run:
    """Return what every rank has computed."""
    return {
        rank: (read_ledger(home, rank), (home / f"digest-{rank}.txt").read_text()) for rank in range(world)
    }


def assert_same(expected: Run, home: Path, killed: tuple[int, ...] = ()) -> None:
    """Compare a run with the undisturbed one.

    Once every rank has voted a step counts; a rank that is killed then takes its own result of it along. So a
    killed rank may miss one line a death, and nobody else any.
    """
    for rank, (losses, digest) in read_run(home, len(expected)).items():
        wanted, end = expected[rank]
        missing = set(wanted) - set(losses)
        assert len(missing) <= killed.count(rank), f"rank {rank} lost {sorted(missing)}"
        assert {step: loss for step, loss in wanted.items() if step not in missing} == losses
        assert end == digest


def pids_of(home: Path, rank: int) -> list[int]:
    """Return the processes that a rank had, in their order."""
    lines = (home / f"ledger-{rank}.jsonl").read_text().splitlines()
    return list(dict.fromkeys(json.loads(line)["pid"] for line in lines))


def count_processes(home: Path) -> list[int]:
    """Return how many processes each rank had."""
    return [len(pids_of(home, rank)) for rank in range(WORLD)]


def read_logs(home: Path) -> str:
    """Return what all ranks said on stderr."""
    return "".join(path.read_text() for path in home.rglob("stderr.log"))
