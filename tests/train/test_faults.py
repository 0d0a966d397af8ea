"""Hangs, memory errors and broken networks: found, named, and recovered from without a new bit."""

import contextlib
import json
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.roles.harness import RunningJob, eventually, running
from tests.train.runs import (
    MANY_STEPS,
    TWO_NODES,
    WORLD,
    Run,
    assert_same,
    count_processes,
    finish,
    read_run,
    start,
    train,
    write_faults,
)

pytestmark = pytest.mark.slow

HANGING = ("--hang-floor", "2", "--hang-ceiling", "60")


def assert_recovered(undisturbed: Run, job: RunningJob, *replaced: int) -> list[dict[str, Any]]:
    """See that only these ranks have another process, and that no bit differs; returns the incidents."""
    assert_same(undisturbed, job.home)
    assert [1 + replaced.count(rank) for rank in range(WORLD)] == count_processes(job.home)
    return job.timeline()


# --- hangs -------------------------------------------------------------------------------------------------


def test_a_rank_that_does_nothing_is_named_and_replaced(tmp_path: Path, undisturbed: Run) -> None:
    """One sleeps for ever, later one spins: rank, time, call and stack are told; the bits are the same."""
    hanging = {2: "sleep", 0: "spin"}
    plans = ("--hang", "sleep:2:6", "--hang", "spin:0:12")
    job = train(tmp_path, *plans, flags=HANGING)

    incidents = assert_recovered(undisturbed, job, *hanging)
    assert list(hanging) == [incident["rank"] for incident in incidents]
    for incident, step in zip(incidents, (6, 12), strict=True):
        rank = incident["rank"]
        call = f"{hanging[rank]}_for_ever"
        assert ("hang", "recover-in-place") == (incident["kind"], incident["strategy"])
        assert f"rank {rank} (node 0" in incident["what"]
        assert "hangs: it did nothing for" in incident["what"]
        assert f"in step {step}, in {call} (ddp_job.py:" in incident["what"]
        assert f"in {call}" in incident["stack"]
        kept = Path(incident["what"].split("stack in ")[1].split(";")[0])
        assert "training thread" in kept.read_text()
        assert f"in {call}" in kept.read_text()
        assert incident["phases_ms"]["detect"] >= 2000.0


def test_a_hang_is_found_across_nodes(tmp_path: Path, undisturbed: Run) -> None:
    """One rank of another node hangs, so no node alone can tell; the manager compares them all."""
    job = train(tmp_path, "--hang", "sleep:3:8", nodes=TWO_NODES, flags=HANGING)

    (incident,) = assert_recovered(undisturbed, job, 3)
    assert ("hang", 3) == (incident["kind"], incident["rank"])


def test_all_ranks_in_a_collective_are_tried_again(tmp_path: Path, undisturbed: Run) -> None:
    """Nobody is behind: the collective has failed, and the same processes repeat the step."""
    job = train(tmp_path, "--hang", "recv:-1:8", flags=HANGING)

    (incident,) = assert_recovered(undisturbed, job)
    assert ("network", "retry") == (incident["kind"], incident["strategy"])
    assert f"all {WORLD} ranks wait in a collective of step 8" in incident["what"]
    assert "wait_for_nothing" in incident["stack"]


def test_a_stopped_rank_is_described_by_what_the_kernel_says(tmp_path: Path, undisturbed: Run) -> None:
    """It cannot speak for itself; once it is replaced, continuing it has no effect."""
    with start(tmp_path, "--pause", "0.1") as job:
        pid = job.at_step(5)["ranks"][3]["pid"]
        os.kill(pid, signal.SIGSTOP)
        job.past_generation(1)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        finish(job)

    assert_same(undisturbed, tmp_path, (3,))
    (incident,) = job.timeline()
    assert "was stopped for" in incident["what"]
    assert "by a signal" in incident["what"]
    assert "stopped by a signal" in incident["stack"]


def test_a_rank_whose_interpreter_is_locked_is_named(tmp_path: Path, undisturbed: Run) -> None:
    """It cannot answer while all others can: that is an answer too."""
    job = train(tmp_path, "--hang", "lock:1:8", flags=HANGING)

    (incident,) = assert_recovered(undisturbed, job, 1)
    assert ("hang", 1) == (incident["kind"], incident["rank"])
    assert "its process does not answer" in incident["what"]
    assert "thread" in incident["stack"]


def test_a_rank_that_does_not_come_out_to_recover_is_named(tmp_path: Path, undisturbed: Run) -> None:
    """One rank dies while another one hangs: the second cannot be interrupted, ends itself and says where."""
    job = train(tmp_path, "--die", "before:1:8", "--hang", "sleep:2:8")

    assert_recovered(undisturbed, job, 1, 2)
    (told,) = (each for each in job.timeline() if each["rank"] == 2)
    assert "did not come out of sleep_for_ever (ddp_job.py:" in told["what"]
    assert "in sleep_for_ever" in told["stack"]


