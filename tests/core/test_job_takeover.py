"""A manager is born into a running job, and goes on from what the agents announce."""

from dataclasses import dataclass, field, replace

import pytest

from taskd.core import endings, jobread, nodestate, restarting
from taskd.core import job as machine
from taskd.core import node as agent
from taskd.core.exits import Exit, ExitCode
from taskd.core.jobstate import (
    Ending,
    Event,
    Job,
    NodeAnnounced,
    Reported,
    SendOrder,
    Ticked,
)
from taskd.core.launch import JobOptions
from taskd.core.messages import (
    Announce,
    Finish,
    NodePhase,
    Order,
    OrderDone,
    Recover,
    Report,
    Start,
    Stop,
    WorkerExited,
    WorkersStarted,
    WorkersStopped,
    WorkerState,
    WorkerView,
)
from taskd.core.status import JobPhase
from tests.core.scenes import KILLED, Scene, scene


@dataclass
class Cluster:
    """Real node machines under a manager that can be replaced; messages arrive when a test says so."""

    size: int = 3
    ledger: list[tuple[str, str]] = field(default_factory=list)
    lives: int = 0

    def __post_init__(self) -> None:
        self.agents = {str(number): nodestate.NodeState(str(number)) for number in range(self.size)}
        self.inbox: dict[str, list[Order]] = {key: [] for key in self.agents}
        self.reports: list[tuple[str, Report]] = []
        self.spawns: dict[str, int] = {}
        self.now = 0.0
        self.incidents = 0
        self.rebirth()

    def rebirth(self) -> None:
        """Replace the manager: what was under way in either direction is lost."""
        self.lives += 1
        self.inbox = {key: [] for key in self.agents}
        self.reports.clear()
        options = JobOptions(min_nodes=self.size, max_nodes=self.size)
        self.job = machine.take_over(Job(options, since=self.now), self.incidents, None)
        for key, state in self.agents.items():
            message = Announce(
                key, -1, "10.0.0.1", "h", 1, "b", 1, 1, state.phase, state.generation, state.plan,
                tuple(state.workers.values()),
            )  # fmt: skip
            self.manager(NodeAnnounced(self.now, self.now, f"{key}.{self.lives}", message))

    def manager(self, event: Event) -> None:
        self.job, effects = machine.step(self.job, event)
        self.incidents = self.job.incidents
        for effect in effects:
            if isinstance(effect, SendOrder):
                self.inbox[effect.node].append(effect.order)

    def node(self, key: str, event: nodestate.NodeEvent) -> None:
        self.agents[key], effects = agent.step(self.agents[key], event)
        for effect in effects:
            match effect:
                case nodestate.Execute():
                    self.ledger.append((key, effect.order))
                case nodestate.SpawnProcesses():
                    self.spawns[key] = effect.plan.generation
                case nodestate.SignalProcesses():
                    for rank in effect.ranks:
                        self.exit(key, rank, Exit(signal=effect.signal))
                case nodestate.Tell():
                    self.reports.append((key, effect.report))
                case nodestate.TellStopped():
                    self.reports.append((key, WorkersStopped(effect.generation, 29500)))
                case _:
                    pass

    def exit(self, key: str, rank: int, how: Exit) -> None:
        generation = self.agents[key].generation
        report = WorkerExited(generation, rank, 0, rank + 10, how, -1, 60.0, self.now)
        self.node(key, nodestate.ProcessExited(self.now, report))

    def deliver(self, key: str) -> None:
        """Let one node act on its orders and have its processes made."""
        while self.inbox[key] or key in self.spawns:
            if self.inbox[key]:
                self.node(key, nodestate.OrderReceived(self.now, self.inbox[key].pop(0)))
                continue
            generation = self.spawns.pop(key)
            view = WorkerView(int(key), 0, int(key) + 10, WorkerState.RUNNING)
            self.node(key, nodestate.ProcessesStarted(self.now, generation, (view,), {}))

    def tell(self) -> None:
        """Let the manager hear what was reported."""
        while self.reports:
            key, report = self.reports.pop(0)
            self.manager(Reported(self.now, self.now, key, f"{key}.{self.lives}", report))

    def settle(self) -> None:
        """Let everything arrive, and the processes that were told to stop be gone."""
        for _ in range(12):
            self.now += 1.0
            for key in self.agents:
                self.deliver(key)
            self.tell()
            self.manager(Ticked(self.now))


