"""A manager on a stage: what it hears is said by a test, and what it orders is written down."""

from dataclasses import dataclass, field, replace

from taskd.core import job as machine
from taskd.core.exits import Exit
from taskd.core.failures import Budget
from taskd.core.incidents import Incident
from taskd.core.jobstate import (
    Effect,
    Ending,
    Event,
    Job,
    NodeAnnounced,
    NodeLost,
    RecordIncident,
    Reported,
    SendOrder,
)
from taskd.core.launch import JobOptions, Plan
from taskd.core.messages import (
    Announce,
    Beat,
    Coming,
    NodePhase,
    Order,
    Progress,
    Report,
    Saved,
    Standing,
    Through,
    Trouble,
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
        self.options = replace(self.options, min_nodes=self.nodes, max_nodes=self.nodes)
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

    def report(
        self,
        node: str,
        report: Report | Beat | Progress | Standing | Trouble | Saved | Coming | Through,
        life: str = "a",
    ) -> tuple[Effect, ...]:
        return self.step(Reported(self.at(), self.now, node, f"{node}{life}", report))

    def started(self, node: str, life: str = "a") -> tuple[Effect, ...]:
        return self.report(node, WorkersStarted(self.job.generation, (self.view(node),)), life)

    def stopped(self, node: str, life: str = "a") -> tuple[Effect, ...]:
        return self.report(node, WorkersStopped(self.job.generation, 29501), life)

    def exited(
        self,
        node: str,
        how: Exit,
        *,
        step: int = -1,
        stamp: float = 0.0,
        place: str = "",
        error: str = "",
        life: str = "a",
    ) -> tuple[Effect, ...]:
        report = WorkerExited(
            self.job.generation, self.rank(node), 0, self.rank(node) + 10, how, step, 60.0, self.now, stamp,
            error=error, place=place,
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
