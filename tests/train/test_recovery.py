"""A killed rank is replaced from memory: no step is lost, and the run ends with the same bits."""

import json
import os
import signal
from pathlib import Path

import pytest

from tests.roles.harness import RunningJob, eventually, running

pytestmark = pytest.mark.slow

SCRIPT = str(Path(__file__).with_name("ddp_job.py"))
STEPS = 20
WORLD = 4

# All of it with TASKD_MATRIX=1 (make matrix); a sample otherwise.
POINTS = ["before", "forward", "backward", "vote", "in-vote", "voted", "updated", "after"]
SAMPLE = [
    ("before", 0),
    ("backward", 1),
    ("vote", 3),
    ("in-vote", 2),
    ("voted", 0),
    ("updated", 2),
    ("after", 1),
]
MATRIX = [(point, rank) for point in POINTS for rank in range(WORLD)]
CASES = MATRIX if os.environ.get("TASKD_MATRIX") else SAMPLE


def train(home: Path, *script_args: str, flags: tuple[str, ...] = ()) -> RunningJob:
    """Run the job to its end."""
    home.mkdir(exist_ok=True)
    with running(
        home,
        *("--nproc-per-node", str(WORLD), "--spares", "2", *flags),
        *(SCRIPT, "--out", str(home), "--steps", str(STEPS), *script_args),
    ) as job:
        assert 0 == job.wait(90), job.err
    return job


def read_run(home: Path) -> dict[int, tuple[dict[int, str], str]]:
    """Return the losses and the digest of each rank; a step that counts twice fails here."""
    run = {}
    for rank in range(WORLD):
        losses: dict[int, str] = {}
        for line in (home / f"ledger-{rank}.jsonl").read_text().splitlines():
            entry = json.loads(line)
            assert entry["step"] not in losses, f"rank {rank} did step {entry['step']} twice"
            losses[entry["step"]] = entry["loss"]
        run[rank] = (losses, (home / f"digest-{rank}.txt").read_text())
    return run


def assert_same(expected: dict[int, tuple[dict[int, str], str]], home: Path, killed: tuple[int, ...]) -> None:
    """Compare a run with the undisturbed one.

    Once every rank has voted a step counts; a rank that is killed then takes its own result of it along. So a
    killed rank may miss one line a death, and nobody else any.
    """
    for rank, (losses, digest) in read_run(home).items():
        wanted, end = expected[rank]
        missing = set(wanted) - set(losses)
        assert len(missing) <= killed.count(rank), f"rank {rank} lost {missing}"
        assert {step: loss for step, loss in wanted.items() if step not in missing} == losses
        assert end == digest


def pids_of(home: Path, rank: int) -> list[int]:
    """Return the processes that a rank had, in their order."""
    lines = (home / f"ledger-{rank}.jsonl").read_text().splitlines()
    return list(dict.fromkeys(json.loads(line)["pid"] for line in lines))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, tuple[dict[int, str], str]]:
    """The same command without faults."""
    home = tmp_path_factory.mktemp("undisturbed")
    train(home)
    run = read_run(home)
    assert {STEPS} == {len(losses) for losses, _ in run.values()}
    return run


@pytest.mark.parametrize(("point", "rank"), CASES)
def test_a_kill_at_any_point_of_a_step_costs_no_bit(
    tmp_path: Path, undisturbed: dict[int, tuple[dict[int, str], str]], point: str, rank: int
) -> None:
    """Losses and parameters equal the undisturbed run's; only the killed rank has another process."""
    job = train(tmp_path, "--die", f"{point}:{rank}:8")

    counted = point in ("vote", "in-vote", "voted", "updated", "after")
    assert_same(undisturbed, tmp_path, (rank,) if counted else ())
    assert [2 if each == rank else 1 for each in range(WORLD)] == [
        len(pids_of(tmp_path, each)) for each in range(WORLD)
    ]
    (incident,) = job.timeline()
    assert ("recover-in-place", "recovered") == (incident["strategy"], incident["outcome"])


def test_two_ranks_at_once_and_one_later(
    tmp_path: Path, undisturbed: dict[int, tuple[dict[int, str], str]]
) -> None:
    """Two deaths in the same step, rank 0 among them, then another one."""
    train(tmp_path, *("--die", "before:0:6"), *("--die", "before:2:6"), *("--die", "backward:3:13"))

    assert_same(undisturbed, tmp_path, ())
    assert [2, 1, 2, 2] == [len(pids_of(tmp_path, rank)) for rank in range(WORLD)]


