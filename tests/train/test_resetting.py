"""What cannot be brought back is refused when it is given, not at the first fault."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer

from taskd.train.torch.resetting import SingleShares, refuse_unkept


def test_an_optimizer_with_one_copy_of_each_share_is_refused() -> None:
    """Its state_dict fails where one rank asks for it alone, which is what a recovery does."""
    model = torch.nn.Linear(2, 2)
    refuse_unkept(model)
    refuse_unkept(torch.optim.Adam(model.parameters()))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.1)

        with pytest.raises(SingleShares, match="ShardedOptimizer"):
            refuse_unkept(optimizer)
    finally:
        dist.destroy_process_group()
