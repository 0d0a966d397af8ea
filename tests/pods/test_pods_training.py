"""A pod that trains is lost and created again, or switched: the others keep their processes, to the bit.

The jobs allow ``recover`` alone, as the guide of process-level rescheduling has it, or ``hotSwitch`` alone.
"""

from functools import partial
from pathlib import Path

import pytest

from taskd.core.launch import RECOVER
from tests.pods.test_pods import knows
from tests.pods.town import NEEDS, Pod, cpu_job, taskd_run, town
from tests.roles.harness import eventually
from tests.train.runs import A_PAIR, DDP, Run, assert_same, pids_of, read_run, start

pytestmark = [*NEEDS, pytest.mark.matrix]

STEPS = "30"
PATIENCE_S = 150.0  # torch is imported in each pod


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The same script on one machine without faults."""
    home = tmp_path_factory.mktemp("undisturbed")
    with start(home, steps=int(STEPS), nodes=A_PAIR) as job:
        assert 0 == job.wait(PATIENCE_S), job.err
    return read_run(home, world=2)


def committed(out: Path, rank: int) -> int:
    """Return how many steps a rank has told of."""
    ledger = out / f"ledger-{rank}.jsonl"
    return len(ledger.read_text().splitlines()) if ledger.exists() else 0


@pytest.mark.parametrize("victim", [1, 0], ids=["a-worker", "rank-0"])
def test_the_others_keep_their_processes(tmp_path: Path, undisturbed: Run, victim: int) -> None:
    """Killed while it trains and created again elsewhere: its rank gets the state from the other."""
    out = tmp_path / "out"
    out.mkdir()
    script = ("--spares", "1", DDP, "--out", str(out), "--steps", STEPS, "--pause", "0.2")
    with town(tmp_path, cpu_job(1, 1, RECOVER), *taskd_run(*script)) as place:
        pods = [place.start(0), place.start(1)]
        eventually(lambda: min(committed(out, 0), committed(out, 1)) >= 3, "three steps", PATIENCE_S)
        for pod in pods:
            eventually(partial(knows, pod, 2), "the roster of both")
        pods[victim].kill()
        before = committed(out, victim)
        if victim == 0:
            place.forget_leader()
        pods[victim] = place.start(victim, version=1)
        # Not by process ids: those of two pods may be the same.
        eventually(lambda: committed(out, victim) > before, "its next step", PATIENCE_S)
        (out / "hurry").touch()
        assert [0, 0] == [pod.wait(PATIENCE_S) for pod in pods], [pod.err for pod in place.pods]
        incident = pods[0].timeline()[-1]

    assert_same(undisturbed, out, (victim,))
    assert 1 == len(pids_of(out, 1 - victim))
    assert (RECOVER, "recovered") == (incident["strategy"], incident["outcome"])


def test_a_standby_pod_takes_over_while_the_old_one_trains(tmp_path: Path, undisturbed: Run) -> None:
    """``hotSwitch`` alone allows it: the rank moves between two steps, and the old pod may go."""
    out = tmp_path / "out"
    out.mkdir()
    script = (
        "--spares",
        "1",
        DDP,
        "--out",
        str(out),
        "--steps",
        STEPS,
        "--pause",
        "4",
    )  # it is prepared meanwhile
    job = cpu_job(1, 1, subHealthyStrategy="hotSwitch")
    with town(tmp_path, job, *taskd_run(*script)) as place:
        master, worker = place.start(0), place.start(1)
        eventually(lambda: committed(out, 1) >= 1, "a step", PATIENCE_S)
        standby = place.start(1, name="job-worker-0-hot-ab12cd")
        eventually(lambda: _connected(master) == 3, "the standby to join", PATIENCE_S)
        master.cli("switch", "u-1", "--node", "1")
        eventually(lambda: _switched(master), "its first step", PATIENCE_S)
        worker.kill()
        (out / "hurry").touch()
        assert [0, 0] == [pod.wait(PATIENCE_S) for pod in (master, standby)], master.err

    assert_same(undisturbed, out)
    assert 1 == len(pids_of(out, 0))
    assert _switched(master)


def _switched(pod: Pod) -> bool:
    return ["switched"] == [each["outcome"] for each in pod.timeline()[-1:]]


def _connected(pod: Pod) -> int:
    return sum(node["connected"] for node in pod.saved_status().get("nodes", ()))
