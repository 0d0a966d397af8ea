"""The workload under torchft: each rank is a replica group of its own, a newcomer heals from a peer.

With BENCH_SPARE=1 one replica more than the world computes along and counts as soon as one is lost: torchft's
fastest way back to a full world, at the price of a rank whose work is thrown away.
"""

import os
import time
from datetime import timedelta

import torch
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
from torchft.checkpointing.pg_transport import PGTransport
from torchft.manager import WorldSizeMode
from workload import GROUP_LIMIT_S, PLACE, SLEEP_S, STEPS, Ledger, batch, build

SPARE = os.environ.get("BENCH_SPARE") == "1"
WORLD = 4


def main() -> None:
    """Train."""
    ledger = Ledger()
    replica = int(os.environ["REPLICA_GROUP_ID"])
    model, inner = build()
    group = ProcessGroupGloo(timeout=timedelta(seconds=GROUP_LIMIT_S))

    def restore(state: dict[str, dict[str, object]]) -> None:
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])
        ledger.mark("healed")

    manager = Manager(
        pg=group,
        min_replica_size=WORLD if SPARE else 1,
        world_size_mode=WorldSizeMode.FIXED_WITH_SPARES if SPARE else WorldSizeMode.DYNAMIC,
        load_state_dict=restore,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": inner.state_dict()},
        replica_id=f"bench_{replica}",
        hostname="localhost",
        timeout=timedelta(seconds=30),
        checkpoint_transport=PGTransport(group, timeout=timedelta(seconds=10), device="cpu"),
        init_sync=False,  # all replicas begin with the same seed
    )
    ddp = DistributedDataParallel(manager, model)
    optimizer = Optimizer(manager, inner)
    ledger.mark("built")
    _begin_together(replica)
    while manager.current_step() < STEPS:
        step, began = manager.current_step(), time.monotonic()
        optimizer.zero_grad()  # asks for the quorum, in the background
        x, y = batch(step, replica)
        loss = torch.nn.functional.cross_entropy(ddp(x), y)
        time.sleep(SLEEP_S)
        loss.backward()
        before = manager.current_step()  # healing has moved it by now
        ledger.begin(before, replica, began)
        optimizer.step()
        loss.item()
        if manager.current_step() > before and manager.is_participating():
            ledger.step(before, manager.participating_rank() or 0, manager.num_participants())


def _begin_together(replica: int) -> None:
    """Let no replica ask for a first quorum before all are there to be in it."""
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0":
        return
    meeting = PLACE.parent / "meeting"
    meeting.mkdir(exist_ok=True)
    (meeting / str(replica)).touch()
    while len(list(meeting.iterdir())) < int(os.environ["NUM_REPLICA_GROUPS"]):
        time.sleep(0.02)


if __name__ == "__main__":
    main()
