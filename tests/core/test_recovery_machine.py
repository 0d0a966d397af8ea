"""Recovery from memory: what is decided, and when a restart takes its place."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskd.core import node as node_machine
from taskd.core.failures import Budget
from taskd.core.jobstate import NodeAnnounced, Relief, SendOrder, SendWorkers, Ticked
from taskd.core.launch import JobOptions, Plan, compute_places
from taskd.core.messages import (
    Announce,
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
from taskd.core.nodestate import (
    InterruptProcesses,
    NodeState,
    OrderReceived,
    ProcessesStarted,
    ProcessExited,
    SignalProcesses,
    SpawnProcesses,
    Tell,
)
from taskd.core.recovery import LIMIT_S
from taskd.core.regroup import decide_regroup
from taskd.core.status import JobPhase
from tests.core.scenes import KILLED, RAISED, Scene

NODES = ("0", "1", "2")


def keeping(nodes: int = 3) -> Scene:
    """A running job whose ranks, one a node, keep their state."""
    play = Scene(nodes).running()
    for node in play.job.nodes:
        play.report(node, Progress(1, play.rank(node), joined=True, step=4, ready=True))
    play.effects.clear()
    return play


def orders(play: Scene, kind: type) -> list[str]:
    return [e.node for e in play.effects if isinstance(e, SendOrder) and isinstance(e.order, kind)]


def stand(
    play: Scene, node: str, *, state: bool, step: int = 5, complete: bool = False, store: str = ""
) -> None:
    play.report(node, Standing(play.job.generation, play.rank(node), state, step, complete, store))


def test_a_connection_that_broke_before_a_death_is_the_same_fault() -> None:
    """The others may be quicker than the report of it; people read of one incident, and of its cause."""
    play = keeping()
    play.report("0", Trouble(1, 0, 5, "RuntimeError: Connection closed by peer", "", "network"))
    play.exited("1", KILLED, step=4)

    assert (JobPhase.RECOVERING, 3) == (play.job.phase, play.job.generation)
    assert [1] == list(play.incidents)
    incident = play.incidents[1]
    assert ("process", 1, "recover-in-place") == (incident.kind, incident.rank, incident.strategy)


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
    assert (5, 5, (1,)) == (regroup.target, regroup.top, regroup.receivers)
    play.effects.clear()
    stand(play, "2", state=True)
    assert [SendWorkers("2", regroup)] == play.effects
    for step in (-1, 5):
        for node in NODES:
            play.report(node, Progress(2, play.rank(node), joined=True, step=step, ready=True))
    assert JobPhase.RUNNING == play.job.phase
    assert "recovered" == play.incidents[1].outcome
    assert 0 == play.job.restarts


def test_a_plan_says_when_all_ranks_last_began_together() -> None:
    """Only a restart changes that; what a process was told before its loop holds for those who replace it."""
    play = keeping()
    play.exited("1", KILLED, step=4)
    again = Scene(3).running()
    again.exited("1", KILLED)  # no rank keeps its state
    again.restart()

    assert play.job.plan is not None
    assert again.job.plan is not None
    assert (2, 1) == (play.job.plan.generation, play.job.plan.began)
    assert (2, 2) == (again.job.plan.generation, again.job.plan.began)


@pytest.mark.parametrize(
    ("error", "phase"),
    [
        ("RuntimeError: [gloo/transport/tcp/pair.cc:561] Connection closed by peer", JobPhase.RUNNING),
        ("ValueError: no such file", JobPhase.FINISHING),
    ],
)
def test_peers_that_end_over_one_broken_group_have_failed_once(error: str, phase: JobPhase) -> None:
    """Their script was in a collective between two steps. An error of its own comes back on each rank."""
    play = keeping(4)
    play.exited("0", KILLED, step=4)
    for node in ("1", "2", "3"):
        play.exited(node, RAISED, step=4, place="train.py:30", error=error)
    play.restart()

    assert phase == play.job.phase


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
    """Not allowed, a rank that keeps nothing, too long without news."""
    forbidden = keeping()
    forbidden.job = replace(forbidden.job, options=replace(forbidden.job.options, strategies=("exit",)))
    forbidden.exited("1", KILLED, step=4)
    assert JobPhase.STOPPING == forbidden.job.phase

    forgetful = Scene(3).running()
    forgetful.exited("1", KILLED)
    assert JobPhase.STOPPING == forgetful.job.phase

    silent = keeping()
    silent.exited("1", KILLED, step=4)
    silent.at(LIMIT_S + 1)
    silent.report("0", Progress(1, 0, joined=True, step=4))
    silent.step(Ticked(silent.at(), silent.now))
    assert JobPhase.STOPPING == silent.job.phase
    forbidden.restart()
    assert "recover-in-place is not among the strategies" in forbidden.incidents[1].reason


def test_a_lost_node_is_waited_for_and_gets_the_order_that_it_missed() -> None:
    """The survivors are pulled out at once; the node's new agent makes its ranks anew."""
    play = keeping()
    play.lost("2")
    assert (JobPhase.RECOVERING, ["0", "1"]) == (play.job.phase, orders(play, Recover))
    assert "as soon as node 2 is back" in play.job.reason
    play.effects.clear()
    play.announce("2", "b")

    assert ["2"] == orders(play, Recover)
    order = next(e.order for e in play.effects if isinstance(e, SendOrder))
    assert isinstance(order, Recover)
    assert ((2,), 2) == (order.replace, order.plan.generation)


