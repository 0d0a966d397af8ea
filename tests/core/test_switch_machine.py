"""A hot switch: what the manager decides, what an agent does about it, and what ends it early."""

from dataclasses import replace

import pytest

from taskd.core import node as node_machine
from taskd.core.exits import Exit
from taskd.core.jobstate import SendOrder, SendWorkers, SwitchRequested, Ticked
from taskd.core.launch import Plan, compute_places
from taskd.core.messages import (
    Dismiss,
    NodePhase,
    Part,
    Prepare,
    Prepared,
    Progress,
    Recover,
    Regroup,
    Release,
    Standing,
    Stop,
    WorkerExited,
    WorkersStarted,
    WorkersStopped,
    WorkerState,
    WorkerView,
)
from taskd.core.nodestate import (
    ConversationBegan,
    EndProcesses,
    InterruptProcesses,
    LeaverExited,
    NodeState,
    OrderReceived,
    ProcessExited,
    Promote,
    SpawnProcesses,
    StandbyExited,
    StandbysStarted,
    Tell,
    TellStopped,
)
from taskd.core.nodestate import Ticked as NodeTicked
from taskd.core.status import JobPhase
from taskd.core.switching import PREPARE_LIMIT_S, RELEASE_LIMIT_S, why_not
from tests.core.scenes import KILLED, Scene

NODES = ("0", "1", "2")
SPARE = "spare"
NEW_PID = 77


def training(*, spare: bool = True) -> Scene:
    """A running job of three nodes with a rank each that keep their state, and a spare node."""
    play = Scene(3).running()
    if spare:
        play.announce(SPARE)
    for node in NODES:
        play.report(node, Progress(1, play.rank(node), joined=True, step=4, ready=True))
    play.effects.clear()
    return play


def ask(play: Scene, *, rank: int = -1, node: int = -1) -> None:
    play.step(SwitchRequested(play.at(), play.now, rank, node))


def test_a_node_that_somebody_names_takes_over() -> None:
    """The operator has given the place to that one, whichever comes first by its name."""
    play = training()
    play.announce("another")
    play.step(SwitchRequested(play.at(), play.now, -1, 1, "another"))
    assert ["another"] == sent(play, Prepare)
    play = training()
    play.step(SwitchRequested(play.at(), play.now, -1, 1, "not there"))
    assert [SPARE] == sent(play, Prepare)


def prepared(play: Scene, target: str, rank: int) -> None:
    """The standby exists and is built."""
    view = WorkerView(rank, 0, NEW_PID, WorkerState.RUNNING)
    play.report(target, Prepared(2, (view,)))
    play.report(target, Standing(2, rank, has_state=False, step=0, pid=NEW_PID, birth=2))


def stand(play: Scene, node: str, *, leaving: bool = False, step: int = 7, store: str = "") -> None:
    rank = int(node)
    own = b"own" if leaving else b""
    play.report(
        node,
        Standing(2, rank, True, step, store=store, pid=rank + 10, birth=1, leaving=leaving, own=own),
    )


def moved(play: Scene, target: str, rank: int = 1) -> Scene:
    """Play a switch of one rank up to its decision."""
    prepared(play, target, rank)
    for node in NODES:
        stand(play, node, leaving=int(node) == rank, store="here:1" if node == NODES[rank == 0] else "")
    return play


def sent(play: Scene, kind: type) -> list[str]:
    return [e.node for e in play.effects if isinstance(e, SendOrder) and isinstance(e.order, kind)]


def regroups(play: Scene) -> dict[str, Regroup]:
    told = [each for each in play.effects if isinstance(each, SendWorkers)]
    return {each.node: each.message for each in told if isinstance(each.message, Regroup)}


# --- the manager -----------------------------------------------------------------------------------------


def test_the_old_ranks_go_on_until_the_new_ones_stand() -> None:
    """Only the target hears of the switch at first; all are told when the standbys are built."""
    play = training()
    ask(play, node=1)
    assert ([SPARE], []) == (sent(play, Prepare), sent(play, Release))
    assert (JobPhase.RUNNING, 1) == (play.job.phase, play.job.generation)

    prepared(play, SPARE, 1)

    assert list(NODES) == sent(play, Release)
    assert (JobPhase.RUNNING, 2) == (play.job.phase, play.job.generation)
    assert play.job.plan is not None
    assert list(NODES) == [place.node for place in play.job.plan.places]


