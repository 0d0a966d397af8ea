"""Sharded and parallel models: two faults at once, and every way of going on, without a new bit.

The whole product of points, ranks, topologies and strategies would take hours. Run are: for each topology
every point of a step and every strategy at least once, with ranks that differ from case to case, rank 0 and
the last one among them. Single deaths, and lost nodes, are in ``test_topologies``.
"""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.roles.harness import RunningJob
from tests.train import runs
from tests.train.runs import (
    TOPOLOGY,
    WORLD,
    Run,
    assert_same,
    count_processes,
    finish,
    pids_of,
    read_run,
    start,
    write_faults,
)

pytestmark = [pytest.mark.slow, pytest.mark.matrix]

STEPS = 14
# Ranks 0 and 2 have the same part of the state, and 1 and 3, but for plain FSDP, where each has its own.
KINDS = ["hsdp", "fsdp", "tp"]
SLOW = ("--pause", "0.8")  # until the fault is over: commands take their time on a busy machine


def train(kind: str, home: Path, *script_args: str, flags: tuple[str, ...] = ()) -> RunningJob:
    """Run the job to its end."""
    return runs.train(home, "--kind", kind, *script_args, script=TOPOLOGY, steps=STEPS, flags=flags)


def die(*deaths: str) -> tuple[str, ...]:
    """Return the words for these deaths."""
    return tuple(word for death in deaths for word in ("--die", death))


def pair(incident: dict[str, Any]) -> tuple[str, str]:
    """Return what happened and what was done."""
    return incident["kind"], incident["strategy"]


@pytest.fixture
def undisturbed(reference: Callable[..., Run]) -> Callable[..., Run]:
    """The same command without faults, once for each kind."""
    return lambda kind, *more: reference("--kind", kind, *more, script=TOPOLOGY, steps=STEPS)


# --- recover-in-place --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("point", "ranks"), [("before", (0, 3)), ("backward", (2, 3)), ("in-vote", (1, 2)), ("inside", (0, 1))]
)
def test_two_ranks_die_at_once(
    tmp_path: Path, undisturbed: Callable[..., Run], kind: str, point: str, ranks: tuple[int, int]
) -> None:
    """Of each part one replica is left, or a snapshot; nobody but the two has another process."""
    train(kind, tmp_path, *die(*(f"{point}:{rank}:6" for rank in ranks)))

    assert_same(undisturbed(kind), tmp_path, ranks)
    assert [2 if rank in ranks else 1 for rank in range(WORLD)] == count_processes(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("point", ["joining", "settling"])
@pytest.mark.parametrize(("first", "second"), [(1, 0), (0, 3)])
def test_a_survivor_dies_during_the_recovery(
    tmp_path: Path, undisturbed: Callable[..., Run], kind: str, point: str, first: int, second: int
) -> None:
    """When all are about to connect, or when state has moved: the recovery begins again, with two to replace.

    Rank 0 is the one that all connect to.
    """
    job = train(kind, tmp_path, *die(f"forward:{first}:6", f"{point}:{second}:6"))

    assert_same(undisturbed(kind), tmp_path, (first, second))
    assert [2 if rank in (first, second) else 1 for rank in range(WORLD)] == count_processes(tmp_path)
    assert [(first, "interrupted by fault 2"), (second, "recovered")] == [
        (each["rank"], each["outcome"]) for each in job.timeline()
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("point", "rank"), [("joining", 0), ("settling", 3)])
def test_a_replacement_dies_during_the_recovery(
    tmp_path: Path, undisturbed: Callable[..., Run], kind: str, point: str, rank: int
) -> None:
    """Before it has a state, or as soon as it has one: the next one gets it."""
    job = train(kind, tmp_path, *die(f"updated:{rank}:6", f"{point}:{rank}:new"))

    assert_same(undisturbed(kind), tmp_path, (rank,))
    assert [2 if each == rank else 1 for each in range(WORLD)] == count_processes(tmp_path)
    assert ["interrupted by fault 2", "recovered"] == [each["outcome"] for each in job.timeline()]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("point", "rank"), [("between", 0), ("inside", 2), ("vote", 1), ("in-vote", 3)])
def test_two_optimizers_count_once(
    tmp_path: Path, undisturbed: Callable[..., Run], kind: str, point: str, rank: int
) -> None:
    """The vote is after the second one, so those that have updated already go back."""
    train(kind, tmp_path, "--two", *die(f"{point}:{rank}:6"))

    counted = "vote" in point or kind == "fsdp"
    assert_same(undisturbed(kind, "--two"), tmp_path, (rank,) if counted else ())
    assert [2 if each == rank else 1 for each in range(WORLD)] == count_processes(tmp_path)


