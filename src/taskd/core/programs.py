"""What a user asks to be run.

Apart from the rest of a launch, because the parent of all training processes and the warm process need no
more, and whatever else they import is waited for before the framework's import can begin.
"""

from dataclasses import dataclass
from enum import StrEnum


class ProgramKind(StrEnum):
    """How the user's program is started."""

    SCRIPT = "script"
    MODULE = "module"
    COMMAND = "command"


@dataclass(frozen=True, slots=True)
class Program:
    """The user's program: a script, a module, or any command."""

    kind: ProgramKind
    target: str
    args: tuple[str, ...] = ()
