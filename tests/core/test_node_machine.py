"""The agent's machine: orders once, one generation at a time, nothing left behind."""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from taskd.core.exits import Exit
from taskd.core.launch import FaultKind, Plan, compute_places
from taskd.core.messages import (
    Finish,
    Inject,
    NodePhase,
    OrderDone,
    Start,
    Stop,
    WorkerExited,
    WorkersStarted,
    WorkerState,
    WorkerView,
)
from taskd.core.node import step
from taskd.core.nodestate import (
    DoFault,
    Execute,
    Leave,
    NodeEffect,
    NodeEvent,
    NodeState,
    OrderReceived,
    ProcessesStarted,
    ProcessExited,
    RefuseOrder,
    SignalProcesses,
    SpawnFailed,
    SpawnProcesses,
    Tell,
    TellStopped,
    Ticked,
)

SIGKILL, SIGTERM = 9, 15


def make_plan(generation: int, node: str = "n") -> Plan:
    return Plan(generation, generation - 1, "10.0.0.1", 29500, compute_places([(node, 2)]))


def start(generation: int) -> Start:
    return Start(f"{generation}/start", make_plan(generation))


def stop(generation: int, grace_s: float = 5.0) -> Stop:
    return Stop(f"{generation}/stop", generation, grace_s, "a test wants it")


def views(generation: int) -> tuple[WorkerView, ...]:
    return tuple(WorkerView(rank, rank, 10 * generation + rank, WorkerState.RUNNING) for rank in (0, 1))


@dataclass
class Node:
    """A node machine and what it did."""

    state: NodeState = field(default_factory=lambda: NodeState("n"))
    effects: list[NodeEffect] = field(default_factory=list)
    now: float = 0.0

    def do(self, event: NodeEvent) -> tuple[NodeEffect, ...]:
        self.state, effects = step(self.state, event)
        self.effects.extend(effects)
        return effects

    def order(self, order: Start | Stop | Finish | Inject) -> tuple[NodeEffect, ...]:
        return self.do(OrderReceived(self.now, order))

    def made(self, generation: int) -> tuple[NodeEffect, ...]:
        return self.do(ProcessesStarted(self.now, generation, views(generation), {}))

    def exit(self, generation: int, rank: int, how: Exit, stamp: float = 0.0) -> tuple[NodeEffect, ...]:
        report = WorkerExited(generation, rank, rank, 10 * generation + rank, how, -1, 1.0, 0.0, stamp)
        return self.do(ProcessExited(self.now, report))

    def running(self, generation: int = 1) -> "Node":
        self.order(start(generation))
        self.made(generation)
        self.effects.clear()
        return self


def test_a_start_makes_the_processes_of_the_plan_and_tells_when_they_exist() -> None:
    """The order is written down before anything is done."""
    node = Node()

    effects = node.order(start(1))
    assert [Execute, SpawnProcesses] == [type(effect) for effect in effects]

    assert (Tell(WorkersStarted(1, views(1))),) == node.made(1)
    assert NodePhase.RUNNING == node.state.phase


def test_an_order_that_comes_again_is_answered_and_not_carried_out() -> None:
    """A manager that takes over gives it again, and only needs the answer."""
    node = Node().running()

    effects = node.order(start(1))

    assert [RefuseOrder, Tell] == [type(effect) for effect in effects]
    node.order(stop(1))
    node.exit(1, 0, Exit(signal=SIGTERM))
    node.exit(1, 1, Exit(signal=SIGTERM))
    assert [RefuseOrder, TellStopped] == [type(effect) for effect in node.order(stop(1))]


def test_the_end_is_confirmed_to_a_manager_that_did_not_hear_it() -> None:
    """The first manager may have taken the answer with it."""
    node = Node()
    node.order(Finish("finish", 0, "done"))

    effects = node.order(Finish("finish", 0, "done"))

    assert Tell(OrderDone("finish", ok=True)) == effects[1]
    assert 1 == sum(isinstance(effect, Leave) for effect in node.effects)


