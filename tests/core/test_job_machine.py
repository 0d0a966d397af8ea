"""The recovery machine: its decisions, one scene each."""

from dataclasses import dataclass, field, replace

import pytest

from taskd.core import job as machine
from taskd.core import node as agent
from taskd.core.exits import Exit, ExitCode
from taskd.core.failures import Budget
from taskd.core.incidents import Incident
from taskd.core.jobstate import (
    Effect,
    Ending,
    EndJob,
    Event,
    Job,
    NodeAnnounced,
    NodeLost,
    RecordIncident,
    Refuse,
    Reported,
    SendOrder,
    StopRequested,
    Ticked,
)
from taskd.core.launch import JobOptions, Plan
from taskd.core.messages import (
    Announce,
    Beat,
    Finish,
    NodePhase,
    Order,
    Progress,
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

KILLED = Exit(signal=9)
RAISED = Exit(code=1)
DONE = Exit(code=0)


@dataclass
class Scene:
    """A manager and what it hears, with a clock that moves by a tenth of a second at each event."""

    nodes: int = 2
    options: JobOptions = field(default_factory=JobOptions)
    now: float = 100.0
    effects: list[Effect] = field(default_factory=list)
    incidents: dict[int, Incident] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.options = replace(
            self.options, min_nodes=self.options.min_nodes if self.nodes == 0 else self.nodes
        )
        self.options = replace(self.options, max_nodes=self.nodes)
        self.job = Job(self.options, since=self.now, budget=Budget(self.options.max_restarts))

    def step(self, event: Event) -> tuple[Effect, ...]:
        self.job, effects = machine.step(self.job, event)
        self.effects.extend(effects)
        for effect in effects:
            if isinstance(effect, RecordIncident):
                self.incidents[effect.incident.number] = effect.incident
        return effects

    def at(self, delay_s: float = 0.1) -> float:
        self.now += delay_s
        return self.now

    # --- what happens ---

    def announce(
        self,
        node: str,
        life: str = "a",
        *,
        phase: NodePhase = NodePhase.IDLE,
        generation: int = 0,
        plan: Plan | None = None,
        workers: tuple[WorkerView, ...] = (),
    ) -> tuple[Effect, ...]:
        message = Announce(
            node, -1, "10.0.0.1", "host", 1, "boot", 1, 29500, phase, generation, plan, workers
        )
        return self.step(NodeAnnounced(self.at(), self.now, f"{node}{life}", message))

    def report(self, node: str, report: Report | Beat | Progress, life: str = "a") -> tuple[Effect, ...]:
        return self.step(Reported(self.at(), self.now, node, f"{node}{life}", report))

    def started(self, node: str, life: str = "a") -> tuple[Effect, ...]:
        return self.report(node, WorkersStarted(self.job.generation, (self.view(node),)), life)

    def stopped(self, node: str, life: str = "a") -> tuple[Effect, ...]:
        return self.report(node, WorkersStopped(self.job.generation, 29501), life)

    def exited(
        self, node: str, how: Exit, *, step: int = -1, stamp: float = 0.0, place: str = "", life: str = "a"
    ) -> tuple[Effect, ...]:
        report = WorkerExited(
            self.job.generation, self.rank(node), 0, self.rank(node) + 10, how, step, 60.0, self.now, stamp,
            place=place,
        )  # fmt: skip
        return self.report(node, report, life)

    def lost(self, node: str, why: str = "its agent died", life: str = "a") -> tuple[Effect, ...]:
        return self.step(NodeLost(self.at(), self.now, node, f"{node}{life}", why))

    # --- what is there ---

    def rank(self, node: str) -> int:
        place = self.job.plan.place_of(node) if self.job.plan else None
        return place.first_rank if place else -1

    def view(self, node: str, state: WorkerState = WorkerState.RUNNING) -> WorkerView:
        return WorkerView(self.rank(node), 0, self.rank(node) + 10, state)

    def keys(self) -> list[str]:
        return [str(number) for number in range(self.nodes)]

    def running(self) -> "Scene":
        """Bring the job from nothing to RUNNING."""
        for node in self.keys():
            self.announce(node)
        for node in self.keys():
            self.started(node)
        assert JobPhase.RUNNING == self.job.phase
        self.effects.clear()
        return self

    def restart(self, life: str = "a") -> "Scene":
        """Play the course of a restart after a fault."""
        for node in self.keys():
            if self.job.phase is JobPhase.STOPPING:
                self.stopped(node, life)
        for node in self.keys():
            if self.job.phase is JobPhase.STARTING:
                self.started(node, life)
        return self

    def orders(self, kind: type[Order]) -> list[str]:
        return [
            effect.node
            for effect in self.effects
            if isinstance(effect, SendOrder) and isinstance(effect.order, kind)
        ]

    @property
    def ending(self) -> Ending:
        assert self.job.ending is not None
        return self.job.ending


def scene(nodes: int = 2, **options: object) -> Scene:
    return Scene(nodes, JobOptions(**options))  # type: ignore[arg-type]


# --- starting and ending ---------------------------------------------------------------------------------


def test_a_job_starts_when_its_last_node_is_there() -> None:
    """Nothing is ordered before; then every node gets the same plan, with the ranks in order."""
    play = scene(3)
    play.announce("0")
    play.announce("1")
    assert (JobPhase.GATHERING, []) == (play.job.phase, play.orders(Start))

    play.announce("2")

    assert ["0", "1", "2"] == play.orders(Start)
    assert JobPhase.STARTING == play.job.phase
    plans = {effect.order.plan.generation for effect in play.effects if isinstance(effect, SendOrder) and isinstance(effect.order, Start)}  # noqa: E501  # fmt: skip
    assert {1} == plans


def test_an_elastic_job_starts_with_fewer_nodes_after_the_last_call() -> None:
    """With MIN:MAX nodes the missing ones are waited for, but not for ever."""
    play = scene(3, last_call_s=30.0)
    play.job = replace(play.job, options=replace(play.options, min_nodes=2))
    play.announce("0")
    play.announce("1")
    play.step(Ticked(play.at(29.0)))
    assert JobPhase.GATHERING == play.job.phase

    play.step(Ticked(play.at(2.0)))

    assert ["0", "1"] == play.orders(Start)


def test_success_of_all_ranks_ends_the_job() -> None:
    """The job is over when each process has ended with 0, not before."""
    play = scene(2).running()
    play.exited("0", DONE)
    assert [] == play.orders(Finish)

    play.exited("1", DONE)

    assert ["0", "1"] == play.orders(Finish)
    assert (ExitCode.OK, "all 2 ranks finished") == (play.ending.code, play.ending.reason)


def test_a_process_may_end_before_its_node_has_said_that_it_started() -> None:
    """A very short program: the exit is reported first, and counts."""
    play = scene(1)
    play.announce("0")
    play.exited("0", DONE)

    play.report("0", WorkersStarted(1, (WorkerView(0, 0, 10, WorkerState.RUNNING),)))

    assert JobPhase.FINISHING == play.job.phase


def test_a_stop_request_ends_the_job_and_its_open_incident() -> None:
    """Ctrl-C in the middle of a recovery: every node is told, and no incident stays open."""
    play = scene(2).running()
    play.exited("0", KILLED)

    play.step(StopRequested(play.at(), "SIGINT was received", 130))

    assert ["0", "1"] == play.orders(Finish)
    assert ["job ended"] == [incident.outcome for incident in play.incidents.values()]
    again = play.step(StopRequested(play.at(), "SIGINT was received", 130))
    assert () == again


def test_the_manager_leaves_only_when_every_agent_is_done() -> None:
    """EndJob comes with the last answer, or when the silent ones are given up."""
    play = scene(2).running()
    play.step(StopRequested(play.at(), "enough", 0))
    play.report("0", agent.OrderDone(machine.FINISH_ORDER, ok=True))
    assert JobPhase.FINISHING == play.job.phase

    effects = play.lost("1")

    assert (EndJob(Ending(0, "enough")),) == effects


def test_an_agent_that_never_answers_the_end_is_not_waited_for_forever() -> None:
    """Grace and margin bound the end of a job."""
    play = scene(1).running()
    play.step(StopRequested(play.at(), "enough", 0))

    effects = play.step(Ticked(play.at(play.options.stop_grace_s + machine.FINISH_MARGIN_S)))

    assert (EndJob(Ending(0, "enough")),) == effects


def test_a_newborn_manager_that_is_told_to_stop_waits_for_agents_to_find_it() -> None:
    """Otherwise it would leave at once, and the agents would go on without a manager."""
    play = scene(1)
    play.step(StopRequested(play.at(), "enough", 0))
    assert JobPhase.FINISHING == play.job.phase

    assert ["0"] == [effect.node for effect in play.announce("0") if isinstance(effect, SendOrder)]


# --- faults ----------------------------------------------------------------------------------------------


def test_a_killed_process_restarts_all_ranks() -> None:
    """Stop everywhere, then a new generation everywhere; the incident tells why and that it is over."""
    play = scene(2).running()

    play.exited("1", KILLED, step=7)
    assert ["0", "1"] == play.orders(Stop)
    play.restart()

    assert (JobPhase.RUNNING, 2, 1) == (play.job.phase, play.job.generation, play.job.restarts)
    incident = play.incidents[1]
    assert ("recovered", 1, 7) == (incident.outcome, incident.rank, incident.step)
    assert "rank 1 (node 1, pid 11) was ended by SIGKILL at step 7" == incident.what


def test_two_ranks_dying_together_cost_one_restart() -> None:
    """A second death while the others are being stopped changes nothing."""
    play = scene(2).running()
    play.exited("0", KILLED)

    assert () == play.exited("1", KILLED)
    play.restart()

    assert (1, 1, 2) == (len(play.incidents), play.job.restarts, play.job.generation)


def test_nothing_starts_before_everything_has_stopped() -> None:
    """Two generations never run at the same time."""
    play = scene(3).running()
    play.exited("0", KILLED)
    play.stopped("0")
    play.stopped("2")
    assert ([], JobPhase.STOPPING) == (play.orders(Start), play.job.phase)

    play.stopped("1")

    assert ["0", "1", "2"] == play.orders(Start)


def test_the_root_cause_is_the_one_with_the_earlier_error() -> None:
    """A peer that fails on the broken connection may be noticed first; the error files tell the order."""
    play = scene(2).running()
    play.exited("1", RAISED, stamp=50.2)
    play.exited("0", RAISED, stamp=50.0)
    play.restart()

    assert (0, "0", 50.0) == (play.incidents[1].rank, play.incidents[1].node, play.incidents[1].failed_stamp)
    assert {"0": 1} == play.job.budget.used


def test_a_later_error_does_not_take_the_blame() -> None:
    """The other way round nothing is corrected."""
    play = scene(2).running()
    play.exited("1", RAISED, stamp=50.0)
    play.exited("0", RAISED, stamp=50.2)

    assert 1 == play.incidents[1].rank


def test_a_fault_while_starting_begins_another_incident() -> None:
    """The interrupted one says by which; both have an outcome in the end."""
    play = scene(2).running()
    play.exited("0", KILLED)
    play.stopped("0")
    play.stopped("1")
    play.started("0")
    play.exited("0", KILLED)
    play.restart()

    assert {1: "interrupted by fault 2", 2: "recovered"} == {
        number: incident.outcome for number, incident in play.incidents.items()
    }
    assert (3, 2) == (play.job.generation, play.job.restarts)


def test_an_incident_is_over_when_the_job_is_as_far_as_before() -> None:
    """A script that joined and made steps has recovered at the first step after the fault, not before."""
    play = scene(1).running()
    play.report("0", Progress(1, 0, joined=True, step=3))
    play.exited("0", KILLED, step=3)
    play.restart()
    assert "recovering" == play.incidents[1].outcome

    play.report("0", Progress(2, 0, joined=True, step=-1))
    assert "recovering" == play.incidents[1].outcome
    play.report("0", Beat(2, {0: 3}, (0,)))

    assert "recovered" == play.incidents[1].outcome
    assert ["detect", "decide", "release", "spawn", "join", "first step"] == list(
        play.incidents[1].phases_ms()
    )


# --- when to give up -------------------------------------------------------------------------------------


def test_max_restarts_0_means_0() -> None:
    """The first fault ends the job, with the code of the rank and the flag in the reason."""
    play = scene(2, max_restarts=0).running()
    play.exited("1", Exit(code=3))
    play.restart()

    assert ([], 3) == (play.orders(Start), play.ending.code)
    assert "restarts are off (--max-restarts 0)" in play.ending.reason
    assert "job ended" == play.incidents[1].outcome


def test_the_budget_is_that_of_a_container() -> None:
    """One fault of each of two nodes is not two faults of one."""
    play = scene(2, max_restarts=1).running()
    for node in ("0", "1"):
        play.exited(node, KILLED)
        play.restart()
    assert (JobPhase.RUNNING, {"0": 1, "1": 1}) == (play.job.phase, play.job.budget.used)

    play.exited("1", KILLED)
    play.restart()

    assert 137 == play.ending.code
    assert "all 1 restarts of this node are used up" in play.ending.reason


def test_the_same_failure_at_the_same_place_ends_the_job() -> None:
    """A bug at step 12 is not a fault: three times is enough, and the reason says so."""
    play = scene(1).running()
    for _ in range(3):
        play.exited("0", RAISED, step=12, place="train.py:40")
        play.restart()

    assert (JobPhase.FINISHING, 1) == (play.job.phase, play.ending.code)
    assert "the same failure at the same place 3 times in a row" in play.ending.reason


def test_progress_between_failures_starts_the_count_again() -> None:
    """Failing at different steps is a run of bad luck, not a bug."""
    play = scene(1).running()
    for at_step in (12, 12, 40, 40, 77):
        play.exited("0", RAISED, step=at_step, place="train.py:40")
        play.restart()

    assert JobPhase.RUNNING == play.job.phase


def test_the_count_survives_a_correction_of_the_blame() -> None:
    """Each time another peer is noticed first; the one that really fails is counted all the same."""
    play = scene(2).running()
    for _ in range(3):
        play.exited("1", RAISED, step=12, stamp=9.5, place="peer.py:1")
        play.exited("0", RAISED, step=12, stamp=9.0, place="train.py:40")
        play.restart()

    assert JobPhase.FINISHING == play.job.phase
    assert "rank 0" in play.ending.reason


def test_keep_trying_goes_on() -> None:
    """The user's wish is stronger than the suspicion."""
    play = scene(1, keep_trying=True).running()
    for _ in range(20):
        play.exited("0", RAISED, step=12)
        play.restart()

    assert (JobPhase.RUNNING, 20) == (play.job.phase, play.job.restarts)


def test_kill_9_is_never_the_same_failure_where_no_step_is_known() -> None:
    """A signal from outside says nothing about the program."""
    play = scene(1).running()
    for _ in range(20):
        play.exited("0", KILLED)
        play.restart()

    assert JobPhase.RUNNING == play.job.phase


def test_kill_9_at_the_same_step_counts_after_ten_rounds() -> None:
    """The OOM killer at the same step each time is the program's doing after all."""
    play = scene(1).running()
    for _ in range(9):
        play.exited("0", KILLED, step=5)
        play.restart()
    assert JobPhase.RUNNING == play.job.phase

    play.exited("0", KILLED, step=5)
    play.restart()

    assert (JobPhase.FINISHING, 137) == (play.job.phase, play.ending.code)


# --- nodes -----------------------------------------------------------------------------------------------


def test_a_lost_node_is_waited_for_and_used_again() -> None:
    """Its loss costs one restart; the others wait, stopped, until it is there again."""
    play = scene(2).running()
    play.lost("1")
    assert ["0"] == play.orders(Stop)
    play.stopped("0")
    assert (JobPhase.GATHERING, []) == (play.job.phase, play.orders(Start))

    play.announce("1", "b")

    assert ["0", "1"] == play.orders(Start)
    play.started("0")
    play.started("1", "b")
    assert (JobPhase.RUNNING, 1, {"1": 1}) == (play.job.phase, play.job.restarts, play.job.budget.used)


def test_a_node_that_never_comes_back_ends_the_job() -> None:
    """With its own code, a sentence that says what to do, and no incident left open."""
    play = scene(2, join_timeout_s=60.0).running()
    play.lost("1")
    play.stopped("0")
    play.step(Ticked(play.at(61.0)))

    assert (ExitCode.NODES_MISSING, ["0"]) == (play.ending.code, play.orders(Finish))
    assert "1 of 2 nodes were there after 60 s" in play.ending.reason
    assert "job ended" == play.incidents[1].outcome


def test_an_agent_that_was_replaced_costs_one_restart() -> None:
    """Its processes died with it, whether or not anybody saw the agent die."""
    play = scene(2).running()

    play.announce("1", "b")
    play.stopped("0")

    assert (JobPhase.STARTING, {"1": 1}) == (play.job.phase, play.job.budget.used)
    assert ["0", "1"] == play.orders(Start)


def test_the_same_processes_in_a_new_conversation_are_no_fault() -> None:
    """An agent that announces itself again, with what already runs, changes nothing."""
    play = scene(2).running()

    effects = play.announce(
        "1", "b", phase=NodePhase.RUNNING, generation=1, plan=play.job.plan, workers=(play.view("1"),)
    )

    assert ((), JobPhase.RUNNING) == (effects, play.job.phase)


def test_a_node_that_comes_back_into_a_job_that_went_on_stops_what_it_has_left() -> None:
    """An elastic job restarted without it; its old processes must not live beside the new ones."""
    play = scene(2, last_call_s=0.0).running()
    play.job = replace(play.job, options=replace(play.options, min_nodes=1))
    old = play.job.plan
    play.lost("1")
    play.stopped("0")
    play.step(Ticked(play.at(1.0)))
    play.started("0")
    assert (JobPhase.RUNNING, 2) == (play.job.phase, play.job.generation)

    effects = play.announce("1", "b", phase=NodePhase.RUNNING, generation=1, plan=old)

    assert [("1/stop", 1)] == [
        (effect.order.order, effect.order.generation)
        for effect in effects
        if isinstance(effect, SendOrder) and isinstance(effect.order, Stop)
    ]


def test_a_node_with_a_rank_that_does_not_exist_is_sent_away() -> None:
    """A wrong --node-rank is the user's mistake, and is said so."""
    play = scene(2)
    message = Announce("9", 7, "10.0.0.1", "host", 1, "boot", 1, 29500)

    effects = play.step(NodeAnnounced(play.at(), play.now, "9a", message))

    orders = [effect.order for effect in effects if isinstance(effect, SendOrder)]
    assert [ExitCode.USAGE] == [order.code for order in orders if isinstance(order, Finish)]
    assert {} == play.job.nodes


# --- fencing ---------------------------------------------------------------------------------------------


def test_reports_of_an_older_generation_change_nothing() -> None:
    """Whatever was under way when the generation was raised is refused, with the reason."""
    play = scene(2).running()
    play.exited("0", KILLED)
    play.restart()
    before = play.job

    for stale in (
        WorkersStarted(1, ()),
        WorkerExited(1, 0, 0, 10, KILLED, 5, 1.0, play.now),
        WorkersStopped(1, 29500),
        Progress(1, 0, joined=True, step=5),
    ):
        effects = play.report("0", stale)
        assert [Refuse] == [type(effect) for effect in effects], stale
    play.report("0", Beat(1, {0: 5}, (0,)))

    assert before == play.job


def test_reports_of_an_unknown_life_are_refused() -> None:
    """An agent that was replaced has nothing to say any more."""
    play = scene(1).running()
    before = play.job

    effects = play.report("0", WorkersStopped(1, 29500), life="z")

    assert (before, [Refuse]) == (play.job, [type(effect) for effect in effects])


def test_a_late_answer_to_the_stop_does_not_hide_a_start() -> None:
    """The node was idle and not waited for; its answer comes after the next start was ordered."""
    play = scene(2).running()
    play.announce("1", "b")
    play.stopped("0")
    assert (JobPhase.STARTING, 2) == (play.job.phase, play.job.generation)
    play.report("1", WorkersStopped(1, 29500), "b")

    play.exited("0", KILLED)
    play.stopped("0")

    assert JobPhase.STOPPING == play.job.phase


# --- a manager is born into a running job ----------------------------------------------------------------


@dataclass
class Cluster:
    """Real node machines under a manager that can be replaced; messages arrive when a test says so."""

    size: int = 3
    ledger: list[tuple[str, str]] = field(default_factory=list)
    lives: int = 0

    def __post_init__(self) -> None:
        self.agents = {str(number): agent.NodeState(str(number)) for number in range(self.size)}
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

    def node(self, key: str, event: agent.NodeEvent) -> None:
        self.agents[key], effects = agent.step(self.agents[key], event)
        for effect in effects:
            match effect:
                case agent.Execute():
                    self.ledger.append((key, effect.order))
                case agent.SpawnProcesses():
                    self.spawns[key] = effect.plan.generation
                case agent.SignalProcesses():
                    for rank in effect.ranks:
                        self.exit(key, rank, Exit(signal=effect.signal))
                case agent.Tell():
                    self.reports.append((key, effect.report))
                case agent.TellStopped():
                    self.reports.append((key, WorkersStopped(effect.generation, 29500)))
                case _:
                    pass

    def exit(self, key: str, rank: int, how: Exit) -> None:
        generation = self.agents[key].generation
        report = WorkerExited(generation, rank, 0, rank + 10, how, -1, 60.0, self.now)
        self.node(key, agent.ProcessExited(self.now, report))

    def deliver(self, key: str) -> None:
        """Let one node act on its orders and have its processes made."""
        while self.inbox[key] or key in self.spawns:
            if self.inbox[key]:
                self.node(key, agent.OrderReceived(self.now, self.inbox[key].pop(0)))
                continue
            generation = self.spawns.pop(key)
            view = WorkerView(int(key), 0, int(key) + 10, WorkerState.RUNNING)
            self.node(key, agent.ProcessesStarted(self.now, generation, (view,), {}))

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
    cluster.node("0", agent.OrderReceived(0.0, cluster.inbox["0"].pop()))
    cluster.spawns.clear()
    cluster.node("0", agent.SpawnFailed(0.0, 1, "out of memory"))
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
    play.report("1", agent.OrderDone(machine.FINISH_ORDER, ok=True))
    play.step(Ticked(play.at(machine.REACH_S)))
    assert (JobPhase.ENDED, 4) == (play.job.phase, play.job.incidents)
