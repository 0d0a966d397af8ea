"""The ``taskd`` logger: format, rotation, and a tolerant reading of the environment."""

import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskd.kit import runlog
from taskd.kit.runlog import LineFormatter, Settings, SharedRotatingFile, configure

LINE = re.compile(r"^\[(\w+)] {5}\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} \d+ {3}\S+:\d+ {5}(.*)$")


@pytest.fixture(autouse=True)
def _clean_logger() -> Iterator[None]:
    yield
    logger = logging.getLogger(runlog.LOGGER)
    for handler in [*logger.handlers]:
        logger.removeHandler(handler)
        handler.close()
    logger.propagate = True
    logger.setLevel(logging.NOTSET)


def make_record(message: str) -> logging.LogRecord:
    return logging.LogRecord("taskd", logging.INFO, "somewhere.py", 7, message, None, None)


def test_without_a_path_no_file_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing a library must not leave a directory where the user happens to stand."""
    monkeypatch.chdir(tmp_path)

    configure(Settings.from_environ({})).info("hello")

    assert [] == list(tmp_path.iterdir())


def test_a_role_may_ask_for_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default directory is the reference system's."""
    monkeypatch.chdir(tmp_path)

    configure(Settings.from_environ({}), filename="manager.log", always_file=True).info("hello")

    assert (tmp_path / "taskd_log" / "manager.log").read_text().endswith("hello\n")


def test_lines_have_the_known_format(tmp_path: Path) -> None:
    """Log collectors parse these lines."""
    configure(Settings.from_environ({"TASKD_LOG_PATH": str(tmp_path)})).warning("disk %d%% full", 90)

    found = LINE.match((tmp_path / "taskd.log").read_text().rstrip("\n"))

    assert found is not None
    assert ("WARNING", "disk 90% full") == found.groups()


def test_a_line_stays_one_line() -> None:
    """A forged line break in a message must not make a second record; a long one is cut."""
    formatted = LineFormatter().format(make_record("a\r\nb" + "x" * 2000))

    assert formatted.endswith("x...")
    assert "\\r\\nb" in formatted
    assert "\n" not in formatted


def test_levels_and_stdout_follow_the_environment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """File and screen have levels of their own, and the literal ``False`` silences the screen."""
    environ = {"TASKD_LOG_PATH": str(tmp_path), "TASKD_FILE_LOG_LEVEL": "debug", "TASKD_LOG_STDOUT": "False"}

    configure(Settings.from_environ(environ)).debug("detail")

    assert "detail" in (tmp_path / "taskd.log").read_text()
    assert not capsys.readouterr().out


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"TASKD_FILE_LOG_LEVEL": "LOUD"}, "TASKD_FILE_LOG_LEVEL='LOUD' is no log level"),
        ({"TASKD_LOG_PATH": "/proc/nowhere"}, "no log file: /proc/nowhere/taskd.log"),
    ],
)
def test_a_wrong_value_costs_a_warning(
    environ: dict[str, str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Logging never stops a training run."""
    configure(Settings.from_environ(environ)).info("goes on")

    out = capsys.readouterr().out
    assert said in out
    assert "goes on" in out


def test_configuring_again_replaces_the_handlers(tmp_path: Path) -> None:
    """A line appears once however often the logger was set up."""
    for _ in range(3):
        logger = configure(Settings.from_environ({"TASKD_LOG_PATH": str(tmp_path)}))
    logger.info("once")

    assert 1 == (tmp_path / "taskd.log").read_text().count("once")


def test_a_full_file_is_set_aside_and_old_ones_go(tmp_path: Path) -> None:
    """At most the given number of backups stays, named by time, read-only."""
    handler = SharedRotatingFile(tmp_path / "taskd.log", limit_bytes=10, backups=2)
    names = iter([f"taskd-2026-01-0{n}T00-00-00.000.log" for n in range(1, 5)])
    for name in names:
        (tmp_path / name).write_text("old")
    handler.emit(make_record("first"))
    handler.emit(make_record("second"))
    handler.close()

    backups = sorted(path.name for path in tmp_path.glob("taskd-*.log"))
    assert 2 == len(backups)
    assert "taskd-2026-01-04T00-00-00.000.log" == backups[0]
    assert re.fullmatch(r"taskd-\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d\.\d{3}\.log", backups[1])
    assert "first\n" == (tmp_path / backups[1]).read_text()
    assert 0o440 == (tmp_path / backups[1]).stat().st_mode & 0o777
    assert "second\n" == (tmp_path / "taskd.log").read_text()


def test_a_file_rotated_by_another_process_is_followed(tmp_path: Path) -> None:
    """Two writers share a file; after one has rotated it, the other's lines go to the new one."""
    handler = SharedRotatingFile(tmp_path / "taskd.log")
    handler.emit(make_record("before"))
    (tmp_path / "taskd.log").rename(tmp_path / "aside.log")
    handler.emit(make_record("after"))
    handler.close()

    assert "after\n" == (tmp_path / "taskd.log").read_text()
