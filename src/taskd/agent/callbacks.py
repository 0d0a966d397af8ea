"""Processes that belong to somebody else, reached through the callbacks that their owner registered.

An msrun, or torch's own elastic agent, keeps its processes to itself and lends TaskD a few functions. Their
shapes differ by framework and are fixed by what is installed in users' images; here they become one
``Host``, which is all that ``hosted`` knows. A callback is foreign code: what it returns is checked.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeGuard

from taskd.core.exits import Exit

ALL_PROCESSES = -1
COMPLETED, NOT_STARTED, VANISHED = 0, 200, 300

Callback = Callable[..., object]


class Operator(StrEnum):
    """The names under which callbacks are registered."""

    KILL_WORKER = "KILL_WORKER"
    START_ALL_WORKER = "START_ALL_WORKER"
    MONITOR = "MONITOR"
    RESTART = "RESTART"
    START_WORKER_LIST = "START_WORKER_LIST"


# RESTART and START_WORKER_LIST start single ranks, which no order of a manager asks for yet; msrun's contract
# demands the latter all the same.
NEEDED_BY_TORCH = (Operator.KILL_WORKER, Operator.START_ALL_WORKER, Operator.MONITOR)
NEEDED_BY_MSRUN = (*NEEDED_BY_TORCH, Operator.START_WORKER_LIST)


@dataclass(frozen=True, slots=True)
class Look:
    """One process as its owner describes it; ``exit`` is None while it runs or has not been started."""

    pid: int
    started: bool = True
    exit: Exit | None = None
    error: str = ""
    failed_stamp: float = 0.0


class Host(Protocol):
    """The owner of a node's processes. All calls come from one thread, the one that started the agent."""

    def start(self, restart_count: int) -> None:
        """Start all local ranks; raises if that is not possible."""

    def stop(self) -> None:
        """End all local ranks now."""

    def look(self) -> Mapping[int, Look] | None:
        """Return the processes by local rank, or None if the owner gave no usable answer."""

    def leave(self) -> None:
        """Clean up: the job is over for this node."""


class MissingCallbackError(ValueError):
    """A callback that the framework's contract demands was not registered."""

    def __init__(self, missing: list[str]) -> None:
        """Name what is missing."""
        names = ", ".join(missing)
        super().__init__(f"start_taskd_agent: no callback for {names}; register with register_func first")


class BadAnswerError(RuntimeError):
    """A callback said that it failed."""


def check_callbacks(callbacks: Mapping[Operator, Callback], needed: tuple[Operator, ...]) -> None:
    """Raise unless everything needed is registered."""
    missing = [operator.value for operator in needed if operator not in callbacks]
    if missing:
        raise MissingCallbackError(missing)


class MsrunHost:
    """The processes of a MindSpore msrun."""

    def __init__(self, callbacks: Mapping[Operator, Callback], local_world: int = 0) -> None:
        """Take the callbacks; without a number of local ranks the owner is asked for it."""
        check_callbacks(callbacks, NEEDED_BY_MSRUN)
        self._kill = callbacks[Operator.KILL_WORKER]
        self._start = callbacks[Operator.START_ALL_WORKER]
        self._monitor = callbacks[Operator.MONITOR]
        self.local_world = local_world or len(self.look() or {})

    def start(self, restart_count: int) -> None:
        """Start all local ranks."""
        del restart_count  # msrun numbers its restarts itself
        self._start()

    def stop(self) -> None:
        """End all local ranks now."""
        answer = self._kill([ALL_PROCESSES])
        if answer not in (None, 0):
            raise BadAnswerError(f"KILL_WORKER answered {answer!r} instead of 0")

    def look(self) -> Mapping[int, Look] | None:
        """Ask for all processes."""
        return parse_monitor(self._monitor([ALL_PROCESSES]))

    def leave(self) -> None:
        """End what msrun keeps besides the ranks, such as its scheduler."""
        self.stop()


def parse_monitor(answer: object) -> dict[int, Look] | None:
    """Read what msrun's MONITOR returned: ``{local index: {"pid", "status", "global_rank"}}``.

    None if it is not of that shape, so that one bad round changes nothing.
    """
    if not isinstance(answer, dict):
        return None
    looks: dict[int, Look] = {}
    for index, entry in answer.items():
        if not _is_number(index) or not isinstance(entry, dict):
            return None
        pid, status = entry.get("pid"), entry.get("status", "")
        if not _is_number(pid) or not _is_number(entry.get("global_rank")):
            return None
        if status is not None and not _is_number(status):
            return None
        looks[index] = Look(pid, started=status != NOT_STARTED, exit=_to_exit(status))
    return looks


def _to_exit(status: int | None) -> Exit | None:
    if status is None or status == NOT_STARTED:
        return None
    if status == VANISHED:
        return Exit()
    return Exit(signal=-status) if status < 0 else Exit(code=status)


def _is_number(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
