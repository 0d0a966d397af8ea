"""The questions that recovery asks of a backend.

A recovery takes the same course whatever the ranks talk through:

1. The watch, a thread of its own, *interrupts* every backend of the old generation, so that whatever the
   training thread waits for comes to an end within milliseconds.
2. The training thread comes out, lets go of the backends (*close*) and, where interrupting has stopped the
   device itself, has it *restarted*. Where the device's memory may be the cause, it asks for the *damage*.
3. Each group gets a backend of the new generation (*make_backend*), over a store that nobody has used before.

What an interruption looks like to the training thread differs: an error in the call that it waits in (gloo,
HCCL), or a call that simply returns, with wrong values in the tensors (NCCL). So nobody may conclude from a
collective that came back that it was done: the step's vote, which goes over the host, says that.
"""

from datetime import timedelta
from enum import IntEnum
from typing import Any, Protocol

# torch's c10d.Backend: of one kind of device, for one group of processes, and for one generation.
Backend = Any
Store = Any


class Damage(IntEnum):
    """What an uncorrectable memory error has hit, by the numbers of torch_npu."""

    NONE = 0
    FOREIGN = 1  # memory that is not the training's: nobody here can repair it
    TEMPORARY = 2  # an intermediate result: repeating the step repairs it
    STATE = 3  # parameters or optimizer state: they must come from a replica


class Device(Protocol):
    """A backend of collectives and the device under it; all but ``interrupt`` is for the training thread."""

    name: str
    device_type: str

    def environment(self) -> dict[str, str]:
        """Return the variables that the backend reads when it is made, and must have for recovery to work."""

    def make_backend(
        self,
        store: Store,
        rank: int,
        size: int,
        timeout: timedelta,
        options: object = None,
    ) -> Backend:
        """Make the backend of one group for one generation. It may wait for the other members."""

    def interrupt(self, backend: Backend) -> None:
        """End whatever waits in a backend. Called by another thread, maybe twice, maybe after ``close``."""

    def close(self, backend: Backend) -> None:
        """Let go of a backend for good, without waiting for a peer; the caller drops its references then."""

    @property
    def must_restart(self) -> bool:
        """Tell whether the device does nothing more after an interruption until it has been restarted."""

    def restart(self) -> None:
        """Make the device of this process usable again, when all its backends are closed."""

    def damage(self) -> Damage:
        """Return what a memory error of this process's device has hit."""
