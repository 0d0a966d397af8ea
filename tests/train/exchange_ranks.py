"""Two ranks: the first sends its state, the second has the same objects in another state and receives."""

import json
import os
import sys
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
from torch import nn

from taskd.train.torch import exchange
from taskd.train.torch.exchange import StateDamaged, StateMismatch, digest, receive_state, send_state
from taskd.train.torch.pickling import Shape, take_out

dist: Any = torch.distributed  # its stores are exported, but not for the type checker


class Odd:
    """A state with everything that may be in one."""

    def __init__(self, seed: int) -> None:
        made = torch.Generator().manual_seed(seed)
        base = torch.rand(40, 50, generator=made)
        tied = torch.rand(3, 3, generator=made)
        self.state: dict[str, Any] = {
            "transposed": base.t(),
            "sliced": base[::3, 5:17],
            "expanded": base[:1].expand(4, 50),
            "channels last": torch.rand(2, 3, 4, 5, generator=made).to(memory_format=torch.channels_last),
            "bf16": base.bfloat16(),
            "bool": base > 0.5,
            "int8": (base * 100).to(torch.int8),
            "int64": (base * 1e15).long(),
            "complex": torch.complex(base, base),
            "conjugated": torch.complex(base, base).conj(),
            "float8": base.to(torch.float8_e4m3fn),
            "nothing": torch.empty(0, 7),
            "scalar": torch.tensor(seed),
            "nan": torch.tensor([float("nan"), -0.0, float("inf")]),
            "tied": [tied, tied, (tied, {"again": tied})],
            "large": torch.rand(700_001, generator=made),
            "sparse": torch.eye(4).to_sparse(),
            "numbers": [1, 2.5, None, True, "text", b"bytes", (1, (2, [3])), {4, 5}],
        }

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.state = state_dict


def make(seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Linear(30, 600), nn.BatchNorm1d(600), nn.Dropout(0.1), nn.Linear(600, 600), nn.Linear(600, 3)
    )
    other = nn.Linear(600, 3).bfloat16()
    adam = torch.optim.AdamW(net.parameters(), lr=1e-3, amsgrad=True)
    sgd = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, 100)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0 * seed)
    objects = {"net": net, "other": other, "adam": adam, "sgd": sgd, "schedule": schedule, "scaler": scaler}
    train(objects, seed)
    return {**objects, "odd": Odd(seed)}


def train(objects: dict[str, Any], steps: int) -> None:
    for _ in range(steps):
        objects["adam"].zero_grad()
        objects["sgd"].zero_grad()
        loss = (
            objects["net"](torch.randn(8, 30)).sum() + objects["other"](torch.ones(2, 600).bfloat16()).sum()
        )
        loss.backward()
        objects["adam"].step()
        objects["sgd"].step()
        objects["schedule"].step()


def sender() -> dict[str, Any]:
    objects = make(3)
    before = digest(objects)
    sent = send_state(objects, 1, extra=b"step 3")
    assert before == digest(objects)
    torch.manual_seed(9)
    train(objects, 2)
    # A byte changes on the way.
    real_isend = dist.isend
    length = flip_length(objects)
    dist.isend = lambda data, dst: real_isend(flip(data) if data.numel() == length else data, dst)
    send_state(objects, 1)
    dist.isend = real_isend
    send_state({"net": objects["net"]}, 1)
    return {"digest": before, "sent": sent, "later": digest(objects)}


def flip_length(objects: dict[str, Any]) -> int:
    """The length of the only piece of the second module."""
    tensors: list[torch.Tensor] = []
    take_out("other", objects["other"].state_dict(), tensors, "sent")
    shapes = [Shape.of(tensor) for tensor in tensors]
    return next(exchange._plan(shapes, [("other", len(shapes))])).length


def flip(data: torch.Tensor) -> torch.Tensor:
    data = data.clone()
    data[data.numel() // 2] ^= 0x40
    return data


def receiver() -> dict[str, Any]:
    objects = make(2)
    parameters = [id(p) for p in objects["net"].parameters()]
    extra = receive_state(objects, 0)
    got = digest(objects)
    state = objects["odd"].state
    same = {
        "parameters": parameters == [id(p) for p in objects["net"].parameters()],
        "optimizer": parameters == [id(p) for p in objects["adam"].param_groups[0]["params"]],
        "tied": state["tied"][0] is state["tied"][1] is state["tied"][2][1]["again"],
        "strides": state["channels last"].is_contiguous(memory_format=torch.channels_last),
        "transposed": (1, 50) == state["transposed"].stride(),
        "kinds": [[type(x).__name__ for x in state["numbers"]]],
    }
    torch.manual_seed(9)
    train(objects, 2)
    later = digest(objects)
    damaged = mismatch = ""
    try:
        receive_state(objects, 0)
    except StateDamaged as error:
        damaged = error.name
    untouched = later == digest(objects)
    try:
        receive_state(objects, 0)
    except StateMismatch as error:
        mismatch = str(error)
    untouched = untouched and later == digest(objects)
    return {
        "digest": got,
        "extra": extra.decode(),
        "later": later,
        "same": same,
        "damaged": damaged,
        "mismatch": mismatch,
        "untouched": untouched,
    }


def measure(rank: int, megabytes: int) -> dict[str, Any]:
    net = nn.ParameterDict({str(i): nn.Parameter(torch.randn(megabytes * 2**18 // 8)) for i in range(8)})
    best = 1e9
    for _ in range(4):
        dist.barrier()
        begin = time.perf_counter()
        if rank == 0:
            send_state({"net": net}, 1)
        else:
            receive_state({"net": net}, 0)
        dist.barrier()
        best = min(best, time.perf_counter() - begin)
    return {"gb_per_s": megabytes * 2**20 / best / 1e9}


if __name__ == "__main__":
    me = int(os.environ["RANK"])
    store = dist.FileStore(os.environ["STORE"], -1)
    dist.init_process_group("gloo", store=store, rank=me, world_size=2, timeout=timedelta(seconds=30))
    work = sender if me == 0 else receiver
    answer = measure(me, int(sys.argv[1])) if sys.argv[1:] else work()
    dist.destroy_process_group()
    print(json.dumps(answer))