def test_an_order_of_an_older_generation_is_refused() -> None:
    """A manager that was believed dead cannot turn the clock back."""
    node = Node().running(5)

    for order in (start(4), stop(4), Start("5/again", make_plan(5))):
        effects = node.order(order)
        assert [RefuseOrder] == [type(effect) for effect in effects]
    assert 5 == node.state.generation


def test_a_stop_has_grace_and_then_force() -> None:
    """SIGTERM at once, SIGKILL when the grace has passed, and only to those that still live."""
    node = Node().running()
    assert SignalProcesses((0, 1), SIGTERM) == node.order(stop(1, grace_s=5.0))[1]
    node.exit(1, 0, Exit(signal=SIGTERM))
    assert () == node.do(Ticked(4.9))

    assert (SignalProcesses((1,), SIGKILL),) == node.do(Ticked(5.0))
    assert () == node.do(Ticked(6.0))
    assert (TellStopped(1),) == node.exit(1, 1, Exit(signal=SIGKILL))


def test_a_stop_during_a_spawn_ends_what_is_born() -> None:
    """The processes come into being after the order, and are not forgotten."""
    node = Node()
    node.order(start(1))
    node.order(stop(1))
    assert not any(isinstance(effect, TellStopped) for effect in node.effects)

    assert (SignalProcesses((0, 1), SIGKILL),) == node.made(1)
    node.exit(1, 0, Exit(signal=SIGKILL))
    assert (TellStopped(1),) == node.exit(1, 1, Exit(signal=SIGKILL))


def test_a_start_over_older_processes_waits_until_they_are_gone() -> None:
    """Two generations never run at the same time, and what was given up gets no grace."""
    node = Node().running()
    effects = node.order(start(2))
    assert [Execute, SignalProcesses] == [type(effect) for effect in effects]
    node.exit(1, 0, Exit(signal=SIGKILL))

    effects = node.exit(1, 1, Exit(signal=SIGKILL))

    assert [SpawnProcesses] == [type(effect) for effect in effects]


def test_a_stop_also_ends_a_start_that_still_waits() -> None:
    """Start 2 waits for older processes, stop 2 comes: generation 2 must not begin afterwards."""
    node = Node().running()
    node.order(start(2))
    node.order(stop(2))
    node.exit(1, 0, Exit(signal=SIGKILL))

    assert (TellStopped(2),) == node.exit(1, 1, Exit(signal=SIGKILL))
    assert not any(isinstance(effect, SpawnProcesses) for effect in node.effects)


def test_a_spawn_that_failed_is_reported_and_stays_in_the_picture() -> None:
    """A manager that takes over before the report arrives sees the failure in the announcement."""
    node = Node()
    node.order(start(1))

    (told,) = node.do(SpawnFailed(1.0, 1, "no memory"))

    assert isinstance(told, Tell)
    assert isinstance(told.report, WorkerExited)
    assert ("no memory", "spawn") == (told.report.error, told.report.place)
    assert [WorkerState.FAILED] == [view.state for view in node.state.workers.values()]
    assert (TellStopped(1),) == node.order(stop(1))[1:]


def test_a_process_that_ends_before_its_siblings_exist_is_remembered() -> None:
    """The list of the new processes does not bring it back to life."""
    node = Node()
    node.order(start(1))
    node.exit(1, 0, Exit(code=1))

    node.made(1)

    assert (WorkerState.FAILED, WorkerState.RUNNING) == tuple(
        node.state.workers[rank].state for rank in (0, 1)
    )


def test_while_stopping_only_an_error_of_the_program_is_news() -> None:
    """Deaths by the stop itself are expected; an earlier exception may be the first cause."""
    node = Node().running()
    node.order(stop(1))

    assert () == node.exit(1, 0, Exit(signal=SIGTERM))
    effects = node.exit(1, 1, Exit(code=1), stamp=7.0)
    assert [Tell, TellStopped] == [type(effect) for effect in effects]


def test_a_leaving_node_takes_no_more_orders_but_faults() -> None:
    """Finish is the last word; a fault on purpose is still possible."""
    node = Node().running()
    node.order(Finish("finish", 0, "done"))

    assert [RefuseOrder] == [type(effect) for effect in node.order(start(2))]
    effects = node.order(Inject("i", FaultKind.KILL, rank=0))
    assert [Execute, DoFault] == [type(effect) for effect in effects]