def test_a_nodes_ranks_change_places_when_all_stand() -> None:
    """The new node gets what the old one left; the old one becomes a spare."""
    play = training()
    ask(play, node=1)
    moved(play, SPARE)

    assert {SPARE, "1"} == set(sent(play, Part))
    told = regroups(play)
    assert {*NODES, SPARE} == set(told)
    assert ({1: b"own"}, {}) == (told[SPARE].partings, told["0"].partings)
    assert {((1,), (1,), 7)} == {(each.parted, each.receivers, each.target) for each in told.values()}
    assert play.job.plan is not None
    assert ["0", SPARE, "2"] == [place.node for place in play.job.plan.places]
    play.report("1", WorkersStopped(2, 29501))
    assert NodePhase.STOPPED == play.job.nodes["1"].phase
    for node in ("0", SPARE, "2"):
        play.report(node, Progress(2, play.rank(node), joined=True, step=7, ready=True))
    assert JobPhase.RUNNING == play.job.phase
    assert ("switch", "hot-switch", "switched") == (
        play.incidents[1].kind,
        play.incidents[1].strategy,
        play.incidents[1].outcome,
    )
    ask(play, node=1)  # back again
    assert ["spare", "1"] == sent(play, Prepare)


def test_a_rank_gets_a_new_process_where_it_is() -> None:
    """Its place does not change, and the old process is nobody from then on."""
    play = training()
    ask(play, rank=1)
    moved(play, "1")

    assert ["1"] == sent(play, Part)
    assert NEW_PID == play.job.nodes["1"].workers[1].pid
    play.effects.clear()
    play.report("1", WorkerExited(2, 1, 0, 11, Exit(code=0), 6, 60.0, play.now))
    stand(play, "1", leaving=True)  # it had missed the decision
    assert (NEW_PID, WorkerState.JOINED) == (
        play.job.nodes["1"].workers[1].pid,
        play.job.nodes["1"].workers[1].state,
    )
    assert (1,) == regroups(play)["1"].parted


def test_a_fault_before_the_decision_leaves_the_old_plan() -> None:
    """The standbys are ended, and the generation that was promised to them is not used again."""
    for released in (False, True):
        play = training()
        ask(play, node=1)
        if released:
            prepared(play, SPARE, 1)
        play.exited("0", KILLED)

        assert ([SPARE], list(NODES)) == (sent(play, Dismiss), sent(play, Recover))
        assert (3, None) == (play.job.generation, play.job.switch)
        assert play.incidents[1].outcome.startswith("cancelled: rank 0")
        assert play.job.plan is not None
        assert list(NODES) == [place.node for place in play.job.plan.places]


def test_a_standby_that_fails_early_costs_nothing() -> None:
    """Nobody had been told; the next switch has a generation of its own."""
    play = training()
    ask(play, rank=1)
    play.report("1", Prepared(2, error="the standby of rank 1 was killed"))

    assert (JobPhase.RUNNING, 1, None) == (play.job.phase, play.job.generation, play.job.switch)
    assert "cancelled: the standby of rank 1 was killed" == play.incidents[1].outcome
    ask(play, rank=1)
    assert play.job.switch is not None
    assert 3 == play.job.switch.plan.generation


def test_a_standby_that_fails_late_lets_all_go_on_as_they_are() -> None:
    """They were told to come together, so they do, and nobody leaves."""
    play = training()
    ask(play, node=1)
    prepared(play, SPARE, 1)
    play.lost(SPARE)
    for node in NODES:
        stand(play, node, leaving=node == "1", store="here:1" if node == "0" else "")

    assert [] == sent(play, Part)
    assert {*NODES} == set(regroups(play))
    assert {((), ())} == {(each.parted, each.receivers) for each in regroups(play).values()}
    for node in NODES:
        play.report(node, Progress(2, play.rank(node), joined=True, step=7, ready=True))
    assert (JobPhase.RUNNING, 2) == (play.job.phase, play.job.generation)
    assert "cancelled: node spare was lost" in play.incidents[1].outcome


def test_a_rank_that_came_out_by_a_fault_is_not_moved() -> None:
    """It has nothing to leave to a successor; all go on from where they stand."""
    play = training()
    ask(play, rank=1)
    prepared(play, "1", 1)
    for node in NODES:
        stand(play, node, store="here:1" if node == "0" else "")

    assert [] == sent(play, Part)
    assert {()} == {each.parted for each in regroups(play).values()}


