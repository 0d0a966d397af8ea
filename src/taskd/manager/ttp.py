"""MindIO's controller in the manager's process, where its package is installed.

The package's calls may take long and its callbacks come from threads of its own, so one thread makes all
calls, in the order in which they were asked for, and nothing here ever waits for it. What the controller
reports goes to whoever listens; a report before that is kept.

This was written from the documented calls and run against a recording double, not with the real package.
"""

import contextlib
import importlib
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol, cast

from taskd.core.ttp import (
    PREPARE,
    Begin,
    Call,
    Order,
    Pause,
    Report,
    ReportKind,
    Settings,
    Skip,
    TtpError,
    plan_steps,
    read_settings,
    start_calls,
)

PACKAGE = "mindio_ttp.controller_ttp"
KEPT_REPORTS = 1000
CLOSE_S = 5.0

log = logging.getLogger("taskd")


class Controller(Protocol):
    """The part of ``mindio_ttp.controller_ttp`` that every version has; the rest is called by name."""

    def tft_register_mindx_callback(self, name: str, function: Callable[..., None]) -> int | None:
        """Have a function called with the controller's reports; anything but 0 is a refusal."""
        ...


class TtpBridge:
    """The controller of one job."""

    def __init__(self, controller: Controller, settings: Settings) -> None:
        """Take the package and how to start it; ``start`` starts it."""
        self._controller = controller
        self._settings = settings
        self._orders: queue.SimpleQueue[Order | Begin | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="taskd-ttp", daemon=True)
        self._lock = threading.Lock()
        self._listener: Callable[[Report], None] | None = None
        self._kept: deque[Report] = deque(maxlen=KEPT_REPORTS)

    def start(self) -> None:
        """Start the controller, in the background."""
        self._thread.start()
        self._orders.put(Begin())

    def tell(self, order: Order) -> None:
        """Have an order of the control plane carried out, after those before it."""
        self._orders.put(order)

    def listen(self, listener: Callable[[Report], None]) -> None:
        """Hand reports to a function, from the controller's threads; those that are kept first."""
        with self._lock:
            self._listener = listener
            kept, self._kept = list(self._kept), deque(maxlen=KEPT_REPORTS)
        for report in kept:
            listener(report)

    def close(self) -> None:
        """End the controller; does not wait for one that hangs."""
        self._orders.put(Order(("destroy_controller",)))
        self._orders.put(None)
        self._thread.join(CLOSE_S)

    # --- the calls ---------------------------------------------------------------------------------------

    def _work(self) -> None:
        while (asked := self._orders.get()) is not None:
            if isinstance(asked, Begin):
                self._begin()
                continue
            can_prepare = hasattr(self._controller, PREPARE)
            for step in plan_steps(asked, self._settings.pause_s, can_prepare=can_prepare):
                match step:
                    case Call():
                        self._call(step)
                    case Pause():
                        time.sleep(step.seconds)
                    case Begin():
                        self._begin()
                    case Skip():
                        log.info("MindIO's controller: %s", step.why)

    def _begin(self) -> None:
        callbacks: Mapping[ReportKind, Callable[..., None]] = {
            ReportKind.FAULT_RANKS: self._on_fault_ranks,
            ReportKind.STOP_COMPLETE: self._on_stop_complete,
            ReportKind.STRATEGIES: self._on_strategies,
            ReportKind.RESULT: self._on_result,
        }
        for kind, function in callbacks.items():
            refused = self._call(Call("tft_register_mindx_callback", (kind.value, function)))
            if refused:
                log.error("MindIO's controller refused the callback %s with %s", kind.value, refused)
        for call in start_calls(self._settings):
            self._call(call)

    def _call(self, call: Call) -> object:
        try:
            return cast("object", getattr(self._controller, call.function)(*call.args))
        except (
            Exception,
            SystemExit,
        ):  # another's code, which also tries to end the process; the manager goes on
            log.exception("MindIO's controller: %s failed", call.function)
            return None

    # --- the reports -------------------------------------------------------------------------------------

    def _on_fault_ranks(self, fault_ranks: Mapping[int, object], fault_codes: object = None) -> None:
        del fault_codes  # the reference does not pass them on either
        self._report(Report(ReportKind.FAULT_RANKS, dict(fault_ranks)))

    def _on_stop_complete(self, code: int, message: str, fault_ranks: Mapping[int, object]) -> None:
        self._report(Report(ReportKind.STOP_COMPLETE, dict(fault_ranks), code, message))

    def _on_strategies(self, fault_ranks: Mapping[int, object], strategies: list[str]) -> None:
        self._report(Report(ReportKind.STRATEGIES, dict(fault_ranks), strategies=tuple(strategies)))

    def _on_result(self, code: int, message: str, fault_ranks: Mapping[int, object], strategy: str) -> None:
        self._report(Report(ReportKind.RESULT, dict(fault_ranks), code, message, strategy=strategy))

    def _report(self, report: Report) -> None:
        with self._lock:
            listener = self._listener
            if listener is None:
                self._kept.append(report)
        log.info("MindIO's controller: %s %s %s", report.kind.value, report.code, report.message)
        if listener is not None:
            with contextlib.suppress(Exception):
                listener(report)


def open_bridge(env: Mapping[str, str]) -> TtpBridge | None:
    """Start the controller if MindIO is installed; None, and at most a line in the log, if it is not."""
    try:
        controller = cast("Controller", importlib.import_module(PACKAGE))
    except ModuleNotFoundError as error:
        if error.name not in ("mindio_ttp", PACKAGE):
            log.error("MindIO is installed but cannot be imported: %s", error)  # noqa: TRY400 - a sentence
        return None
    except Exception:  # its own import may fail in any way
        log.exception("MindIO is installed but cannot be imported; the manager goes on without it")
        return None
    try:
        bridge = TtpBridge(controller, read_settings(env))
    except TtpError as error:
        log.error("%s; the manager goes on without MindIO", error)  # noqa: TRY400 - a sentence
        return None
    bridge.start()
    return bridge
