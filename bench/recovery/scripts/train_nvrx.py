"""The workload inside NVIDIA's in-process wrapper: survivors stay and call the function again.

Its intervals are a second each by default; a quarter of that is the least that worked reliably. It aborts
NCCL but not gloo, so a rank that is not a neighbour of the dead one comes out when the group's limit passes.
The spare has imported and built everything once before it waits.
"""

import os
from datetime import timedelta

import torch.distributed as dist
from nvidia_resiliency_ext import inprocess
from torch.nn.parallel import DistributedDataParallel
from workload import EVERY, GROUP_LIMIT_S, STEPS, Ledger, build, compute, load, save

PORT = int(os.environ["MASTER_PORT"])
ACTIVE = int(os.environ["BENCH_ACTIVE"])

ledger = Ledger()
build()
ledger.mark("prepared")


@inprocess.Wrapper(
    store_kwargs={"host_name": "127.0.0.1", "port": PORT + 1},
    rank_assignment=inprocess.Compose(
        inprocess.rank_assignment.MaxActiveWorldSize(ACTIVE), inprocess.rank_assignment.ShiftRanks()
    ),
    monitor_thread_interval=timedelta(seconds=0.25),
    monitor_process_interval=timedelta(seconds=0.25),
    heartbeat_interval=timedelta(seconds=1),
    progress_watchdog_interval=timedelta(seconds=1),
    last_call_wait=timedelta(seconds=0.1),
)
def main(call_wrapper: inprocess.CallWrapper = None) -> None:  # the wrapper looks for this very type
    """Train, from the last checkpoint on."""
    rank, world, attempt = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), call_wrapper.iteration
    ledger.mark("entered")
    store = dist.TCPStore(
        "127.0.0.1",
        PORT + 2 + attempt,
        world,
        is_master=rank == 0,
        multi_tenant=True,
        wait_for_workers=True,
    )
    limit = timedelta(seconds=GROUP_LIMIT_S)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=limit)
    ledger.mark("group")
    model, optimizer = build()
    start = load(model, optimizer)
    ddp = DistributedDataParallel(model)
    ledger.mark("built")
    for step in range(start, STEPS):
        compute(ledger, ddp, optimizer, step, rank)
        ledger.step(step, rank, world)
        if (step + 1) % EVERY == 0 and rank == 0:
            with call_wrapper.atomic():
                save(model, optimizer, step + 1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
