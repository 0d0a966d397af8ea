"""Hangs, memory errors and broken networks: found, named, and recovered from without a new bit."""

import contextlib
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.roles.harness import RunningJob, running
from tests.train.test_recovery import SCRIPT, STEPS, WORLD, assert_same, pids_of, read_run, train

pytestmark = pytest.mark.slow

Run = dict[int, tuple[dict[int, str], str]]
HANGING = ("--hang-floor", "2", "--hang-ceiling", "60")


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The same command without faults."""
    home = tmp_path_factory.mktemp("calm")
    train(home)
    return read_run(home)


def assert_recovered(calm: Run, job: RunningJob, *replaced: int) -> list[dict[str, Any]]:
    """See that only these ranks have another process, and that no bit differs; returns the incidents.

    A rank that gloo does not let out of a broken collective (its wait for a send is not woken, once in some
    hundred times on a busy machine) ends itself, is replaced too, and says so in an incident of its own.
    """
    incidents = job.timeline()
    stuck = [each for each in incidents if "did not come out of" in each["what"]]
    gone = [*replaced, *(each["rank"] for each in stuck)]
    assert_same(calm, job.home, tuple(each["rank"] for each in stuck))
    assert [1 + gone.count(rank) for rank in range(WORLD)] == [
        len(pids_of(job.home, rank)) for rank in range(WORLD)
    ]
    return [each for each in incidents if each not in stuck]


# --- hangs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("how", "rank"), [("sleep", 2), ("spin", 0)])
def test_a_rank_that_does_nothing_is_named_and_replaced(
    tmp_path: Path, calm: Run, how: str, rank: int
) -> None:
    """It sleeps, or spins, for ever: rank, time, call and stack are told; the bits are the same."""
    job = train(tmp_path, "--hang", f"{how}:{rank}:8", flags=HANGING)

    (incident,) = assert_recovered(calm, job, rank)
    assert ("hang", rank, "recover-in-place") == (incident["kind"], incident["rank"], incident["strategy"])
    assert f"rank {rank} (node 0" in incident["what"]
    assert "hangs: it did nothing for" in incident["what"]
    assert f"in step 8, in {how}_for_ever (ddp_job.py:" in incident["what"]
    assert f"in {how}_for_ever" in incident["stack"]
    kept = Path(incident["what"].split("stack in ")[1].split(";")[0])
    assert "training thread" in kept.read_text()
    assert f"in {how}_for_ever" in kept.read_text()
    assert incident["phases_ms"]["detect"] >= 2000.0


def test_a_hang_is_found_across_nodes(tmp_path: Path, calm: Run) -> None:
    """One rank of another node hangs, so no node alone can tell; the manager compares them all."""
    flags = ("--nproc-per-node", "2", "--local-nodes", "2", "--spares", "1", *HANGING)
    with running(
        tmp_path, *flags, *(SCRIPT, "--out", str(tmp_path), "--steps", str(STEPS), "--hang", "sleep:3:8")
    ) as job:
        assert 0 == job.wait(90), job.err

    (incident,) = assert_recovered(calm, job, 3)
    assert ("hang", 3) == (incident["kind"], incident["rank"])


def test_all_ranks_in_a_collective_are_tried_again(tmp_path: Path, calm: Run) -> None:
    """Nobody is behind: the collective has failed, and the same processes repeat the step."""
    job = train(tmp_path, "--hang", "recv:-1:8", flags=HANGING)

    (incident,) = assert_recovered(calm, job)
    assert ("network", "retry") == (incident["kind"], incident["strategy"])
    assert f"all {WORLD} ranks wait in a collective of step 8" in incident["what"]
    assert "wait_for_nothing" in incident["stack"]


def test_a_stopped_rank_is_described_by_what_the_kernel_says(tmp_path: Path, calm: Run) -> None:
    """It cannot speak for itself; once it is replaced, continuing it has no effect."""
    with running(
        tmp_path,
        *("--nproc-per-node", str(WORLD), "--spares", "2"),
        *(SCRIPT, "--out", str(tmp_path), "--steps", str(STEPS), "--pause", "0.1"),
    ) as job:
        pid = job.at_step(5)["ranks"][3]["pid"]
        os.kill(pid, signal.SIGSTOP)
        job.past_generation(1)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        assert 0 == job.wait(90), job.err

    assert_same(calm, tmp_path, (3,))
    (incident,) = job.timeline()
    assert "was stopped for" in incident["what"]
    assert "by a signal" in incident["what"]
    assert "stopped by a signal" in incident["stack"]


def test_a_rank_whose_interpreter_is_locked_is_named(tmp_path: Path, calm: Run) -> None:
    """It cannot answer while all others can: that is an answer too."""
    job = train(tmp_path, "--hang", "lock:1:8", flags=HANGING)

    (incident,) = assert_recovered(calm, job, 1)
    assert ("hang", 1) == (incident["kind"], incident["rank"])
    assert "its process does not answer" in incident["what"]
    assert "thread" in incident["stack"]


def test_a_rank_that_does_not_come_out_to_recover_is_named(tmp_path: Path, calm: Run) -> None:
    """One rank dies while another one hangs: the second cannot be interrupted, ends itself and says where."""
    job = train(tmp_path, "--die", "before:1:8", "--hang", "sleep:2:8")

    assert_recovered(calm, job, 1)
    (told,) = (each for each in job.timeline() if each["rank"] == 2)
    assert "did not come out of sleep_for_ever (ddp_job.py:" in told["what"]
    assert "in sleep_for_ever" in told["stack"]


def test_a_hang_that_comes_back_ends_the_job(tmp_path: Path) -> None:
    """The same rank, step and call three times is the program's own."""
    with running(
        tmp_path,
        *("--nproc-per-node", "2", "--spares", "1", "--hang-floor", "1"),
        *(SCRIPT, "--out", str(tmp_path), "--steps", str(STEPS), "--hang", "sleep:1:5", "--hang-again"),
    ) as job:
        assert 137 == job.wait(90), job.err

    assert "3 times in a row" in job.err
    assert ["recover-in-place", "recover-in-place", "dump", "exit"] == [
        each["strategy"] for each in job.timeline()
    ]


