"""The commands and a job that runs: its manager is asked, and what it says is passed on."""

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest

from taskd.cli import client, commands
from taskd.cli.errors import CliError
from taskd.cli.main import main
from taskd.core.status import JobPhase
from taskd.kit import jobs
from tests.cli.written_jobs import INCIDENT, TOKEN, make_status, write_job

pytestmark = pytest.mark.usefixtures("home")

IDLE = [sys.executable, "-c", "import sys; sys.stdin.read()"]


class FakeManager(grpc.GenericRpcHandler):
    """Answers the CLI's calls as a manager does."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.on_stop: Callable[[], None] = lambda: None
        self.phase = JobPhase.RUNNING

    def service(self, call: grpc.HandlerCallDetails) -> Any:
        if call.method != client.METHOD_PATH:
            return None
        if (client.TOKEN_KEY, TOKEN) not in [tuple(pair) for pair in call.invocation_metadata]:
            return grpc.unary_unary_rpc_method_handler(self._refuse)
        return grpc.unary_unary_rpc_method_handler(self._answer)

    @staticmethod
    def _refuse(_request: bytes, context: Any) -> bytes:
        context.abort(grpc.StatusCode.UNAUTHENTICATED, "wrong token")
        return b""

    def _answer(self, request: bytes, _context: Any) -> bytes:
        asked = msgspec.msgpack.decode(request)
        method, params = asked["method"], asked["params"]
        self.calls.append((method, params))
        result: object = {}
        if method == "status":
            result = replace(make_status(self.home, self.phase), reason="from the manager")
        elif method == "timeline":
            result = [INCIDENT, replace(INCIDENT, number=2)]
        elif method == "inject":
            if params["kind"] == "hang":
                return msgspec.msgpack.encode(
                    {"ok": False, "error": "rank 1 is stopped already", "result": None}
                )
            result = {"order": "inject/1", "detail": "killed process 101"}
        elif method == "stop":
            self.on_stop()
        return msgspec.msgpack.encode({"ok": True, "error": "", "result": result})


@pytest.fixture
def launcher() -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that stands for the launcher, and bury it as soon as it dies."""
    process = subprocess.Popen(IDLE, stdin=subprocess.PIPE)
    threading.Thread(target=process.wait, daemon=True).start()
    yield process
    process.kill()
    process.wait()
    assert process.stdin is not None
    process.stdin.close()


@pytest.fixture
def manager(home: Path, launcher: subprocess.Popen[bytes]) -> Iterator[FakeManager]:
    """Serve a live job."""
    fake = FakeManager(home)
    with futures.ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool, handlers=[fake])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        write_job(home, launcher.pid, f"127.0.0.1:{port}", JobPhase.STARTING)
        yield fake
        server.stop(None).wait()


def test_a_live_job_is_asked(manager: FakeManager, capsys: pytest.CaptureFixture[str]) -> None:
    """The manager knows more than the files, and a web proxy does not get in between."""
    assert 0 == main(["status"])
    assert "job train: running (from the manager)" in capsys.readouterr().out
    assert 0 == main(["timeline"])
    assert "2 faults" in capsys.readouterr().out
    assert [("status", {}), ("timeline", {})] == manager.calls


