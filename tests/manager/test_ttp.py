"""The manager and MindIO's controller, played by a package that records what it is told."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from taskd.core.ttp import Order, Report, ReportKind, read_settings
from taskd.manager.ttp import TtpBridge, open_bridge
from taskd.testing.kube.processes import free_port
from tests.roles.harness import eventually

ENV = {"WORLD_SIZE": "4", "POD_IP": "127.0.0.1", "TTP_PORT": "8000", "PROCESS_RECOVER": "on"}

DOUBLE = '''
"""Records each call as a line of JSON in the file that RECORD names."""
import json, os
def _record(name):
    def call(*args):
        shown = [arg if not callable(arg) else "a function" for arg in args]
        with open(os.environ["RECORD"], "a") as file:
            file.write(json.dumps([name, *shown]) + "\\n")
        return 0
    return call
for _name in ("register_mindx_callback", "init_controller", "start_controller", "destroy_controller"):
    globals()["tft_" + _name] = _record("tft_" + _name)
'''


class Recorder(ModuleType):
    """The package, as far as it is documented; ``fails`` names what goes wrong in it."""

    def __init__(self, fails: str = "") -> None:
        super().__init__("mindio_ttp.controller_ttp")
        self.calls: list[tuple[Any, ...]] = []
        self.callbacks: dict[str, Callable[..., None]] = {}
        self._fails = fails

    def __getattr__(self, name: str) -> Callable[..., int]:
        if not name.startswith("tft_") or name == self._fails == "tft_notify_controller_prepare_action":
            raise AttributeError(name)

        def call(*args: Any) -> int:
            if name == "tft_register_mindx_callback":
                self.callbacks[args[0]] = args[1]
                return 0
            self.calls.append((name, *args))
            if name == self._fails:
                raise SystemExit(1)  # as the real one does when it cannot listen
            return 0

        return call


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def bridge(recorder: Recorder) -> TtpBridge:
    bridge = TtpBridge(recorder, read_settings(ENV))
    bridge.start()
    eventually(lambda: len(recorder.calls) == 2, "the controller to be started")
    return bridge


def test_orders_are_carried_out_one_after_the_other(recorder: Recorder, bridge: TtpBridge) -> None:
    """Started, told, restarted and ended, each call with the documented arguments."""
    bridge.tell(Order(("stop_train",), {1: 0}))
    bridge.tell(Order(("change_strategy",), strategy="recover"))
    bridge.tell(Order(("restart_controller",)))
    bridge.close()

    start = [
        ("tft_init_controller", -1, 4, False, True, False),
        ("tft_start_controller", "127.0.0.1", 8000, False, ""),
    ]
    assert [
        *start,
        ("tft_notify_controller_stop_train", {1: 0}, "stop"),
        ("tft_notify_controller_change_strategy", "recover", ""),
        ("tft_destroy_controller",),
        *start,
        ("tft_destroy_controller",),
    ] == recorder.calls


def test_reports_reach_whoever_listens(recorder: Recorder, bridge: TtpBridge) -> None:
    """Those before anybody listens are kept; each kind has what its callback gets."""
    heard: list[Report] = []
    recorder.callbacks["report_fault_ranks"]({1: 0})
    bridge.listen(heard.append)
    recorder.callbacks["report_stop_complete"](0, "ok", {1: 0})
    recorder.callbacks["report_strategies"]({1: 0}, ["retry", "recover"])
    recorder.callbacks["report_result"](0, "done", {1: 0}, "retry")
    bridge.close()

    assert [
        Report(ReportKind.FAULT_RANKS, {1: 0}),
        Report(ReportKind.STOP_COMPLETE, {1: 0}, 0, "ok"),
        Report(ReportKind.STRATEGIES, {1: 0}, strategies=("retry", "recover")),
        Report(ReportKind.RESULT, {1: 0}, 0, "done", strategy="retry"),
    ] == heard


def test_a_controller_that_fails_does_not_take_the_manager_along(caplog: pytest.LogCaptureFixture) -> None:
    """Not even when it tries to end the process; later orders are still carried out."""
    recorder = Recorder(fails="tft_start_controller")
    bridge = TtpBridge(recorder, read_settings(ENV))
    bridge.start()
    bridge.tell(Order(("save_and_exit",)))
    bridge.close()

    assert ("tft_notify_controller_dump",) in recorder.calls
    assert "tft_start_controller failed" in caplog.text


def test_without_the_package_there_is_no_controller(caplog: pytest.LogCaptureFixture) -> None:
    """And nothing is said: most images have none."""
    assert None is open_bridge(ENV)
    assert "" == caplog.text


def test_what_the_package_needs_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, recorder: Recorder
) -> None:
    """The manager goes on without it, and the log names the variable."""
    monkeypatch.setitem(sys.modules, "mindio_ttp", ModuleType("mindio_ttp"))
    monkeypatch.setitem(sys.modules, "mindio_ttp.controller_ttp", recorder)

    assert None is open_bridge({**ENV, "TTP_PORT": ""})
    assert "TTP_PORT" in caplog.text


@pytest.mark.slow
def test_manager_py_starts_and_ends_the_controller(tmp_path: Path) -> None:
    """The example's manager.py, with the package on its path and nothing else changed."""
    package = tmp_path / "path" / "mindio_ttp"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "controller_ttp.py").write_text(DOUBLE)
    record = tmp_path / "record"
    port = free_port()
    env = {**os.environ, **ENV, "PYTHONPATH": str(tmp_path / "path"), "RECORD": str(record)}
    env |= {"TASKD_HOME": str(tmp_path / "home"), "TASKD_MANAGER_PORT": str(port), "MINDX_TASK_ID": "job"}
    script = Path(__file__).parents[2] / "examples" / "scripts" / "manager.py"
    process = subprocess.Popen([sys.executable, script], cwd=tmp_path, env=env)
    try:
        eventually(lambda: record.exists() and len(record.read_text().splitlines()) >= 6, "the controller")
        eventually(lambda: _listens(port), "the manager to listen")
        process.terminate()
        assert 1 == process.wait(30)
    finally:
        process.kill()

    calls = [json.loads(line) for line in record.read_text().splitlines()]
    names = ["report_fault_ranks", "report_stop_complete", "report_strategies", "report_result"]
    assert [["tft_register_mindx_callback", name, "a function"] for name in names] == calls[:4]
    assert ["tft_init_controller", -1, 4, False, True, False] == calls[4]
    assert ["tft_start_controller", "127.0.0.1", 8000, False, ""] == calls[5]
    assert ["tft_destroy_controller"] == calls[-1]


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
