"""What the simulated roles share: time, chance, the truth, and who is there."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from taskd.core.launch import DEFAULT_MAX_RESTARTS, JobOptions
from taskd.core.status import JobPhase
from taskd.testing.sim_checks import Checks, Disk
from taskd.testing.sim_network import Connection, Scheduler

if TYPE_CHECKING:
    from taskd.testing.sim_agent import SimAgent
    from taskd.testing.sim_manager import SimManager
    from taskd.testing.sim_proxy import SimProxy

NODE_LOST_S = 3.0
STOP_GRACE_S = 2.0
JOIN_TIMEOUT_S = 60.0
LAST_CALL_S = 4.0


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything that is drawn before a run begins."""

    seed: int
    nodes: int
    local_world: int
    options: JobOptions
    work_s: float
    joins: bool
    link_delay_s: float
    faults: int
    fault_window_s: float
    ambushes: tuple[JobPhase, ...]
    spawn_failures: float
    obstinate: float

    @property
    def endless(self) -> bool:
        """Tell whether the processes work until they are stopped."""
        return self.work_s == 0.0

    @property
    def patient(self) -> bool:
        """Tell whether no number of faults can end the job."""
        return self.options.keep_trying and self.options.max_restarts == DEFAULT_MAX_RESTARTS


def draw_scenario(seed: int) -> Scenario:
    """Draw a scenario from a seed."""
    rng = Random(f"scenario {seed}")
    nodes = rng.randint(1, 5)
    elastic = nodes > 1 and rng.random() < 0.3  # noqa: PLR2004 - a likelihood, as all that follow
    return Scenario(
        seed=seed,
        nodes=nodes,
        local_world=rng.randint(1, 2),
        options=JobOptions(
            min_nodes=nodes - 1 if elastic else nodes,
            max_nodes=nodes,
            max_restarts=DEFAULT_MAX_RESTARTS if rng.random() < 0.7 else rng.randint(0, 3),  # noqa: PLR2004
            keep_trying=rng.random() < 0.8,  # noqa: PLR2004
            stop_grace_s=STOP_GRACE_S,
            join_timeout_s=JOIN_TIMEOUT_S,
            last_call_s=LAST_CALL_S,
        ),
        work_s=rng.choice([0.0, rng.uniform(0.1, 3.0), rng.uniform(3.0, 15.0)]),
        joins=rng.random() < 0.5,  # noqa: PLR2004
        link_delay_s=rng.choice([0.001, 0.02, 0.15]),
        faults=rng.randint(0, 9),
        fault_window_s=rng.choice([4.0, 12.0, 25.0]),
        ambushes=tuple(rng.choice(list(JobPhase)) for _ in range(rng.choice([0, 0, 1, 3]))),
        spawn_failures=rng.choice([0.0, 0.0, 0.1]),
        obstinate=rng.choice([0.0, 0.3, 1.0]),
    )


@dataclass(slots=True)
class World:
    """The simulated machines and the people on them."""

    scenario: Scenario
    scheduler: Scheduler
    checks: Checks
    disk: Disk
    manager: "SimManager | None" = None
    proxies: dict[str, "SimProxy"] = field(default_factory=dict)
    agents: dict[str, "SimAgent"] = field(default_factory=dict)
    cut: set[str] = field(default_factory=set)
    finished: set[str] = field(default_factory=set)
    out_of_reach: set[str] = field(default_factory=set)
    numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))
    calm: bool = False
    on_phase: Callable[[JobPhase], None] = lambda _phase: None

    @property
    def rng(self) -> Random:
        """Return the only source of chance."""
        return self.scheduler.rng

    @property
    def now(self) -> float:
        """Return the virtual time."""
        return self.scheduler.now

    def note(self, who: str, what: str) -> None:
        """Write a line of the trace."""
        self.checks.now = self.scheduler.now
        self.checks.note(who, what)

    def reachable(self) -> list[str]:
        """Return the lives of agents that the manager counts on."""
        nodes = self.manager.job.nodes.values() if self.manager is not None else ()
        return [node.incarnation.partition(".")[0] for node in nodes if node.usable]

    def local_notice_s(self) -> float:
        """Draw how long the end of a unix socket goes unnoticed."""
        return self.rng.uniform(0.0, 0.02)

    def remote_notice_s(self) -> float:
        """Draw how long a broken connection between machines goes unnoticed."""
        return self.rng.choice([0.01, 0.5, 2.5]) * self.rng.random()


def end_connections(world: World, connections: list[Connection]) -> None:
    """Break the connections of a process that died: what it had sent may still arrive."""
    for connection in connections:
        connection.cut(world.local_notice_s(), lossless=False)
