"""Logging of the roles: one JSON line per event in a file, nothing on the console.

The console belongs to the training job and to the launcher, which prints what a person should know.
Standard-library loggers are enough for the worker; the roles bind their context once with structlog.
"""

import contextlib
import logging
import os
import sys
from pathlib import Path
from typing import Any, TextIO, cast

import msgspec
import structlog

Log = structlog.typing.FilteringBoundLogger

_encoder = msgspec.json.Encoder(enc_hook=repr)


def _to_json(_logger: object, _method: str, event: structlog.typing.EventDict) -> str:
    return _encoder.encode(event).decode()


def _level() -> int:
    name = os.environ.get("TASKD_FILE_LOG_LEVEL", "INFO").upper()
    level = logging.getLevelNamesMapping().get(name)
    return logging.INFO if level is None else level


class _Unfailing:
    """A stream that drops what it cannot write: a full disk must not end a role."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write, or do not."""
        try:
            return self._stream.write(text)
        except (OSError, ValueError):
            return 0

    def flush(self) -> None:
        """Flush, or do not."""
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()


def open_log(path: str, **context: Any) -> Log:  # noqa: ANN401 - whatever identifies the role
    """Make the logger of a role. A path that cannot be written falls back to stderr."""
    stream: TextIO = sys.stderr
    if path:
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            stream = Path(path).open("a", buffering=1, encoding="utf-8")  # noqa: SIM115 - lives as long as the role
        except OSError:
            stream = sys.stderr
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _to_json,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_level()),
        logger_factory=structlog.WriteLoggerFactory(file=cast("TextIO", _Unfailing(stream))),
        cache_logger_on_first_use=False,
    )
    logger: Log = structlog.get_logger(**context)
    return logger
