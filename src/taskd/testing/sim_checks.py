"""What must hold in a simulated job, checked whenever it could be broken.

The checks know the truth, which no role knows: every process that exists, on every node, at every moment.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from taskd.core.incidents import Incident
from taskd.core.jobstate import Ending
from taskd.core.launch import Plan


class InvariantBroken(AssertionError):
    """A promise was broken; the message says which, when and by whom."""


@dataclass(slots=True, eq=False)
class Process:
    """A training process, as the kernel of its node would know it."""

    node: str
    pid: int
    rank: int
    generation: int
    born: float
    ignores_term: bool
    joins: bool
    alive: bool = True
    given_up: bool = False

    def step_at(self, now: float) -> int:
        """Return the step it is at; -1 for a script that has none."""
        return int((now - self.born) / 0.4) - 1 if self.joins else -1


@dataclass(slots=True)
class Disk:
    """What the managers of a job write down, and find again when they are born."""

    incidents: dict[int, Incident] = field(default_factory=dict)
    ending: Ending | None = None
    ended: bool = False


@dataclass(slots=True)
class Checks:
    """The invariants, and what they need to remember."""

    max_restarts: int
    disk: Disk
    trace: list[str] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)
    now: float = 0.0
    _executed: dict[str, set[str]] = field(default_factory=dict)
    _started: dict[str, int] = field(default_factory=dict)
    _seen: dict[str, int] = field(default_factory=dict)
    _plans: dict[int, tuple[Plan, set[str]]] = field(default_factory=dict)

    def note(self, who: str, what: str) -> None:
        """Write a line of the trace."""
        self.trace.append(f"{self.now:9.3f}  {who:<10} {what}")

    def require(self, promise: bool, broken: str) -> None:  # noqa: FBT001 - reads like assert
        """Stop the simulation if a promise was broken."""
        if not promise:
            self.note("BROKEN", broken)
            raise InvariantBroken(f"at {self.now:.3f} s: {broken}")

    @property
    def generations(self) -> int:
        """Return how many generations were started."""
        return len(self._plans)

    # --- processes ---------------------------------------------------------------------------------------

    def alive(self, node: str | None = None) -> list[Process]:
        """Return the processes that exist."""
        return [each for each in self.processes if node is None or each.node == node]

    def born(self, process: Process) -> None:
        """Note a birth: no other generation may run beside it."""
        self.processes.append(process)
        for other in self.processes:
            if other.generation == process.generation:
                continue
            self.require(
                other.node != process.node,
                f"node {other.node} runs generations {other.generation} and {process.generation} at once",
            )
            self.require(
                other.given_up or process.given_up,
                f"generation {process.generation} starts on node {process.node} while {other.generation} "
                f"still runs on node {other.node}",
            )

    def died(self, process: Process) -> None:
        """Note a death."""
        process.alive = False
        self.processes.remove(process)

    def give_up(self, node: str) -> None:
        """Note that the manager counts a node as lost: nobody promises anything about what runs there."""
        for process in self.processes:
            if process.node == node:
                process.given_up = True

    # --- orders ------------------------------------------------------------------------------------------

    def execute(self, incarnation: str, order: str, generation: int) -> None:
        """Note that an agent carries out an order: once, and never of an older generation."""
        ledger = self._executed.setdefault(incarnation, set())
        self.require(order not in ledger, f"{incarnation} carries out {order} twice")
        ledger.add(order)
        before = self._started.get(incarnation, 0)
        if order.endswith("/start"):
            self.require(generation > before, f"{incarnation} starts {generation} after {before}")
            self._started[incarnation] = generation

    def saw(self, incarnation: str, generation: int) -> None:
        """Note the generation that an agent obeys: it never goes back."""
        before = self._seen.get(incarnation, 0)
        self.require(generation >= before, f"{incarnation} went back from {before} to {generation}")
        self._seen[incarnation] = generation

    def spawn(self, incarnation: str, plan: Plan, reachable: Iterable[str]) -> None:
        """Note the plan that an agent makes processes of: one generation is one plan."""
        known = self._plans.get(plan.generation)
        if known is None or (known[0] != plan and not known[1].intersection(reachable)):
            self._plans[plan.generation] = (plan, {incarnation})
        else:
            self.require(known[0] == plan, f"two plans for generation {plan.generation}")
            known[1].add(incarnation)
        for node, used in plan.faults.items():
            self.require(
                used <= self.max_restarts,
                f"node {node} has used {used} restarts of {self.max_restarts}",
            )
        incidents = len(self.disk.incidents)
        self.require(
            plan.restart_count <= incidents, f"{plan.restart_count} restarts for {incidents} incidents"
        )
        before = self._plans.get(plan.generation - 1)
        if before is not None:
            older = before[0]
            self.require(plan.restart_count <= older.restart_count + 1, "one incident cost two restarts")
            spent = sum(plan.faults.values()) - sum(older.faults.values())
            self.require(spent <= 1, f"one incident cost {spent} of the budget")