def test_a_checkpoint_between_two_steps_is_no_hang(tmp_path: Path, calm: Run) -> None:
    """Rank 0 saves for many times as long as a step may take, and the others wait for it in the next one."""
    job = train(tmp_path, "--save", "9:6", flags=("--hang-floor", "1"))

    assert calm == read_run(tmp_path)
    assert [] == job.timeline()


# --- memory errors and the network -------------------------------------------------------------------------


def schedule(home: Path, *faults: dict[str, object]) -> tuple[str, str]:
    """Write a schedule; returns the flags that use it."""
    file = home / "faults.jsonl"
    file.write_text("".join(json.dumps(fault) + "\n" for fault in faults))
    return "--faults", str(file)


@pytest.mark.parametrize("ranks", [(2,), (0,), (1, 3)])
def test_damaged_memory_is_repaired_from_a_replica(tmp_path: Path, calm: Run, ranks: tuple[int, ...]) -> None:
    """uce: tensors are really overwritten; the processes stay, and the bits are the same."""
    faults = [{"step": 8, "rank": rank, "kind": "uce"} for rank in ranks]
    job = train(tmp_path, flags=schedule(tmp_path, *faults))

    incident = assert_recovered(calm, job)[0]
    assert ("uce", "retry") == (incident["kind"], incident["strategy"])
    assert "and state optimizer.exp_avg overwritten" in incident["what"]
    assert "recovered" == job.timeline()[-1]["outcome"]


@pytest.mark.parametrize("rank", [0, 3])
def test_a_broken_network_is_made_anew(tmp_path: Path, calm: Run, rank: int) -> None:
    """network: connections break without a death; the processes stay, the bits are the same."""
    job = train(tmp_path, flags=schedule(tmp_path, {"step": 8, "rank": rank, "kind": "network"}))

    (incident,) = assert_recovered(calm, job)
    assert ("network", "retry") == (incident["kind"], incident["strategy"])


