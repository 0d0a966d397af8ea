"""Scripts with more than one process group: what they hold stays valid over a fault, to the bit."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.roles.harness import RunningJob
from tests.train import runs
from tests.train.runs import (
    COUNTED,
    TOPOLOGY,
    TWO_NODES,
    WORLD,
    Run,
    assert_same,
    count_processes,
    finish,
    read_logs,
    read_run,
    start,
    write_faults,
)

pytestmark = pytest.mark.slow

STEPS = 14
KINDS = ["hsdp", "fsdp", "tp", "pp", "own"]
# With a replica: in a mesh, by tensor and data, by stage and data. With TASKD_MATRIX=1 (make matrix) every
# rank is killed at five points and one at four more; rank 0 and the last one inside a vote and an update too.
# Two deaths, and other faults than deaths, are in test_topology_faults.
SAMPLE = [
    ("hsdp", "backward", 1),
    ("hsdp", "voted", 3),
    ("tp", "forward", 0),
    ("pp", "before", 2),
]
MATRIX = [
    (kind, point, rank)
    for kind in ("hsdp", "fsdp", "tp", "pp")
    for point in ("before", "forward", "backward", "voted", "updated")
    for rank in range(WORLD)
]
MATRIX += [(kind, point, 1) for kind in KINDS[:4] for point in ("vote", "in-vote", "inside", "after")]
MATRIX += [
    (kind, point, rank)
    for kind in ("hsdp", "fsdp", "tp")
    for point in ("in-vote", "inside")
    for rank in (0, WORLD - 1)
]
KILLS = MATRIX if os.environ.get("TASKD_MATRIX") else SAMPLE


def train(kind: str, home: Path, *script_args: str, flags: tuple[str, ...] = ()) -> RunningJob:
    """Run the job to its end."""
    return runs.train(home, "--kind", kind, *script_args, script=TOPOLOGY, steps=STEPS, flags=flags)


@pytest.fixture
def undisturbed(reference: Callable[..., Run]) -> Callable[[str], Run]:
    """The same command without faults, once for each kind."""
    return lambda kind: reference("--kind", kind, script=TOPOLOGY, steps=STEPS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_that_failed_anywhere_is_repeated_to_the_same_bits(
    tmp_path: Path, undisturbed: Callable[[str], Run], kind: str
) -> None:
    """Errors before a step, in a forward and in a backward pass: no process changes, and no bit."""
    faults = [{"step": 3, "rank": 2, "kind": "raise"}, {"step": 9, "rank": 0, "kind": "raise"}]
    failing = ("--raise", "forward:1:5", "--raise", "backward:3:7", "--raise", "backward:0:11")
    job = train(kind, tmp_path, *failing, flags=write_faults(tmp_path, *faults))

    assert undisturbed(kind) == read_run(tmp_path)
    assert [1] * WORLD == count_processes(tmp_path)
    assert {"retry"} == {incident["strategy"] for incident in job.timeline()}


@pytest.mark.parametrize(("kind", "point", "rank"), KILLS)
def test_a_killed_rank_gets_its_part_from_its_replica(
    tmp_path: Path, undisturbed: Callable[[str], Run], kind: str, point: str, rank: int
) -> None:
    """Only the killed rank has another process; its shard, and its random state, are those it had."""
    train(kind, tmp_path, "--die", f"{point}:{rank}:6")

    counted = point in COUNTED or kind == "fsdp"
    assert_same(undisturbed(kind), tmp_path, (rank,) if counted else ())
    assert [2 if each == rank else 1 for each in range(WORLD)] == count_processes(tmp_path)


def test_without_a_replica_a_rank_comes_back_from_its_snapshot(
    tmp_path: Path, undisturbed: Callable[[str], Run]
) -> None:
    """Plain FSDP: the part of a killed rank is only in its node's shared memory.

    Also what the script does to registered state in the body of the loop is in it.
    """
    train("fsdp", tmp_path, "--die", "backward:1:6", "--outside")

    assert_same(undisturbed("fsdp"), tmp_path, (1,))
    assert [1, 2, 1, 1] == count_processes(tmp_path)


def test_a_damaged_snapshot_is_noticed_and_the_one_before_is_used(
    tmp_path: Path, undisturbed: Callable[[str], Run]
) -> None:
    """All go one step back to their own snapshots of it; the step that is computed again counts once."""
    job = train("fsdp", tmp_path, "--corrupt", "1:6")

    assert_same(undisturbed("fsdp"), tmp_path, (1,))
    assert "another source is looked for" in read_logs(tmp_path) + job.err


def train_without(home: Path, kind: str, *lost: int) -> RunningJob:
    """Run the job on two nodes, and take nodes away one after the other; there is a spare one for each."""
    flags = ("--spare-nodes", str(len(lost)))
    words = ("--kind", kind, "--pause", "0.4")
    with start(home, *words, script=TOPOLOGY, steps=STEPS, nodes=TWO_NODES, flags=flags) as job:
        at = 2
        for node in lost:
            before = job.at_step(at)
            at = max(rank["step"] for rank in before["ranks"]) + 3
            job.cli("inject", "kill", "--node", str(node))
            job.past_generation(before["generation"])
        finish(job)
    return job


def count_replayed(home: Path, rank: int) -> int:
    """Return how many steps a rank that has kept its process has computed a second time."""
    (file,) = home.glob(f"computed-{rank}-*.txt")
    computed = file.read_text().split()
    return len(computed) - len(set(computed))


@pytest.mark.parametrize(
    ("kind", "node", "replayed", "source"),
    [
        ("fsdp", 1, 1, "ranks 2-3 get their state from their buddy's copy, kept by ranks 0-1"),
        pytest.param(
            *("fsdp", 0, 1, "ranks 0-1 get their state from their buddy's copy, kept by ranks 2-3"),
            marks=pytest.mark.matrix,
        ),
        pytest.param("hsdp", 0, 0, "ranks 0-1 get their state from ranks 2-3", marks=pytest.mark.matrix),
        pytest.param("tp", 1, 0, "ranks 2-3 get their state from ranks 0-1", marks=pytest.mark.matrix),
        pytest.param(
            *("pp", 1, 1, "ranks 2-3 get their state from their buddy's copy, kept by ranks 0-1"),
            marks=pytest.mark.matrix,
        ),
    ],
)
def test_a_lost_node_comes_up_on_a_spare_one(
    tmp_path: Path, undisturbed: Callable[[str], Run], kind: str, node: int, replayed: int, source: str
) -> None:
    """Its parts are with buddies on the other node (FSDP; a stage with all its replicas), or are replicas.

    The survivors keep their processes. What only a buddy has is a step older: that one is computed again.
    """
    job = train_without(tmp_path, kind, node)

    lost = (2 * node, 2 * node + 1)
    assert_same(undisturbed(kind), tmp_path, lost)
    assert [2 if rank in lost else 1 for rank in range(WORLD)] == count_processes(tmp_path)
    (incident,) = job.timeline()
    assert ("recover", "recovered") == (incident["strategy"], incident["outcome"])
    assert source in incident["notes"]
    assert replayed >= max(count_replayed(tmp_path, rank) for rank in range(WORLD) if rank not in lost)


@pytest.mark.matrix
def test_what_buddies_keep_moves_along(tmp_path: Path, undisturbed: Callable[[str], Run]) -> None:
    """Plain FSDP: after a loss all parts are with buddies again, so that the other node may be lost next."""
    job = train_without(tmp_path, "fsdp", 1, 0)

    assert_same(undisturbed("fsdp"), tmp_path, (0, 1, 2, 3))
    assert [2, 2, 2, 2] == count_processes(tmp_path)
    assert [("recover", "recovered")] * 2 == [(each["strategy"], each["outcome"]) for each in job.timeline()]


@pytest.mark.parametrize("rank", [0, pytest.param(3, marks=pytest.mark.matrix)])
def test_a_group_of_the_scripts_own_survives_a_kill(
    tmp_path: Path, undisturbed: Callable[[str], Run], rank: int
) -> None:
    """``init_process_group`` by habit, a group in a variable, a seed and a name agreed on before the loop.

    The replacement gets from its predecessor's notes what the others had told that one, or it the others.
    """
    job = train("own", tmp_path, "--die", f"backward:{rank}:6")

    assert_same(undisturbed("own"), tmp_path)
    assert [2 if each == rank else 1 for each in range(WORLD)] == count_processes(tmp_path)
    agreed = {path.read_text() for path in tmp_path.glob("seed-*.txt")}
    assert len(agreed) == 1, f"the replacement has another seed or name: {agreed}"
    assert WORLD + 1 == len(list(tmp_path.glob("seed-*.txt")))
    assert "recovery from memory is off" not in job.err
