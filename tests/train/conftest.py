"""What the tests of training get."""

import pytest


@pytest.fixture
def small_blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that small files have several of them; the ranks of a slow test are processes with the real ones."""
    if not request.node.get_closest_marker("slow"):
        monkeypatch.setattr("taskd.train.torch.statefile.BLOCK_BYTES", 4096)