def _nothing(cluster: Cluster) -> None:
    """Leave the orders to start unsent."""


def _some_started(cluster: Cluster) -> None:
    cluster.deliver("0")


def _all_started(cluster: Cluster) -> None:
    for key in cluster.agents:
        cluster.deliver(key)


def _all_running(cluster: Cluster) -> None:
    cluster.settle()


def _one_dead(cluster: Cluster) -> None:
    cluster.settle()
    cluster.exit("1", 1, KILLED)


def _stop_sent_to_some(cluster: Cluster) -> None:
    _one_dead(cluster)
    cluster.tell()
    cluster.deliver("0")


def _all_stopped(cluster: Cluster) -> None:
    _one_dead(cluster)
    cluster.tell()
    for key in cluster.agents:
        cluster.deliver(key)


def _some_started_again(cluster: Cluster) -> None:
    _all_stopped(cluster)
    cluster.tell()
    cluster.deliver("2")


def _spawn_failed(cluster: Cluster) -> None:
    cluster.node("0", nodestate.OrderReceived(0.0, cluster.inbox["0"].pop()))
    cluster.spawns.clear()
    cluster.node("0", nodestate.SpawnFailed(0.0, 1, "out of memory"))
    cluster.deliver("1")
    cluster.deliver("2")


POSITIONS = [
    _nothing,
    _some_started,
    _all_started,
    _all_running,
    _one_dead,
    _stop_sent_to_some,
    _all_stopped,
    _some_started_again,
    _spawn_failed,
]


@pytest.mark.parametrize("position", POSITIONS, ids=lambda each: each.__name__.strip("_"))
@pytest.mark.parametrize("births", [1, 2])
def test_a_manager_born_at_any_moment_brings_the_job_to_run(position: object, births: int) -> None:
    """It goes on from what the agents announce; no order is carried out twice, no generation goes back."""
    cluster = Cluster()
    position(cluster)  # type: ignore[operator]
    for _ in range(births):
        cluster.rebirth()
    cluster.settle()

    assert JobPhase.RUNNING == cluster.job.phase
    assert len(cluster.ledger) == len(set(cluster.ledger))
    assert {cluster.job.generation} == {state.generation for state in cluster.agents.values()}
    assert {NodePhase.RUNNING} == {state.phase for state in cluster.agents.values()}


def test_a_manager_born_into_a_running_job_disturbs_nothing() -> None:
    """No order, no restart, the same generation."""
    cluster = Cluster()
    cluster.settle()
    before = list(cluster.ledger)

    cluster.rebirth()
    cluster.settle()

    assert (before, 1, 0) == (cluster.ledger, cluster.job.generation, cluster.job.restarts)


def test_what_happens_while_a_newborn_manager_gathers_is_not_lost() -> None:
    """A process that dies between the first and the last announcement is found when the picture is whole."""
    old = scene(2).running()
    play = scene(2)
    for node in ("0", "1"):
        if node == "1":
            play.report("0", WorkerExited(1, 0, 0, 10, KILLED, -1, 60.0, play.now))
        play.announce(
            node, phase=NodePhase.RUNNING, generation=1, plan=old.job.plan, workers=(old.view(node),)
        )

    assert ("process", 0) == (play.incidents[1].kind, play.incidents[1].rank)
    assert ["0", "1"] == play.orders(Stop)


def test_a_start_that_ends_while_a_newborn_manager_gathers_is_not_lost() -> None:
    """Otherwise the job would be starting for ever."""
    old = scene(2).running()
    play = scene(2)
    play.announce("0", phase=NodePhase.STARTING, generation=1, plan=old.job.plan)
    play.report("0", WorkersStarted(1, (old.view("0"),)))

    play.announce("1", phase=NodePhase.RUNNING, generation=1, plan=old.job.plan, workers=(old.view("1"),))

    assert JobPhase.RUNNING == play.job.phase