def test_an_exit_of_another_generation_is_ignored() -> None:
    """A late notice says nothing about the processes that are there now."""
    node = Node().running(2)

    assert () == node.exit(1, 0, Exit(code=1))
    assert node.state.workers[0].state.alive


class NodeUnderOrders(RuleBasedStateMachine):
    """Any orders in any sequence, and processes that come and go as a kernel would have it."""

    def __init__(self) -> None:
        super().__init__()
        self.state = NodeState("n")
        self.now = 0.0
        self.ledger: list[str] = []
        self.started: list[int] = []
        self.generation = 0
        self.spawning = 0
        self.alive: dict[int, int] = {}
        self.signalled: set[int] = set()

    def feed(self, event: NodeEvent) -> None:
        self.state, effects = step(self.state, event)
        for effect in effects:
            match effect:
                case Execute():
                    self.ledger.append(effect.order)
                case SpawnProcesses():
                    assert not self.alive
                    assert not self.spawning
                    self.spawning = effect.plan.generation
                    self.started.append(effect.plan.generation)
                case SignalProcesses() if effect.signal == SIGKILL:
                    self.signalled.update(effect.ranks)
                case TellStopped() | Leave():
                    assert not self.alive
                    assert not self.spawning
                case _:
                    pass

    @rule(generation=st.integers(1, 6))
    def start(self, generation: int) -> None:
        self.feed(OrderReceived(self.now, start(generation)))

    @rule(generation=st.integers(1, 6), grace_s=st.sampled_from([0.0, 3.0]))
    def stop(self, generation: int, grace_s: float) -> None:
        self.feed(OrderReceived(self.now, stop(generation, grace_s)))

    @rule()
    def finish(self) -> None:
        self.feed(OrderReceived(self.now, Finish("finish", 0, "done", grace_s=1.0)))

    @rule(passed_s=st.sampled_from([0.5, 4.0]))
    def time_passes(self, passed_s: float) -> None:
        self.now += passed_s
        self.feed(Ticked(self.now))

    @precondition(lambda self: self.spawning)
    @rule()
    def spawned(self) -> None:
        generation, self.spawning = self.spawning, 0
        self.alive = dict.fromkeys((0, 1), generation)
        self.feed(ProcessesStarted(self.now, generation, views(generation), {}))

    @precondition(lambda self: self.spawning)
    @rule()
    def not_spawned(self) -> None:
        generation, self.spawning = self.spawning, 0
        self.feed(SpawnFailed(self.now, generation, "no memory"))

    @precondition(lambda self: self.alive)
    @rule(code=st.sampled_from([0, 1]), data=st.data())
    def ends(self, code: int, data: st.DataObject) -> None:
        rank = data.draw(st.sampled_from(sorted(self.alive)))
        generation = self.alive.pop(rank)
        report = WorkerExited(generation, rank, rank, 10 * generation + rank, Exit(code=code), -1, 1.0, 0.0)
        self.feed(ProcessExited(self.now, report))

    @invariant()
    def no_order_twice(self) -> None:
        assert len(self.ledger) == len(set(self.ledger))

    @invariant()
    def generations_only_rise(self) -> None:
        assert self.generation <= self.state.generation
        self.generation = self.state.generation
        assert self.started == sorted(set(self.started))

    @invariant()
    def the_machine_knows_what_lives(self) -> None:
        assert bool(self.alive or self.spawning) == self.state.busy

    def teardown(self) -> None:
        """However it came to here: told to finish, the node ends with nothing left."""
        self.feed(OrderReceived(self.now, Finish("finish", 0, "done", grace_s=1.0)))
        if self.spawning:
            self.spawned()
        self.now += 10.0
        self.feed(Ticked(self.now))
        for rank, generation in list(self.alive.items()):
            assert rank in self.signalled
            del self.alive[rank]
            report = WorkerExited(generation, rank, rank, 1, Exit(signal=SIGKILL), -1, 1.0, 0.0)
            self.feed(ProcessExited(self.now, report))
        assert NodePhase.FINISHED == self.state.phase


TestNodeUnderOrders = NodeUnderOrders.TestCase
TestNodeUnderOrders.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