def test_a_spare_node_takes_the_place_of_a_lost_one() -> None:
    """It keeps the node's number and its ranks; nobody else changes."""
    play = keeping()
    play.announce("9")
    play.effects.clear()
    play.lost("1")

    assert ["0", "9", "2"] == orders(play, Recover)
    assert play.job.plan is not None
    assert [("0", 0), ("9", 1), ("2", 2)] == [(p.node, p.node_rank) for p in play.job.plan.places]
    assert "recover" == play.incidents[1].strategy
    play.announce("1", "b")
    assert JobPhase.RECOVERING == play.job.phase


def test_those_who_stand_by_are_taken_in_the_order_of_their_names() -> None:
    """Whoever came first; and before a node that is only free."""
    play = keeping()
    play.announce("9")
    for name in ("standby-j-standby-10", "standby-j-standby-2"):
        stand_by(play, name)
    for lost in ("1", "2"):
        play.lost(lost)

    assert play.job.plan is not None
    assert ["0", "standby-j-standby-2", "standby-j-standby-10"] == [p.node for p in play.job.plan.places]


def test_places_are_taken_as_the_control_plane_has_told_the_operator_too() -> None:
    """One that it does not want used is passed over, and what it gave to one place is no other's."""
    play = keeping()
    for number in range(4):
        stand_by(play, f"standby-j-standby-{number}")
    first, second, third, fourth = (f"standby-j-standby-{number}" for number in range(4))
    play.job = replace(play.job, relief=Relief({1: third, 2: second}, frozenset({first})))
    for lost in ("1", "2"):
        play.lost(lost)
    assert play.job.plan is not None
    assert ["0", third, second] == [place.node for place in play.job.plan.places]
    play.lost(third)

    assert play.job.plan is not None
    assert ["0", fourth, second] == [place.node for place in play.job.plan.places]
    for node in ("0", fourth, second):
        stand(play, node, state=node == "0", step=5 if node == "0" else 0, store="h:1" if node == "0" else "")
    for step in (-1, 5):
        for node in ("0", fourth, second):
            done = Progress(play.job.generation, play.rank(node), joined=True, step=step, ready=True)
            play.report(node, done)
    assert (JobPhase.RUNNING, Relief()) == (play.job.phase, play.job.relief)


