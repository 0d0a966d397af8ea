"""Scripts with more than one process group: what they hold stays valid over a fault, to the bit."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.roles.harness import RunningJob, running

pytestmark = pytest.mark.slow

SCRIPT = str(Path(__file__).with_name("topology_job.py"))
STEPS = 14
WORLD = 4
KINDS = ["hsdp", "fsdp", "tp", "pp", "own"]
# With a replica: in a mesh, by tensor and data, by stage and data.
SAMPLE = [
    ("hsdp", "before", 2),
    ("hsdp", "backward", 1),
    ("hsdp", "voted", 3),
    ("tp", "forward", 0),
    ("tp", "backward", 3),
    ("pp", "backward", 1),
    ("pp", "before", 2),
]
MATRIX = [
    (kind, point, rank)
    for kind in ("hsdp", "fsdp", "tp", "pp")
    for point in ("before", "forward", "backward", "voted", "updated")
    for rank in range(WORLD)
]
KILLS = MATRIX if os.environ.get("TASKD_MATRIX") else SAMPLE

Run = dict[int, tuple[dict[int, str], str]]


def train(kind: str, home: Path, *script_args: str, flags: tuple[str, ...] = ()) -> RunningJob:
    """Run the job to its end."""
    home.mkdir(exist_ok=True)
    with running(
        home,
        *("--nproc-per-node", str(WORLD), "--spares", "2", *flags),
        *(SCRIPT, "--kind", kind, "--out", str(home), "--steps", str(STEPS), *script_args),
    ) as job:
        assert 0 == job.wait(90), job.err
    return job


def read_run(home: Path) -> Run:
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


def assert_same(expected: Run, home: Path, killed: int | None) -> None:
    """Compare with the undisturbed run; a rank that was killed after its vote takes one result along."""
    for rank, (losses, digest) in read_run(home).items():
        wanted, end = expected[rank]
        missing = set(wanted) - set(losses)
        assert len(missing) <= (rank == killed), f"rank {rank} lost {missing}"
        assert {step: loss for step, loss in wanted.items() if step not in missing} == losses
        assert end == digest


def pids(home: Path) -> list[int]:
    """Count the processes that each rank had."""
    found = []
    for rank in range(WORLD):
        lines = (home / f"ledger-{rank}.jsonl").read_text().splitlines()
        found.append(len({json.loads(line)["pid"] for line in lines}))
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    """The same command without faults, once for each kind."""
    runs: dict[str, Run] = {}

    def run(kind: str) -> Run:
        if kind not in runs:
            home = tmp_path_factory.mktemp(kind)
            train(kind, home)
            runs[kind] = read_run(home)
            assert {STEPS} == {len(losses) for losses, _ in runs[kind].values()}
        return runs[kind]

    return run


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_that_failed_anywhere_is_repeated_to_the_same_bits(
    tmp_path: Path, undisturbed: Callable[[str], Run], kind: str
) -> None:
    """Errors before a step, in a forward and in a backward pass: no process changes, and no bit."""
    faults = tmp_path / "faults.jsonl"
    faults.write_text('{"step": 3, "rank": 2, "kind": "raise"}\n{"step": 9, "rank": 0, "kind": "raise"}\n')
    failing = ("--raise", "forward:1:5", "--raise", "backward:3:7", "--raise", "backward:0:11")
    job = train(kind, tmp_path, *failing, flags=("--faults", str(faults)))

    assert undisturbed(kind) == read_run(tmp_path)
    assert [1] * WORLD == pids(tmp_path)
    assert {"retry"} == {incident["strategy"] for incident in job.timeline()}


@pytest.mark.parametrize(("kind", "point", "rank"), KILLS)
def test_a_killed_rank_gets_its_part_from_its_replica(
    tmp_path: Path, undisturbed: Callable[[str], Run], kind: str, point: str, rank: int
) -> None:
    """Only the killed rank has another process; its shard, and its random state, are those it had."""
    train(kind, tmp_path, "--die", f"{point}:{rank}:6")

    counted = point in ("voted", "updated") or kind == "fsdp"
    assert_same(undisturbed(kind), tmp_path, rank if counted else None)
    assert [2 if each == rank else 1 for each in range(WORLD)] == pids(tmp_path)


def test_without_a_replica_a_rank_comes_back_from_its_snapshot(
    tmp_path: Path, undisturbed: Callable[[str], Run]
) -> None:
    """Plain FSDP: the part of a killed rank is only in its node's shared memory."""
    train("fsdp", tmp_path, "--die", "backward:1:6")

    assert_same(undisturbed("fsdp"), tmp_path, 1)
    assert [1, 2, 1, 1] == pids(tmp_path)


def test_a_damaged_snapshot_is_noticed_and_the_one_before_is_used(
    tmp_path: Path, undisturbed: Callable[[str], Run]
) -> None:
    """All go one step back to their own snapshots of it; the step that is computed again counts once."""
    job = train("fsdp", tmp_path, "--corrupt", "1:6")

    assert_same(undisturbed("fsdp"), tmp_path, 1)
    logs = "".join(path.read_text() for path in tmp_path.rglob("stderr.log"))
    assert "another source is looked for" in logs + job.err


@pytest.mark.parametrize("rank", [0, 3])
def test_a_group_of_the_scripts_own_survives_a_kill(
    tmp_path: Path, undisturbed: Callable[[str], Run], rank: int
) -> None:
    """``init_process_group`` by habit, a group in a variable, a seed and a name agreed on before the loop.

    The replacement gets from its predecessor's notes what the others had told that one. (What a script makes
    up in rank 0 alone, before it tells the others, is made up again by rank 0's replacement.)
    """
    job = train("own", tmp_path, "--die", f"backward:{rank}:6")

    assert_same(undisturbed("own"), tmp_path, None)
    assert [2 if each == rank else 1 for each in range(WORLD)] == pids(tmp_path)
    agreed = {path.read_text() for path in tmp_path.glob("seed-*.txt")}
    assert rank == 0 or len(agreed) == 1, f"the replacement has another seed or name: {agreed}"
    assert WORLD + 1 == len(list(tmp_path.glob("seed-*.txt")))
    assert "recovery from memory is off" not in job.err