def test_a_hang_that_comes_back_ends_the_job(tmp_path: Path) -> None:
    """The same rank, step and call three times is the program's own."""
    two = ("--nproc-per-node", "2", "--spares", "1")
    hanging = ("--hang", "sleep:1:5", "--hang-again")
    with start(tmp_path, *hanging, nodes=two, flags=("--hang-floor", "1")) as job:
        assert 137 == job.wait(90), job.err

    assert "3 times in a row" in job.err
    assert ["recover-in-place", "recover-in-place", "dump", "exit"] == [
        each["strategy"] for each in job.timeline()
    ]


def test_a_checkpoint_between_two_steps_is_no_hang(tmp_path: Path, undisturbed: Run) -> None:
    """Rank 0 saves for many times as long as a step may take, and the others wait for it in the next one."""
    job = train(tmp_path, "--save", "9:6", flags=("--hang-floor", "1"))

    assert undisturbed == read_run(tmp_path)
    assert [] == job.timeline()


# --- memory errors and the network -------------------------------------------------------------------------


def test_damaged_memory_is_repaired_from_a_replica(tmp_path: Path, undisturbed: Run) -> None:
    """uce, of one rank, of the first one, of two at once: tensors are really overwritten.

    The processes stay, and the bits are the same.
    """
    damaged = [(5, 2), (9, 0), (13, 1), (13, 3)]
    faults = [{"step": step, "rank": rank, "kind": "uce"} for step, rank in damaged]
    job = train(tmp_path, flags=write_faults(tmp_path, *faults))

    incidents = assert_recovered(undisturbed, job)
    assert [(5, 2), (9, 0)] == [(each["step"], each["rank"]) for each in incidents[:2]]
    assert {("uce", "retry")} == {(each["kind"], each["strategy"]) for each in incidents[:3]}
    assert {1, 3} >= {each["rank"] for each in incidents[2:]}
    assert [["rank 2 gets its state from rank 0"], ["rank 0 gets its state from rank 1"]] == [
        each["notes"] for each in incidents[:2]
    ]
    for incident in incidents[:3]:
        assert "and state optimizer.exp_avg overwritten" in incident["what"]
    assert "recovered" == job.timeline()[-1]["outcome"]


def test_with_the_first_replica_damaged_too_the_next_one_is_used_and_named(
    tmp_path: Path, undisturbed: Run
) -> None:
    """A uce of rank 2; rank 0, the first that has the same state, has lost a bit and does not know it."""
    faults = write_faults(tmp_path, {"step": 8, "rank": 2, "kind": "uce"})
    job = train(tmp_path, "--corrupt", "0:8", flags=faults)

    (incident,) = assert_recovered(undisturbed, job)
    assert ("uce", "retry", 2) == (incident["kind"], incident["strategy"], incident["rank"])
    assert [
        "the state of rank 0 differed from its replicas' and was replaced",
        "ranks 0, 2 get their state from rank 1",
    ] == incident["notes"]


def test_a_broken_network_is_made_anew(tmp_path: Path, undisturbed: Run) -> None:
    """network: connections break without a death; the processes stay, the bits are the same."""
    faults = [{"step": step, "rank": rank, "kind": "network"} for step, rank in ((6, 0), (12, 3))]
    job = train(tmp_path, flags=write_faults(tmp_path, *faults))

    incidents = assert_recovered(undisturbed, job)
    assert [("network", "retry")] * 2 == [(each["kind"], each["strategy"]) for each in incidents]


def test_injected_from_the_command_line(tmp_path: Path, reference: Callable[..., Run]) -> None:
    """``taskd inject`` does the same to a running job."""
    kinds = {"uce": "uce", "network": "network", "raise": "step"}
    with start(tmp_path, "--pause", "0.3", steps=MANY_STEPS) as job:
        job.at_step(2)
        for count, kind in enumerate(kinds, 1):
            assert "rank 2 is armed" in job.cli("inject", kind, "job", "--rank", "2").stdout
            eventually(partial(has_recovered, job, count), f"the recovery from {kind}")
        finish(job)

    incidents = assert_recovered(reference(steps=MANY_STEPS), job)
    assert list(kinds.values()) == [each["kind"] for each in incidents]


def has_recovered(job: RunningJob, count: int) -> bool:
    """Tell whether so many incidents are over."""
    outcomes = [each["outcome"] for each in job.timeline()]
    return len(outcomes) >= count and "recovered" == outcomes[-1]


def test_s3_13_memory_errors_by_the_reference_s_variable(tmp_path: Path, undisturbed: Run) -> None:
    """RAISE_UCE_ERROR_STEP_AND_RANK="{5:1,11:0}": at step 5 rank 1, at step 11 rank 0."""
    job = train(tmp_path, env={"RAISE_UCE_ERROR_STEP_AND_RANK": "{5:1,11:0}"})

    incidents = assert_recovered(undisturbed, job)
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
