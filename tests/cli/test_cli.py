"""The commands, as a user meets them: what they print, where, and what they exit with."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import threading
import time
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
from taskd.core.status import IncidentStatus, JobPhase, JobStatus, NodeStatus, RankStatus
from taskd.kit import jobs

TOKEN = "secret"  # noqa: S105
HELP_LIMIT_S = 0.3
IDLE = [sys.executable, "-c", "import sys; sys.stdin.read()"]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give each test an empty machine."""
    monkeypatch.setenv("TASKD_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TASKD_DEBUG", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def taskd(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "taskd.cli.main", *words],
        capture_output=True,
        text=True,
        timeout=20,
        env=os.environ | env,
        check=False,
    )


def make_status(home: Path, phase: JobPhase = JobPhase.ENDED) -> JobStatus:
    """Build the status of a job with two ranks, the second of which has been restarted once."""
    ranks = tuple(
        RankStatus(
            rank, rank, "node-0", 0, 100 + rank, "joined", 20, str(home / f"run/attempt_{rank}/{rank}")
        )
        for rank in range(2)
    )
    return JobStatus(
        job="train",
        phase=phase,
        reason="all [2] ranks finished",
        generation=2,
        restarts=1,
        max_restarts=32767,
        world_size=2,
        manager_pid=50,
        manager_addr="127.0.0.1:9601",
        started_stamp=1_700_000_000.0,
        stamp=1_700_000_100.0,
        nodes=(NodeStatus("node-0", 0, "host-a", 60, 61, "running", connected=True, faults=1),),
        ranks=ranks,
        last_fault="rank 1 was killed by SIGKILL at step 12",
        exit_code=0 if phase is JobPhase.ENDED else None,
    )


INCIDENT = IncidentStatus(
    number=1,
    stamp=1_700_000_050.0,
    kind="killed",
    what="rank 1 was killed by SIGKILL",
    rank=1,
    node="node-0",
    step=12,
    strategy="restart",
    reason="1 of 2 ranks lost; 1 of 32767 restarts used",
    outcome="recovered",
    generation=2,
    phases_ms={"join": 60.0, "detect": 1.25, "spawn": 38.75},
)


def write_job(home: Path, pid: int = 0, addr: str = "127.0.0.1:1", phase: JobPhase = JobPhase.ENDED) -> None:
    """Leave the directory of a job, finished unless a live pid is given."""
    ticks = jobs.read_start_ticks(pid) if pid else None
    jobs.open_job(jobs.JobRecord("train", pid, ticks or 0, addr, TOKEN, 1.0))
    jobs.write_status(make_status(home, phase))
    jobs.append_incident("train", INCIDENT)


# --- usage -----------------------------------------------------------------------------------------------


def test_help_is_quick() -> None:
    """Best of five, since the limit is about our imports and not about the machine's other work."""
    took = []
    for _ in range(5):
        begin = time.perf_counter()
        result = taskd("--help")
        took.append(time.perf_counter() - begin)
    print(f"taskd --help: best {min(took) * 1000:.0f} ms, worst {max(took) * 1000:.0f} ms")

    assert 0 == result.returncode
    assert all(name in result.stdout for name in ("run", "status", "timeline", "logs", "stop", "inject"))
    assert min(took) <= HELP_LIMIT_S


