"""The user's program in a prepared process: it runs, fails and ends as under ``python`` itself."""

import json
import os
import subprocess
import sys
import textwrap
import time
import zipfile
from pathlib import Path

import pytest

from taskd.agent import errorfile, program
from taskd.agent.errorfile import ErrorReport, read_error_file


def run_ours(
    target: str, *args: str, cwd: Path, kind: str = "script", error_file: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a program as a cold worker does."""
    command = program.command_line(kind, target, args, error_file)
    return subprocess.run(command, check=False, cwd=cwd, capture_output=True, text=True, timeout=30)


def run_plain(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a program as a user does."""
    command = [sys.executable, "-u", *words]
    return subprocess.run(command, check=False, cwd=cwd, capture_output=True, text=True, timeout=30)


def write(path: Path, source: str) -> Path:
    path.write_text(textwrap.dedent(source))
    return path


SCRIPTS = {
    "returns": "print('done')",
    "exit-none": "import sys; sys.exit(None)",
    "exit-int": "import sys; sys.exit(3)",
    "exit-true": "import sys; sys.exit(True)",
    "exit-text": "import sys; sys.exit('no more')",
    "exit-object": "raise SystemExit(['a', 1])",
    "raises": """
        def deep(x):
            return 1 / x
        def outer():
            deep(0)
        outer()
    """,
    "chained": """
        try:
            {}["a"]
        except KeyError as error:
            raise ValueError("bad key") from error
    """,
    "syntax": "x = (1,\ny = 2\n",
    "not-utf8": "print('a')\n# coding: latin-1\n",
    "import-fails": "import no_such_module_anywhere",
    "interrupt": "raise KeyboardInterrupt",
    "interrupt-after-exit-handlers": """
        import atexit
        atexit.register(print, "last words")
        raise KeyboardInterrupt
    """,
    "own-hook": """
        import sys
        sys.excepthook = lambda kind, error, trace: print("hook", kind.__name__, trace.tb_lineno)
        raise RuntimeError("boom")
    """,
    "exit-handlers-and-threads": """
        import atexit, threading, time
        atexit.register(print, "exit handler")
        def work():
            time.sleep(0.05)
            print("thread done")
        threading.Thread(target=work).start()
        print("main done")
    """,
    "pickle": """
        import pickle
        class Thing: pass
        print(type(pickle.loads(pickle.dumps(Thing()))) is Thing, Thing.__module__)
    """,
    "names": """
        import sys
        print(sorted(globals()), __name__, __file__, __spec__, __builtins__, __package__, __doc__)
        print(sys.argv, sys.orig_argv, sys.path[0], sys.flags)
        x: int = 1
        print(__annotations__)
    """,
}


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_a_script_ends_as_under_plain_python(tmp_path: Path, name: str) -> None:
    """Output, traceback and exit status are the same, to the letter."""
    write(tmp_path / "script.py", SCRIPTS[name])
    ours = run_ours("script.py", "-a", "b", cwd=tmp_path)
    plain = run_plain("script.py", "-a", "b", cwd=tmp_path)

    assert (plain.returncode, plain.stdout, plain.stderr) == (ours.returncode, ours.stdout, ours.stderr)


def test_a_linked_script_finds_its_neighbours(tmp_path: Path) -> None:
    """The first entry of the path is the directory of the real file."""
    (tmp_path / "real").mkdir()
    write(tmp_path / "real" / "neighbour.py", "here = 1")
    write(tmp_path / "real" / "script.py", "import sys, neighbour; print(sys.path[0], __file__)")
    (tmp_path / "link.py").symlink_to(tmp_path / "real" / "script.py")
    ours, plain = run_ours("link.py", cwd=tmp_path), run_plain("link.py", cwd=tmp_path)

    assert (0, plain.stdout) == (ours.returncode, ours.stdout)


def test_directories_archives_and_missing_files_are_as_in_python(tmp_path: Path) -> None:
    """A folder or a zip with a ``__main__.py`` runs; a file that is not there gives 2 and a sentence."""
    (tmp_path / "folder").mkdir()
    write(tmp_path / "folder" / "__main__.py", "import sys; print(__name__, sys.argv, sys.path[0])")
    with zipfile.ZipFile(tmp_path / "packed.zip", "w") as archive:
        archive.writestr("__main__.py", "import sys; print(__name__, sys.argv)")
    for target in ("folder", "packed.zip", "missing.py"):
        ours, plain = run_ours(target, cwd=tmp_path), run_plain(target, cwd=tmp_path)

        assert (plain.returncode, plain.stdout, plain.stderr) == (ours.returncode, ours.stdout, ours.stderr)


def test_a_module_runs_as_with_dash_m(tmp_path: Path) -> None:
    """Arguments, names, tracebacks and the error for a missing module are those of ``python -m``."""
    write(tmp_path / "tool.py", "import sys; print(__name__, __spec__.name, sys.argv, sys.path[0]); 1 / 0")
    for target in ("tool", "no_such_tool"):
        ours, plain = (
            run_ours(target, "x", cwd=tmp_path, kind="module"),
            run_plain("-m", target, "x", cwd=tmp_path),
        )

        assert (plain.returncode, plain.stdout) == (ours.returncode, ours.stdout)
        assert plain.stderr.splitlines()[-1] == ours.stderr.splitlines()[-1]
        assert "taskd.agent" not in ours.stderr


def test_files_in_the_working_directory_do_not_shadow_ours(tmp_path: Path) -> None:
    """A stray json.py or taskd folder where the job was started is no trouble."""
    (tmp_path / "jobs" / "taskd").mkdir(parents=True)
    write(tmp_path / "jobs" / "json.py", "raise RuntimeError('shadow')")
    write(tmp_path / "script.py", "print('fine')")

    assert "fine\n" == run_ours("../script.py", cwd=tmp_path / "jobs").stdout


def test_a_cold_start_costs_little(tmp_path: Path) -> None:
    """Nothing heavy is loaded before the user's first line, so a cold worker is about as fast as python."""
    write(tmp_path / "script.py", "import sys; print(*sys.modules)")
    loaded = set(run_ours("script.py", cwd=tmp_path).stdout.split())

    assert not loaded & {"asyncio", "torch", "msgspec", "json", "dataclasses", "subprocess", "typing"}
    times = []
    for run in (run_ours, run_plain) * 3:
        began = time.perf_counter()
        run("script.py", cwd=tmp_path)
        times.append(time.perf_counter() - began)
    assert min(times[0::2]) - min(times[1::2]) < 0.060


def test_an_uncaught_exception_leaves_its_reason(tmp_path: Path) -> None:
    """The error file has torch's format, the place in the user's code and a precise time."""
    write(
        tmp_path / "train.py",
        """
        import json
        def load():
            json.loads("{")
        load()
        """,
    )
    path = tmp_path / "deep" / "error.json"
    before = time.time()
    ours = run_ours("train.py", cwd=tmp_path, error_file=str(path))
    data = json.loads(path.read_text())
    report = read_error_file(str(path))

    assert 1 == ours.returncode
    assert ours.stderr == data["message"]["extraInfo"]["py_callstack"]
    assert data["message"]["message"].startswith("JSONDecodeError: Expecting property name")
    assert data["message"]["extraInfo"]["timestamp"].isdigit()
    assert report is not None
    assert "train.py:4 in load" == report.place
    assert before <= report.stamp <= time.time()
    assert ours.stderr == report.traceback
    assert [path] == list(path.parent.iterdir())


@pytest.mark.parametrize("ending", ["raise SystemExit(3)", "raise KeyboardInterrupt", "pass"])
def test_only_exceptions_leave_an_error_file(tmp_path: Path, ending: str) -> None:
    """Leaving on purpose and Ctrl-C are no errors of the program."""
    write(tmp_path / "script.py", ending)
    run_ours("script.py", cwd=tmp_path, error_file=str(tmp_path / "error.json"))

    assert not (tmp_path / "error.json").exists()


def test_the_first_report_stays(tmp_path: Path) -> None:
    """What torch's decorator has written is not replaced."""
    write(tmp_path / "script.py", "1 / 0")
    path = tmp_path / "error.json"
    path.write_text("{}")
    ours = run_ours("script.py", cwd=tmp_path, error_file=str(path))

    assert (1, "{}") == (ours.returncode, path.read_text())


def test_an_error_file_that_cannot_be_written_costs_nothing_else(tmp_path: Path) -> None:
    """The traceback and the code are as always; one sentence tells of the file."""
    write(tmp_path / "script.py", "1 / 0")
    ours = run_ours("script.py", cwd=tmp_path, error_file="/proc/no/such/place.json")

    assert 1 == ours.returncode
    assert "taskd: cannot write /proc/no/such/place.json" in ours.stderr
    assert ours.stderr.endswith("ZeroDivisionError: division by zero\n")


def test_torchs_own_report_is_understood(tmp_path: Path) -> None:
    """A file of ``@record`` gives message, place and time; one with bare text gives the message."""
    trace = (
        'Traceback (most recent call last):\n  File "/job/train.py", line 7, in step\n    x\nValueError: no\n'
    )
    stamp = int(time.time())
    told = {"message": "ValueError: no", "extraInfo": {"py_callstack": trace, "timestamp": str(stamp)}}
    path = tmp_path / "error.json"
    path.write_text(json.dumps({"message": told}))
    report = read_error_file(str(path))

    assert report is not None
    assert ("ValueError: no", "train.py:7 in step", trace) == (report.message, report.place, report.traceback)
    assert abs(report.stamp - stamp) < 2

    path.write_text(json.dumps({"message": "lost", "errorCode": 5}))
    os.utime(path, (1000, 1000))
    assert ErrorReport("lost", "", 1000.0, "") == read_error_file(str(path))


@pytest.mark.parametrize("content", ["", "{", "[1]", "\x00\x01", None])
def test_an_unreadable_report_is_none(tmp_path: Path, content: str | None) -> None:
    """A half-written, foreign or missing file is no reason to fail."""
    if content is not None:
        (tmp_path / "error.json").write_text(content)

    assert read_error_file(str(tmp_path / "error.json")) is None


def test_the_place_is_in_the_users_code() -> None:
    """Installed packages are passed over even if they are below the working directory."""
    frames = [
        ("/job/train.py", 3, "main"),
        ("/job/parts/model.py", 9, "forward"),
        ("/job/.venv/lib/python3.11/site-packages/torch/nn/functional.py", 2000, "linear"),
    ]

    assert "parts/model.py:9 in forward" == errorfile.compute_place(frames, ("/job", "/"))
    assert "/x/y.py:1 in f" == errorfile.compute_place([("/x/y.py", 1, "f")], ("/job",))
    assert "" == errorfile.compute_place([], ("/job",))
