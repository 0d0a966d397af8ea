from pathlib import Path

import pytest
import torch

from taskd.train.torch import neighbours, sums
from taskd.train.torch.neighbours import Offer
from tests.train.crew import run_crew


@pytest.mark.slow
@pytest.mark.parametrize("case", ["taken", "refused", "damaged"])
def test_state_goes_by_handle_where_the_receiver_can_use_it(tmp_path: Path, case: str) -> None:
    """Else as bytes. The sender's memory is let go of when the receiver is done, and damage is noticed."""
    results = run_crew("neighbour_ranks.py", 2, tmp_path, case)
    sender, receiver = results[0], results[1]

    assert (case == "damaged") == receiver["damaged"] == receiver["untouched"]
    assert (case != "damaged") == (sender["digest"] == receiver["digest"])
    assert (case == "refused") == sender["kept"]
    if case == "taken":
        # The head and a few scalars: the tensors did not travel.
        assert sender["sent"] < 4 * sum(p.numel() for p in torch.nn.Linear(60, 60).parameters())


def test_an_offer_of_another_machine_is_not_opened() -> None:
    assert neighbours.open_offer(Offer("another boot", [], [], [])) is None


def test_tensors_of_the_host_are_not_offered() -> None:
    assert neighbours.offer([torch.ones(3)]) is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_a_device_and_the_host_agree_on_checksums() -> None:
    data = torch.randint(0, 256, (3 * sums.ROW_BYTES + 1234567,), dtype=torch.uint8)
    for length in (0, 1, 7, 8, 9, sums.ROW_BYTES, sums.ROW_BYTES + 3, data.numel()):
        part = data[:length]
        assert sums.checksum(part) == sums.checksum(part.cuda()) == sums.checksum_quickly(part)
