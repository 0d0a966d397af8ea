from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from taskd.train.torch import exchange
from taskd.train.torch.exchange import checksum, digest
from taskd.train.torch.pickling import Shape
from tests.train.crew import run_crew


class Holder:
    def __init__(self, state: object) -> None:
        self.state = state

    def state_dict(self) -> object:
        return self.state

    def load_state_dict(self, state: object) -> None:
        self.state = state


@pytest.mark.slow
def test_a_rank_that_receives_is_the_sender_to_the_bit(tmp_path: Path) -> None:
    """Now and after further steps, with the parameters still the same objects; damage is seen before use."""
    results = run_crew("exchange_ranks.py", 2, tmp_path)
    sent, got = results[0], results[1]

    assert sent["digest"] == got["digest"]
    assert sent["later"] == got["later"]
    assert "step 3" == got["extra"]
    kinds = got["same"].pop("kinds")
    assert [["int", "float", "NoneType", "bool", "str", "bytes", "tuple", "set"]] == kinds
    assert all(got["same"].values()), got["same"]
    assert "other" == got["damaged"]
    assert "['net']" in got["mismatch"]
    assert got["untouched"]


@given(st.integers(1, 200_000), st.data())
def test_a_checksum_sees_any_changed_byte(length: int, data: st.DataObject) -> None:
    content = torch.randint(0, 256, (length,), dtype=torch.uint8)
    before = checksum(content)
    place = data.draw(st.integers(0, length - 1))
    content[place] ^= data.draw(st.integers(1, 255))

    assert before != checksum(content)


def test_a_digest_sees_names_scalars_and_signs() -> None:
    """Order of the entries does not count, everything else does."""
    states: list[object] = [
        {"a": torch.zeros(2)},
        {"b": torch.zeros(2)},
        {"a": -torch.zeros(2)},
        {"a": torch.zeros(1, 2)},
        {"a": torch.zeros(2, dtype=torch.int32)},
        {"a": [0.0, 0.0]},
        {"a": 0.1},
        {"a": 0.1 + 1e-17},
        {"a": 0.1 + 2e-17},
    ]
    digests = [digest({"x": Holder(state)}) for state in states]

    assert len(set(digests)) == len(states) - 1  # 0.1 + 1e-17 is 0.1
    left = {"p": 1, "q": torch.ones(1)}
    right = {"q": torch.ones(1), "p": 1}
    assert digest({"x": Holder(left)}) == digest({"x": Holder(right)})


def test_large_tensors_are_cut_and_small_ones_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every byte is in exactly one piece, and no piece is longer than allowed."""
    monkeypatch.setattr(exchange, "PIECE_BYTES", 1000)
    monkeypatch.setattr(exchange, "GATHER_BYTES", 300)
    tensors = [torch.zeros(n, dtype=torch.uint8) for n in (10, 2500, 0, 299, 300, 301, 300, 300, 1)]
    shapes = [Shape.of(tensor) for tensor in tensors]

    pieces = list(exchange._plan(shapes, [("first", 3), ("second", len(shapes))]))

    assert max(piece.length for piece in pieces) <= 1000
    covered = sorted(
        (span.tensor, place)
        for piece in pieces
        for span in piece.spans
        for place in range(span.start, span.end)
    )
    assert covered == [
        (number, place) for number, tensor in enumerate(tensors) for place in range(len(tensor))
    ]
    assert {"first": {0, 1}, "second": {3, 4, 5, 6, 7, 8}} == {
        name: {span.tensor for piece in pieces if piece.name == name for span in piece.spans}
        for name in ("first", "second")
    }
