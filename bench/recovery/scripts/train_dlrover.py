"""The workload under DLRover, with its checkpoints in shared memory."""

import copy
import os
from datetime import timedelta

import torch.distributed as dist
from dlrover.trainer.torch.flash_checkpoint.ddp import DdpCheckpointer, StorageType
from torch.nn.parallel import DistributedDataParallel
from workload import EVERY, GROUP_LIMIT_S, PLACE, STEPS, Ledger, build, compute


def main() -> None:
    """Train."""
    ledger = Ledger()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", timeout=timedelta(seconds=GROUP_LIMIT_S))
    ledger.mark("group")
    model, optimizer = build()
    checkpointer = DdpCheckpointer(str(PLACE.parent / "flash"))
    # What it returns are views of memory that all ranks map, and an optimizer on the CPU would keep them:
    # then the ranks write over each other's moments.
    saved = copy.deepcopy(checkpointer.load_checkpoint())
    start = 0
    if saved:
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        start = int(saved["step"])
    ddp = DistributedDataParallel(model)
    ledger.mark("built")
    for step in range(start, STEPS):
        compute(ledger, ddp, optimizer, step, rank)
        ledger.step(step, rank, world)
        if (step + 1) % EVERY == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
            checkpointer.save_checkpoint(step + 1, state, storage_type=StorageType.MEMORY)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