def test_a_standby_that_is_kept_for_nobody_is_not_waited_for() -> None:
    """The one that was named has not come, or is lost: any other will do."""
    play = keeping()
    stand_by(play, "standby-j-standby-1")
    play.job = replace(play.job, relief=Relief({1: "standby-j-standby-0"}))
    play.lost("1")

    assert play.job.plan is not None
    assert "standby-j-standby-1" == play.job.plan.places[1].node


def stand_by(play: Scene, name: str) -> None:
    message = Announce(name, -1, "10.0.0.1", "host", 1, "boot", 1, 29500, spare=True)
    play.step(NodeAnnounced(play.at(), play.now, f"{name}a", message))


def test_a_node_that_comes_while_a_place_is_empty_gets_it() -> None:
    """A standby that was not there yet, or a pod that was created again under another name."""
    play = keeping()
    play.lost("1")
    assert ["0", "2"] == orders(play, Recover)
    stand(play, "0", state=True)
    play.effects.clear()
    play.announce("9")

    assert ["0", "9", "2"] == orders(play, Recover)
    assert [1] == list(play.incidents)
    assert ("recover", 3) == (play.incidents[1].strategy, play.job.generation)
    assert play.job.recovering is not None
    assert 1 == play.job.recovering.rounds
    assert "replaced on node 9 (as node 1)" in play.incidents[1].reason
    play.effects.clear()
    play.announce("1", "b")
    assert [] == orders(play, Recover), "its place is taken; it waits as a spare"


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


entries_of_ranks = st.dictionaries(
    st.integers(0, 7),
    st.tuples(st.booleans(), st.integers(5, 6), st.booleans(), st.sets(st.integers(4, 6), max_size=2)),
    min_size=1,
    max_size=8,
)


@given(entries_of_ranks, st.integers(1, 8))
def test_a_decision_never_asks_for_what_nobody_has(
    entries: dict[int, tuple[bool, int, bool, set[int]]], parts: int
) -> None:
    """Whoever receives finds a replica or a snapshot of the target; all others get there by themselves."""
    layout = tuple(str(rank % parts) for rank in range(8))
    said = {
        rank: Standing(
            2,
            rank,
            state,
            step if state else 0,
            complete and state,
            "h:1" if rank == 0 else "",
            layout,
            tuple((rank, kept) for kept in sorted(copies)),
        )
        for rank, (state, step, complete, copies) in entries.items()
    }
    keepers = {rank: standing for rank, standing in said.items() if standing.has_state}
    regroup = decide_regroup(said)
    if isinstance(regroup, str):
        assert regroup
        return

    target = regroup.target
    assert regroup.top == max(standing.step for standing in keepers.values())
    assert target in (regroup.top, regroup.top - 1)
    there = {
        rank
        for rank, standing in keepers.items()
        if standing.step == target or (standing.step == target - 1 and standing.complete)
    }
    assert set(said) - there == set(regroup.receivers)
    for rank in regroup.receivers:
        replicas = {other for other in there if other % parts == rank % parts}
        copies = {
            owner
            for standing in said.values()
            for owner, step in standing.snapshots
            if step == target and owner % parts == rank % parts
        }
        assert replicas | copies


def test_a_step_that_only_the_dead_had_committed_counts() -> None:
    """All others hold its gradient, for it had seen the vote; where they do not, it is computed again."""
    said = {
        0: Standing(2, 0, True, 5, complete=True, store="h:1"),
        1: Standing(2, 1, False, 0, told=6),
        2: Standing(2, 2, True, 5, complete=True),
    }
    assert Regroup(2, "h:1", 6, 6, (1,), ()) == decide_regroup(said)

    one = {**said, 2: Standing(2, 2, True, 5)}
    assert Regroup(2, "h:1", 6, 6, (1, 2), ()) == decide_regroup(one)
    none = {**one, 0: Standing(2, 0, True, 5, store="h:1")}
    assert Regroup(2, "h:1", 5, 5, (1,), ()) == decide_regroup(none)
    stale = {**said, 1: Standing(2, 1, False, 0, told=3)}
    assert Regroup(2, "h:1", 5, 5, (1,), ()) == decide_regroup(stale)
    alone = {rank: replace(each, shards=("a", "b", "c")) for rank, each in said.items()}
    assert "nobody has the state of rank 1 at step 6" == decide_regroup(alone)


