"""The workload as it is without any help: DDP, and a checkpoint every few steps if asked for.

Runs under torchrun, under NVIDIA's ``ft_launcher`` (BENCH_HEARTBEAT=1 tells its monitor of each step), and
with nothing but the environment, which is the bare script that TaskD's cost is measured against.
"""

import os
from collections.abc import Callable
from datetime import timedelta

import torch.distributed as dist
from gate import wait_turn
from torch.nn.parallel import DistributedDataParallel
from workload import EVERY, GROUP_LIMIT_S, STEPS, Ledger, build, compute, load, save


def main() -> None:
    """Train."""
    ledger = Ledger()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    beat = _heartbeat()
    dist.init_process_group("gloo", timeout=timedelta(seconds=GROUP_LIMIT_S))
    ledger.mark("group")
    model, optimizer = build()
    start = load(model, optimizer) if EVERY else 0
    ddp = DistributedDataParallel(model)
    ledger.mark("built")
    wait_turn(start)
    for step in range(start, STEPS):
        compute(ledger, ddp, optimizer, step, rank)
        ledger.step(step, rank, world)
        beat()
        if EVERY and (step + 1) % EVERY == 0 and rank == 0:
            save(model, optimizer, step + 1)
        wait_turn(step + 1)
    dist.destroy_process_group()


def _heartbeat() -> Callable[[], None]:
    if os.environ.get("BENCH_HEARTBEAT") != "1":
        return _nothing
    from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient

    client = RankMonitorClient()
    client.init_workload_monitoring()
    beat: Callable[[], None] = client.send_heartbeat
    return beat


def _nothing() -> None:
    pass


if __name__ == "__main__":
    main()
