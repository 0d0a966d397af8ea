"""A missing libtaskd.so costs one log line."""

import logging
from pathlib import Path

import pytest

from taskd.python.cython_api import cython_api


def test_a_missing_library_is_said_with_the_line_to_paste(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The words are those that the documentation tells users to look for, and TaskD goes on."""
    monkeypatch.setattr(logging.getLogger("taskd"), "propagate", True)
    path = tmp_path / "libtaskd.so"

    assert cython_api.load_library(path) is None
    assert "the libtaskd.so has not been loaded" in caplog.text
    assert f"export LD_PRELOAD={path}:$LD_PRELOAD" in caplog.text


def test_a_file_that_is_no_library_is_treated_as_missing(tmp_path: Path) -> None:
    """A text file in its place must not stop a training run."""
    path = tmp_path / "libtaskd.so"
    path.write_text("not a library")

    assert cython_api.load_library(path) is None