def test_a_rank_without_replica_and_without_a_finished_snapshot_takes_all_one_step_back() -> None:
    """Everybody has its own snapshot of the step before, and that step is computed again."""
    shards = ("a", "b", "c")
    said = {
        0: Standing(2, 0, True, 6, False, "h:1", shards, ((0, 6), (0, 5))),
        1: Standing(2, 1, False, 0, snapshots=((1, 5), (1, 4))),
        2: Standing(2, 2, True, 6, False, "", shards, ((2, 6), (2, 5))),
    }
    regroup = decide_regroup(said)

    assert Regroup(2, "h:1", 5, 6, (0, 1, 2), shards) == regroup
    lost = {**said, 1: Standing(2, 1, False, 0)}
    assert "nobody has the state of rank 1 at step 6" == decide_regroup(lost)


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


def test_what_was_told_of_the_generation_before_is_told_again() -> None:
    """It may have crossed the order and been refused; the new process would be a stranger then."""
    dead = node_at_work()
    dead = replace(dead, workers={**dead.workers, 1: replace(dead.workers[1], state=WorkerState.FAILED)})
    node, _ = node_machine.step(dead, OrderReceived(0.0, Recover("2/recover", plan_of(2), (1,), 0, "")))
    made = ProcessesStarted(0.1, 2, (WorkerView(1, 1, 99, WorkerState.RUNNING),), {})
    node, _ = node_machine.step(node, made)
    node, effects = node_machine.step(node, OrderReceived(0.2, Recover("3/recover", plan_of(3), (), 0, "")))

    (told,) = (each.report for each in effects if isinstance(each, Tell))
    assert isinstance(told, WorkersStarted)
    assert (3, 99) == (told.generation, {view.rank: view.pid for view in told.workers}[1])


def test_options_default_to_recovery() -> None:
    """A job that says nothing is recovered where it can be."""
    assert "recover-in-place" in JobOptions().strategies


# --- pods that are created again -------------------------------------------------------------------------


def keeping_with(*strategies: str) -> Scene:
    """A running job whose ranks keep their state, and which allows only these strategies."""
    play = Scene(3, JobOptions(strategies=strategies)).running()
    for node in NODES:
        play.report(node, Progress(1, play.rank(node), joined=True, step=4, ready=True))
    play.effects.clear()
    return play


def test_a_pod_that_comes_back_before_it_was_missed_gets_its_ranks() -> None:
    """The others broke first and were told to try again; the new pod has no process to try with."""
    play = keeping()
    play.report("0", Trouble(1, 0, 5, "RuntimeError: Connection closed by peer", "", "network"))
    assert (JobPhase.RECOVERING, 2) == (play.job.phase, play.job.generation)
    play.effects.clear()
    play.announce("1", "b")

    assert (JobPhase.RECOVERING, 3) == (play.job.phase, play.job.generation)
    order = next(e.order for e in play.effects if isinstance(e, SendOrder) and e.node == "1")
    assert isinstance(order, Recover)
    assert (1,) == order.replace


def test_a_node_that_only_missed_an_order_still_gets_it() -> None:
    """The same processes in another conversation: nobody is replaced for that."""
    play = keeping()
    play.exited("1", KILLED, step=4)
    play.effects.clear()
    play.announce(
        "2", "b", phase=NodePhase.RUNNING, generation=1, plan=play.job.plan, workers=(play.view("2"),)
    )

    assert 2 == play.job.generation
    assert ["2"] == orders(play, Recover)