@pytest.mark.parametrize("kind", ["uce", "network", "raise"])
def test_injected_from_the_command_line(tmp_path: Path, calm: Run, kind: str) -> None:
    """``taskd inject`` does the same to a running job."""
    with running(
        tmp_path,
        *("--nproc-per-node", str(WORLD), "--spares", "2"),
        *(SCRIPT, "--out", str(tmp_path), "--steps", str(STEPS), "--pause", "0.15"),
    ) as job:
        job.at_step(3)
        assert "rank 2 is armed" in job.cli("inject", kind, "job", "--rank", "2").stdout
        assert 0 == job.wait(90), job.err

    incidents = assert_recovered(calm, job)
    assert ["step" if kind == "raise" else kind] == [each["kind"] for each in incidents]


def test_s3_13_memory_errors_by_the_reference_s_variable(tmp_path: Path, calm: Run) -> None:
    """RAISE_UCE_ERROR_STEP_AND_RANK="{5:1,11:0}": at step 5 rank 1, at step 11 rank 0."""
    with running(
        tmp_path,
        *("--nproc-per-node", str(WORLD), "--spares", "2"),
        *(SCRIPT, "--out", str(tmp_path), "--steps", str(STEPS)),
        env={"RAISE_UCE_ERROR_STEP_AND_RANK": "{5:1,11:0}"},
    ) as job:
        assert 0 == job.wait(90), job.err

    incidents = assert_recovered(calm, job)
    assert [("uce", 1), ("uce", 0)] == [(each["kind"], each["rank"]) for each in incidents]


def test_memory_that_nobody_registered_cannot_be_damaged(tmp_path: Path) -> None:
    """The command says why not, and nothing happens to the job."""
    script = tmp_path / "plain.py"
    script.write_text(
        "import time\nfrom taskd import train\njob = train.join()\n"
        "for _ in job.steps(lambda step: time.sleep(0.05), until=100): pass\n"
    )
    with running(tmp_path, "--nproc-per-node", "1", str(script)) as job:
        job.at_step(2)
        refused = job.cli("inject", "uce", "job", "--rank", "0", check=False)
        assert 1 == refused.returncode
        assert "it has registered no state that could be damaged" in refused.stderr
        assert 0 == job.wait(60), job.err
    assert [] == job.timeline()


# --- what workers get from the environment -----------------------------------------------------------------

SHOW = """
import json, os, sys
import torch
from taskd import train
job = train.join()
if sys.argv[1] == "keeps":
    job.wrap(lambda: torch.nn.Linear(2, 2))
names = ["HCCL_OP_RETRY_ENABLE", "HCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ASYNC_ERROR_HANDLING"]
print(json.dumps([os.environ.get(name) for name in names]))
"""


def shown(home: Path, script: str, *flags: str, env: dict[str, str]) -> list[str | None]:
    """Run a script that prints its variables."""
    file = home / "show.py"
    file.write_text(SHOW)
    with running(home, *flags, str(file), script, env=env) as job:
        assert 0 == job.wait(60), job.err
    values: list[str | None] = json.loads(job.out.splitlines()[-1])
    return values


@pytest.mark.parametrize(
    ("script", "flags", "env", "expected"),
    [
        ("keeps", (), {}, [None, "0", "0"]),
        ("joins", (), {}, [None, None, "1"]),
        ("keeps", ("--recover-strategy", "exit"), {}, [None, None, "1"]),
        (
            "keeps",
            (),
            {"HCCL_OP_RETRY_ENABLE": "L0:0, L1:1, L2:1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"},
            ["L0:0, L1:1, L2:1", "0", "3"],
        ),
        ("keeps", (), {"HCCL_ASYNC_ERROR_HANDLING": "2"}, [None, "2", "0"]),
    ],
)
def test_s3_9_s3_10_what_the_collective_library_is_told(
    tmp_path: Path, script: str, flags: tuple[str, ...], env: dict[str, str], expected: list[str | None]
) -> None:
    """The operator retry is passed on; watchdogs are off where the process is to live, unless the user spoke.

    A script that keeps no state for a recovery has torchrun's setting.
    """
    assert expected == shown(tmp_path, script, *flags, env=env)


def test_s3_12_a_wrong_operator_retry_ends_the_launch(tmp_path: Path) -> None:
    """Before anything starts, with the variable's name."""
    script = tmp_path / "script.py"
    script.touch()
    with running(tmp_path, str(script), env={"HCCL_OP_RETRY_ENABLE": "L1:yes"}) as job:
        assert 2 == job.wait(60)
    assert "HCCL_OP_RETRY_ENABLE=L1:yes in the environment" in job.err
