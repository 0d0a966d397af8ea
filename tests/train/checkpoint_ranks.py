"""Real processes that write and read checkpoints.

``train``: ranks train a model in an HSDP mesh (2 x 2), write a checkpoint every few steps and resume from the
newest that all can read.

``kills``: one process that forks writers, each killed at another system call, and looks at what is left.
"""

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch import nn

from taskd.train.torch import statefile
from taskd.train.torch.checkpointer import Checkpointer, capture_objects, dump
from taskd.train.torch.checkpoints import agree, find_offers
from taskd.train.torch.exchange import digest
from taskd.train.torch.manifests import Layout, RankState
from taskd.train.torch.own import OwnState

dist: Any = torch.distributed  # its stores are exported, but not for the type checker


# --- train -------------------------------------------------------------------------------------------------


def train(root: Path, until: int) -> dict[str, Any]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.FileStore(os.environ["STORE"], -1)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=60))
    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replica", "shard"))
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.Dropout(0.1), nn.Linear(64, 4))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)
    objects: dict[str, Any] = {"model": model, "optimizer": optimizer, "schedule": schedule}
    layout = Layout(tuple(f"{index % (world // 2)}/{world // 2}" for index in range(world)))
    torch.manual_seed(100 + rank)

    def gather(steps: list[int]) -> dict[int, list[int]]:
        answers: list[Any] = [None] * world
        dist.all_gather_object(answers, steps)
        return dict(enumerate(answers))

    run = os.environ["RUN"]
    saver = Checkpointer(root, every=3, keep=9, rank=rank, layout=layout, run=run)
    offer = agree(root, layout, rank, gather)
    begun = 0
    if offer is not None:
        mine = offer.load(objects)
        offer.close()
        begun = mine.position
        OwnState().restore(objects, mine.own)
        assert {"epoch": begun} == mine.loader
    losses = {}
    for step in range(begun, until):
        optimizer.zero_grad()
        made = torch.Generator().manual_seed(1000 * step + rank)
        loss = model(torch.randn(8, 16, generator=made)).square().mean()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses[step] = loss.item().hex()
        if saver.due(step + 1):
            saver.take(
                step + 1, objects, RankState(OwnState().capture(objects), step + 1, {"epoch": step + 1})
            )
            saver.close()  # a test leaves no round out
    saver.close()
    local = {name: Local(thing) for name, thing in objects.items()}
    answer = {"begun": begun, "losses": losses, "digest": digest(local), "written": saver.written}
    dist.barrier()
    dist.destroy_process_group()
    return answer


class Local:
    """The state of an object with only this rank's part of each tensor."""

    def __init__(self, thing: Any) -> None:
        self.thing = thing

    def state_dict(self) -> Any:
        return localize(self.thing.state_dict())

    def load_state_dict(self, state_dict: Any) -> None:
        raise NotImplementedError


def localize(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: localize(item) for key, item in value.items()}
    if isinstance(value, list):
        return [localize(item) for item in value]
    return value.to_local() if hasattr(value, "to_local") else value


# --- kills -------------------------------------------------------------------------------------------------


class Holder:
    def __init__(self, value: int) -> None:
        self.state: dict[str, Any] = {
            "weights": torch.full((100_000,), value, dtype=torch.int32),
            "n": value,
        }

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state_dict: Any) -> None:
        self.state = state_dict


LAYOUT = Layout(("all",))


def write(root: Path, value: int, attempt: int) -> None:
    """One checkpoint of step 1 or 2, or of step 2 again over the first one."""
    dump(
        root,
        step=min(value, 2),
        layout=LAYOUT,
        run=f"run{value}",
        generation=attempt,
        shards=[("all", capture_objects({"holder": Holder(value)}))],
        ranks={0: RankState(b"own", value)},
        publish=True,
    )


def read(root: Path) -> int:
    """The value that a reader finds, 0 if nothing; half of anything raises."""
    offers = find_offers(root, LAYOUT, 0, enough=None)
    value = 0
    if offers:
        holder = Holder(0)
        mine = offers[0].load({"holder": holder})
        value = holder.state["n"]
        assert value == mine.position
        assert bool((holder.state["weights"] == value).all())
    for offer in offers:
        offer.close()
    return value


def trap(at: int) -> None:
    """Be killed at a system call that changes something: before it, or half-way through a write."""
    calls = iter(range(10**9))

    def wrapped(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            if next(calls) == at:
                if name == "pwritev":
                    views = args[1]
                    os.pwrite(args[0], views[0][: len(views[0]) // 2], args[2])
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **named)

        return call

    for name in ("open", "pwritev", "fsync", "rename", "unlink", "mkdir", "rmdir", "close"):
        setattr(os, name, wrapped(name, getattr(os, name)))
    real_rename = Path.rename
    setattr(Path, "rename", wrapped("rename", real_rename))  # noqa: B010 - a test's own trap


def kills(root: Path) -> dict[str, Any]:
    """Kill writers of each further value at every point; each time the old or the new must be there."""
    setattr(statefile, "BLOCK_BYTES", 2**16)  # noqa: B010 - so that there are many
    seen: dict[int, list[int]] = {}
    for value in (1, 2, 3):
        seen[value] = []
        for at in range(1000):
            child = os.fork()
            if not child:
                trap(at)
                write(root, value, at)
                os._exit(0)
            _, status = os.waitpid(child, 0)
            found = read(root)
            assert found in {value - 1, value}, f"value {found} after a kill at call {at} of value {value}"
            seen[value].append(found)
            visible = [path for path in root.iterdir() if not path.name.startswith(".")]
            assert len(visible) <= 2
            if os.WIFEXITED(status):
                assert os.WEXITSTATUS(status) == 0
                break
    return {"seen": seen}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("work", choices=["train", "kills"])
    parser.add_argument("root", type=Path)
    parser.add_argument("--until", type=int, default=12)
    args = parser.parse_args()
    args.root.mkdir(exist_ok=True)
    torch.set_num_threads(1)
    result = train(args.root, args.until) if args.work == "train" else kills(args.root)
    print(json.dumps(result))
    sys.stdout.flush()
    os._exit(0)  # a mesh's groups can take very long to go at the end of the interpreter
