"""A pod that trains is lost or cut off, and one that is kept ready goes on with its ranks, to the bit."""

import time
from pathlib import Path

import pytest

from taskd.core.launch import RECOVER
from tests.pods.relief import PATIENCE_S, STEPS, Crew, commands, crew
from tests.pods.town import NEEDS, Pod
from tests.roles.harness import eventually, wake
from tests.train.runs import Run, assert_same, pids_of, read_run, start

pytestmark = [*NEEDS, pytest.mark.matrix]

# Loosely: other work on the machine makes all of it several times slower.
AT_ONCE_S = 8.0
CUT_S = 10.0
MANAGER_S = 25.0


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The same script on one machine without faults."""
    home = tmp_path_factory.mktemp("undisturbed")
    with start(home, "--pause", "0", steps=STEPS, nodes=("--nproc-per-node", "3")) as job:
        assert 0 == job.wait(PATIENCE_S), job.err
    return read_run(home, world=3)


def recovered(pod: Pod) -> list[str]:
    """How the faults that a pod's manager knows of ended."""
    latest = {each["number"]: each for each in pod.timeline()}
    return [each["outcome"] for each in latest.values()]


def strategies(pod: Pod) -> list[str]:
    return [each["strategy"] for each in {each["number"]: each for each in pod.timeline()}.values()]


def check(undisturbed: Run, team: Crew, victim: int, survivors: list[int]) -> None:
    assert_same(undisturbed, team.out, (victim,))
    for rank in survivors:
        assert 1 == len(pids_of(team.out, rank)), "it kept its process"


@pytest.mark.parametrize("how", ["deleted", "killed"])
def test_a_worker_s_ranks_go_on_in_the_standby(tmp_path: Path, undisturbed: Run, how: str) -> None:
    """At once: its end is known as soon as it ends, and nothing has to be started."""
    with crew(tmp_path) as team:
        began = time.monotonic()
        team.pods[2].terminate() if how == "deleted" else team.pods[2].kill()
        took_s = team.stood_still(began, survivor=0)
        print(f"{how}: {took_s:.2f} s")
        team.finish([team.pods[0], team.pods[1], team.standby])
        assert (["recovered"], [RECOVER]) == (recovered(team.pods[0]), strategies(team.pods[0]))

    check(undisturbed, team, 2, [0, 1])
    assert took_s < AT_ONCE_S


def test_a_worker_s_link_is_cut_and_comes_back(tmp_path: Path, undisturbed: Run) -> None:
    """Its processes train no more, disturb nobody when the link is back, and their pod waits as a spare."""
    with crew(tmp_path) as team:
        began = time.monotonic()
        team.place.cut(team.pods[2])
        took_s = team.stood_still(began, survivor=0)
        print(f"cut: {took_s:.2f} s")
        team.place.mend(team.pods[2])
        steps = len(team.entries(0))
        eventually(lambda: len(team.entries(0)) >= steps + 30, "thirty steps after it came back", PATIENCE_S)
        assert (["recovered"], [RECOVER]) == (recovered(team.pods[0]), strategies(team.pods[0]))
        assert "out of reach" in team.pods[0].timeline()[-1]["what"]
        team.finish([team.pods[0], team.pods[1], team.standby])

    check(undisturbed, team, 2, [0, 1])
    assert took_s < CUT_S


def test_the_manager_s_pod_is_deleted(tmp_path: Path, undisturbed: Run) -> None:
    """It hands the job over, and the standby has rank 0."""
    with crew(tmp_path) as team:
        began = time.monotonic()
        team.pods[0].terminate()
        team.place.forget_leader()
        took_s = team.stood_still(began, survivor=1)
        print(f"manager deleted: {took_s:.2f} s")
        team.finish([team.pods[1], team.pods[2], team.standby])

    check(undisturbed, team, 0, [1, 2])
    assert took_s < MANAGER_S


def test_the_manager_s_link_is_cut_and_comes_back(tmp_path: Path, undisturbed: Run) -> None:
    """Another pod takes the job over; the old manager decides nothing, and ends when it hears of it."""
    with crew(tmp_path) as team:
        began = time.monotonic()
        team.place.cut(team.pods[0])
        took_s = team.stood_still(began, survivor=1)
        print(f"manager cut: {took_s:.2f} s")
        team.place.mend(team.pods[0])
        assert 5 == team.pods[0].wait(PATIENCE_S), team.pods[0].err
        team.finish([team.pods[1], team.pods[2], team.standby])

    check(undisturbed, team, 0, [1, 2])
    assert took_s < MANAGER_S


def test_a_pod_that_is_stopped_is_not_cut_off(tmp_path: Path, undisturbed: Run) -> None:
    """All that speaks for it is stopped for four seconds: its kernel answers, so it keeps its rank."""
    with crew(tmp_path) as team:
        speaking = ("-m taskd.cli.main run", "-m taskd.proxy", "-m taskd.agent")
        found = commands(team.pods[2]).items()
        frozen = [process for process, command in found if any(each in command for each in speaking)]
        assert len(frozen) >= len(speaking), found
        for process in frozen:
            process.suspend()
        time.sleep(4.0)
        wake(frozen)
        steps = len(team.entries(2))
        eventually(lambda: len(team.entries(2)) >= steps + 10, "ten more steps", PATIENCE_S)
        team.finish([*team.pods, team.standby])
        assert not (team.pods[0].directory / "timeline.jsonl").exists(), team.pods[0].timeline()

    assert_same(undisturbed, team.out)
    assert [1, 1, 1] == [len(pids_of(team.out, rank)) for rank in range(3)]
