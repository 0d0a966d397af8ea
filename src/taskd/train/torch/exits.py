"""How a script ended: when the interpreter calls at its end, it is too late to ask."""

import os
import sys
from typing import Any, NoReturn


class ExitNote:
    """Notes a failing exit code.

    A program that TaskD itself has started leaves its error where the interpreter would (``sys.last_value``),
    whichever it was. Elsewhere the interpreter does so for all errors but SystemExit.
    """

    def __init__(self) -> None:
        """Know of none."""
        self._code: object = None

    def begin(self) -> None:
        """Listen from now on."""
        own = sys.exit

        def leave(status: Any = None, /) -> NoReturn:  # noqa: ANN401 - whatever sys.exit takes
            self._code = status
            own(status)

        sys.exit = leave

    @property
    def failed(self) -> bool:
        """Tell whether the script ended with an error or a failing code."""
        return self._code not in (None, 0) or hasattr(sys, "last_value")


def end_here() -> NoReturn:
    """End this process with what it has printed so far, and nothing else that it had in mind."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
