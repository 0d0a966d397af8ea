"""What a job is started with, and where each rank goes.

The launcher, the agents and a patched torchrun describe one and the same thing in different words. Here it
is one value, parsed once at the edge, and the arithmetic of ranks and of the workers' environment is a
function of it: a test can compare that environment with torchrun's without starting anything.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from taskd.core.hangs import CEILING_S, FLOOR_S
from taskd.core.podplace import PodPlace
from taskd.core.programs import Program

DEFAULT_MAX_RESTARTS = 32767
DEFAULT_MANAGER_PORT = 9601
DEFAULT_MONITOR_INTERVAL_S = 5.0
DEFAULT_STOP_GRACE_S = 30.0
LOCAL_HOST = "127.0.0.1"
RETRY = "retry"
RECOVER_IN_PLACE = "recover-in-place"
RECOVER = "recover"
ELASTIC_TRAINING = "elastic-training"
DUMP = "dump"
DEFAULT_STRATEGIES = (RETRY, RECOVER_IN_PLACE, RECOVER, DUMP, "exit")


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Where the ranks' output goes, in torchrun's terms.

    ``redirects`` and ``tee`` hold torchrun's bits per local rank: 1 is stdout, 2 is stderr. The key -1
    stands for every local rank that is not named.
    """

    directory: str = ""
    redirects: Mapping[int, int] = field(default_factory=dict)
    tee: Mapping[int, int] = field(default_factory=dict)
    show_local_ranks: tuple[int, ...] = ()
    prefix_template: str = ""


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """Everything about a job that does not change while it runs."""

    job: str
    program: Program
    run_id: str = "none"
    min_nodes: int = 1
    max_nodes: int = 1
    local_world: int = 1
    node_rank: int = -1
    local_nodes: int = 1
    spare_nodes: int = 0
    master_addr: str = LOCAL_HOST
    master_port: int = 0
    manager_port: int = 0
    role: str = "default"
    max_restarts: int = DEFAULT_MAX_RESTARTS
    keep_trying: bool = False
    monitor_interval_s: float = DEFAULT_MONITOR_INTERVAL_S
    stop_grace_s: float = DEFAULT_STOP_GRACE_S
    join_timeout_s: float = 900.0
    last_call_s: float = 30.0
    spares: int = 0
    logs: LogSettings = field(default_factory=LogSettings)
    faults: tuple["ScheduledFault", ...] = ()
    recover_strategies: tuple[str, ...] = ()
    dump_dir: str = ""
    resume_dir: str = ""
    rdzv_backend: str = "static"
    rdzv_endpoint: str = ""
    local_addr: str = ""
    rdzv_is_host: bool | None = None
    hang_floor_s: float = FLOOR_S
    hang_ceiling_s: float = CEILING_S
    pod: PodPlace | None = None

    def options(self) -> "JobOptions":
        """Return the part that the manager decides by."""
        return JobOptions(
            min_nodes=self.min_nodes,
            max_nodes=self.max_nodes,
            max_restarts=self.max_restarts,
            keep_trying=self.keep_trying,
            # In a pod it is only where the manager begins; ranks meet in rank 0's pod, under its own address.
            master_addr="" if self.pod is not None else self.master_addr,
            master_port=self.master_port,
            stop_grace_s=self.stop_grace_s,
            join_timeout_s=self.join_timeout_s,
            last_call_s=self.last_call_s,
            strategies=self.recover_strategies or DEFAULT_STRATEGIES,
        )


@dataclass(frozen=True, slots=True)
class JobOptions:
    """How the manager is to treat the job: the part of a launch that decisions depend on."""

    min_nodes: int = 1
    max_nodes: int = 1
    max_restarts: int = DEFAULT_MAX_RESTARTS
    keep_trying: bool = False
    master_addr: str = ""
    master_port: int = 0
    stop_grace_s: float = DEFAULT_STOP_GRACE_S
    join_timeout_s: float = 900.0
    last_call_s: float = 30.0
    strategies: tuple[str, ...] = DEFAULT_STRATEGIES

    @property
    def skipped(self) -> str:
        """Say what is allowed but not built, for a fault that no recovery from memory answers."""
        if ELASTIC_TRAINING not in self.strategies:
            return ""
        return f"{ELASTIC_TRAINING} was skipped: it is not supported yet"