def test_help_imports_nothing_heavy() -> None:
    """What is not imported cannot become slow."""
    code = (
        "import sys; from taskd.cli.main import main; main(['--help'])\n"
        "heavy = {'rich', 'grpc', 'torch', 'msgspec'} & set(sys.modules); print(list(heavy), file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "[]" == result.stderr.strip()


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--bogus"], "--bogus"),
        (["frobnicate"], "frobnicate"),
        (["status", "--bogus"], "--bogus"),
        (["status", "--output", "yaml"], "yaml"),
        (["status", "a", "b"], "`taskd status --help`"),
        (["logs"], "--rank"),
        (["logs", "--rank", "x"], "--rank"),
        (["timeline", "--perfetto"], "--perfetto"),
        (["run"], "no script"),
        (["run", "--bogus", "train.py"], "--bogus is not a flag"),
        (["run", "nowhere.py"], "nowhere.py does not exist"),
        (["run", "--no-python", "no-such-command"], "no-such-command"),
        (["run", "--faults", "bad.jsonl", "real.py"], "bad.jsonl, line 2"),
        (["run", "--nnodes", "x", "real.py"], "--nnodes x"),
        (["inject"], "KIND"),
        (["inject", "explode", "--rank", "1"], "kill, hang, raise, exit"),
        (["inject", "kill"], "exactly one"),
        (["inject", "kill", "--rank", "1", "--node", "0"], "--rank and --node"),
        (["inject", "raise", "--node", "0"], "--rank"),
        (["inject", "exit", "--role", "agent"], "--rank"),
        (["inject", "kill", "--role", "worker"], "manager, proxy, agent"),
        (["inject", "kill", "--rank", "1", "--code", "3"], "--code"),
        (["inject", "exit", "--rank", "1", "--code", "256"], "255"),
        (["inject", "kill", "--rank", "-1"], "--rank -1"),
        (["inject", "kill", "--rank", "1", "--at-step", "-2"], "--at-step -2"),
    ],
)
def test_bad_usage_is_one_sentence_and_code_2(
    words: list[str], part: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Never a traceback, and nothing on stdout that a script could take for a result."""
    (home / "real.py").write_text("")
    (home / "bad.jsonl").write_text('# faults\n{"step": 1}\n')

    assert 2 == main(words)

    out, err = capsys.readouterr()
    assert "" == out
    assert err.startswith("taskd: ")
    assert 1 == err.count("\n")
    assert part in err


def test_bad_usage_as_a_process() -> None:
    """The same through a real process, with a wrong variable."""
    result = taskd("run", __file__, PET_NNODES="abc")

    assert (2, "") == (result.returncode, result.stdout)
    assert result.stderr.startswith("taskd: PET_NNODES=abc in the environment: ")
    assert "Traceback" not in result.stderr


def test_run_help_lists_the_flags(capsys: pytest.CaptureFixture[str]) -> None:
    """Ours and torchrun's."""
    assert 0 == main(["run", "--help"])
    assert {"--nproc-per-node", "--local-nodes"} <= set(capsys.readouterr().out.split())


def test_version_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    """Both are there to be asked."""
    assert 0 == main(["version"])
    assert 0 == main(["--version"])
    assert 0 == main(["exit-codes"])
    out = capsys.readouterr().out
    assert 2 == out.count("taskd 0")
    assert "128+N" in out


def test_a_defect_is_a_sentence_unless_one_debugs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A traceback is for those who mend it."""

    def fail() -> int:
        raise RuntimeError("out of cheese\nredo from start")

    monkeypatch.setattr(commands, "show_exit_codes", fail)

    assert 70 == main(["exit-codes"])
    assert (
        "taskd: a defect in TaskD: RuntimeError: out of cheese; TASKD_DEBUG=1 shows where\n"
        == capsys.readouterr().err
    )
    monkeypatch.setenv("TASKD_DEBUG", "1")
    with pytest.raises(RuntimeError):
        main(["exit-codes"])


# --- a finished job --------------------------------------------------------------------------------------


def test_a_finished_job_keeps_its_status(home: Path) -> None:
    """Read from its directory by a process of its own, without a name."""
    write_job(home)

    plain = taskd("status")
    parsed = taskd("status", "train", "--output", "json")

    assert (0, "", 0, "") == (plain.returncode, plain.stderr, parsed.returncode, parsed.stderr)
    lines = plain.stdout.splitlines()
    assert "job train: ended with code 0 (all [2] ranks finished)" == lines[0]
    assert lines[1].startswith("generation 2, 1 of 32767 restarts used, 2 ranks")
    assert "last fault: rank 1 was killed by SIGKILL at step 12" == lines[2]
    assert ["1", "node-0", "101", "joined", "20"] == lines[6].split()
    assert make_status(home) == msgspec.json.decode(parsed.stdout, type=JobStatus)


def test_a_finished_job_keeps_its_timeline(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One row per fault: phases in order and in milliseconds, the sum, and the reason."""
    write_job(home)

    assert 0 == main(["timeline"])
    first, _, head, row = capsys.readouterr().out.splitlines()
    assert "job train: 1 fault, 100.0 ms of downtime" == first
    assert (
        head.index("detect ms") < head.index("spawn ms") < head.index("join ms") < head.index("downtime ms")
    )
    assert ["1.2", "38.8", "60.0", "100.0", "restart", "recovered"] == row.split()[6:12]
    assert row.endswith(INCIDENT.reason)

    assert 0 == main(["timeline", "--output", "json"])
    [parsed] = json.loads(capsys.readouterr().out)
    assert 100.0 == parsed["downtime_ms"] == sum(parsed["phases_ms"].values())


def test_the_trace_adds_up(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file loads, and its phases are as long as the timeline says."""
    write_job(home)

    assert 0 == main(["timeline", "--perfetto", "trace.json"])

    assert "trace.json" in capsys.readouterr().err
    events = json.loads((home / "trace.json").read_text())["traceEvents"]
    phases = {event["name"]: event["dur"] for event in events if event.get("cat") == "phase"}
    assert {"detect": 1250.0, "spawn": 38750.0, "join": 60000.0} == phases
    assert 2 == main(["timeline", "--perfetto", "no/such/dir/trace.json"])


def test_no_job_is_code_3(capsys: pytest.CaptureFixture[str]) -> None:
    """For every command that needs one."""
    for words in (
        ["status"],
        ["timeline", "x"],
        ["logs", "--rank", "0"],
        ["stop"],
        ["inject", "kill", "--rank", "0"],
    ):
        assert 3 == main(words)
        assert capsys.readouterr().err.startswith("taskd: no job ")


def test_nothing_can_be_done_to_a_finished_job(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Stopping it by name is already done; breaking it is impossible."""
    write_job(home)

    assert 0 == main(["stop", "train"])
    assert 3 == main(["stop"])
    assert 3 == main(["inject", "kill", "--rank", "0"])
    assert "does not run any more" in capsys.readouterr().err


def test_logs_of_every_attempt(home: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """The current one, an earlier one, the other stream; what is not there is said."""
    write_job(home)
    for attempt in range(2):
        place = home / f"run/attempt_{attempt}/1"
        place.mkdir(parents=True)
        (place / "stdout.log").write_bytes(b"step %d\n\xff" % attempt)
        (place / "stderr.log").write_bytes(b"oops\n")

    def out(*words: str) -> tuple[int, bytes]:
        code = main(["logs", *words])
        return code, capfdbinary.readouterr().out

    assert (0, b"step 1\n\xff") == out("--rank", "1")
    assert (0, b"step 0\n\xff") == out("--rank", "1", "--attempt", "0", "train")
    assert (0, b"oops\n") == out("--rank", "1", "--stderr")
    assert (0, b"step 1\n\xff") == out("--rank", "1", "--follow")
    assert (3, b"") == out("--rank", "7")
    assert 3 == main(["logs", "--rank", "1", "--attempt", "5"])
    assert b"attempts with a log are 0, 1" in capfdbinary.readouterr().err
    assert 3 == main(["logs", "--rank", "0"])
    assert b"on this machine; the rank ran on host-a" in capfdbinary.readouterr().err


def test_a_reader_that_leaves_is_no_defect(home: Path) -> None:
    """`taskd logs | head` ends quietly."""
    write_job(home)
    place = home / "run/attempt_1/1"
    place.mkdir(parents=True)
    (place / "stdout.log").write_bytes(b"x" * 1_000_000)
    words = [sys.executable, "-m", "taskd.cli.main", "logs", "--rank", "1"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(1)
    process.stdout.close()

    assert b"" == process.stderr.read()
    assert 141 == process.wait(timeout=10)
    process.stderr.close()


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["status"], "all [2] ranks finished"),
        (["status", "--watch"], "all [2] ranks finished"),
        (["timeline"], "recovered"),
    ],
)
def test_a_terminal_gets_a_table(home: Path, words: list[str], part: str) -> None:
    """With lines and colours, and brackets in a reason left alone."""
    write_job(home)
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "taskd.cli.main", *words],
        stdout=slave,
        stderr=slave,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "120"},
    )
    os.close(slave)
    text = b""
    while select.select([master], [], [], 10)[0]:
        try:
            text += os.read(master, 1 << 16)
        except OSError:
            break
    os.close(master)

    assert 0 == process.wait(timeout=10)
    assert part in text.decode()
    assert "─" in text.decode()
    assert "\x1b[" in text.decode()


# --- a live job ------------------------------------------------------------------------------------------


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
