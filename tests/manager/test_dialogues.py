"""What a control plane was seen to do, played by independent stubs against a real liaison over loopback."""

import pytest

from tests.manager import dialogue


@pytest.mark.parametrize("name", dialogue.names())
async def test_dialogue(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written in the file is what goes over the wire, and what the job does about it."""
    await dialogue.play(name, monkeypatch)
