"""What a person sees of a job: its status and its timeline, as plain values.

The manager makes them, the CLI and the dashboard show them, a finished job leaves them on disk. They say
nothing that a machine decides by.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class JobPhase(StrEnum):
    """Where the job stands."""

    GATHERING = "gathering"
    STARTING = "starting"
    RUNNING = "running"
    RECOVERING = "recovering"
    SAVING = "saving"
    STOPPING = "stopping"
    FINISHING = "finishing"
    ENDED = "ended"


class PhaseName(StrEnum):
    """The phases of a recovery, in their order. Their times add up to the downtime."""

    DETECT = "detect"
    DECIDE = "decide"
    RELEASE = "release"
    SPAWN = "spawn"
    JOIN = "join"
    RESTORE = "restore"
    FIRST_STEP = "first step"
    SAVE = "save"


@dataclass(frozen=True, slots=True)
class RankStatus:
    """One rank."""

    rank: int
    local_rank: int
    node: str
    node_rank: int
    pid: int
    state: str
    step: int = -1
    log: str = ""


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One node: its agent and its proxy."""

    node: str
    node_rank: int
    host: str
    agent_pid: int
    proxy_pid: int
    state: str
    connected: bool
    faults: int = 0


@dataclass(frozen=True, slots=True)
class IncidentStatus:
    """One fault and what was done about it. ``stack`` is that of a rank which was found hanging.

    ``notes`` are what was learned on the way: who got its state from where, and which copies differed.
    """

    number: int
    stamp: float
    kind: str
    what: str
    rank: int
    node: str
    step: int
    strategy: str
    reason: str
    outcome: str
    generation: int
    phases_ms: Mapping[str, float] = field(default_factory=dict)
    started_at: float = 0.0
    stack: str = ""
    notes: tuple[str, ...] = ()

    @property
    def downtime_ms(self) -> float:
        """Return the sum of the phases."""
        return sum(self.phases_ms.values())


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A job at one moment."""

    job: str
    phase: JobPhase
    reason: str
    generation: int
    restarts: int
    max_restarts: int
    world_size: int
    manager_pid: int
    manager_addr: str
    started_stamp: float
    stamp: float
    nodes: tuple[NodeStatus, ...] = ()
    ranks: tuple[RankStatus, ...] = ()
    last_fault: str = ""
    exit_code: int | None = None