def test_a_switch_has_its_limits() -> None:
    """Standbys that are never built are given up; ranks that never come together are recovered."""
    play = training()
    ask(play, rank=1)
    play.step(Ticked(play.at(PREPARE_LIMIT_S + 1)))
    assert (None, 1) == (play.job.switch, play.job.generation)

    play = training()
    ask(play, rank=1)
    prepared(play, "1", 1)
    play.step(Ticked(play.at(RELEASE_LIMIT_S + 1)))
    assert (None, JobPhase.RECOVERING, 3) == (play.job.switch, play.job.phase, play.job.generation)


def test_a_target_that_announces_itself_anew_has_no_standbys_any_more() -> None:
    """It ended them before it spoke."""
    play = training()
    ask(play, node=1)
    play.announce(SPARE, life="b")
    assert None is play.job.switch


@pytest.mark.parametrize(
    ("rank", "node", "sentence"),
    [(7, -1, "no rank 7"), (-1, 7, "no node 7"), (-1, 1, "no spare node")],
)
def test_what_cannot_be_moved(rank: int, node: int, sentence: str) -> None:
    """The reason is said at once, and nothing happens."""
    play = training(spare=False)
    assert sentence in why_not(play.job, SwitchRequested(play.now, play.now, rank, node))
    ask(play, rank=rank, node=node)
    assert None is play.job.switch


def test_only_one_switch_at_a_time_and_none_in_a_recovery() -> None:
    """And none of a script that keeps no state, nor of all ranks at once."""
    play = training()
    request = SwitchRequested(play.now, play.now, rank=1)
    assert "" == why_not(play.job, request)
    ask(play, rank=2)
    assert "under way" in why_not(play.job, request)
    play.exited("0", KILLED)
    assert "recovering" in why_not(play.job, request)
    assert "keeps its state" in why_not(Scene(3).running().job, request)
    alone = Scene(1).running()
    alone.report("0", Progress(1, 0, joined=True, step=4, ready=True))
    assert "all ranks" in why_not(alone.job, SwitchRequested(alone.now, alone.now, rank=0))


# --- the agent -------------------------------------------------------------------------------------------


def plan(generation: int, *nodes: str, moves: int = 0) -> Plan:
    places = compute_places([(node, 2) for node in nodes])
    return Plan(generation, 0, "localhost", 1, places, moves=moves)


def view(rank: int, pid: int) -> WorkerView:
    return WorkerView(rank, rank % 2, pid, WorkerState.RUNNING)


def running_node() -> NodeState:
    return NodeState(
        "a", NodePhase.RUNNING, 1, plan(1, "a", "b"), {rank: view(rank, rank + 10) for rank in (0, 1)}
    )


def standing_by(node: NodeState, new: Plan, *ranks: int) -> NodeState:
    node, effects = node_machine.step(node, OrderReceived(1.0, Prepare("2/prepare", new, ranks, "")))
    assert any(isinstance(each, SpawnProcesses) and each.standby for each in effects)
    views = tuple(view(rank, rank + NEW_PID) for rank in ranks)
    node, effects = node_machine.step(node, StandbysStarted(2.0, 2, views))
    assert (Tell(Prepared(2, views)),) == effects
    return node


def test_an_agent_raises_gently_and_ends_nobody() -> None:
    """The ranks are told; its generation is the new one."""
    node = standing_by(running_node(), plan(2, "a", "b", moves=1), 1)
    node, effects = node_machine.step(
        node, OrderReceived(3.0, Release("2/release", plan(2, "a", "b"), 0, (1,), ""))
    )
    assert InterruptProcesses((0, 1), 2, 0, gentle=True, leaving=(1,)) in effects
    assert (2, 11) == (node.generation, node.workers[1].pid)


def test_a_standby_becomes_the_rank_and_the_old_process_may_end() -> None:
    """One that does not end by itself is ended after a while."""
    new = plan(2, "a", "b", moves=1)
    node = standing_by(running_node(), new, 1)
    node, effects = node_machine.step(node, OrderReceived(3.0, Part("2/part", new, (1,))))
    assert Promote((1,)) in effects
    assert (1 + NEW_PID, {11}) == (node.workers[1].pid, set(node.leavers))
    gone, _ = node_machine.step(node, LeaverExited(4.0, 11))
    assert not gone.leavers
    _, effects = node_machine.step(node, NodeTicked(3.0 + node_machine.PART_GRACE_S))
    assert (EndProcesses((11,)),) == effects


