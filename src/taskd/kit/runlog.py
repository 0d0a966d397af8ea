"""The ``taskd`` logger: its line format, its rotating file, and the environment variables that set it.

Tools that collect logs know the reference system's names, format and rotation, so these stay. Two things
are different. A file is written only when ``TASKD_LOG_PATH`` is set or a role asks for one: importing a
library must not make a directory in whatever place it was imported from. And a wrong value, a directory
with another mode, or one that cannot be written costs a warning on the same logger, not the training run.

Several processes may write one file: each line is one ``write`` in append mode, and whoever finds that the
file was rotated by another opens it again.
"""

import io
import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

LOGGER = "taskd"
DEFAULT_DIRECTORY = Path("taskd_log")
DEFAULT_FILE = "taskd.log"
LINE_LIMIT = 1023
FILE_LIMIT_BYTES = 20 * 1024 * 1024
BACKUPS = 30
DIRECTORY_MODE = 0o750
FILE_MODE = 0o640
BACKUP_MODE = 0o440


@dataclass(frozen=True, slots=True)
class Settings:
    """What the environment says about logging."""

    directory: Path | None = None
    file_level: int = logging.INFO
    std_level: int = logging.INFO
    stdout: bool = True
    problems: tuple[str, ...] = ()

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> "Settings":
        """Read the variables; a value that makes no sense becomes the default and a problem in words."""
        problems: list[str] = []

        def level(name: str) -> int:
            text = environ.get(name, "").strip()
            number = logging.getLevelNamesMapping().get(text.upper() or "INFO")
            if number is None:
                problems.append(f"{name}={text!r} is no log level; INFO is used")
                return logging.INFO
            return number

        path = environ.get("TASKD_LOG_PATH", "").strip()
        return cls(
            directory=Path(path) if path else None,
            file_level=level("TASKD_FILE_LOG_LEVEL"),
            std_level=level("TASKD_STD_LOG_LEVEL"),
            stdout=environ.get("TASKD_LOG_STDOUT", "").strip() != "False",
            problems=tuple(problems),
        )


class LineFormatter(logging.Formatter):
    """``[LEVEL]     2026/01/31 10:00:00.000000 pid   file.py:12     message``, always on one line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, with line breaks escaped and its message cut at the limit."""
        message = record.getMessage()
        if record.exc_info:
            message += "\n" + self.formatException(record.exc_info)
        message = message.replace("\r", "\\r").replace("\n", "\\n")
        if len(message) > LINE_LIMIT:
            message = message[:LINE_LIMIT] + "..."
        stamp = datetime.fromtimestamp(record.created, tz=UTC).astimezone()
        when = stamp.strftime("%Y/%m/%d %H:%M:%S.%f")
        where = f"{record.filename}:{record.lineno}"
        return f"[{record.levelname}]     {when} {record.process}   {where}     {message}"


class SharedRotatingFile(logging.Handler):
    """A log file that rotates by size and may be written by several processes."""

    def __init__(self, path: Path, limit_bytes: int = FILE_LIMIT_BYTES, backups: int = BACKUPS) -> None:
        super().__init__()
        self.path = path
        self._limit_bytes = limit_bytes
        self._backups = backups
        self._file: io.FileIO | None = self._open()

    def emit(self, record: logging.LogRecord) -> None:
        """Append one line."""
        try:
            data = (self.format(record) + "\n").encode(errors="backslashreplace")
            self._current(len(data)).write(data)
        except (OSError, ValueError):
            self.handleError(record)

    def close(self) -> None:
        """Close the file; a later line opens it again."""
        self.acquire()
        try:
            if self._file is not None:
                self._file.close()
                self._file = None
        finally:
            self.release()
        super().close()

    def _open(self) -> io.FileIO:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        return io.FileIO(descriptor, "a")

    def _current(self, coming_bytes: int) -> io.FileIO:
        """Return the file to write to, rotated if it is full."""
        if self._file is None:
            self._file = self._open()
        ours = os.fstat(self._file.fileno())
        try:
            named = self.path.stat()
        except FileNotFoundError:
            named = None
        rotated_elsewhere = named is None or (named.st_dev, named.st_ino) != (ours.st_dev, ours.st_ino)
        full = ours.st_size > 0 and ours.st_size + coming_bytes > self._limit_bytes
        if not (rotated_elsewhere or full):
            return self._file
        if full and not rotated_elsewhere:
            self._set_aside()
        self._file.close()
        self._file = self._open()
        return self._file

    def _set_aside(self) -> None:
        now = datetime.now(UTC)
        stamp = now.strftime("%Y-%m-%dT%H-%M-%S.") + f"{now.microsecond // 1000:03d}"
        backup = self.path.with_name(f"{self.path.stem}-{stamp}{self.path.suffix}")
        self.path.rename(backup)
        backup.chmod(BACKUP_MODE)
        pattern = f"{self.path.stem}-[0-9][0-9][0-9][0-9]-*T*{self.path.suffix}"
        for old in sorted(self.path.parent.glob(pattern))[: -self._backups]:
            old.unlink(missing_ok=True)


def configure(
    settings: Settings, *, filename: str = DEFAULT_FILE, always_file: bool = False
) -> logging.Logger:
    """Give the ``taskd`` logger its handlers, in place of those that an earlier call gave it.

    A role passes its own ``filename`` and, if it wants a file even where ``TASKD_LOG_PATH`` is not set,
    ``always_file``.
    """
    logger = logging.getLogger(LOGGER)
    for handler in [*logger.handlers]:
        if isinstance(handler.formatter, LineFormatter):
            logger.removeHandler(handler)
            handler.close()
    problems = [*settings.problems]
    if settings.stdout:
        _add(logger, logging.StreamHandler(sys.stdout), settings.std_level)
    directory = settings.directory or (DEFAULT_DIRECTORY if always_file else None)
    if directory is not None:
        try:
            directory.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
            _add(logger, SharedRotatingFile(directory / filename), settings.file_level)
        except OSError as error:
            problems.append(f"no log file: {directory / filename} cannot be written ({error.strerror})")
    levels = [handler.level for handler in logger.handlers]
    logger.setLevel(min(levels, default=logging.INFO))
    logger.propagate = not settings.stdout  # else a user's own root handler would print each line twice
    for problem in problems:
        logger.warning("%s", problem)
    return logger


def _add(logger: logging.Logger, handler: logging.Handler, level: int) -> None:
    handler.setLevel(level)
    handler.setFormatter(LineFormatter())
    logger.addHandler(handler)