@pytest.mark.parametrize("role", ["manager", "proxy"])
def test_a_role_dies_with_a_rank(
    tmp_path: Path, undisturbed: dict[int, tuple[dict[int, str], str]], role: str
) -> None:
    """The manager or the proxy is gone when the rank dies: its successor recovers the rank."""
    with running(
        tmp_path,
        *("--nproc-per-node", str(WORLD), "--spares", "2"),
        *(SCRIPT, "--out", str(tmp_path), "--steps", str(STEPS), "--pause", "0.15"),
    ) as job:
        status = job.at_step(3)
        pid = status["manager_pid"] if role == "manager" else status["nodes"][0]["proxy_pid"]
        os.kill(pid, signal.SIGKILL)
        os.kill(status["ranks"][2]["pid"], signal.SIGKILL)
        assert 0 == job.wait(90), job.err

    assert_same(undisturbed, tmp_path, (2,))
    assert [1, 1, 2, 1] == [len(pids_of(tmp_path, rank)) for rank in range(WORLD)]


def test_a_fault_of_the_replacement(
    tmp_path: Path, undisturbed: dict[int, tuple[dict[int, str], str]]
) -> None:
    """The replacement is killed as soon as it exists: another one takes its place."""
    with running(
        tmp_path,
        *("--nproc-per-node", str(WORLD), "--spares", "2"),
        *(SCRIPT, "--out", str(tmp_path), "--steps", str(STEPS), "--pause", "0.15"),
    ) as job:
        first = job.at_step(3)["ranks"][1]["pid"]
        os.kill(first, signal.SIGKILL)
        second = eventually(lambda: _other(job, first), "a replacement")
        os.kill(second, signal.SIGKILL)
        assert 0 == job.wait(90), job.err

    assert_same(undisturbed, tmp_path, (1, 1))


def test_a_passing_error_is_tried_again_by_the_same_processes(
    tmp_path: Path, undisturbed: dict[int, tuple[dict[int, str], str]]
) -> None:
    """retry: nobody gets a new process, the step is repeated, the bits are the same."""
    faults = tmp_path / "faults.jsonl"
    faults.write_text('{"step": 6, "rank": 2, "kind": "raise"}\n{"step": 11, "rank": 0, "kind": "raise"}\n')
    job = train(tmp_path, flags=("--faults", str(faults)))

    assert undisturbed == read_run(tmp_path)
    assert [1, 1, 1, 1] == [len(pids_of(tmp_path, rank)) for rank in range(WORLD)]
    assert ["retry", "retry"] == [incident["strategy"] for incident in job.timeline()]


def test_an_error_that_comes_back_ends_the_job_with_its_stack(tmp_path: Path) -> None:
    """The same rank, step and error three times: the job ends with that, instead of trying for ever."""
    with running(
        tmp_path,
        *("--nproc-per-node", str(WORLD), "--spares", "2"),
        *(SCRIPT, "--out", str(tmp_path), "--steps", str(STEPS), "--fail-at", "5"),
    ) as job:
        assert 1 == job.wait(90), job.err

    assert "3 times in a row" in job.err
    assert "ValueError: this step cannot be done" in job.err
    assert 3 >= len(job.timeline())


def test_a_damaged_replica_is_outvoted_and_repaired(
    tmp_path: Path, undisturbed: dict[int, tuple[dict[int, str], str]]
) -> None:
    """Rank 0, which would be the source, has lost a bit and does not know: its state is given to nobody."""
    train(tmp_path, *("--corrupt", "0:8"), *("--die", "before:2:8"))

    assert_same(undisturbed, tmp_path, ())
    logs = "".join(path.read_text() for path in tmp_path.rglob("stderr.log"))
    assert "the state of rank 0 differed from its replicas' and was replaced" in logs


def test_a_stopped_rank_is_replaced(
    tmp_path: Path, undisturbed: dict[int, tuple[dict[int, str], str]]
) -> None:
    """SIGSTOP: the rank is found from the job's own pace, ended and replaced; the others come out at once."""
    with running(
        tmp_path,
        *("--nproc-per-node", str(WORLD), "--spares", "2"),
        *(SCRIPT, "--out", str(tmp_path), "--steps", str(STEPS), "--pause", "0.1"),
    ) as job:
        os.kill(job.at_step(5)["ranks"][3]["pid"], signal.SIGSTOP)
        assert 0 == job.wait(90), job.err

    assert_same(undisturbed, tmp_path, (3,))
    (incident,) = job.timeline()
    assert "was stopped for" in incident["what"]


def _other(job: RunningJob, first: int) -> int:
    ranks = job.status().get("ranks", [])
    pids = [rank["pid"] for rank in ranks if rank["rank"] == 1]
    return pids[0] if pids and pids[0] not in (0, first) else 0


def test_without_the_strategy_all_ranks_restart(tmp_path: Path) -> None:
    """``--recover-strategy exit`` allows no recovery from memory: the reason says what was done instead."""
    faults = tmp_path / "faults.jsonl"
    faults.write_text('{"step": 8, "rank": 1, "kind": "kill"}\n')
    job = train(tmp_path, flags=("--recover-strategy", "exit", "--faults", str(faults)))

    (incident,) = job.timeline()
    assert "restart" == incident["strategy"]
    assert "recover-in-place is not among the strategies" in incident["reason"]
