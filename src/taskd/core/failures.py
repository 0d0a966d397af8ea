"""Tell a fault that may pass from a failure that will come back.

Restarting costs little, so TaskD restarts almost for ever. But a script with a bug at step 12 fails at step
12 each time, and a user who comes back in the morning wants the reason, not 30,000 restarts. A failure has a
*signature*: who, how and where. The same signature several times in a row, without progress in between, is
not a fault any more.

A signal from outside (kill -9, the OOM killer) says nothing about the program, so it needs a known step and
more rounds before it counts.
"""

from dataclasses import dataclass, field

from taskd.core.exits import Exit

REPEAT_LIMIT = 3
OUTSIDE_REPEAT_LIMIT = 10
QUICK_DEATH_S = 10.0

SIGKILL, SIGTERM, SIGINT, SIGHUP = 9, 15, 2, 1
OUTSIDE_SIGNALS = frozenset({SIGKILL, SIGTERM, SIGINT, SIGHUP})


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed process, as far as it was understood."""

    rank: int
    exit: Exit
    step: int = -1
    place: str = ""
    error: str = ""
    lived_s: float = 0.0

    @property
    def from_outside(self) -> bool:
        """Tell whether somebody else ended the process."""
        return self.exit.signal in OUTSIDE_SIGNALS

    @property
    def signature(self) -> tuple[object, ...] | None:
        """Return who failed, how and where; None where the place cannot be known."""
        if self.step >= 0:
            where: object = ("step", self.step, self.place)
        elif self.place:
            where = ("line", self.place)
        elif self.lived_s < QUICK_DEATH_S and not self.from_outside:
            where = "start"
        else:
            return None
        # An error at a known line is the program's: whichever rank ran into it first, it is the same one.
        who = -1 if self.place or where == "start" else self.rank
        return (who, self.exit.code, self.exit.signal, where)


@dataclass(frozen=True, slots=True)
class Streak:
    """The last failure, how often it came in a row, and what was before it."""

    failure: Failure | None = None
    count: int = 0
    before: tuple[Failure | None, int] = (None, 0)

    def extend(self, failure: Failure) -> "Streak":
        """Return the streak after one more failure."""
        same = (
            self.failure is not None
            and failure.signature is not None
            and failure.signature == self.failure.signature
        )
        return Streak(failure, self.count + 1 if same else 1, (self.failure, self.count))

    def correct(self, failure: Failure) -> "Streak":
        """Return the streak if the last failure turns out to be another one.

        The first noticed is often a peer of the one that failed first, and a different peer each time.
        """
        return Streak(*self.before).extend(failure)

    @property
    def hopeless(self) -> bool:
        """Tell whether the failure came back too often to be chance."""
        if self.failure is None or self.failure.signature is None:
            return False
        return self.count >= (OUTSIDE_REPEAT_LIMIT if self.failure.from_outside else REPEAT_LIMIT)


def describe_exit(how: Exit) -> str:
    """Say how a process ended, for a person."""
    if how.signal is not None:
        name = {9: "SIGKILL", 15: "SIGTERM", 11: "SIGSEGV", 6: "SIGABRT", 2: "SIGINT", 1: "SIGHUP"}
        return f"was ended by {name.get(how.signal, f'signal {how.signal}')}"
    if how.code is None:
        return "ended; its exit code could not be read"
    return f"exited with code {how.code}"


@dataclass(frozen=True, slots=True)
class Budget:
    """How many faults each container may still have."""

    limit: int
    used: dict[str, int] = field(default_factory=dict)

    def spend(self, node: str) -> "Budget":
        """Return the budget after one more fault of a node."""
        return Budget(self.limit, {**self.used, node: self.used.get(node, 0) + 1})

    def spent(self, node: str) -> bool:
        """Tell whether a node may not have another fault."""
        return self.used.get(node, 0) >= self.limit
