"""Die at a named point, for tests of what happens when a role is killed just there.

A test writes the name of a point into the file that TASKD_FAILPOINT names; the first role to come by takes
the file away and kills itself, as kill -9 would. Without the variable a point costs one comparison.
"""

import os
import signal

_FILE = os.environ.get("TASKD_FAILPOINT", "")


def failpoint(name: str) -> None:
    """Die here if a test wants it."""
    if not _FILE:
        return
    claim = f"{_FILE}.{os.getpid()}"
    try:
        with open(_FILE, encoding="utf-8") as file:  # noqa: PTH123 - as cheap as it can be
            if file.read().strip() != name:
                return
        os.rename(_FILE, claim)  # noqa: PTH104 - only one process can take it away
        os.unlink(claim)  # noqa: PTH108
    except OSError:
        return
    os.kill(os.getpid(), signal.SIGKILL)