# --- retry -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_an_update_that_failed_is_made_again(
    tmp_path: Path, undisturbed: Callable[..., Run], kind: str
) -> None:
    """Between the vote and the update, and halfway through it, when all others have made theirs.

    The step counts, so whoever failed gets the state after it, and has no result of its own to tell.
    """
    job = train(kind, tmp_path, "--raise", "voted:0:4", "--raise", "inside:3:8")

    assert_same(undisturbed(kind), tmp_path, (0, 3))
    assert [1] * WORLD == count_processes(tmp_path)
    assert [("step", "retry")] * 2 == [pair(each) for each in job.timeline()]


@pytest.mark.parametrize(
    ("kind", "source"), [("hsdp", "state from rank 3"), ("fsdp", "snapshot"), ("tp", "state from rank 3")]
)
def test_damaged_memory_and_a_broken_network(
    tmp_path: Path, undisturbed: Callable[..., Run], kind: str, source: str
) -> None:
    """uce: tensors of a part are overwritten. network: connections break. The processes stay.

    A snapshot that was being made of damaged memory is not used: then all go back to the one before.
    """
    damaged = {"step": 4, "rank": 1, "kind": "uce"}
    broken = {"step": 8, "rank": 2, "kind": "network"}
    job = train(kind, tmp_path, flags=write_faults(tmp_path, damaged, broken))

    assert undisturbed(kind) == read_run(tmp_path)
    assert [1] * WORLD == count_processes(tmp_path)
    assert [("uce", "retry"), ("network", "retry")] == [pair(each) for each in job.timeline()]
    assert source in " ".join(job.timeline()[0]["notes"])


# --- hot switch --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "rank"), [("hsdp", 0), ("fsdp", 2), ("tp", 3)])
def test_a_rank_moves_with_its_part(
    tmp_path: Path, undisturbed: Callable[..., Run], kind: str, rank: int
) -> None:
    """Every rank did every step once; all others keep their processes."""
    with start(tmp_path, "--kind", kind, *SLOW, script=TOPOLOGY, steps=STEPS) as job:
        job.at_step(1)
        assert "moved to" in job.cli("switch", "job", "--rank", str(rank)).stdout
        moved = job.status()["ranks"][rank]["pid"]
        finish(job)

    assert undisturbed(kind) == read_run(tmp_path)
    assert [2 if each == rank else 1 for each in range(WORLD)] == count_processes(tmp_path)
    assert moved == pids_of(tmp_path, rank)[-1]
    assert [("switch", "hot-switch")] == [pair(each) for each in job.timeline()]


# --- dump --------------------------------------------------------------------------------------------------


def last_step(home: Path) -> int:
    """Return the last step that rank 0 was told of."""
    return int(json.loads((home / "ledger-0.jsonl").read_text().splitlines()[-1])["step"])


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_that_gets_sigterm_goes_on_later(
    tmp_path: Path, undisturbed: Callable[..., Run], kind: str
) -> None:
    """All parts of the last step are written; the next job computes none again, and the bits are the same."""
    dumps = tmp_path / "dumps"
    words = ("--kind", kind, "--pause", "0.3")
    with start(tmp_path, *words, script=TOPOLOGY, steps=STEPS, flags=("--dump-dir", str(dumps))) as job:
        job.at_step(4)
        os.kill(job.process.pid, signal.SIGTERM)
        assert 143 == job.wait(90), job.err
    assert [("stop", "dump")] == [pair(each) for each in job.timeline()]
    assert [f"step-{last_step(tmp_path) + 1:08d}"] == [path.name for path in dumps.iterdir()]
    train(kind, tmp_path, flags=("--resume", str(dumps)))

    assert undisturbed(kind) == read_run(tmp_path)


@pytest.mark.parametrize(
    ("kind", "death"),
    [
        ("hsdp", "voted:3:6"),
        ("fsdp", "inside:0:6"),
        ("fsdp", "voted:3:6"),
        ("tp", "forward:1:6"),
    ],
)
def test_a_death_that_may_not_be_recovered_restarts_from_its_dump(
    tmp_path: Path, undisturbed: Callable[..., Run], kind: str, death: str
) -> None:
    """The dead rank's part is written by its replica, or from its snapshot; no step is lost or told twice."""
    job = train(kind, tmp_path, *die(death), flags=("--recover-strategy", "dump,exit"))

    assert ["dump", "restart"] == [each["strategy"] for each in job.timeline()]
    assert_same(undisturbed(kind), tmp_path, (int(death.split(":")[1]),))
