"""The dump: who writes what, and where the job goes afterwards."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from taskd.core.jobstate import SendOrder, SendWorkers, StopRequested, Ticked
from taskd.core.messages import Finish, Progress, Recover, Save, Saved, Standing, Start, Stop
from taskd.core.regroup import decide_save
from taskd.core.saving import SAVE_LIMIT_S
from taskd.core.status import JobPhase
from tests.core.scenes import DONE, KILLED, Scene

NODES = ("0", "1", "2")


def keeping(*strategies: str) -> Scene:
    """A running job whose ranks, one a node, keep their state, and that may only do this."""
    play = Scene(3).running()
    play.job = replace(play.job, options=replace(play.job.options, strategies=strategies))
    for node in NODES:
        play.report(node, Progress(1, play.rank(node), joined=True, step=4, ready=True))
    play.effects.clear()
    return play


def stand(play: Scene, node: str, *, step: int = 5, complete: bool = False) -> None:
    play.report(node, Standing(play.job.generation, play.rank(node), True, step, complete))


def saves(play: Scene) -> list[Save]:
    return [e.message for e in play.effects if isinstance(e, SendWorkers) and isinstance(e.message, Save)]


def stop(play: Scene) -> None:
    play.step(StopRequested(play.at(), "SIGTERM was received", 143, play.now, save=True))


def test_a_job_that_is_told_to_go_writes_its_state_first() -> None:
    """All come out, one writes, and then the job ends with the code that was asked for."""
    play = keeping("dump", "exit")
    stop(play)
    assert (JobPhase.SAVING, ["0", "1", "2"]) == (play.job.phase, play.orders(Recover))
    for node, step in (("0", 5), ("1", 6), ("2", 5)):
        stand(play, node, step=step, complete=step == 5)
    assert [(6, (0,), ())] == list({(save.target, save.writers, save.absent) for save in saves(play)})
    for node in NODES:
        assert JobPhase.SAVING == play.job.phase
        play.report(node, Saved(2, play.rank(node), True, "/d/step-00000006"))

    assert (JobPhase.FINISHING, 143) == (play.job.phase, play.ending.code)
    assert ["0", "1", "2"] == play.orders(Finish)
    incident = play.incidents[1]
    assert ("dump", "step 6 was written to /d/step-00000006") == (incident.strategy, incident.outcome)


def test_a_job_whose_scripts_end_before_they_can_write_ends_well() -> None:
    """Told to go in its last step: there is nothing left to save, and nobody waits for a dump."""
    play = keeping("dump", "exit")
    stop(play)
    play.exited("0", DONE, step=5)
    assert (JobPhase.FINISHING, 143) == (play.job.phase, play.ending.code)
    assert "the dump failed: the script of rank 0 had ended" == play.incidents[1].outcome

    alone = Scene(1).running()
    alone.report("0", Progress(1, 0, joined=True, step=4, ready=True))
    stop(alone)
    assert JobPhase.SAVING == alone.job.phase
    alone.exited("0", DONE, step=5)
    assert (JobPhase.FINISHING, 0) == (alone.job.phase, alone.ending.code)


def test_a_fault_that_cannot_be_recovered_is_saved_and_then_restarts() -> None:
    """The survivors write; the dead rank is named, so that whoever kept its own state writes that too."""
    play = keeping("dump", "exit")
    play.exited("1", KILLED, step=4)
    for node in ("0", "2"):
        stand(play, node)
    assert [(5, (0,), (1,))] == list({(save.target, save.writers, save.absent) for save in saves(play)})
    for node in ("0", "2"):
        play.report(node, Saved(2, play.rank(node), True, "/d"))
    assert ["0", "1", "2"] == play.orders(Stop)
    play.restart()

    assert JobPhase.RUNNING == play.job.phase
    assert ["dump", "restart"] == [play.incidents[number].strategy for number in (1, 2)]
    assert "recover-in-place is not among the strategies" in play.incidents[2].reason


def test_a_dump_that_fails_is_said_and_holds_nobody_up() -> None:
    """A full disk, another death, or silence: the job goes on to where it was going."""
    full = keeping("dump")
    full.exited("1", KILLED, step=4)
    for node in ("0", "2"):
        stand(full, node)
    full.report("0", Saved(2, 0, False, "no space left on device"))
    assert JobPhase.STOPPING == full.job.phase
    assert "the dump failed: rank 0: no space left on device" == full.incidents[1].outcome

    again = keeping("dump")
    for node, left in (("1", ["0", "2"]), ("2", ["0"]), ("0", [])):
        again.effects.clear()
        again.exited(node, KILLED, step=4)
        assert [node for node in ("0", "1", "2") if left] == again.orders(Recover)
    assert JobPhase.STOPPING == again.job.phase

    silent = keeping("dump")
    stop(silent)
    silent.step(Ticked(silent.at(SAVE_LIMIT_S + 1), silent.now))
    assert JobPhase.FINISHING == silent.job.phase


def test_what_nobody_may_or_can_save_is_not_tried() -> None:
    """Not among the strategies, or no rank keeps a state."""
    forbidden = keeping("exit")
    stop(forbidden)
    assert JobPhase.FINISHING == forbidden.job.phase

    forgetful = Scene(3).running()
    forgetful.exited("1", KILLED)
    assert JobPhase.STOPPING == forgetful.job.phase
    assert [] == [e for e in forgetful.effects if isinstance(e, SendOrder) and isinstance(e.order, Start)]


def test_the_part_of_a_dead_rank_is_written_from_its_snapshot_by_a_neighbour() -> None:
    """Of the newest step of which every part is to be had; who is further reads its own snapshot too."""
    layout = ("0", "1", "2")
    said = {
        rank: Standing(
            2, rank, True, 7, shards=layout, snapshots=((rank, 7), (rank, 6)), beside=((2, 6), (3 - rank, 6))
        )
        for rank in (0, 1)
    }

    assert Save(2, 6, (), (2,), ((0, 0), (0, 2), (1, 1))) == decide_save(said, 3)
    newer = {rank: replace(each, beside=((2, 7), (2, 6))) for rank, each in said.items()}
    assert Save(2, 7, (0, 1), (2,), ((0, 2),)) == decide_save(newer, 3)
    alone = {rank: replace(each, beside=()) for rank, each in said.items()}
    assert "nobody is left who has the state of rank 2 at step 6" == decide_save(alone, 3)


@given(
    st.dictionaries(
        st.integers(0, 5),
        st.tuples(
            st.booleans(),
            st.integers(5, 6),
            st.booleans(),
            st.lists(st.tuples(st.integers(0, 5), st.integers(5, 6)), max_size=4),
        ),
        min_size=1,
    ),
    st.integers(1, 6),
)
def test_each_part_is_written_once_by_one_who_has_it(
    entries: dict[int, tuple[bool, int, bool, list[tuple[int, int]]]], parts: int
) -> None:
    """By one that holds the target or makes it from its gradient, or else can read a snapshot of it."""
    layout = tuple(str(rank % parts) for rank in range(6))
    said = {
        rank: Standing(
            *(2, rank, state, step if state else 0, complete and state), shards=layout, beside=tuple(beside)
        )
        for rank, (state, step, complete, beside) in entries.items()
    }
    save = decide_save(said, 6)
    if isinstance(save, str):
        return

    written = [*save.writers, *(owner for _, owner in save.copies)]
    assert sorted({rank % parts for rank in range(6)}) == sorted(rank % parts for rank in written)
    for writer, owner in save.copies:
        assert (owner, save.target) in said[writer].beside
    for rank in save.writers:
        short = save.target - said[rank].step
        assert said[rank].has_state
        assert short == 0 or (short == 1 and said[rank].complete)
    assert set(range(6)) - set(said) == set(save.absent)
