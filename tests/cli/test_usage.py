"""How the commands are called: help, mistakes, and what they exit with."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from taskd.cli import commands
from taskd.cli.main import main
from tests.cli.written_jobs import taskd

pytestmark = pytest.mark.usefixtures("home")

HELP_LIMIT_S = 0.3


def test_help_is_quick() -> None:
    """Best of five, in the command's own processor time: the machine's other work does not count."""
    took = []
    for _ in range(5):
        begin = os.times()
        result = taskd("--help")
        end = os.times()
        took.append(end.children_user + end.children_system - begin.children_user - begin.children_system)
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
