"""What MindIO's controller is told, and what it tells: the documented calls of its package as plain values.

Where an image has MindIO (``mindio_ttp``), its processors sit in the training processes and its controller in
the manager's. The control plane's orders become calls of the controller, and the controller's reports become
reports to the control plane. Which call an order means is decided here; ``manager.ttp`` makes it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, assert_never

DEFAULT_PAUSE_S: Final = 600
MOST_PAUSE_S: Final = 7200
PAUSE_FACTOR: Final = 2.5
RESTART_WAIT_S: Final = 1.0
PORTS: Final = range(1024, 65536)
ELASTIC: Final = "elastic-training"
PREPARE: Final = "tft_notify_controller_prepare_action"
STOP: Final = "tft_notify_controller_stop_train"


class TtpError(ValueError):
    """The environment does not say what the controller needs."""


class Action(StrEnum):
    """What an order can ask of the controller."""

    SAVE_AND_EXIT = "save_and_exit"
    STOP_TRAIN = "stop_train"
    PAUSE_TRAIN = "pause_train"
    ON_GLOBAL_RANK = "on_global_rank"
    CHANGE_STRATEGY = "change_strategy"
    HOT_SWITCH = "hot switch"
    STOP_SWITCH = "stop switch"
    NEW_POD_RUNNING = "new pod running"
    RESTART_CONTROLLER = "restart_controller"
    DESTROY_CONTROLLER = "destroy_controller"


@dataclass(frozen=True, slots=True)
class Order:
    """One order of the control plane to the controller; actions are done in their order."""

    actions: tuple[str, ...]
    fault_ranks: Mapping[int, int] = field(default_factory=dict)
    strategy: str = ""
    params: str = ""
    timeout_s: int = 0


@dataclass(frozen=True, slots=True)
class Settings:
    """How the controller is started."""

    world_size: int
    host: str
    port: int
    process_recovery: bool
    elastic: bool
    pause_s: int


@dataclass(frozen=True, slots=True)
class Call:
    """A function of the package, and its arguments."""

    function: str
    args: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True)
class Pause:
    """Let the controller's port become free."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Begin:
    """Initialise and start the controller."""


@dataclass(frozen=True, slots=True)
class Skip:
    """Nothing can be done about an action; the reason is for the log."""

    why: str


Step = Call | Pause | Begin | Skip


class ReportKind(StrEnum):
    """What the controller reports, by the name of its callback."""

    FAULT_RANKS = "report_fault_ranks"
    STOP_COMPLETE = "report_stop_complete"
    STRATEGIES = "report_strategies"
    RESULT = "report_result"


PLANE_CALLS: Final[Mapping[ReportKind, str]] = {
    ReportKind.FAULT_RANKS: "ReportProcessFault",
    ReportKind.STOP_COMPLETE: "ReportStopComplete",
    ReportKind.STRATEGIES: "ReportRecoverStrategy",
    ReportKind.RESULT: "ReportRecoverStatus",
}


@dataclass(frozen=True, slots=True)
class Report:
    """One report of the controller, for the control plane."""

    kind: ReportKind
    fault_ranks: Mapping[int, object] = field(default_factory=dict)
    code: int = 0
    message: str = ""
    strategies: tuple[str, ...] = ()
    strategy: str = ""


def read_settings(env: Mapping[str, str]) -> Settings:
    """Read how the controller is started; raises TtpError."""
    world = env.get("WORLD_SIZE", "").strip() or env.get("MS_WORKER_NUM", "").strip()
    if not world.isdecimal() or not int(world):
        raise TtpError("MindIO's controller needs WORLD_SIZE (or MS_WORKER_NUM), the number of all processes")
    host = env.get("POD_IP", "").strip()
    if not host:
        raise TtpError("MindIO's controller needs POD_IP, the address at which it listens")
    port = env.get("TTP_PORT", "").strip()
    if not port.isdecimal() or int(port) not in PORTS:
        raise TtpError("MindIO's controller needs TTP_PORT, a port from 1024 on; the guides use 8000")
    listed = [part.strip() for part in env.get("HIGH_AVAILABILITY", "").split(",")]
    return Settings(
        int(world), host, int(port), env.get("PROCESS_RECOVER") == "on", ELASTIC in listed, _pause(env)
    )


def _pause(env: Mapping[str, str]) -> int:
    text = env.get("HCCL_CONNECT_TIMEOUT", "").strip()
    return min(int(int(text) * PAUSE_FACTOR), MOST_PAUSE_S) if text.isdecimal() else DEFAULT_PAUSE_S


def start_calls(settings: Settings) -> tuple[Call, Call]:
    """Return the two calls that start the controller; its own TLS stays off, as in the reference."""
    flags = (False, settings.process_recovery, settings.elastic)
    return (
        Call("tft_init_controller", (-1, settings.world_size, *flags)),
        Call("tft_start_controller", (settings.host, settings.port, False, "")),
    )


def plan_steps(order: Order, pause_s: int, *, can_prepare: bool) -> tuple[Step, ...]:
    """Return what an order means; ``can_prepare`` says whether the package knows of hot switching."""
    return tuple(
        step for action in order.actions for step in _steps(action, order, pause_s, can_prepare=can_prepare)
    )


def _steps(name: str, order: Order, pause_s: int, *, can_prepare: bool) -> tuple[Step, ...]:
    try:
        action = Action(name)
    except ValueError:
        return (Skip(f"the controller knows no action {name!r}"),)
    ranks = dict(order.fault_ranks)
    match action:
        case Action.SAVE_AND_EXIT:
            return (Call("tft_notify_controller_dump"),)
        case Action.STOP_TRAIN:
            return (Call(STOP, (ranks, "stop")),)
        case Action.PAUSE_TRAIN:
            return (Call(STOP, (ranks, "pause", order.timeout_s or pause_s)),)
        case Action.ON_GLOBAL_RANK:
            limit = (order.timeout_s,) if order.timeout_s else ()
            return (Call("tft_notify_controller_on_global_rank", (ranks, *limit)),)
        case Action.CHANGE_STRATEGY:
            return (Call("tft_notify_controller_change_strategy", (order.strategy, order.params)),)
        case Action.HOT_SWITCH | Action.STOP_SWITCH:
            if can_prepare:
                return (Call(PREPARE, (action.value, ranks)),)
            return (Skip(f"this MindIO has no {PREPARE}, so {action.value!r} is left out"),)
        case Action.NEW_POD_RUNNING:
            return (Skip("the new pod runs"),)
        case Action.RESTART_CONTROLLER:
            return (Call("tft_destroy_controller"), Pause(RESTART_WAIT_S), Begin())
        case Action.DESTROY_CONTROLLER:
            return (Call("tft_destroy_controller"),)
        case _:
            assert_never(action)