def test_a_web_proxy_does_not_get_in_between(
    manager: FakeManager, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Clusters set one for downloads; the manager is not behind it."""
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "")

    assert 0 == main(["status"])
    assert "from the manager" in capsys.readouterr().out
    assert manager.calls


def test_watching_ends_with_the_job(
    manager: FakeManager,
    launcher: subprocess.Popen[bytes],
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The last word is how it ended; a picture that has not changed is not printed again."""
    naps: list[float] = []

    def nap(_seconds: float) -> None:
        naps.append(1)
        if len(naps) == 3:
            jobs.write_status(make_status(home))
            launcher.kill()
            launcher.wait()

    monkeypatch.setattr("taskd.cli.commands.time.sleep", nap)

    assert 0 == main(["status", "--watch"])
    out = capsys.readouterr().out
    assert 1 == out.count("job train: running")
    assert 1 == out.count("job train: ended with code 0")
    assert 3 == len([method for method, _ in manager.calls if method == "status"])


@pytest.mark.usefixtures("manager")
def test_ctrl_c_is_quiet(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Who stops watching has not met an error."""

    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("taskd.cli.commands.time.sleep", interrupt)

    assert 130 == main(["status", "--watch"])
    assert "" == capsys.readouterr().err


def test_following_goes_along_with_a_restart(
    manager: FakeManager,
    launcher: subprocess.Popen[bytes],
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Nothing of the old attempt is lost, the new one is announced, and the end of the job ends it."""

    def write(attempt: int, text: str) -> None:
        place = home / f"run/attempt_{attempt}/0"
        place.mkdir(parents=True, exist_ok=True)
        with (place / "stdout.log").open("a") as file:
            file.write(text)

    naps: list[float] = []

    def nap(_seconds: float) -> None:
        naps.append(1)
        match len(naps):
            case 1:
                write(0, "two ")
            case 2:
                write(0, "three ")
                write(1, "four ")
            case _:
                write(1, "five")
                launcher.kill()
                launcher.wait()

    monkeypatch.setattr("taskd.cli.commands.time.sleep", nap)
    write(0, "one ")

    assert 0 == main(["logs", "--rank", "0", "--follow"])
    out, err = capfd.readouterr()
    assert "one two three four five" == out
    assert "taskd: the rank was started again: attempt 1\n" == err
    assert manager.calls


def test_an_injection_is_passed_on(manager: FakeManager, capsys: pytest.CaptureFixture[str]) -> None:
    """With its victim, its step and its code; a victim that does not exist is not asked for."""
    assert 0 == main(["inject", "kill", "--rank", "1"])
    assert "inject/1: killed process 101\n" == capsys.readouterr().out
    assert 0 == main(["inject", "exit-code", "--rank", "0", "--at-step", "9", "--code", "3", "train"])
    assert 0 == main(["inject", "kill", "--role", "manager"])
    assert 0 == main(["inject", "kill", "--node", "0"])
    sent = [params for method, params in manager.calls if method == "inject"]
    assert [
        {"kind": "kill", "rank": 1, "step": -1, "code": 1},
        {"kind": "exit", "rank": 0, "step": 9, "code": 3},
        {"kind": "kill", "role": "manager", "step": -1, "code": 1},
        {"kind": "kill", "node": 0, "step": -1, "code": 1},
    ] == sent

    assert 3 == main(["inject", "kill", "--rank", "5"])
    assert 3 == main(["inject", "kill", "--node", "5"])
    assert 4 == len([method for method, _ in manager.calls if method == "inject"])


@pytest.mark.usefixtures("manager")
def test_a_refusal_is_told_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """The manager's own words, and a code that is not success."""
    assert 1 == main(["inject", "hang", "--rank", "1"])
    assert "taskd: the manager refused inject: rank 1 is stopped already\n" == capsys.readouterr().err


def test_a_wrong_token_is_told(manager: FakeManager) -> None:
    """Who does not know it gets nothing done."""
    addr = jobs.read_record("train").manager_addr
    with pytest.raises(CliError, match="token"):
        client.call(addr, "guess", "stop", {}, 5.0)
    assert [] == manager.calls


def test_stop_waits_until_the_launcher_is_gone(
    manager: FakeManager, launcher: subprocess.Popen[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    """It asks the manager, and says when it is done."""
    manager.on_stop = launcher.kill

    assert 0 == main(["stop"])
    assert launcher.wait(timeout=5) is not None
    assert [("stop", {"why": "stopped by `taskd stop`", "code": 143})] == manager.calls
    assert "taskd: stopping job train\ntaskd: job train has ended\n" == capsys.readouterr().err


@pytest.mark.usefixtures("manager")
def test_a_stop_that_takes_too_long_is_given_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With what one can do then."""
    monkeypatch.setattr(commands, "STOP_DEADLINE_S", 0.2)

    assert 1 == main(["stop"])
    assert "kill -9" in capsys.readouterr().err


def test_a_lost_manager_is_code_2(
    home: Path, launcher: subprocess.Popen[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    """The sentence says where was asked; logs are files and need nobody."""
    write_job(home, launcher.pid, "127.0.0.1:1", JobPhase.RUNNING)
    place = home / "run/attempt_0/0"
    place.mkdir(parents=True)
    (place / "stdout.log").write_text("hello\n")

    for words in (["status"], ["timeline"], ["inject", "kill", "--rank", "0"]):
        assert 2 == main(words)
        assert "127.0.0.1:1" in capsys.readouterr().err
    assert 0 == main(["logs", "--rank", "0"])


def test_stop_works_without_a_manager(
    home: Path, launcher: subprocess.Popen[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    """A job whose manager is lost for good can still be ended."""
    write_job(home, launcher.pid, "127.0.0.1:1", JobPhase.RUNNING)

    assert 0 == main(["stop"])
    assert -signal.SIGTERM == launcher.wait(timeout=5)
    assert "asking its launcher" in capsys.readouterr().err


def test_several_live_jobs_need_a_name(
    home: Path, launcher: subprocess.Popen[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    """A command without a name is then a mistake of the user's, not a job that is missing."""
    write_job(home, launcher.pid)
    jobs.open_job(replace(jobs.read_record("train"), job="other"))

    assert 2 == main(["stop"])
    assert "train, other" in capsys.readouterr().err
