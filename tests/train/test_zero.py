import pytest
import torch

from taskd.train.torch.zero import ShardedOptimizer


def test_parameters_of_several_types_are_refused() -> None:
    """Gathered together they would lose bits."""
    parameters = [torch.nn.Parameter(torch.zeros(2, dtype=kind)) for kind in (torch.float32, torch.bfloat16)]

    with pytest.raises(ValueError, match=r"bfloat16.*float32"):
        ShardedOptimizer(parameters, torch.optim.AdamW)