class FaultKind(StrEnum):
    """What ``taskd inject`` and ``--faults`` can do to a job."""

    KILL = "kill"
    HANG = "hang"
    RAISE = "raise"
    EXIT = "exit"
    UCE = "uce"
    DOUBT = "doubt"
    NETWORK = "network"


@dataclass(frozen=True, slots=True)
class ScheduledFault:
    """One fault of a schedule. Exactly one of rank, node and role names the victim."""

    fault_id: str
    kind: FaultKind
    rank: int = -1
    node: int = -1
    role: str = ""
    step: int = -1
    code: int = 1


@dataclass(frozen=True, slots=True)
class NodePlace:
    """The ranks that a plan gives to one node."""

    node: str
    node_rank: int
    first_rank: int
    local_world: int

    @property
    def ranks(self) -> range:
        """Return the global ranks of the node."""
        return range(self.first_rank, self.first_rank + self.local_world)


@dataclass(frozen=True, slots=True)
class Plan:
    """Which ranks live where in one generation. Only a plan starts processes.

    ``faults`` counts the faults of each container so far. Every agent keeps the plan it obeys, so a manager
    that takes over learns the counts from any of them. ``moves`` counts hot switches: of two plans of one
    generation the one with more of them is the later one. ``began`` is the generation at which all ranks last
    started together: what processes were told before their loop holds for their successors up to the next.
    """

    generation: int
    restart_count: int
    master_addr: str
    master_port: int
    places: tuple[NodePlace, ...]
    faults: Mapping[str, int] = field(default_factory=dict)
    moves: int = 0
    began: int = 0

    @property
    def world_size(self) -> int:
        """Return how many ranks the plan has."""
        return sum(place.local_world for place in self.places)

    def place_of(self, node: str) -> NodePlace | None:
        """Return the place of a node, or None if the plan does not name it."""
        return next((place for place in self.places if place.node == node), None)

    def place_of_rank(self, rank: int) -> NodePlace | None:
        """Return the place that holds a rank, or None if there is no such rank."""
        return next((place for place in self.places if rank in place.ranks), None)


def compute_places(nodes: list[tuple[str, int]]) -> tuple[NodePlace, ...]:
    """Number the ranks of nodes, given as (key, local world size) in the order of their node ranks."""
    places: list[NodePlace] = []
    first = 0
    for node_rank, (key, local_world) in enumerate(nodes):
        places.append(NodePlace(key, node_rank, first, local_world))
        first += local_world
    return tuple(places)


def compute_worker_env(spec: LaunchSpec, plan: Plan, place: NodePlace, local_rank: int) -> dict[str, str]:
    """Compute the variables that torchrun would set for this worker.

    ``TORCHELASTIC_USE_AGENT_STORE`` is False: the worker of rank 0 serves the store, a fresh one in each
    generation, so no worker can read the addresses of a dead one.
    """
    rank = place.first_rank + local_rank
    world = str(plan.world_size)
    return {
        "LOCAL_RANK": str(local_rank),
        "RANK": str(rank),
        "GROUP_RANK": str(place.node_rank),
        "ROLE_RANK": str(rank),
        "ROLE_NAME": spec.role,
        "LOCAL_WORLD_SIZE": str(place.local_world),
        "WORLD_SIZE": world,
        "GROUP_WORLD_SIZE": str(len(plan.places)),
        "ROLE_WORLD_SIZE": world,
        "MASTER_ADDR": plan.master_addr,
        "MASTER_PORT": str(plan.master_port),
        "TORCHELASTIC_RESTART_COUNT": str(plan.restart_count),
        "TORCHELASTIC_MAX_RESTARTS": str(spec.max_restarts),
        "TORCHELASTIC_RUN_ID": spec.run_id,
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }
