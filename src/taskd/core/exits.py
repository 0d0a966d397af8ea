"""Exit codes: one table, used by every process and printed by ``taskd exit-codes``.

A training job ends with the code of the rank that failed, as a shell would report it, so the codes of
TaskD itself stay out of the way of the usual 1.
"""

from dataclasses import dataclass
from enum import IntEnum


class ExitCode(IntEnum):
    """Codes with which TaskD's own processes end."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    NODES_MISSING = 5
    REPEATING = 6
    INTERNAL = 70
    SIGNAL_BASE = 128


MEANINGS: dict[ExitCode, str] = {
    ExitCode.OK: "the job finished, or the command did what it was asked",
    ExitCode.FAILED: "the job failed; a rank's own exit code takes the place of this one where it has one",
    ExitCode.USAGE: "wrong flag, value, file, variable or port, or no manager answers; nothing was changed",
    ExitCode.NOT_FOUND: "no such job, rank or node",
    ExitCode.NODES_MISSING: "too few nodes joined, or a lost node did not come back in time",
    ExitCode.REPEATING: "the same failure at the same place came back; retrying would not help",
    ExitCode.INTERNAL: "a defect in TaskD; the message says where its log is",
    ExitCode.SIGNAL_BASE: "128 + N: ended by signal N (a rank, or the launcher itself: 130 is Ctrl-C)",
}


@dataclass(frozen=True, slots=True)
class Exit:
    """How one process ended. Exactly one of code and signal is set, or neither if nobody knows."""

    code: int | None = None
    signal: int | None = None

    @property
    def ok(self) -> bool:
        """Tell whether the process ended by itself with code 0."""
        return self.code == 0

    @property
    def shell_code(self) -> int:
        """Return the code as a shell reports it."""
        if self.signal is not None:
            return ExitCode.SIGNAL_BASE + self.signal
        return ExitCode.FAILED if self.code is None else self.code
