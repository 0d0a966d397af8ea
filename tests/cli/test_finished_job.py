"""The commands and a job that has ended: its directory answers for it."""

import json
import os
import pty
import select
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from taskd.cli.main import main
from taskd.core.status import JobStatus
from tests.cli.written_jobs import INCIDENT, make_status, taskd, write_job

pytestmark = pytest.mark.usefixtures("home")


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
