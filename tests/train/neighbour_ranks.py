"""Two ranks that exchange state by handles, where a file stands for the memory of the device.

The driver's calls need a GPU; what is tried here is what the ranks say to each other around them: an offer
that is taken, one that is refused, and one whose bytes are not what was promised.
"""

import json
import os
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch import nn

from taskd.train.torch import neighbours, sums
from taskd.train.torch.exchange import StateDamaged, digest, receive_state, send_state
from taskd.train.torch.neighbours import Offer

dist: Any = torch.distributed  # its stores are exported, but not for the type checker
MEMORY = Path(os.environ["STORE"] + ".memory")
case = sys.argv[1]


def flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def offer(tensors: Sequence[torch.Tensor]) -> Offer:
    """Offer all but the scalars, as if they were on a device."""
    data = bytearray()
    places, seals = [], []
    for number, tensor in enumerate(tensors):
        if tensor.numel() > 1:
            places.append((number, 0, len(data)))
            seals.append(sums.checksum(flat(tensor)))
            data += bytes(flat(tensor).tolist())
    if case == "damaged":
        data[len(data) // 2] ^= 1
    MEMORY.write_bytes(data)
    return Offer("here", [b""], places, seals)


class Opened:
    def __init__(self, given: Offer) -> None:
        self.given = given

    def copy(self, tensors: Sequence[torch.Tensor]) -> list[int]:
        data = MEMORY.read_bytes()
        damaged = []
        for (number, _, at), seal in zip(self.given.tensors, self.given.seals, strict=True):
            part = bytearray(data[at : at + tensors[number].nbytes])
            flat(tensors[number]).copy_(torch.frombuffer(part, dtype=torch.uint8))
            if sums.checksum(flat(tensors[number])) != seal:
                damaged.append(number)
        return damaged

    def close(self) -> None:
        MEMORY.unlink()


neighbours.offer = offer
neighbours.open_offer = lambda given: None if case == "refused" else Opened(given)  # type: ignore[assignment, return-value]

me = int(os.environ["RANK"])
store = dist.FileStore(os.environ["STORE"], -1)
dist.init_process_group("gloo", store=store, rank=me, world_size=2, timeout=timedelta(seconds=30))
torch.manual_seed(me)
net = nn.Sequential(nn.Linear(30, 60), nn.BatchNorm1d(60), nn.Linear(60, 3))
adam = torch.optim.AdamW(net.parameters())
objects: dict[str, Any] = {"net": net, "adam": adam}
damaged = False
if me == 0:
    net(torch.randn(5, 30)).sum().backward()
    adam.step()
    sent = send_state(objects, 1, extra=b"more")
    answer: dict[str, Any] = {"digest": digest(objects), "sent": sent, "kept": MEMORY.exists()}
else:
    before = digest(objects)
    try:
        assert receive_state(objects, 0) == b"more"
    except StateDamaged:
        damaged = True
    answer = {"digest": digest(objects), "damaged": damaged, "untouched": before == digest(objects)}
dist.barrier()
dist.destroy_process_group()
print(json.dumps(answer))