def test_a_fault_that_the_last_manager_was_busy_with_is_paid_for_once() -> None:
    """The budget cannot be cheated by killing the manager at the right moment."""
    old = scene(2).running()
    play = scene(2, max_restarts=0)
    dead = replace(old.view("0", WorkerState.FAILED), exit=KILLED)
    gone = old.view("1", WorkerState.STOPPED)
    play.announce("0", phase=NodePhase.STOPPED, generation=1, plan=old.job.plan, workers=(dead,))
    play.announce("1", phase=NodePhase.STOPPED, generation=1, plan=old.job.plan, workers=(gone,))

    assert ([], 137) == (play.orders(Start), play.ending.code)


def test_a_generation_is_never_used_again_even_if_its_plan_is_lost() -> None:
    """A node that was only told to stop generation 3 obeys it, although it has the plan of 2."""
    old = scene(2).running()
    assert old.job.plan is not None
    plan = replace(old.job.plan, generation=2)
    play = scene(2)
    play.announce("0", phase=NodePhase.STOPPED, generation=3, plan=plan)
    play.announce("1", phase=NodePhase.STOPPED, generation=2, plan=plan)
    play.stopped("1")

    assert ({"0", "1"}, 4) == (set(play.orders(Start)), play.job.generation)


def test_an_ending_that_was_decided_outlives_its_manager() -> None:
    """Agents that were told are gone, so it was written down; the rest is told by the newborn."""
    play = scene(2)
    play.job = machine.take_over(play.job, 4, Ending(ExitCode.OK, "all 2 ranks finished"))

    effects = play.announce("1", phase=NodePhase.RUNNING, generation=3)

    assert [Finish] == [type(effect.order) for effect in effects if isinstance(effect, SendOrder)]
    play.report("1", OrderDone(jobread.FINISH_ORDER, ok=True))
    play.step(Ticked(play.at(endings.REACH_S)))
    assert (JobPhase.ENDED, 4) == (play.job.phase, play.job.incidents)


def takeover_scene(*awaited: str) -> Scene:
    """A manager that was born on another machine, since that of node 0 and of the manager is gone."""
    play = scene(2)
    play.job = replace(
        play.job, absent=frozenset({"0"}), awaited=frozenset(awaited), manager_node="1", lost_at=play.now - 3
    )
    return play


def announce_survivor(play: Scene) -> None:
    """Node 1 announces that its rank runs and keeps its state."""
    old = scene(2).running()
    keeper = replace(old.view("1", WorkerState.JOINED), step=5, ready=True)
    play.announce("1", phase=NodePhase.RUNNING, generation=1, plan=old.job.plan, workers=(keeper,))


def test_a_manager_on_another_machine_gives_the_lost_ranks_to_the_spare_node() -> None:
    """It waits for the spare nodes that it knows to be alive, and not for the machine that is lost."""
    play = takeover_scene("1", "spare")
    announce_survivor(play)
    assert [] == play.orders(Recover)

    play.announce("spare")

    assert ["spare", "1"] == play.orders(Recover)
    assert JobPhase.RECOVERING == play.job.phase
    incident = play.incidents[1]
    assert ("node", "recover") == (incident.kind, incident.strategy)
    assert "node 0 was lost, with the manager on its machine; node 1 manages the job now" == incident.what
    assert incident.started_at == play.job.lost_at


def test_a_manager_on_another_machine_without_spares_waits_for_the_lost_node_in_a_recovery() -> None:
    """As for any lost node: the survivors are brought together at once, and the node is awaited."""
    play = takeover_scene("1")
    announce_survivor(play)

    assert ["1"] == play.orders(Recover)
    assert "as soon as node 0 is back" in play.job.reason


def test_a_manager_on_another_machine_does_not_wait_for_ever_for_the_living() -> None:
    """A spare node that died meanwhile holds nobody up."""
    play = takeover_scene("1", "spare")
    announce_survivor(play)
    play.step(Ticked(play.at(restarting.LATE_S)))

    assert ["1"] == play.orders(Recover)