def test_recover_alone_is_enough_for_a_pod_that_was_created_again() -> None:
    """It is the pod that was replaced and not a process in it, however soon it is back."""
    play = keeping_with("recover")
    play.announce("1", "b")

    assert JobPhase.RECOVERING == play.job.phase
    assert "recover" == play.incidents[1].strategy


def test_recover_alone_does_not_replace_a_process_in_its_pod() -> None:
    """That is recover-in-place, which this job does not allow."""
    play = keeping_with("recover")
    play.exited("1", KILLED, step=4)

    assert JobPhase.STOPPING == play.job.phase


def test_a_broken_group_waits_for_its_cause_where_a_step_may_not_be_tried_again() -> None:
    """The peers of a lost pod hear of it first; refused they would end, and the state with them."""
    play = keeping_with("recover")
    broken = Trouble(1, 0, 5, "RuntimeError: Connection closed by peer", "", "network")
    play.report("0", broken)
    play.report("0", broken)
    assert [] == [e for e in play.effects if isinstance(e, SendWorkers)]
    play.announce("1", "b")

    assert JobPhase.RECOVERING == play.job.phase
    assert "recover" == play.incidents[1].strategy


def test_a_failed_step_is_refused_at_once_where_it_may_not_be_tried_again() -> None:
    """An error of its own has no other cause to wait for; nor has one in a job that recovers nothing."""
    for strategies, kind in ((("recover",), "step"), (("dump", "exit"), "network")):
        play = keeping_with(*strategies)
        play.report("0", Trouble(1, 0, 5, "RuntimeError: no", "", kind))
        (told,) = [e for e in play.effects if isinstance(e, SendWorkers)]
        assert isinstance(told.message, Denied)


# --- what is allowed and not built -------------------------------------------------------------------------


def test_elastic_training_is_skipped_and_the_reason_says_so() -> None:
    """On the way down to a restart, to a dump and to the end; without it in the list nobody hears of it."""
    skipped = "elastic-training was skipped: it is not supported yet"
    restarted, dumped = keeping_with("elastic-training", "exit"), keeping_with("elastic-training", "dump")
    plain = keeping_with("exit")
    ended = keeping_with("elastic-training", "exit")
    ended.job = replace(ended.job, budget=Budget(0))
    for play in (restarted, dumped, plain, ended):
        play.exited("1", KILLED, step=4)
        play.restart()

    why = "since recover-in-place is not among the strategies"
    assert f"{why}; {skipped} (fault 1" in restarted.incidents[1].reason
    assert ("dump", True) == (dumped.incidents[1].strategy, skipped in dumped.incidents[1].reason)
    assert ("exit", True) == (ended.incidents[1].strategy, skipped in ended.incidents[1].reason)
    assert f"{why} (fault 1" in plain.incidents[1].reason


def test_elastic_training_is_no_word_where_something_finer_fits() -> None:
    """It comes after what recovers from memory, so nothing was skipped."""
    play = keeping_with("elastic-training", "recover-in-place", "exit")
    play.exited("1", KILLED, step=4)

    assert "recover-in-place" == play.incidents[1].strategy
    assert "elastic" not in play.incidents[1].reason


# --- where state came from ---------------------------------------------------------------------------------


def test_an_incident_says_from_where_ranks_got_their_state() -> None:
    """The first rank tells it with the news that it is restored."""
    play = keeping()
    play.exited("1", KILLED, step=4)
    for node in NODES:
        stand(play, node, state=node != "1", step=0 if node == "1" else 5, store="h:1" if node == "0" else "")
    told = ("rank 1 gets its state from rank 0",)
    for step, notes in ((-1, told), (5, ())):
        for node in NODES:
            said = notes if node == "0" else ()
            play.report(node, Progress(2, play.rank(node), joined=True, step=step, ready=True, notes=said))

    assert ("recovered", told) == (play.incidents[1].outcome, play.incidents[1].status().notes)
