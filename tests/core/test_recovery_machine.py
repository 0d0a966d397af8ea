"""Recovery from memory: what is decided, and when a restart takes its place."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from taskd.core import node as node_machine
from taskd.core.jobstate import SendOrder, SendWorkers, Ticked
from taskd.core.launch import JobOptions, Plan, compute_places
from taskd.core.messages import (
    Denied,
    NodePhase,
    Progress,
    Recover,
    Regroup,
    Standing,
    Start,
    Stop,
    Trouble,
    WorkerExited,
    WorkersStarted,
    WorkerState,
    WorkerView,
)
from taskd.core.node import (
    InterruptProcesses,
    NodeState,
    OrderReceived,
    ProcessesStarted,
    ProcessExited,
    SignalProcesses,
    SpawnProcesses,
)
from taskd.core.recovery import LIMIT_S, decide_regroup
from taskd.core.status import JobPhase
from tests.core.scenes import KILLED, RAISED, Scene

NODES = ("0", "1", "2")


def keeping(nodes: int = 3) -> Scene:
    """A running job whose ranks, one a node, keep their state."""
    play = Scene(nodes).running()
    for node in NODES:
        play.report(node, Progress(1, play.rank(node), joined=True, step=4, ready=True))
    play.effects.clear()
    return play


def orders(play: Scene, kind: type) -> list[str]:
    return [e.node for e in play.effects if isinstance(e, SendOrder) and isinstance(e.order, kind)]


def stand(
    play: Scene, node: str, *, state: bool, step: int = 5, complete: bool = False, store: str = ""
) -> None:
    play.report(node, Standing(play.job.generation, play.rank(node), state, step, complete, store))


def test_a_death_raises_the_generation_over_the_living() -> None:
    """Every node hears it, nobody is stopped, only the dead rank is to be replaced."""
    play = keeping()
    play.exited("1", KILLED, step=4)

    assert (JobPhase.RECOVERING, 2) == (play.job.phase, play.job.generation)
    assert (["0", "1", "2"], [], []) == (orders(play, Recover), orders(play, Stop), orders(play, Start))
    order = next(e.order for e in play.effects if isinstance(e, SendOrder))
    assert isinstance(order, Recover)
    assert ((1,), 0) == (order.replace, order.leader)


def test_the_way_on_is_told_when_all_have_said_where_they_stand() -> None:
    """And again to whoever asks again; the first step of all ranks closes the incident."""
    play = keeping()
    play.exited("1", KILLED, step=4)
    play.report("1", WorkersStarted(2, (WorkerView(1, 0, 99, WorkerState.RUNNING),)))
    stand(play, "0", state=True, store="h:1")
    stand(play, "1", state=False, step=0)
    assert [] == [e for e in play.effects if isinstance(e, SendWorkers)]
    stand(play, "2", state=True)

    told = [e for e in play.effects if isinstance(e, SendWorkers)]
    assert ["0", "1", "2"] == [e.node for e in told]
    regroup = told[0].message
    assert isinstance(regroup, Regroup)
    assert (5, False, 0, (1,)) == (regroup.target, regroup.forward, regroup.source, regroup.receivers)
    play.effects.clear()
    stand(play, "2", state=True)
    assert [SendWorkers("2", regroup)] == play.effects
    for step in (-1, 5):
        for node in NODES:
            play.report(node, Progress(2, play.rank(node), joined=True, step=step, ready=True))
    assert JobPhase.RUNNING == play.job.phase
    assert "recovered" == play.incidents[1].outcome
    assert 0 == play.job.restarts


def test_a_second_death_raises_it_again() -> None:
    """Also one that was reported before its agent knew of the first generation."""
    play = keeping()
    play.exited("1", KILLED, step=4)
    late = WorkerExited(1, 2, 0, 12, KILLED, 4, 60.0, play.now)
    play.report("2", late)

    assert (JobPhase.RECOVERING, 3) == (play.job.phase, play.job.generation)
    last = [e.order for e in play.effects if isinstance(e, SendOrder)][-1]
    assert isinstance(last, Recover)
    assert 0 == last.leader
    assert "interrupted by fault 2" == play.incidents[1].outcome


def test_where_it_cannot_work_all_ranks_restart_and_the_reason_says_why() -> None:
    """Not allowed, a rank that keeps nothing, a node lost, too long without news."""
    forbidden = keeping()
    forbidden.job = replace(forbidden.job, options=replace(forbidden.job.options, strategies=("exit",)))
    forbidden.exited("1", KILLED, step=4)
    assert JobPhase.STOPPING == forbidden.job.phase

    forgetful = Scene(3).running()
    forgetful.exited("1", KILLED)
    assert JobPhase.STOPPING == forgetful.job.phase

    lost = keeping()
    lost.exited("1", KILLED, step=4)
    lost.lost("2")
    assert JobPhase.STOPPING == lost.job.phase

    silent = keeping()
    silent.exited("1", KILLED, step=4)
    silent.at(LIMIT_S + 1)
    silent.report("0", Progress(1, 0, joined=True, step=4))
    silent.step(Ticked(silent.at(), silent.now))
    assert JobPhase.STOPPING == silent.job.phase
    forbidden.restart()
    assert "recover-in-place is not among the strategies" in forbidden.incidents[1].reason


def test_trouble_is_tried_again_twice_and_then_denied() -> None:
    """The same error at the same step: the third time the rank keeps it, and the job ends with it."""
    play = keeping()
    for round_number in range(2):
        play.report("1", Trouble(play.job.generation, 1, 5, "ValueError: no", "x.py:1"))
        assert JobPhase.RECOVERING == play.job.phase, round_number
        for node in NODES:
            stand(play, node, state=True, store="h:1" if node == "0" else "")
        assert play.job.recovering is not None
        assert play.job.recovering.regroup is not None
    play.effects.clear()
    play.report("1", Trouble(play.job.generation, 1, 5, "ValueError: no", "x.py:1"))
    denials = [e.message for e in play.effects if isinstance(e, SendWorkers)]
    assert [Denied] == [type(denial) for denial in denials]
    play.exited("1", RAISED, step=4)
    play.restart()

    assert JobPhase.FINISHING == play.job.phase
    assert "3 times in a row" in play.job.reason
    assert {"retry"} == {play.incidents[number].strategy for number in (1, 2)}


standings = st.dictionaries(
    st.integers(0, 7),
    st.tuples(st.booleans(), st.integers(5, 6), st.booleans()),
    min_size=1,
    max_size=8,
)


@given(standings, st.integers(4, 7))
def test_a_decision_never_asks_for_what_nobody_has(
    entries: dict[int, tuple[bool, int, bool]], vote: int
) -> None:
    """Whoever goes to the target without receiving holds what it takes; the source is at the top."""
    said = {
        rank: Standing(2, rank, state, step if state else 0, complete and state, "h:1" if rank == 0 else "")
        for rank, (state, step, complete) in entries.items()
    }
    regroup = decide_regroup(said, dict.fromkeys(said, vote))
    keepers = {rank: standing for rank, standing in said.items() if standing.has_state}
    if regroup is None:
        assert not keepers or 0 not in said
        return
    top = max(standing.step for standing in keepers.values())

    assert top == keepers[regroup.source].step
    assert regroup.target in (top, top + 1)
    assert set(said) - set(keepers) <= set(regroup.receivers)
    for rank, standing in keepers.items():
        if rank in regroup.receivers:
            assert not regroup.forward
            continue
        short = regroup.target - standing.step
        assert short == 0 or (short == 1 and standing.complete)


def node_at_work() -> NodeState:
    """A node with ranks 0 and 1 running in generation 1."""
    plan = plan_of(1)
    workers = {rank: WorkerView(rank, rank, 10 + rank, WorkerState.RUNNING) for rank in range(2)}
    return NodeState("0", NodePhase.RUNNING, 1, plan, workers)


def plan_of(generation: int) -> Plan:
    return Plan(generation, 0, "h", 1, compute_places([("0", 2)]))


def test_a_node_replaces_the_dead_and_interrupts_the_living() -> None:
    """A hung rank loses its process first; its replacement is made when that is known."""
    order = Recover("2/recover", plan_of(2), (1,), 0, "why")
    node, effects = node_machine.step(node_at_work(), OrderReceived(0.0, order))
    assert InterruptProcesses((0,), 2, 0) in effects
    assert SignalProcesses((1,), 9) in effects
    assert [] == [effect for effect in effects if isinstance(effect, SpawnProcesses)]
    node, effects = node_machine.step(
        node, ProcessExited(1.0, WorkerExited(2, 1, 1, 11, KILLED, 4, 1.0, 1.0))
    )
    assert [(1,)] == [effect.ranks for effect in effects if isinstance(effect, SpawnProcesses)]

    again, refused = node_machine.step(node, OrderReceived(2.0, order))
    assert node == again
    assert all(not isinstance(effect, SpawnProcesses) for effect in refused)


def test_a_process_that_was_being_made_hears_of_the_generation_raised_meanwhile() -> None:
    """Else it would wait in a generation that nobody else is in."""
    dead = node_at_work()
    dead = replace(dead, workers={**dead.workers, 1: replace(dead.workers[1], state=WorkerState.FAILED)})
    node, _ = node_machine.step(dead, OrderReceived(0.0, Recover("2/recover", plan_of(2), (1,), 0, "")))
    node, _ = node_machine.step(node, OrderReceived(0.1, Recover("3/recover", plan_of(3), (), 0, "")))
    made = ProcessesStarted(0.2, 2, (WorkerView(1, 1, 99, WorkerState.RUNNING),), {})
    _, effects = node_machine.step(node, made)

    assert InterruptProcesses((1,), 3, 0) in effects


def test_options_default_to_recovery() -> None:
    """A job that says nothing is recovered where it can be."""
    assert "recover-in-place" in JobOptions().strategies
