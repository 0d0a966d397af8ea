import subprocess
import sys

import torch
from hypothesis import given
from hypothesis import strategies as st

from taskd.train.torch import sums

LENGTHS = st.one_of(
    st.integers(0, 100),
    st.integers(sums.ROW_BYTES - 9, sums.ROW_BYTES + 9),
    st.integers(0, 4 * sums.ROW_BYTES),
)


@given(LENGTHS, st.data())
def test_a_change_of_any_byte_is_noticed(length: int, data: st.DataObject) -> None:
    whole = torch.arange(length, dtype=torch.int64).mul_(37).to(torch.uint8)
    before = sums.checksum(whole)
    assert sums.count_rows(length) == sums.sum_rows(whole).numel()
    assert before == sums.checksum(whole.clone())
    if length:
        whole[data.draw(st.integers(0, length - 1))] ^= data.draw(st.integers(1, 255))
        assert before != sums.checksum(whole)


@given(st.integers(1, 7), st.integers(0, 3 * sums.ROW_BYTES))
def test_where_the_bytes_lie_does_not_matter(offset: int, length: int) -> None:
    whole = torch.arange(length + offset, dtype=torch.int64).mul_(37).to(torch.uint8)
    part = whole[offset:]
    assert sums.checksum(part.clone()) == sums.checksum(part)


def test_rows_that_change_places_are_noticed() -> None:
    rows = torch.arange(3 * sums.ROW_BYTES, dtype=torch.int64).mul_(37).div_(1000, rounding_mode="floor")
    data = rows.to(torch.uint8).view(3, -1)
    assert sums.checksum(data.view(-1)) != sums.checksum(data[[1, 0, 2]].reshape(-1))


def test_several_threads_come_to_the_same_sum() -> None:
    data = torch.arange(70 * sums.ROW_BYTES + 13, dtype=torch.int64).mul_(37).to(torch.uint8)
    assert sums.checksum(data) == sums.checksum_quickly(data)


AT_THE_END = """
import atexit, torch
from taskd.train.torch import sums

data = torch.arange(5_000_000)
atexit.register(lambda: print(sums.checksum_quickly(data.view(torch.uint8)) == before))
before = sums.checksum_quickly(data.view(torch.uint8))
"""


def test_a_rank_whose_script_has_ended_can_still_sum_up() -> None:
    """It stays to help others, when the interpreter has no pools of threads any more."""
    ended = subprocess.run([sys.executable, "-c", AT_THE_END], capture_output=True, text=True, check=True)
    assert "True" == ended.stdout.strip(), ended.stderr
