"""What the tests of commands get."""

from pathlib import Path

import pytest


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a test an empty machine."""
    monkeypatch.setenv("TASKD_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TASKD_DEBUG", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path