def test_a_node_that_is_left_becomes_quiet() -> None:
    """It says so when its last process is gone, and is of use as a spare then."""
    node = running_node()
    node, _ = node_machine.step(node, OrderReceived(3.0, Part("2/part", plan(2, "c", "b"), (0, 1))))
    effects: tuple[object, ...] = ()
    for rank in (0, 1):
        report = WorkerExited(2, rank, rank, rank + 10, Exit(code=0), 5, 9.0, 4.0)
        node, effects = node_machine.step(node, ProcessExited(4.0, report))
    assert (NodePhase.STOPPED, (TellStopped(2),)) == (node.phase, effects)


def test_a_spare_node_runs_its_standbys() -> None:
    """It had nothing before."""
    new = plan(2, "c", "b", moves=1)
    node = standing_by(NodeState("c"), new, 0, 1)
    assert NodePhase.IDLE == node.phase
    node, effects = node_machine.step(node, OrderReceived(3.0, Part("2/part", new, (0, 1))))
    assert NodePhase.RUNNING == node.phase
    assert Tell(WorkersStarted(2, tuple(node.workers.values()))) in effects


@pytest.mark.parametrize(
    "event",
    [
        OrderReceived(3.0, Dismiss("2/dismiss", 2, "")),
        OrderReceived(3.0, Recover("3/recover", plan(3, "a", "b"), (), 0, "")),
        OrderReceived(3.0, Stop("1/stop", 1, 5.0, "")),
        ConversationBegan(3.0),
    ],
)
def test_whatever_comes_in_between_ends_the_standbys(
    event: OrderReceived | ConversationBegan,
) -> None:
    """The rank keeps its process, or loses it as it would have without them."""
    node = standing_by(running_node(), plan(2, "a", "b", moves=1), 1)
    node, effects = node_machine.step(node, event)
    assert EndProcesses((1 + NEW_PID,)) in effects
    assert (None, {}) == (node.standby_plan, node.standbys)
    assert 11 == node.workers[1].pid


def test_standbys_that_come_too_late_are_ended() -> None:
    """The switch was off before they were there."""
    new = plan(2, "a", "b", moves=1)
    node, _ = node_machine.step(running_node(), OrderReceived(1.0, Prepare("2/prepare", new, (1,), "")))
    node, _ = node_machine.step(node, OrderReceived(2.0, Dismiss("2/dismiss", 2, "")))
    node, effects = node_machine.step(node, StandbysStarted(3.0, 2, (view(1, NEW_PID),)))
    assert (EndProcesses((NEW_PID,)),) == effects
    node, _ = node_machine.step(node, LeaverExited(4.0, NEW_PID))
    assert not node.leavers


def test_the_death_of_one_standby_ends_the_others() -> None:
    """And the manager hears why."""
    node = standing_by(NodeState("c"), plan(2, "c", "b", moves=1), 0, 1)
    node, effects = node_machine.step(node, StandbyExited(3.0, 2, 0, "was killed by SIGKILL"))
    error = "the standby of rank 0 was killed by SIGKILL"
    assert (EndProcesses((1 + NEW_PID,)), Tell(Prepared(2, error=error))) == effects


def test_a_standby_that_was_gone_when_it_was_to_be_a_rank_is_a_dead_rank() -> None:
    """The manager learns it as any other death."""
    new = plan(2, "a", "b", moves=1)
    node, effects = node_machine.step(running_node(), OrderReceived(3.0, Part("2/part", new, (1,))))
    assert WorkerState.FAILED == node.workers[1].state
    deaths = [each.report for each in effects if isinstance(each, Tell)]
    assert [1] == [each.rank for each in deaths if isinstance(each, WorkerExited)]


def test_of_two_plans_of_one_generation_the_moved_one_is_later() -> None:
    """A manager that is born in the middle of a switch goes on with what was decided."""
    old, new = plan(2, "0", "1"), replace(plan(2, "0", SPARE), moves=1)
    later = Scene(2)
    for key, each in (("0", old), (SPARE, new)):
        place = each.place_of(key)
        assert place is not None
        views = tuple(view(rank, rank + 10) for rank in place.ranks)
        later.announce(key, phase=NodePhase.RUNNING, generation=2, plan=each, workers=views)
    assert (new, JobPhase.RUNNING) == (later.job.plan, later.job.phase)
