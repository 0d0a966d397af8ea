"""Every sequence of the specification, played by independent stubs against the real server over loopback."""

import pytest

from tests.plane import transcript

LASTING = {
    "hot-switch-no-standby",
    "hot-switch-again",
    "hot-switch-late-pause",
    "hot-switch-late-resume",
    "hot-switch-late-resume-lost",
    "hot-switch-old-pod-stuck",
    "stop-late",
    "restart-late",
}
"""Deadlines of a few hundredths of a second make these; a restart in between takes longer than that."""
PLAIN = [name for name in transcript.names() if name not in LASTING]


@pytest.mark.parametrize("name", transcript.names())
async def test_transcript(name: str) -> None:
    """What is written in the file is what goes over the wire."""
    await transcript.play(transcript.load(name))


@pytest.mark.parametrize("how", ["restart", "reconnect"])
@pytest.mark.parametrize("name", PLAIN)
async def test_transcript_with_interruptions(name: str, how: str) -> None:
    """The plane dies, or the stream breaks, after every signal: the signal comes again, the rest is the same.

    What needs no answer (a switch is off, everything is ready to start again) is said once.
    """
    lines = []
    for line in transcript.load(name):
        lines.append(line.replace("notice_s=0.05", "notice_s=1.2").replace("heal_s=0.05", "heal_s=1.2"))
        last_words = "stop switch" in line
        if line.startswith("P "):
            lines.append(f"{how} quiet" if last_words or line.endswith("#last") else how)
    await transcript.play(lines)
