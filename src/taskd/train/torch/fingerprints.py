"""A number for a rank's parameters and optimizer state, quick enough to be taken during a recovery.

Replicas must agree to the bit, so a replica whose number differs is damaged, and is noticed before its state
is given to anybody. Sums of whole words run at the speed of memory; any change of a single bit changes the
sum. Buffers are left out: they belong to a rank alone.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from taskd.train.torch.zero import ShardedOptimizer

_MASK = (1 << 63) - 1
_PRIME = 1_000_003
_WORD = 8


def fingerprint(objects: Mapping[str, Any]) -> int:
    """Return the number: equal for equal parameters and optimizer tensors in the same order."""
    return print_of(_tensors(objects))


def print_of(tensors: Iterable[torch.Tensor]) -> int:
    """Return the number of these tensors."""
    sums: list[torch.Tensor] = []
    for tensor in tensors:
        flat = tensor.detach().contiguous().view(-1).view(torch.uint8)
        whole = flat.numel() // _WORD * _WORD
        if whole and flat.data_ptr() % _WORD == 0:
            sums.append(flat[:whole].view(torch.int64).sum())
            flat = flat[whole:]
        if flat.numel():
            sums.append(flat.to(torch.int64).sum())
    total = len(sums)
    for number in _fetch(sums):
        total = (total * _PRIME + number) & _MASK
    return total


def _fetch(sums: list[torch.Tensor]) -> list[int]:
    """Return single numbers, from each device at once: a busy one would take its time for each."""
    found = [0] * len(sums)
    places: dict[torch.device, list[int]] = {}
    for place, each in enumerate(sums):
        places.setdefault(each.device, []).append(place)
    for there in places.values():
        for place, number in zip(there, torch.stack([sums[each] for each in there]).tolist(), strict=True):
            found[place] = number
    return found


def _tensors(objects: Mapping[str, Any]) -> Iterator[torch.Tensor]:
    for name in sorted(objects):
        thing = objects[name]
        if isinstance(thing, torch.nn.Module):
            yield from map(local, thing.parameters())
        elif isinstance(thing, torch.optim.Optimizer):
            inner = thing.inner if isinstance(thing, ShardedOptimizer) else thing
            for group in inner.param_groups:
                for parameter in group["params"]:
                    state = inner.state.get(parameter, {})
                    for key in sorted(state, key=str):
                        if isinstance(state[key], torch.Tensor):
                            yield local(state[key])


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a distributed tensor."""
    to_local = getattr(tensor, "to_local", None)
    return tensor if to_local is None else to_local()
