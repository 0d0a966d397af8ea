"""The same script without recovery: started by hand, or by torchrun itself."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from taskd.train.torch.wrapping import building, fits


def has_own_group() -> bool:
    """Tell whether the script made a process group by itself."""
    return dist.is_initialized()


def wrap_without_recovery(builder: Callable[[], Any], world_size: int) -> Any:  # noqa: ANN401
    """Make the process group if the script has made none (also for a job of one), then build."""
    if not dist.is_initialized():
        if world_size > 1:
            dist.init_process_group("gloo")
        else:
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    if not fits():
        return builder()
    # As where it can be recovered: the same script computes the same bits, whoever starts it.
    with building(sync=True):
        return builder()


def own_device(local_rank: int) -> torch.device:
    """Choose the accelerator of a local rank; several ranks may share one, the CPU is everybody's."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is None:
        return torch.device("cpu")
    return torch.device(accelerator.type, local_rank % max(1, torch.accelerator.device_count()))
