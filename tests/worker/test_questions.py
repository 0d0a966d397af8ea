"""A replacement gets its predecessor's notes from another node, whatever is lost on the way."""

from collections import deque
from pathlib import Path

import pytest

from taskd.agent import keepsakes
from taskd.agent.keepsakes import read_notes
from taskd.core.messages import Notes, NotesWanted
from taskd.worker import questions
from taskd.worker.questions import fetch_notes

WHOLE = bytes(range(256)) * 10


class Line:
    """Stands for a worker's connection: nodes that answer, and questions that get lost."""

    def __init__(self, *nodes: Path, lost: int = 0) -> None:
        self._nodes = nodes
        self._lost = lost
        self._answers: deque[Notes] = deque()
        self.asked: list[NotesWanted] = []

    def say(self, message: NotesWanted) -> bool:
        self.asked.append(message)
        if len(self.asked) <= self._lost:
            return False
        if message.source < len(self._nodes):
            self._answers.append(read_notes(str(self._nodes[message.source]), message))
        else:
            self._answers.append(Notes(message.rank, message.source, message.offset, -1))
        return True

    def receive(self, _wait_s: float) -> list[Notes]:
        return [self._answers.popleft()] if self._answers else []

    def fetch(self) -> bytes:
        return fetch_notes(self, 3, WHOLE.__eq__)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small parts, short patience."""
    monkeypatch.setattr(keepsakes, "PART_BYTES", 1000)
    monkeypatch.setattr(questions, "REPEAT_S", 0.005)
    monkeypatch.setattr(questions, "SILENCE_S", 0.05)


def make_node(path: Path, notes: bytes | None) -> Path:
    path.mkdir()
    if notes is not None:
        (path / "rank-3.setup").write_bytes(notes)
    return path


def test_notes_come_in_parts(tmp_path: Path) -> None:
    """No message is large, and nobody but the one who asks has to know how far it is."""
    line = Line(make_node(tmp_path / "a", WHOLE))

    assert WHOLE == line.fetch()
    assert [0, 1000, 2000] == [wanted.offset for wanted in line.asked]


def test_a_question_that_is_lost_is_asked_again(tmp_path: Path) -> None:
    """A manager or a proxy that dies takes nothing along."""
    line = Line(make_node(tmp_path / "a", WHOLE), lost=2)

    assert WHOLE == line.fetch()


@pytest.mark.parametrize("notes", [None, b"", WHOLE[:-1], bytes(len(WHOLE))])
def test_a_node_without_whole_notes_is_passed_over(tmp_path: Path, notes: bytes | None) -> None:
    """None, an empty file, one that is cut, one of something else."""
    line = Line(make_node(tmp_path / "a", notes), make_node(tmp_path / "b", WHOLE))

    assert WHOLE == line.fetch()


def test_nobody_has_them(tmp_path: Path) -> None:
    """That is said at once, not after a time limit."""
    line = Line(make_node(tmp_path / "a", None))

    assert b"" == line.fetch()
    assert 2 == len(line.asked)


def test_silence_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one who asks goes on without."""
    monkeypatch.setattr(questions, "LIMIT_S", 0.2)

    assert b"" == Line(lost=10_000).fetch()
