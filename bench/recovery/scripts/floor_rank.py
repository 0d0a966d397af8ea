"""A rank of the floor: a process that is built, waits, and joins when it is told to.

Nothing detects, decides or interrupts here. Each line on stdin is one round: form the group, give everybody
the state of one rank, build the wrapper, and do some steps. Between rounds all wait, so a rank that is killed
then leaves nobody in a collective.
"""

import json
import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from workload import Ledger, batch, build, compute

HOST = "127.0.0.1"


def main() -> None:
    """Be built, then take part in rounds."""
    ledger = Ledger()
    model, optimizer = build()
    x, y = batch(0, 0)
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()  # now the moments exist, and all lazy imports are done
    store = dist.TCPStore(HOST, int(os.environ["BENCH_STORE"]), is_master=False)
    ledger.mark("ready")
    for line in sys.stdin:
        order = json.loads(line)
        number, rank, world = order["round"], order["rank"], order["world"]
        group = dist.PrefixStore(str(number), store)
        dist.init_process_group("gloo", store=group, rank=rank, world_size=world)
        ledger.mark("group")
        _share_state(model, optimizer, order["source"])
        ledger.mark("restored")
        ddp = DistributedDataParallel(model)
        ledger.mark("wrapped")
        for step in range(order["first"], order["first"] + order["steps"]):
            compute(ledger, ddp, optimizer, step, rank)
            ledger.step(step, rank, world)
        del ddp
        dist.destroy_process_group()
        ledger.mark(f"idle-{number}")


def _share_state(model: torch.nn.Module, optimizer: torch.optim.Optimizer, source: int) -> None:
    tensors = [parameter.data for parameter in model.parameters()]
    for state in optimizer.state.values():
        tensors += [state["exp_avg"], state["exp_avg_sq"], state["step"]]
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    dist.broadcast(flat, src=source)
    offset = 0
    for tensor in tensors:
        tensor.copy_(flat[offset : offset + tensor.numel()].view_as(tensor))
        offset += tensor.numel()


def serve() -> None:
    """Be the store, which nobody kills."""
    server = dist.TCPStore(HOST, int(os.environ["BENCH_STORE"]), is_master=True, wait_for_workers=False)
    sys.stdin.read()
    del server


if __name__ == "__main__":
    serve() if "--serve" in sys.argv else main()
